"""Text with nothing hidden in it, for people: on a terminal, in a file, on a page.

Text of a message, a name of a file, the text of an error: all of it may hold characters that
move the cursor, hide or turn around what stands beside them, or end a line. They are written
by their numbers.
"""

from __future__ import annotations

import re
import secrets
import unicodedata
from collections.abc import Iterator
from itertools import groupby

_PLAIN = re.compile(r"[ -~]*")
# Controls, formats (bidi, zero-width), surrogates, private use, and the line and paragraph
# separators.
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
_TICKS = re.compile("`+")


def visible(text: str, keep: str = "") -> str:
    r"""The text with all that cannot be seen written as \xNN, \uNNNN or \UNNNNNNNN.

    `keep` are characters that stay as they are, for a body "\n\t".
    """
    return "".join(shown for shown, _ in segments(text, keep))


def segments(text: str, keep: str = "") -> Iterator[tuple[str, bool]]:
    """The same in pieces; each says whether it stands for something that cannot be seen."""
    if _PLAIN.fullmatch(text):
        yield text, False
        return
    for hidden, run in groupby(text, lambda char: char not in keep and is_hidden(char)):
        yield "".join(_number(char) if hidden else char for char in run), hidden


def is_hidden(char: str) -> bool:
    """Whether a character cannot be seen, or moves what stands beside it."""
    return unicodedata.category(char) in _HIDDEN


def cut(text: str, limit: int) -> str:
    """At most `limit` characters of a text."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def fenced(text: str, name: str, note: str = "") -> str:
    """Escaped text as what it is called, in a fence that it cannot close or imitate.

    `note` are lines between the fence and its end, which are not the text's.
    """
    longest = max((len(ticks) for ticks in _TICKS.findall(text)), default=0)
    fence = "`" * max(3, longest + 1)
    # Besides its length, a name that nobody could have known when the text was written.
    mark = f"{name}-{secrets.token_hex(8)}"
    return f"{fence}{mark}\n{text}\n{fence}{note}\nEnd of {mark}."


def _number(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
