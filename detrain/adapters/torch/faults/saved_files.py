"""Files that `torch.save` writes: its own code opens them, so nothing else hears of them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch


def note_saves(note: Callable[[str], object]) -> None:
    """Tell of each file that `torch.save` writes from here on."""
    save = torch.save

    @functools.wraps(save)
    def saved(obj: object, f: Any, *arguments: Any, **keywords: Any) -> None:
        if isinstance(f, str | os.PathLike):
            note(os.path.abspath(os.fspath(f)))
        save(obj, f, *arguments, **keywords)

    torch.save = saved
