"""The gate before a step: nobody passes before all ranks have published their small state at its entry.

Within a node the ranks share a page, one line for each, and look at it: 0.04 ms where a socket and a thread take 2.
Between nodes, the lowest rank of each sends for all: in round k to the node 2**k after its own (a dissemination
barrier), so a step costs each node log2(nodes) messages. Counts are of steps, plus one: a new page is zeros.
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
_FIRST_PAUSE_S: Final = 20e-6
_LONGEST_PAUSE_S: Final = 1e-3

SendReady = Callable[[int, int, int], None]
"""Sends to a rank that this node is at a step, in a round."""


class Gate:
    """One rank's side. The program's own thread waits here; the watcher tells what has come from other nodes."""

    def __init__(self, folder: Path, rank: int, nodes: list[list[int]], send: SendReady) -> None:
        self._here = next(index for index, ranks in enumerate(nodes) if rank in ranks)
        self._nodes, self._send = nodes, send
        self._ranks = nodes[self._here]
        self._line = self._ranks.index(rank) * _LINE
        self._is_first = rank == self._ranks[0]
        self._rounds = (len(nodes) - 1).bit_length()
        self._heard = [0] * self._rounds
        size = len(self._ranks) * _LINE
        descriptor = os.open(folder / "gate", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
            self._map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)

    def partners(self) -> frozenset[int]:
        """Return with which ranks of other nodes this rank exchanges messages."""
        if not self._is_first:
            return frozenset()
        count = len(self._nodes)
        return frozenset(self._nodes[(self._here + sign * (1 << k)) % count][0] for k in range(self._rounds) for sign in (1, -1))

    def hold(self, steps: int) -> None:
        """Say that this rank has, of all whose buddy it is, the entries of so many steps."""
        _COUNT.pack_into(self._map, self._line + _HELD, steps)

    def hear(self, step: int, round_: int) -> None:
        """Take in what another node's first rank says."""
        if 0 <= round_ < self._rounds:
            self._heard[round_] = max(self._heard[round_], step + 1)

    def wait(self, step: int, is_frozen: Callable[[], bool]) -> bool:
        """Say that this rank has published the entry of a step, and wait for all others; False if frozen before."""
        _COUNT.pack_into(self._map, self._line + _ENTERED, step + 1)
        if len(self._nodes) == 1:
            return _until(lambda: self._all_here(step, _ENTERED), is_frozen)
        if not self._is_first:
            return _until(lambda: self._count(0, _OPEN) > step, is_frozen)
        if not _until(lambda: self._all_here(step, _ENTERED) and self._all_here(step, _HELD), is_frozen):
            return False
        for k in range(self._rounds):
            self._send(self._nodes[(self._here + (1 << k)) % len(self._nodes)][0], step, k)
            if not _until(lambda k=k: self._heard[k] > step, is_frozen):  # type: ignore[misc]
                return False
        _COUNT.pack_into(self._map, _OPEN, step + 1)
        return True

    def _all_here(self, step: int, what: int) -> bool:
        return all(self._count(index, what) > step for index in range(len(self._ranks)))

    def _count(self, index: int, what: int) -> int:
        return int(_COUNT.unpack_from(self._map, index * _LINE + what)[0])


def _until(is_so: Callable[[], bool], is_frozen: Callable[[], bool]) -> bool:
    pause = _FIRST_PAUSE_S
    while not is_so():
        if is_frozen():
            return False
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
    return True
