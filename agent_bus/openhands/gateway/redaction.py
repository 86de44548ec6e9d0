"""Secrets taken out of text that a child wrote, before it goes anywhere."""

from __future__ import annotations

import re

_CAPABILITY = re.compile(r"evx[0-9]+_[A-Za-z0-9_-]{16,}", re.ASCII)
_SHORTEST = 6
"""Characters of a secret that is worth hiding: a shorter one would hit common words."""


class Redaction:
    """Knows what must not be shown."""

    def __init__(self, *secrets: str | None) -> None:
        self._secrets = [secret for secret in secrets if secret and len(secret) >= _SHORTEST]

    def __call__(self, text: str) -> str:
        """The text without capabilities and without any of the secrets."""
        shown = _CAPABILITY.sub("[capability removed]", text)
        for secret in self._secrets:
            shown = shown.replace(secret, "[secret removed]")
        return shown
