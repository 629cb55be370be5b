"""What a library's class itself says that an object holds: what `copy` and `pickle` ask it, `__reduce_ex__(4)`.

Where a class says no more than Python does of any object (attributes, slots, items), it is not asked. Neither are the
program's own methods, which may do anything. A library's are guarded: what they raise is no answer, and what they
change of random streams and of the object's own attributes is set back.
"""

from __future__ import annotations

import copyreg
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from detrain.base.plain_types import BASES, CONTAINERS, SCALARS
from detrain.python.inspect.held import held_by, walk
from detrain.python.inspect.names import FRAMEWORKS, by_class, is_own_class, module_of, own_attributes
from detrain.python.inspect.ownership import is_data_class

_SAYING: Final = ("__reduce_ex__", "__reduce__", "__getstate__", "__getnewargs__", "__getnewargs_ex__")
_NAMES: Final = (str, bytes, float)
_SMALL: Final = range(-(1 << 16), 1 << 16)
"""Lengths, versions and flags, which a class may compute as it is asked."""


@by_class
def tells(cls: type) -> bool:
    """Return whether a class is of a library, no framework's, and says of its objects what Python would not."""
    definers = {base for name in _SAYING if (base := _definer(cls, name)) not in (object, *BASES)}
    strangers = [base for base in (*definers, cls) if module_of(base).partition(".")[0] not in (*FRAMEWORKS, "builtins")]
    asks = not definers.isdisjoint(strangers) or cls in copyreg.dispatch_table
    return cls in strangers and asks and not any(map(is_own_class, definers))


def _definer(cls: type, name: str) -> type:
    return next((base for base in cls.__mro__ if name in vars(base)), object)


@contextmanager
def streams_kept() -> Iterator[None]:
    """Set the global random streams of Python and NumPy back to where they were."""
    before, legacy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        if random.getstate() != before:
            random.setstate(before)
        if not _are_same(legacy, np.random.get_state()):
            np.random.set_state(legacy)


def told(value: Any) -> list[object] | None:
    """Return what the class of an object says that it holds, None if nothing of its own.

    Within `streams_kept`.
    """
    if not tells(type(value)):
        return None
    own = own_attributes(value)
    before = dict(own or {})
    try:
        said = value.__reduce_ex__(4)
        _maker, arguments, *more = ("", ()) if isinstance(said, str) else said
        state, items, pairs = [*more[:3], None, None, None][:3]
        return [*arguments, state, *(items or ()), *(part for pair in pairs or () for part in pair)]
    except Exception:  # an edge: a stranger's code, and most say by an error that they cannot be copied
        return None
    finally:
        if own is not None and list(map(id, own.values())) != list(map(id, before.values())):
            own.clear()
            own.update(before)


def _are_same(one: Any, other: Any) -> bool:
    return one[0] == other[0] and np.array_equal(one[1], other[1]) and one[2:] == other[2:]


def numbers_and_texts(parts: Iterable[object], is_known: Callable[[object], bool]) -> set[object]:
    """Return the numbers and texts that some parts lead to past what is known, large ones and fractions: as `key` has
    them."""

    def below(item: object) -> list[object]:
        if type(item) in SCALARS or is_known(item) or not (type(item) in CONTAINERS.values() or is_data_class(type(item))):
            return []
        return [each for (kind, _), each in held_by(item) if not (kind == "k" and type(each) is str)]

    return {key(item) for item in walk(parts, below)} - {None}


def key(item: Any) -> object:
    """Return what numbers and texts are compared by; None for what is not looked for."""
    if type(item) is int:
        return None if item in _SMALL else item
    return (type(item), repr(item)) if type(item) in _NAMES else None
