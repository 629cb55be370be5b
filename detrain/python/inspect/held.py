"""What an object holds, and the one walk over what objects lead to."""

from __future__ import annotations

import collections
import contextlib
import functools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

from detrain.base.plain_types import CONTAINERS, SCALARS
from detrain.python.inspect.names import own_attributes, slots_of

E = TypeVar("E")
Step = tuple[str, Any]
"""How one object leads to another: a kind of step, and a key, which is a text or a number: `.` an attribute or slot,
`[` the value under a plain key, `#` the item or value with a number, `k` the key with a number, `<` a variable that a
function closes over, `(` a part of a method or a partial call."""
Steps = tuple[Step, ...]
_MOST: Final = 100_000


def by_identity(value: object) -> int | None:
    """Return what tells an object from others; None for a value, which no walk need tell from an equal one."""
    return None if type(value) in SCALARS else id(value)


def walk(
    first: Iterable[E],
    below: Callable[[E], Iterable[E]],
    number: Callable[[E], int | None] = by_identity,
    *,
    is_wide: bool = False,
    most: int = _MOST,
) -> Iterator[E]:
    """Yield things and what is below them, each thing once, up to `most` of them.

    `number` says what a thing is known by; one with None is yielded as often as it is met. A thing comes ahead of what
    is below it, and is asked for that when the next one is wanted. All that is below one thing comes ahead of the next
    thing; with `is_wide` behind all others that were met so far.
    """
    seen: dict[int, E] = {}  # a thing lives as long as its number must be that of no other
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
    """Yield what an object holds, past the methods of its class, each with the step that leads there: keys and items of
    a container, attributes, slots."""
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
            with contextlib.suppress(AttributeError):  # it is not set
                yield (".", name), slot.__get__(value)


def held_by_code(value: Any) -> Iterator[tuple[Step, object]]:
    """Yield what a function closes over, or what a method or a partial call is made of; nothing for anything else."""
    cls = type(value)
    if cls is types.FunctionType:
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # it is empty
                yield ("<", name), cell.cell_contents
    elif cls is types.MethodType:
        yield ("(", "__self__"), value.__self__
    elif cls is functools.partial:
        yield from ((("(", name), getattr(value, name)) for name in ("func", "args", "keywords"))
