"""Sets that iterate as they did: the order of a set is that of its table, which depends on all that was ever added and taken.

CPython's table (Objects/setobject.c, 3.7 to 3.13) is read, and made again by adding and removing only, so that what a program
adds later also falls where it would have. Every result is compared; what cannot be made again is said, not guessed.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

Layout = list[Any]
"""`[size of the table, slots of the elements in order, slots that once held one, finger of pop()]`."""

_SMALL: Final = 8
_PROBES: Final = 9
_EMPTY_BYTES: Final = set().__sizeof__()


class _Header(ctypes.Structure):
    _fields_ = (
        ("head", ctypes.c_byte * object.__basicsize__),
        ("fill", ctypes.c_ssize_t),
        ("used", ctypes.c_ssize_t),
        ("mask", ctypes.c_ssize_t),
        ("table", ctypes.c_void_p),
        ("hash", ctypes.c_ssize_t),
        ("finger", ctypes.c_ssize_t),
    )


class _Filler:
    """Something to put into a slot for a while."""

    def __init__(self, slot: int) -> None:
        self._slot = slot

    def __hash__(self) -> int:
        return self._slot


def read_layout(value: set[Any] | frozenset[Any]) -> Layout | None:
    """Return how the elements lie in the table, or None where the table is not as we know it."""
    if sys.implementation.name != "cpython":
        return None
    header = _Header.from_address(id(value))
    size = header.mask + 1
    in_table = 0 if size == _SMALL else size * 16
    if header.used != len(value) or size < _SMALL or size & header.mask or value.__sizeof__() - in_table != _EMPTY_BYTES:
        return None
    entries = np.frombuffer((ctypes.c_char * (size * 16)).from_address(header.table), np.int64).reshape(size, 2)
    is_dummy = (entries[:, 0] != 0) & (entries[:, 1] == -1)
    live = np.flatnonzero((entries[:, 0] != 0) & ~is_dummy)
    if entries[live, 0].tolist() != [id(item) for item in value] or len(live) + is_dummy.sum() != header.fill:
        return None
    return [size, live.tolist(), np.flatnonzero(is_dummy).tolist(), header.finger]


def set_recipe(value: set[Any]) -> tuple[Layout | None, bool]:
    """Return (what `fill` needs beside the elements in order, whether it then makes the set that it was)."""
    items, again = list(value), set[Any]()
    layout = read_layout(value)
    if fill(again, items, None) and (layout is None or read_layout(again) == layout):
        return None, layout is not None or len(items) < 2
    return layout, layout is not None and fill(again, items, layout)


def fill(target: set[Any], items: list[Any], layout: Layout | None) -> bool:
    """Replace the elements of a set; return whether it now is as it was."""
    if layout is not None:
        with contextlib.suppress(LookupError, TypeError, ValueError):  # a table that cannot be had by adding and removing
            _build(target, items, *layout)
        if _is_same(target, items) and read_layout(target) == layout:
            return True
    target.clear()
    for item in items:
        target.add(item)
    return layout is None and _is_same(target, items)


def frozen_recipe(value: frozenset[Any]) -> tuple[str | Layout, bool]:
    """Return (what `freeze` needs beside the elements in order, whether it then makes a set of the same order)."""
    items = list(value)
    for way in ("list", "copy", "dict", read_layout(value)):
        if way is not None and _is_same(freeze(items, way), items):
            return way, True
    return "list", False


def freeze(items: list[Any], way: str | Layout) -> frozenset[Any]:
    """Return a frozen set, made in the way that `frozen_recipe` found."""
    if way == "list":
        return frozenset(items)
    if way == "dict":
        return frozenset(dict.fromkeys(items))
    again = set[Any]()
    fill(again, items, None if isinstance(way, str) else way)
    return frozenset(again)


def _is_same(value: set[Any] | frozenset[Any], items: list[Any]) -> bool:
    return len(value) == len(items) and all(one is other for one, other in zip(value, items, strict=True))


def _build(target: set[Any], items: list[Any], size: int, live: list[int], dummies: list[int], finger: int) -> None:
    """Bring elements into their slots. Raises LookupError or ValueError where it cannot be done."""
    if size > max(_SMALL, 8 * (len(live) + len(dummies))) or len(items) != len(live):
        raise ValueError(f"no table of {size} slots comes about with {len(live)} elements")
    target.clear()
    if finger:
        _set_finger(target, finger)
    fillers = {slot: _Filler(slot) for slot in dummies}
    rest = fillers | dict(zip(live, items, strict=True))
    held: dict[int, _Filler] = {}
    for slot, is_held in _in_order(rest, size):
        if slot in held:
            target.discard(held.pop(slot))  # what comes next takes the slot
        elif is_held:
            held[slot] = _Filler(slot)
        only = held[slot] if is_held else rest[slot]
        target.add(only)
        if len(target) == 1 and size > _SMALL:
            _grow(target, only, size)
    for filler in fillers.values():  # one by one: `difference_update` shrinks the table
        target.discard(filler)


class _Twin(_Filler):
    """A key that a dictionary takes for another one, and a set that holds its like for the same."""

    is_same = False

    def __eq__(self, other: object) -> bool:
        return self is other or self.is_same

    __hash__ = _Filler.__hash__


def _grow(target: set[Any], only: Any, size: int) -> None:
    """Give a set of one element a table of a size. Before it adds the keys of a dictionary, a set makes room for all of them."""
    twins = dict.fromkeys(_Twin(hash(only)) for _ in range(max(size // 4, 5) - 1))
    for twin in twins:
        twin.is_same = True
    target.update(twins)


def _set_finger(target: set[Any], finger: int) -> None:
    """Make `pop()` go on from a slot: it starts behind the one that it emptied last, also after `clear()`."""
    fillers = [_Filler(finger - 1)]
    target.add(fillers[0])
    while ((target.__sizeof__() - _EMPTY_BYTES) // 16 or _SMALL) < finger:
        fillers.append(_Filler((finger + len(fillers)) % finger))
        target.add(fillers[-1])
    for filler in fillers[1:]:
        target.discard(filler)
    target.pop()
    target.clear()


def _in_order(items: dict[int, Any], size: int) -> Iterator[tuple[int, bool]]:
    """Yield (slot, False) for each element, when all slots that it would rather lie in are taken.

    Where two wait for each other, one of them came into the slot of an element that is gone: (slot, True) holds it for a while.
    """
    taken: set[int] = set()
    waiting = {slot: list(_slots_before(hash(item), slot, size)) for slot, item in items.items()}
    while waiting:
        ready = [slot for slot, before in waiting.items() if taken.issuperset(before)]
        for slot in ready:
            del waiting[slot]
            yield slot, False
        taken.update(ready)
        if not ready:
            blocking = next(slot for before in waiting.values() for slot in before if slot not in taken)
            taken.add(blocking)
            yield blocking, True


def _slots_before(code: int, slot: int, size: int) -> Iterator[int]:
    """Yield the slots that an element with this hash tries before a slot (`set_add_entry`)."""
    mask, perturb = size - 1, code & 0xFFFF_FFFF_FFFF_FFFF
    start = perturb & mask
    for _ in range(size):
        for tried in range(start, start + (_PROBES if start + _PROBES <= mask else 0) + 1):
            if tried == slot:
                return
            yield tried
        perturb >>= 5
        start = (start * 5 + 1 + perturb) & mask
    raise LookupError("an element does not lie where its hash can have led it")
