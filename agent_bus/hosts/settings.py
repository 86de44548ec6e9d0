"""Where the hosts keep what is the user's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Homes:
    """Folders of the hosts."""

    claude: Path
    """The folder of `.claude.json`."""
    codex: Path


def load(environ: Mapping[str, str] | None = None) -> Homes:
    """Read the environment, as the hosts do."""
    env = os.environ if environ is None else environ
    home = Path(env.get("HOME") or os.path.expanduser("~"))
    return Homes(
        claude=Path(env.get("CLAUDE_CONFIG_DIR") or home),
        codex=Path(env.get("CODEX_HOME") or home / ".codex"),
    )
