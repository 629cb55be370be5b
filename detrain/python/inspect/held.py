"""The objects that an object holds, and the one walk over all objects reachable from some."""

from __future__ import annotations

import collections
import contextlib
import functools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

from detrain.base.plain_types import CONTAINERS, SCALARS
from detrain.python.inspect.names import is_namespace, own_attributes, slots_of

E = TypeVar("E")
Step = tuple[str, Any]
"""A step from one object to another: the kind of step, and a key, a text or a number: `.` an attribute or slot,
`[` the value under a plain key, `#` the item or value with a number, `k` the key with a number, `<` a variable that a
function closes over, `(` a part of a method or a partial call."""
Steps = tuple[Step, ...]
_MOST: Final = 100_000


def by_identity(value: object) -> int | None:
    """Return the identity of an object; None for a scalar, as a walk need not tell equal scalars apart."""
    return None if type(value) in SCALARS else id(value)


def walk(
    first: Iterable[E],
    below: Callable[[E], Iterable[E]],
    number: Callable[[E], int | None] = by_identity,
    *,
    is_wide: bool = False,
    most: int = _MOST,
    seen: dict[int, E] | None = None,
) -> Iterator[E]:
    """Yield things and the things below them, each thing once, until `most` have been yielded.

    `number` returns the identity of a thing; a thing with None is yielded each time it is met, and does not count. Each
    thing comes before those below it, and `below` is called for it only when the next thing is wanted. The walk goes
    depth first, or breadth first with `is_wide`. `seen`: the things of earlier walks, which this one leaves out
    and adds to.
    """
    seen = {} if seen is None else seen  # keeps things alive, so that no other thing gets the same number
    left = collections.deque(first)
    while left and len(seen) < most:
        thing = left.popleft()
        known = number(thing)
        if known is not None:
            if known in seen:
                continue
            seen[known] = thing
        yield thing
        if is_wide:
            left.extend(below(thing))
        else:
            left.extendleft([*below(thing)][::-1])


def held_by(value: Any) -> Iterator[tuple[Step, object]]:
    """Yield the objects that an object holds, each with its step: keys and items of a container, attributes, slots;
    nothing for the namespace of a library. No method of the object's own class is called."""
    if is_namespace(value):
        return
    cls = type(value)
    base: Any = next((base for base in CONTAINERS.values() if issubclass(cls, base)), None)
    if base is not None and issubclass(base, dict):
        for number, (key, item) in enumerate(list(dict.items(value))):
            yield ("k", number), key
            yield ("[", key) if type(key) in (str, int) else ("#", number), item
    elif base is not None:
        yield from ((("#", number), item) for number, item in enumerate(list(base.__iter__(value))))
    if cls not in CONTAINERS.values():
        yield from (((".", name), item) for name, item in list((own_attributes(value) or {}).items()))
        for name, slot in slots_of(cls).items():
            with contextlib.suppress(AttributeError):  # the slot is not set
                yield (".", name), slot.__get__(value)


def held_by_code(value: Any) -> Iterator[tuple[Step, object]]:
    """Yield the closure variables of a function, or the parts of a method or partial call; nothing for the rest."""
    cls = type(value)
    if cls is types.FunctionType:
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # the cell is empty
                yield ("<", name), cell.cell_contents
    elif cls is types.MethodType:
        yield ("(", "__self__"), value.__self__
    elif cls is functools.partial:
        yield from ((("(", name), getattr(value, name)) for name in ("func", "args", "keywords"))
