"""Numbers that the program keeps under its names: the metric of `--keep-best`, and the accuracy. detrain only reads
them, and never computes them.

A name is that of a local of the loop's function or one of its callers, or of a global of their modules; `a.b` is an
attribute of an object, or an entry of a dict or (by its number, `losses.-1`) of a list. If there is no such name, the
logs of a framework's own training loop are searched.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from types import FrameType, MappingProxyType
from typing import Any, Final

import numpy as np

from detrain.base.digest import ToArray
from detrain.base.framework_names import KNOWN
from detrain.base.plain_types import ARRAYS
from detrain.python.inspect.frames import names_of, user_frames

_LOGS: Final = tuple(name for each in KNOWN for name in each.logs)

_ACCURACY: Final = re.compile(r"acc(uracy)?(?![a-z])")
_OF_OTHERS: Final = re.compile(r"(?<![a-z])(best|highest|max|target|previous|prev|old|last)(?![a-z])")
"""Words in the names of accuracies of other steps."""
_VALIDATION: Final = ("val", "test", "held", "dev_")
"""Parts of the names of metrics on other data than the training data."""


def find_metric(name: str, frame: FrameType, to_array: ToArray) -> float | None:
    """Return the number that the program keeps under a name, or None if there is none, or it is not finite."""
    frames = user_frames(frame)
    namespaces: list[Mapping[str, Any]] = [names_of(each) for each in frames]
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


def is_accuracy(name: str) -> bool:
    """Return whether a name is that of an accuracy: it has `acc` or `accuracy` with no letter after it, unlike
    `accumulated`.

    `best_accuracy` does not count: it is the accuracy of another step.
    """
    return _ACCURACY.search(name.lower()) is not None and _OF_OTHERS.search(name.lower()) is None


def accuracies(
    frame: FrameType, to_array: ToArray, *, is_after_epoch: bool = False, stale: Mapping[str, object] = MappingProxyType({})
) -> dict[str, float]:
    """Return the numbers that the innermost function of the program keeps under names like `accuracy`.

    After an epoch, return those of its validation: `valid_accuracy`, `test_loss`. Numbers that are not finite are
    included. `stale` has the values of names before the epoch; names that still have these values do not count.
    """
    frames = user_frames(frame)
    found: dict[str, float] = {}
    for name, value in names_of(frames[0]).items() if frames else ():
        words = name.lower()
        if name in stale and stale[name] is value:
            continue
        is_of_validation = any(part in words for part in _VALIDATION)
        if is_of_validation == is_after_epoch and (is_accuracy(name) or (is_after_epoch and "loss" in words)):
            array = np.asarray(value) if isinstance(value, float | np.ndarray | np.floating) else to_array(value)
            if array is not None and array.size == 1 and array.dtype.kind == "f":
                found[name] = float(array.reshape(()))
    return found


def _within(value: object, parts: list[str]) -> object:
    """Follow the parts of a name.

    Only stored attributes are read, and no properties, so that no code of the program runs.
    """
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


def _number(value: object, to_array: ToArray) -> float | None:
    array = np.asarray(value) if isinstance(value, (int, float, *ARRAYS)) else to_array(value)
    if array is None or array.size != 1:
        return None
    try:
        number = float(array.reshape(()).astype(np.float64))
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
