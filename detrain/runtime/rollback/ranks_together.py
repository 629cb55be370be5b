"""The ranks of a job on one machine go back together: at each cut they agree whether one of them has met an alarm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from detrain.base.config import Ranks
from detrain.base.errors import RanksApart, UsageError
from detrain.runtime.ranks.gate import Gate, Late
from detrain.store.node_folder import NodeFolder, memory

_LONGEST_S: Final = 1800.0
"""The longest wait for the other ranks: one of them may validate meanwhile. PyTorch's collectives wait as long."""


class RanksTogether:
    """One rank's side of the agreements. Each takes some 0.04 ms, once the last rank has come."""

    def __init__(self, ranks: Ranks, is_ending: Callable[[], bool]) -> None:
        """Meet the ranks of this start of the job. `is_ending` says whether the job is ending, as a rank has died.

        Raises UsageError if the job has several machines.
        """
        if not ranks.is_on_one_machine:
            raise UsageError("--guard recover: ranks go back together on one machine only, not on several", "give --guard detect")
        self._rank, self._is_ending, self._count = ranks.rank, is_ending, 0
        self._folder: NodeFolder | None = NodeFolder(memory(), f"guard-{ranks.job}")
        self._gate = Gate(self._folder.path, ranks.rank, [list(range(ranks.world))], lambda *_message: None)

    def greatest(self, number: int) -> int:
        """Return the greatest number that a rank has brought here; 0 if the job is ending. Raises RanksApart."""
        step, self._count = self._count, self._count + 1
        try:
            found = self._gate.wait(step, self._is_ending, number, _LONGEST_S)
        except Late as late:
            raise RanksApart(
                f"rank {self._rank} has waited {_LONGEST_S:.0f} s at a batch for the other ranks, to go on with the guard",
                "run the job without --guard recover if its ranks have unequal numbers of batches",
            ) from late
        if self._folder is not None and found is not None:
            self._folder.delete()  # all ranks have the page in memory now
            self._folder = None
        return found or 0
