"""Programs of several processes (`jax.distributed`): which are exact, and how the processes find each other.

Each process keeps its own shards, as its rank's part of a checkpoint, and asks no other process.
"""

from __future__ import annotations

import os
from typing import Any, Final

import jax
from jax._src import distributed
from jax._src.clusters import ClusterEnv
from jax._src.xla_bridge import backends_are_initialized

from detrain.adapters.api import Settings
from detrain.base.config import Ranks
from detrain.base.errors import FrameworkUnsupported
from detrain.python.process.settings import leave_libc_out

_PARTS: Final = "the program trains over processes of JAX, of which each has shards of its own"


class JaxProcesses:
    """The part of the adapter that knows about other processes."""

    def __init__(self, settings: Settings) -> None:
        self._ranks, self._on_unheld = settings.ranks, settings.on_unheld
        if settings.ranks is not None and settings.ranks.port:  # without checkpoints, no rank has told the others a port
            _tell_where(settings.ranks)

    def check(self) -> None:
        """Raise FrameworkUnsupported if the processes were not started together, or `--jit` cannot save all shards."""
        ranks, (rank, world) = self._ranks, _number()
        if world == 1:
            return
        if ranks is None:
            raise FrameworkUnsupported(
                f"the program trains in {world} processes (jax.distributed) that detrain does not know to be one job: their "
                "checkpoints do not belong together",
                f"{Ranks.how_to_start(world)}, or run it with --bare",
            )
        if (rank, world) != (ranks.rank, ranks.world):
            raise FrameworkUnsupported(
                f"the process is number {rank} of {world} for JAX, and rank {ranks.rank} of {ranks.world} for the launcher",
                "call `jax.distributed.initialize()` without numbers, or with RANK and WORLD_SIZE; or run it with --bare",
            )
        leave_libc_out("gloo, as processes connect")
        if self._on_unheld is not None and self._on_unheld(_PARTS):
            raise FrameworkUnsupported(
                f"--jit: {_PARTS}, and no other rank has those of one that dies",
                "run it without --jit: its checkpoints (--every) are exact, each rank's part is its own",
            )

    def environment(self) -> dict[str, str]:
        """Return the facts that decide about sums over processes."""
        _rank, world = _number()
        if world == 1:
            return {}
        collectives: Any = jax.config.values.get("jax_cpu_collectives_implementation")
        return {"jax processes": f"{world}, over {collectives} on CPUs"}


def _number() -> tuple[int, int]:
    """Return this process's number and the count of processes: the program's own, or those of a pod of TPUs."""
    state = distributed.global_state
    is_pod = backends_are_initialized() and jax.process_count() > 1
    return (jax.process_index(), jax.process_count()) if is_pod else (state.process_id, state.num_processes or 1)


def _tell_where(ranks: Ranks) -> None:
    """Have `jax.distributed.initialize()` without arguments join the processes that the launcher has started."""

    class Launched(ClusterEnv):  # type: ignore[misc]  # JAX gives the class no type
        name = "detrain"

        @classmethod
        def is_env_present(cls) -> bool:
            return True

        @classmethod
        def get_coordinator_address(cls, timeout_secs: int | None, override_coordinator_port: str | None) -> str:
            del timeout_secs
            return f"{os.environ['MASTER_ADDR']}:{override_coordinator_port or ranks.port}"

        @classmethod
        def get_process_count(cls) -> int:
            return ranks.world

        @classmethod
        def get_process_id(cls) -> int:
            return ranks.rank

    kinds = ClusterEnv._cluster_types
    kinds.insert(0, kinds.pop())  # before JAX's classes for other launchers
