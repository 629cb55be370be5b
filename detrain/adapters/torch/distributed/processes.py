"""Which programs of several processes are exact, and what their processes tell each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch.distributed
from torch.distributed.rendezvous import _rendezvous_handlers

from detrain.adapters.torch.distributed.buckets import Buckets
from detrain.base.config import Ranks
from detrain.base.errors import FrameworkUnsupported

_BACKENDS: Final = ("gloo", "nccl")
_SHARDED: Final = {
    "torch.distributed.fsdp": "FSDP",
    "torch.distributed.optim.zero_redundancy_optimizer": "ZeroRedundancyOptimizer",
    "torch.distributed.rpc.api": "RPC",
    "torch.distributed.pipelining.schedules": "pipelines",
}
"""Modules whose classes spread a state over processes, and what they are called."""


class Processes:
    """The part of the adapter that knows of other processes. `ranks`: which of them this one is, as the launcher says."""

    def __init__(self, ranks: Ranks | None) -> None:
        self._ranks = ranks
        self.buckets = Buckets() if ranks is not None and torch.distributed.is_available() else None
        if ranks is not None and torch.distributed.is_available():
            _keep_starts_apart(ranks.job)

    def check(self) -> None:
        """Raise FrameworkUnsupported where the processes of the program do not belong together as detrain knows it."""
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
            return
        world, rank = distributed.get_world_size(), distributed.get_rank()
        if self._ranks is None:
            raise FrameworkUnsupported(
                f"the program trains in {world} processes (torch.distributed) that it has started itself, whose checkpoints do not "
                "belong together",
                "start it by `detrain launch --nproc-per-node N` or torchrun, or run it with --bare",
            )
        if (rank, world) != (self._ranks.rank, self._ranks.world):
            raise FrameworkUnsupported(
                f"the process is rank {rank} of {world} for the program, and {self._ranks.rank} of {self._ranks.world} for the "
                "launcher",
                "let the program take RANK and WORLD_SIZE as the launcher sets them, or run it with --bare",
            )

    def environment(self) -> dict[str, str]:
        """Return what decides about sums."""
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return {}
        return {"torch distributed": str(distributed.get_backend())}


def _keep_starts_apart(job: str) -> None:
    """Have what the program's processes tell each other, to find together, lie under a name of this start alone.

    A store may outlive the processes (`torchrun --master-port`), and still hold the addresses of those before.
    """
    handlers: Any = _rendezvous_handlers
    original = handlers["env"]

    def handler(*arguments: Any, **named: Any) -> Iterator[Any]:
        for store, rank, world in original(*arguments, **named):
            yield torch.distributed.PrefixStore(f"detrain/{job}", store), rank, world

    handlers["env"] = handler
