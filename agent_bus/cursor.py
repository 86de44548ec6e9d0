"""What one observer has been shown: a set of ids, never "the last one" and never a time.

A message that lands late sorts before those that were quicker, so that anything like a
watermark would pass it over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from agent_bus.names import MessageId

_BEFORE_START = 0
_SLACK = 1024


class Cursor:
    """The ids that one observer has been shown, beginning with what is unread now.

    It is not locked: its owner is. Each `mark` has a number, so that of several calls that
    wait at once each can be given what another one was given after it had begun.
    """

    def __init__(self, unread: Iterable[MessageId] = ()) -> None:
        self._shown = dict.fromkeys(unread, _BEFORE_START)
        self._before = frozenset(self._shown)
        self._position = _BEFORE_START

    @property
    def position(self) -> int:
        """The number of the latest `mark`."""
        return self._position

    def fresh(
        self,
        unread: Collection[MessageId],
        *,
        since: int | None = None,
        include_existing: bool = False,
    ) -> list[MessageId]:
        """Those of the unread ids that were not shown, in the order given.

        `unread` is everything that is unread now; what is no longer among it is forgotten in
        time. With `since` a position, what was shown later than that counts as not shown.
        `include_existing` adds what lay there at the start and was never shown either.
        """
        self._forget(unread)
        known = self._position if since is None else since

        def is_fresh(ident: MessageId) -> bool:
            shown = self._shown.get(ident)
            if shown == _BEFORE_START:
                return include_existing
            return shown is None or shown > known

        return [ident for ident in unread if is_fresh(ident)]

    def mark(self, ids: Iterable[MessageId]) -> None:
        """Remember that these have been shown."""
        self._position += 1
        self._shown.update(dict.fromkeys(ids, self._position))

    def unmark(self, ids: Iterable[MessageId]) -> None:
        """Forget that these have been shown: they did not reach whoever asked."""
        for ident in ids:
            if ident in self._before:
                self._shown[ident] = _BEFORE_START
            else:
                self._shown.pop(ident, None)

    def from_before(self, unread: Iterable[MessageId]) -> list[MessageId]:
        """Those of the unread ids that lay there at the start, shown or not."""
        return [ident for ident in unread if ident in self._before]

    def __len__(self) -> int:
        return len(self._shown)

    def _forget(self, unread: Collection[MessageId]) -> None:
        # Not at once: a listing that comes out short once must not repeat what was shown.
        if len(self._shown) > 2 * len(unread) + _SLACK:
            self._shown = {i: self._shown[i] for i in unread if i in self._shown}
            self._before &= self._shown.keys()
