"""Iterators of `itertools` in Python 3.14, where they no longer describe themselves (`__reduce__`, `__setstate__`):
their fields in memory (Modules/itertoolsmodule.c) are read and written.

`count`, `cycle`, `islice`, `chain` and `repeat` are known. The others raise TypeError, as in Python itself.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import itertools
import sys
import warnings
from collections.abc import Iterator
from typing import Any, Final

_DESCRIBES_ITSELF: Final = sys.version_info < (3, 14)
_FIRST, _SECOND, _THIRD, _FOURTH, _FIFTH = (object.__basicsize__ + ctypes.sizeof(ctypes.c_void_p) * place for place in range(5))
"""Offsets in bytes of an iterator's fields, each as wide as a pointer."""


def reduce_iterator(value: Any) -> tuple[Any, ...]:
    """Return (maker, arguments), with a state behind them if the iterator has one. Raises TypeError for others."""
    if _DESCRIBES_ITSELF or type(value) not in _FIELDS or not has_known_fields():
        with warnings.catch_warnings(action="ignore"):  # 3.12 and 3.13 warn of what 3.14 has taken away
            return tuple(value.__reduce__())
    return (type(value), *_FIELDS[type(value)](value, gc.get_referents(value)[1:]))


def set_state(made: Any, state: Any) -> None:
    """Set an iterator that was just made to a state from `reduce_iterator`."""
    if _DESCRIBES_ITSELF or type(made) not in _FIELDS:
        with warnings.catch_warnings(action="ignore"):
            made.__setstate__(state)
    elif type(made) is itertools.cycle:
        gc.get_referents(made)[-1].extend(state[0])
        _number(made, _THIRD).value = state[1]
    else:
        for offset, held in zip((_FIRST, _SECOND), state, strict=False):
            _hold(made, offset, held)


@functools.cache
def has_known_fields() -> bool:
    """Return whether the fields of iterators are where this module looks for them."""
    counted, begun = itertools.count(3), itertools.cycle("a")
    cut: itertools.islice[Any] = itertools.islice((), 2, 9, 3)
    next(begun)
    is_counted = _number(counted, _FIRST).value == 3 and itertools.count.__basicsize__ == _FOURTH
    is_cut = [_number(cut, place).value for place in (_SECOND, _THIRD, _FOURTH, _FIFTH)] == [2, 9, 3, 0]
    is_begun = _number(begun, _THIRD).value == -1 and gc.get_referents(begun)[-1] == ["a"]
    return is_counted and is_cut and is_begun and _number(itertools.repeat("a", 7), _SECOND).value == 7


def _number(value: object, offset: int) -> ctypes.c_ssize_t:
    return ctypes.c_ssize_t.from_address(id(value) + offset)


def _hold(made: object, offset: int, held: object) -> None:
    field = ctypes.c_void_p.from_address(id(made) + offset)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
    before, field.value = field.value, id(held)
    if before:
        ctypes.pythonapi.Py_DecRef(ctypes.c_void_p(before))


def _count(value: Any, held: list[Any]) -> tuple[Any, ...]:
    small = _number(value, _FIRST).value
    return ((held[0] if small == sys.maxsize else small, held[-1]),)


def _cycle(value: Any, held: list[Any]) -> tuple[Any, ...]:
    place = _number(value, _THIRD).value
    source: Iterator[Any] = held[0] if place < 0 else iter(())
    return (source,), (list(held[-1]), place)


def _islice(value: Any, held: list[Any]) -> tuple[Any, ...]:
    if not held:
        return ((iter(()), 0),)
    first, stop, step, gone = (_number(value, place).value for place in (_SECOND, _THIRD, _FOURTH, _FIFTH))
    return ((held[0], first - gone, None if stop < 0 else stop - gone, step),)


def _chain(_value: Any, held: list[Any]) -> tuple[Any, ...]:
    return ((), tuple(held)) if held else ((),)


def _repeat(value: Any, held: list[Any]) -> tuple[Any, ...]:
    left = _number(value, _SECOND).value
    return ((held[0], left) if left >= 0 else (held[0],),)


_FIELDS: Final[dict[type, Any]] = {
    itertools.count: _count,
    itertools.cycle: _cycle,
    itertools.islice: _islice,
    itertools.chain: _chain,
    itertools.repeat: _repeat,
}
