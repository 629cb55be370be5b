"""The small states of a rank at its last points, in places that outlive it: a mapped file of its node, and its buddy.

The file: a head (magic, capacity of a slot, incarnation), then SLOTS slots, each a head and the state. A slot's number
is zero during a write and comes last, and its digest covers the rest: a write that a death has torn does not count.
Pages of a mapped file outlive the process, but not the node; so the buddy, on another node, has the same bytes.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Literal, cast

import xxhash

from detrain.runtime.ranks.vote import StatePoint

SLOTS: Final = 8
_MAGIC: Final = b"dtslots1"
_HEAD: Final = struct.Struct("<8sQ16s")
_SLOT: Final = struct.Struct("<QqqcQ16s")
"""Number, steps, cut, kind, length, digest."""
_ALIGN: Final = 64
_FIRST_CAPACITY: Final = 1 << 16
_ALL: Final = 1 << 62


def kept(points: Iterable[StatePoint]) -> set[StatePoint]:
    """Return the points that a vote can still ask for, as ranks are at most one step apart.

    For the last two steps, these are the entries, the cuts that they rest on, and each step's first cut, which every
    rank has that has come so far; and the newest cut. There are at most seven.
    """
    points = sorted(points)
    if not points:
        return set()
    entries = {point for point in points if point.kind == "d" and point.steps >= points[-1].steps - 1}
    bases = {point.cut for point in entries}
    cuts = [point for point in points if point.kind == "c"]
    keep = entries | {point for point in cuts if point.cut in bases} | set(cuts[-1:])
    for steps in (points[-1].steps - 1, points[-1].steps):
        keep |= set([point for point in cuts if point.steps == steps][:1])
    return keep


class OwnSlots:
    """The file of this rank. One thread writes; others, and other processes, read."""

    def __init__(self, folder: Path, rank: int, incarnation: bytes) -> None:
        self._path, self._incarnation = _path(folder, rank), incarnation
        self._taken: dict[StatePoint, int] = {}
        self._number = 0
        self._make(_FIRST_CAPACITY, {})

    def publish(self, point: StatePoint, state: bytes) -> None:
        """Keep the state in a slot whose state no vote can ask for."""
        if len(state) > self._capacity:
            self._make(2 * len(state), dict(self._states()))
        keep = kept([*self._taken, point])
        self._taken = {each: slot for each, slot in self._taken.items() if each in keep and each != point}
        self._put(min(set(range(SLOTS)) - set(self._taken.values())), point, state)

    def _put(self, slot: int, point: StatePoint, state: bytes) -> None:
        at = _offset(slot, self._capacity)
        self._map[at : at + 8] = bytes(8)
        self._map[at + _SLOT.size : at + _SLOT.size + len(state)] = state
        self._number += 1
        head = _SLOT.pack(self._number, point.steps, point.cut, point.kind.encode(), len(state), _digest(point, state))
        self._map[at + 8 : at + _SLOT.size] = head[8:]
        self._map[at : at + 8] = head[:8]
        self._taken[point] = slot

    def _states(self) -> Iterator[tuple[StatePoint, bytes]]:
        for point, slot in self._taken.items():
            at = _offset(slot, self._capacity)
            length = _SLOT.unpack_from(self._map, at)[4]
            yield point, self._map[at + _SLOT.size : at + _SLOT.size + length]

    def _make(self, capacity: int, states: dict[StatePoint, bytes]) -> None:
        """Make a new file with these states, which replaces the old one when it is complete."""
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        temporary.unlink(missing_ok=True)
        size = _offset(SLOTS, capacity)
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)  # a full disk is an error here, and a SIGBUS later
            self._map, self._capacity = mmap.mmap(descriptor, size), capacity
        finally:
            os.close(descriptor)
        self._map[: _HEAD.size] = _HEAD.pack(_MAGIC, capacity, self._incarnation)
        self._taken = {}
        for slot, (point, state) in enumerate(states.items()):
            self._put(slot, point, state)
        temporary.replace(self._path)


def read_slots(folder: Path, rank: int, incarnation: bytes) -> dict[StatePoint, bytes]:
    """Return the whole states in the file of a rank, be it dead or alive; none if they are from another run."""
    try:
        data = _path(folder, rank).read_bytes()
    except OSError:
        return {}
    if len(data) < _HEAD.size:
        return {}
    magic, capacity, written_by = _HEAD.unpack_from(data)
    if (magic, written_by) != (_MAGIC, incarnation) or len(data) != _offset(SLOTS, capacity):
        return {}
    states = {}
    for slot in range(SLOTS):
        at = _offset(slot, capacity)
        number, steps, cut, kind, length, digest = _SLOT.unpack_from(data, at)
        if number == 0 or length > capacity or kind not in {b"c", b"d"}:
            continue
        point = StatePoint(steps, cut, cast(Literal["c", "d"], kind.decode()))
        state = data[at + _SLOT.size : at + _SLOT.size + length]
        if _digest(point, state) == digest:
            states[point] = state
    return {point: states[point] for point in kept(states)}


class HeldSlots:
    """The states that other ranks have sent to this rank, their buddy."""

    def __init__(self, owners: Iterable[int]) -> None:
        self._states: dict[int, dict[StatePoint, bytes]] = {owner: {} for owner in owners}

    def put(self, owner: int, point: StatePoint, state: bytes) -> None:
        """Keep a state of a rank that has this rank as its buddy."""
        states = self._states.get(owner)
        if states is not None:
            keep = kept([*states, point])
            self._states[owner] = {each: data for each, data in [*states.items(), (point, state)] if each in keep}

    def entered(self) -> int:
        """Return the number of steps whose entries all these ranks have published; without such ranks, no limit."""
        entered = (max((point.steps + 1 for point in states if point.kind == "d"), default=0) for states in self._states.values())
        return min(entered, default=_ALL)

    def states(self) -> dict[int, dict[StatePoint, bytes]]:
        """Return all states, by owner."""
        return dict(self._states)


def buddy_of(rank: int, nodes: list[list[int]]) -> int | None:
    """Return the rank on the next node that holds copies for a rank; None if there is only one node."""
    if len(nodes) < 2:
        return None
    here = next(index for index, ranks in enumerate(nodes) if rank in ranks)
    there = nodes[(here + 1) % len(nodes)]
    return there[nodes[here].index(rank) % len(there)]


def _path(folder: Path, rank: int) -> Path:
    return folder / f"slots-{rank}"


def _offset(slot: int, capacity: int) -> int:
    return _ALIGN + slot * (-(-(_SLOT.size + capacity) // _ALIGN) * _ALIGN)


def _digest(point: StatePoint, state: bytes) -> bytes:
    return xxhash.xxh3_128_digest(struct.pack("<qqc", point.steps, point.cut, point.kind.encode()) + state)
