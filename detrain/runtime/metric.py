"""The number of the program by which `--keep-best` tells the best checkpoint: read where the program keeps it, never computed.

A name is that of a local of the loop's function or of one that called it, or of a global of its module; `a.b` is the attribute of
an object, or the entry of a dict or (by its number, `losses.-1`) of a list. Where no such name is, Keras's logs are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Final

import numpy as np

from detrain.runtime.digest import Array
from detrain.runtime.frames import user_frames

_LOGS: Final = ("epoch_logs", "logs")
"""Where the training loop of Keras keeps the metrics of an epoch."""


def find_metric(name: str, frame: FrameType, to_array: Callable[[object], Array | None]) -> float | None:
    """Return the number that the program has under a name, or None if there is none, or it is not finite."""
    frames = user_frames(frame)
    namespaces: list[Mapping[str, Any]] = [each.f_locals for each in frames]
    namespaces += [each.f_globals for each in frames]
    first, *parts = name.split(".")
    for space in namespaces:
        if first in space:
            return _number(_within(space[first], parts), to_array)
    for space in namespaces:
        for logs in _LOGS:
            if isinstance(space.get(logs), dict) and name in space[logs]:
                return _number(space[logs][name], to_array)
    return None


def _within(value: object, parts: list[str]) -> object:
    """Follow parts of a name. Only what an object stores is looked at: no property, so no code of the program is run."""
    for part in parts:
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list | tuple):
            try:
                value = value[int(part)]
            except (ValueError, IndexError):
                return None
        else:
            value = getattr(value, "__dict__", {}).get(part)
    return value


def _number(value: object, to_array: Callable[[object], Array | None]) -> float | None:
    array = np.asarray(value) if isinstance(value, int | float | np.ndarray | np.generic) else to_array(value)
    if array is None or array.size != 1:
        return None
    try:
        number = float(array.reshape(()).astype(np.float64))
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
