"""The gate before a step: no rank passes before all ranks have published their small state at the step's entry.

Within a node the ranks share a page of memory with one line for each rank, and read it: that takes 0.04 ms, a socket
and a thread take 2 ms. Between nodes, the lowest rank of each node sends for all of them: in round k to the node 2**k
after its own (a dissemination barrier), so a step costs each node log2(nodes) messages. The page holds step numbers
plus one, as a new page is zeros.

Each rank brings a number along, and all ranks that pass get the greatest. The page has two places for it, for even and
for odd steps: a rank that has passed may write its next number while others still read the last one.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

_LINE: Final = 64
_COUNT: Final = struct.Struct("<q")
_ENTERED, _HELD, _OPEN = 0, 8, 16
_SAID: Final = 24, 32
_GREATEST: Final = 40, 48
_FIRST_PAUSE_S: Final = 20e-6
_LONGEST_PAUSE_S: Final = 1e-3

SendReady = Callable[[int, int, int, int], None]
"""Sends to a rank: the step and the round at which this node is, and the greatest number that it knows."""


class Late(Exception):
    """Raised if not all ranks have come in time."""


class Gate:
    """One rank's side. The program's own thread waits here; the watcher passes on the messages of other nodes."""

    def __init__(self, folder: Path, rank: int, nodes: list[list[int]], send: SendReady) -> None:
        self._here = next(index for index, ranks in enumerate(nodes) if rank in ranks)
        self._nodes, self._send = nodes, send
        self._ranks = nodes[self._here]
        self._line = self._ranks.index(rank) * _LINE
        self._is_first = rank == self._ranks[0]
        self._rounds = (len(nodes) - 1).bit_length()
        self._heard: list[dict[int, int]] = [{} for _ in range(self._rounds)]
        """By round, the numbers that came with the last two steps."""
        size = len(self._ranks) * _LINE
        descriptor = os.open(folder / "gate", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
            self._map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)

    def partners(self) -> frozenset[int]:
        """Return the ranks of other nodes with which this rank exchanges messages."""
        if not self._is_first:
            return frozenset()
        count = len(self._nodes)
        return frozenset(self._nodes[(self._here + sign * (1 << k)) % count][0] for k in range(self._rounds) for sign in (1, -1))

    def hold(self, steps: int) -> None:
        """Say that this rank holds copies of the entries of so many steps, from all ranks with it as their buddy."""
        self._write(self._line + _HELD, steps)

    def hear(self, step: int, round_: int, number: int) -> None:
        """Take in a message of another node's first rank."""
        if 0 <= round_ < self._rounds:
            self._heard[round_] = {at: said for at, said in self._heard[round_].items() if at >= step - 1} | {step: number}

    def wait(self, step: int, is_frozen: Callable[[], bool], number: int = 1, limit_s: float | None = None) -> int | None:
        """Say that this rank has published the entry of a step, and wait for all others. Return the greatest number
        that a rank has brought, or None if the program is frozen first. Raises Late.
        """
        deadline = None if limit_s is None else time.monotonic() + limit_s
        here = step % 2

        def until(is_so: Callable[[], bool]) -> bool:
            return _until(is_so, is_frozen, deadline)

        self._write(self._line + _SAID[here], number)
        self._write(self._line + _ENTERED, step + 1)
        if len(self._nodes) > 1 and not self._is_first:
            return self._count(0, _GREATEST[here]) if until(lambda: self._count(0, _OPEN) > step) else None
        is_held = len(self._nodes) > 1
        if not until(lambda: self._all_here(step, _ENTERED) and (not is_held or self._all_here(step, _HELD))):
            return None
        greatest = max(self._count(index, _SAID[here]) for index in range(len(self._ranks)))
        for k in range(self._rounds):
            self._send(self._nodes[(self._here + (1 << k)) % len(self._nodes)][0], step, k, greatest)
            if not until(lambda k=k: step in self._heard[k]):  # type: ignore[misc]
                return None
            greatest = max(greatest, self._heard[k][step])
        if len(self._nodes) > 1:
            self._write(_GREATEST[here], greatest)
            self._write(_OPEN, step + 1)
        return greatest

    def _write(self, at: int, number: int) -> None:
        _COUNT.pack_into(self._map, at, number)

    def _all_here(self, step: int, what: int) -> bool:
        return all(self._count(index, what) > step for index in range(len(self._ranks)))

    def _count(self, index: int, what: int) -> int:
        return int(_COUNT.unpack_from(self._map, index * _LINE + what)[0])


def _until(is_so: Callable[[], bool], is_frozen: Callable[[], bool], deadline: float | None) -> bool:
    pause = _FIRST_PAUSE_S
    while not is_so():
        if is_frozen():
            return False
        if deadline is not None and time.monotonic() > deadline:
            raise Late
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
    return True
