"""Paths, as strings."""

from __future__ import annotations

import os


def path_below(path: str, folder: str = os.curdir) -> str | None:
    """Return a path relative to a folder that it lies in or below; None for one elsewhere (`..data` is inside)."""
    relative = os.path.relpath(path, folder)
    return None if relative == os.pardir or relative.startswith(os.pardir + os.sep) else relative
