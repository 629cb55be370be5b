"""How commands print for people: a program's text as it is, and lines that are broken on terminals only."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console

_UNBROKEN: Final = 100_000
"""Columns of what is no terminal: names in it are searched for, and copied."""


def console() -> Console:
    """Return the console of standard output. It takes no text for markup: what is in a program may look like it."""
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False, width=None if sys.stdout and sys.stdout.isatty() else _UNBROKEN)
