"""Sets made again with the same order: a set iterates by its table, which depends on all elements that were ever added
or removed.

detrain reads CPython's table (Objects/setobject.c, 3.7 to 3.14), and makes it again only by adding and removing, so
that elements which the program adds later also get the same slots. It compares every result, and reports a set that
cannot be made again.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

Layout = list[Any]
"""`[size of the table, slots of the elements in order, slots of removed elements, finger of pop()]`."""
Way = str | list[Any]
"""The way to make a frozen set: "list", "copy", "dict", `["list", order of adding]`, `["dict", order, size of the
table]`, or a layout."""

_SMALL: Final = 8
_PROBES: Final = 9


class _ObjectHeader(ctypes.Structure):
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
    """An object that fills a slot for a while."""

    def __init__(self, slot: int) -> None:
        self._slot = slot

    def __hash__(self) -> int:
        return self._slot


def read_layout(value: set[Any] | frozenset[Any]) -> Layout | None:
    """Return the layout of the elements in the table, or None if the table does not have the known form."""
    if sys.implementation.name != "cpython":
        return None
    header = _ObjectHeader.from_address(id(value))
    size = header.mask + 1
    items = _items(value)
    if header.used != len(items) or size < _SMALL or size & header.mask or _table_size(value) != size:
        return None
    entries = np.frombuffer((ctypes.c_char * (size * 16)).from_address(header.table), np.int64).reshape(size, 2)
    is_dummy = (entries[:, 0] != 0) & (entries[:, 1] == -1)
    live = np.flatnonzero((entries[:, 0] != 0) & ~is_dummy)
    if entries[live, 0].tolist() != list(map(id, items)) or len(live) + is_dummy.sum() != header.fill:
        return None
    return [size, live.tolist(), np.flatnonzero(is_dummy).tolist(), header.finger]


def _is_new(value: set[Any]) -> bool:
    """Return whether the table of an empty set equals that of a new set, to which nothing was ever added."""
    if sys.implementation.name != "cpython":
        return False
    header = _ObjectHeader.from_address(id(value))
    return (header.fill, header.used, header.mask, header.finger) == (0, 0, _SMALL - 1, 0)


def set_recipe(value: set[Any]) -> tuple[Layout | None, bool]:
    """Return (the layout that `fill` needs besides the elements in order, whether it then makes an identical set)."""
    items, again = _items(value), set[Any]()
    if not items and _is_new(value):
        return None, True
    layout = read_layout(value)
    if fill(again, items, None) and (layout is None or read_layout(again) == layout):
        return None, layout is not None or len(items) < 2
    return layout, layout is not None and fill(again, items, layout)


def fill(target: set[Any], items: list[Any], layout: Layout | None) -> bool:
    """Replace the elements of a set, without calling methods of a derived class. Return whether the set now is as it
    was when its layout was read.
    """
    if layout is not None:
        # The errors come for a table that adding and removing cannot give.
        with contextlib.suppress(LookupError, TypeError, ValueError):
            _build(target, items, *layout)
        if _is_same(target, items) and read_layout(target) == layout:
            return True
    set.clear(target)
    for item in items:
        set.add(target, item)
    return layout is None and _is_same(target, items) and can_become(target, None)


def can_become(value: set[Any], layout: Layout | None) -> bool:
    """Return whether a set can pop in the order of `layout`: after a pop, it never starts at its first slot again."""
    finger = _ObjectHeader.from_address(id(value)).finger if sys.implementation.name == "cpython" else 0
    return finger == 0 or (layout is not None and layout[-1] != 0)


def frozen_recipe(value: frozenset[Any]) -> tuple[Way, bool]:
    """Return (the way that `freeze` needs besides the elements in order, whether the set then has the same order)."""
    items = list(value)
    for way in _ways(value, items):
        if _is_same(freeze(items, way), items):
            return way, True
    return "list", False


def _ways(value: frozenset[Any], items: list[Any]) -> Iterator[Way]:
    yield from ("list", "copy", "dict")
    layout = read_layout(value)
    if layout is None:
        return
    yield layout
    # A list's elements made the table grow. Add first the elements that get their preferred slots, so that growing
    # moves none of them.
    size, live, *_ = layout
    places = {slot: index for index, slot in enumerate(live)}
    with contextlib.suppress(LookupError):
        slots = _in_order(dict(zip(live, items, strict=True)), size)
        order = [places[slot] for slot, is_held in slots if not is_held]
        yield ["list", order]
        if size <= 8 * len(items):
            yield ["dict", order, size]


def freeze(items: list[Any], way: Way) -> frozenset[Any]:
    """Make a frozen set in the way that `frozen_recipe` found."""
    if way == "list":
        return frozenset(items)
    if way == "dict":
        return frozenset(dict.fromkeys(items))
    if isinstance(way, list) and way[0] in ("list", "dict"):
        in_turn = [items[index] for index in way[1]]
        return frozenset(in_turn if way[0] == "list" else _sized(in_turn, min(way[2], 8 * len(items))))
    again = set[Any]()
    fill(again, items, None if isinstance(way, str) else way)
    return frozenset(again)


def _items(value: set[Any] | frozenset[Any]) -> list[Any]:
    return list(set.__iter__(value) if isinstance(value, set) else value)


def _table_size(value: set[Any] | frozenset[Any]) -> int:
    base = set if isinstance(value, set) else frozenset
    return (base.__sizeof__(value) - type(value).__basicsize__) // 16 or _SMALL


def _is_same(value: set[Any] | frozenset[Any], items: list[Any]) -> bool:
    return list(map(id, _items(value))) == list(map(id, items))


def _build(target: set[Any], items: list[Any], size: int, live: list[int], dummies: list[int], finger: int) -> None:
    """Bring elements into their slots. Raises LookupError or ValueError if that is not possible."""
    if size > max(_SMALL, 8 * (len(live) + len(dummies))) or len(items) != len(live):
        raise ValueError(f"no table of {size} slots comes about with {len(live)} elements")
    set.clear(target)
    if finger:
        _set_finger(target, finger)
    fillers = {slot: _Filler(slot) for slot in dummies}
    rest = fillers | dict(zip(live, items, strict=True))
    held: dict[int, _Filler] = {}
    for slot, is_held in _in_order(rest, size):
        if slot in held:
            set.discard(target, held.pop(slot))  # the element that is added next takes the slot
        elif is_held:
            held[slot] = _Filler(slot)
        only = held[slot] if is_held else rest[slot]
        set.add(target, only)
        if set.__len__(target) == 1 and size > _SMALL:
            set.update(target, _sized([only], size))
    for filler in fillers.values():  # one by one: `difference_update` shrinks the table
        set.discard(target, filler)


class _Twin(_Filler):
    """A key that differs from all others while a dictionary adds it, and equals any key once `is_same` is set."""

    is_same = False

    def __eq__(self, other: object) -> bool:
        return self is other or self.is_same

    __hash__ = _Filler.__hash__


def _sized(items: list[Any], size: int) -> dict[Any, None]:
    """Return a dictionary of which a set adds just these elements, in order, into a table of `size` slots.

    A set makes room for all keys of a dictionary before it adds them. The other keys are twins of the first element, so
    the set does not add them.
    """
    twins = [_Twin(hash(items[0])) for _ in range(max(size // 4, 5) - len(items))]
    keys = dict.fromkeys([*items, *twins])
    for twin in twins:
        twin.is_same = True
    return keys


def _set_finger(target: set[Any], finger: int) -> None:
    """Make `pop()` start at the slot `finger`: it starts behind the slot that it emptied last, also after `clear()`."""
    fillers = [_Filler(finger - 1)]
    set.add(target, fillers[0])
    while _table_size(target) < finger:
        fillers.append(_Filler((finger + len(fillers)) % finger))
        set.add(target, fillers[-1])
    for filler in fillers[1:]:
        set.discard(target, filler)
    set.pop(target)
    set.clear(target)


def _in_order(items: dict[int, Any], size: int) -> Iterator[tuple[int, bool]]:
    """Yield (slot, False) for each element as soon as all slots that it tries before are taken.

    If two elements wait for each other, one of them was added while a slot held an element that was removed later:
    (slot, True) asks to fill that slot for a while.
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
    """Yield the slots that an element with this hash tries before it takes `slot` (`set_add_entry`)."""
    mask, perturb = size - 1, code & 0xFFFF_FFFF_FFFF_FFFF
    start = perturb & mask
    for _ in range(size + 13):  # until all bits of the hash are used, then once through the table
        for tried in range(start, start + (_PROBES if start + _PROBES <= mask else 0) + 1):
            if tried == slot:
                return
            yield tried
        perturb >>= 5
        start = (start * 5 + 1 + perturb) & mask
    raise LookupError("an element does not lie where its hash can have led it")
