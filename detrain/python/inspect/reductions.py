"""The state of an object as its library's class gives it to `copy` and `pickle`, by `__reduce_ex__(4)`.

A class with only Python's own methods for this is not asked: they give attributes, slots and items. Methods of the
program are not called, as they may do anything. Methods of a library are guarded: an exception means no answer, and
changes of random streams and of the object's attributes are undone.
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
"""Range of lengths, versions and flags, which a class may compute for its answer."""


@by_class
def tells(cls: type) -> bool:
    """Return whether a class is of a library, not of a framework, with own methods that give an object's state."""
    definers = {base for name in _SAYING if (base := _definer(cls, name)) not in (object, *BASES)}
    strangers = [base for base in (*definers, cls) if module_of(base).partition(".")[0] not in (*FRAMEWORKS, "builtins")]
    asks = not definers.isdisjoint(strangers) or cls in copyreg.dispatch_table
    return cls in strangers and asks and not any(map(is_own_class, definers))


def _definer(cls: type, name: str) -> type:
    return next((base for base in cls.__mro__ if name in vars(base)), object)


@contextmanager
def streams_kept() -> Iterator[None]:
    """Restore the global random streams of Python and NumPy at the end of the context."""
    before, legacy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        if random.getstate() != before:
            random.setstate(before)
        if not _are_same(legacy, np.random.get_state()):
            np.random.set_state(legacy)


def told(value: Any) -> list[object] | None:
    """Return the parts of an object as its class gives them; None if the class has no own methods for that, or fails.

    Call this within `streams_kept`.
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
    except Exception:  # an edge: a stranger's code; by an error, most say that they cannot be copied
        return None
    finally:
        if own is not None and list(map(id, own.values())) != list(map(id, before.values())):
            own.clear()
            own.update(before)


def _are_same(one: Any, other: Any) -> bool:
    return one[0] == other[0] and np.array_equal(one[1], other[1]) and one[2:] == other[2:]


def numbers_and_texts(parts: Iterable[object], is_known: Callable[[object], bool]) -> set[object]:
    """Return the keys (see `key`) of the texts, large numbers and fractions that some parts reach, without entering
    known objects."""

    def below(item: object) -> list[object]:
        if type(item) in SCALARS or is_known(item) or not (type(item) in CONTAINERS.values() or is_data_class(type(item))):
            return []
        return [each for (kind, _), each in held_by(item) if not (kind == "k" and type(each) is str)]

    return {key(item) for item in walk(parts, below)} - {None}


def key(item: Any) -> object:
    """Return the value by which a number or text is compared; None for small numbers and all other objects."""
    if type(item) is int:
        return None if item in _SMALL else item
    return (type(item), repr(item)) if type(item) in _NAMES else None
