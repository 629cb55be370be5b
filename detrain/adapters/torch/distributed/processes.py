"""Programs of several processes: a check that they are exact, a separate store for each start, and a sure end.

In PyTorch, the object that sums a model's gradients (its reducer) may hold the last reference to a process group. It is
deleted with Python's lock held, the group with it, and the group waits for its threads. One of these may wait for that
lock, to release the last collective's tensors: then the process hangs after its last line (seen with 2.13 and gloo,
torch/csrc/distributed/c10d: `~ProcessGroupGloo`, `runLoop`). If a Python object holds the last reference, the group is
deleted without the lock. So this module keeps such a reference until the reducer is gone; if it never goes, for ever.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn

import torch.distributed
from torch.autograd import graph
from torch.distributed import distributed_c10d
from torch.distributed.algorithms.join import Join
from torch.distributed.rendezvous import _rendezvous_handlers
from torch.nn.parallel import DistributedDataParallel

from detrain.adapters.torch.distributed.buckets import Buckets
from detrain.adapters.torch.distributed.fully_sharded import FullySharded
from detrain.adapters.torch.distributed.own_ranks import OwnRanks, unannounced
from detrain.base.config import Ranks
from detrain.base.errors import FrameworkUnsupported
from detrain.base.in_place import in_place_of

_UNKNOWN_BACKENDS: Final = ("mpi", "ucc", "xccl", "hccl")
_COLLECTIVES: Final = (
    *("all_reduce", "broadcast", "barrier", "reduce", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all"),
    *("all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "monitored_barrier", "send", "recv"),
)
_FSDP: Final = ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel", "FSDP")
_STAGES: Final = ("torch.distributed.pipelining.stage", "_PipelineStageBase", "pipeline stages")
_TENSORS: Final = ("torch.distributed.tensor", "DTensor", "DTensor (FSDP2, tensor parallelism)")
_ZERO: Final = ("torch.distributed.optim.zero_redundancy_optimizer", "ZeroRedundancyOptimizer", "ZeroRedundancyOptimizer")
"""Classes with objects that spread a state over processes: module, name, and words for messages."""

_SWITCH_S: Final = 0.02
"""A few times the time that Python lets a thread wait for its lock (`sys.getswitchinterval`)."""
_kept: set[weakref.finalize[Any, Any]] = set()
"""Finalizers of the objects that may delete a group: each refers to the group until its object is gone."""


class Processes:
    """The part of the adapter that knows of other processes. `ranks`: this process's rank, from the launcher."""

    def __init__(
        self,
        ranks: Ranks | None,
        on_peer_error: Callable[[BaseException], None] | None,
        on_unheld: Callable[[str], bool] | None,
        fully_sharded: FullySharded,
        fail: Callable[[FrameworkUnsupported], NoReturn] | None = None,
    ) -> None:
        self._ranks, self._fully_sharded = ranks, fully_sharded
        self._on_unheld = on_unheld
        self.is_here = torch.distributed.is_available()
        if self.is_here:
            have_groups_outlive_reducers()
            if fail is not None:
                OwnRanks(ranks, fail)
        self.buckets = Buckets() if ranks is not None and self.is_here else None
        if ranks is not None and self.is_here:
            _keep_starts_apart(ranks.job)
            if on_peer_error is not None:
                _tell_of_errors(on_peer_error)
            if on_unheld is not None:
                _tell_of_joins(lambda: on_unheld("ranks may train on unequal numbers of batches from here on (`join`)"))

    def check(self) -> None:
        """Raise FrameworkUnsupported if the program's processes do not form a job whose checkpoints are exact."""
        distributed = torch.distributed
        if not (self.is_here and distributed.is_initialized()):
            return
        if self._fully_sharded.is_newer():
            raise FrameworkUnsupported(
                f"FSDP2 of PyTorch {torch.__version__} keeps gradients that are still to be reduced otherwise than that of 2.9 to "
                "2.14, which detrain knows",
                "install torch<2.15 for it, or run it with --bare",
            )
        if distributed.get_world_size() == 1:
            return
        world, rank = distributed.get_world_size(), distributed.get_rank()
        if self._ranks is None:
            raise unannounced(world)
        if (rank, world) != (self._ranks.rank, self._ranks.world):
            raise FrameworkUnsupported(
                f"the process is rank {rank} of {world} for the program, and {self._ranks.rank} of {self._ranks.world} for the "
                "launcher",
                "let the program take RANK and WORLD_SIZE as the launcher sets them, or run it with --bare",
            )
        backend = str(distributed.get_backend())
        spread = _objects(_TENSORS, _ZERO)
        parts = f"the program trains with {', '.join(_words(spread))}, of which each rank has a part of its own"
        if spread and self._on_unheld is not None and self._on_unheld(parts):
            raise FrameworkUnsupported(
                f"--jit in a program that trains with {', '.join(_words(spread))}: no other rank has the part of the state that a "
                "rank takes with it when it dies",
                "run it without --jit: its checkpoints (--every) are exact, each rank's part is its own",
            )
        found = [*_words(_objects(_FSDP, _STAGES)), *self._fully_sharded.unknown()]
        if any(getattr(each, "_overlap_with_ddp", False) for each, _what in spread):
            found.append("ZeroRedundancyOptimizer(overlap_with_ddp=True)")
        found += [*(self.buckets.unknown_hooks() if self.buckets is not None else ())]
        found += [f"the backend {backend!r}"] if any(name in backend for name in _UNKNOWN_BACKENDS) else []
        found += ["RPC"] if "torch.distributed.rpc" in sys.modules and torch.distributed.rpc.api._is_current_rpc_agent_set() else []
        if found:
            raise FrameworkUnsupported(
                f"the program trains with {', '.join(found)}: checkpoints of jobs are exact with DistributedDataParallel, FSDP2 "
                "(fully_shard), DTensor and ZeroRedundancyOptimizer over gloo or NCCL alone",
                "train with these, or run it with --bare: deterministic settings, no checkpoints",
            )

    def environment(self) -> dict[str, str]:
        """Return the backend, which decides about the bits of sums."""
        distributed = torch.distributed
        if not (self.is_here and distributed.is_initialized()):
            return {}
        return {"torch distributed": str(distributed.get_backend())}


def _tell_of_errors(on_error: Callable[[BaseException], None]) -> None:
    """Call `on_error` when a collective raises an error, before the program sees it."""

    def telling(function: Any) -> Any:
        @functools.wraps(function)
        def told(*arguments: Any, **named: Any) -> Any:
            try:
                return function(*arguments, **named)
            except RuntimeError as error:
                on_error(error)
                raise

        return told

    for name in _COLLECTIVES:
        told = telling(getattr(distributed_c10d, name))
        setattr(distributed_c10d, name, told)
        setattr(torch.distributed, name, told)
    DistributedDataParallel.forward = telling(DistributedDataParallel.forward)
    graph._engine_run_backward = torch.autograd._engine_run_backward = telling(graph._engine_run_backward)


def _tell_of_joins(on_uneven: Callable[[], object]) -> None:
    """Call `on_uneven` when the program enters `Join`, which lets some ranks train on more batches than others."""
    enter = Join.__enter__

    @in_place_of(Join, "__enter__")
    def entered(join: Any) -> Any:
        if join._enable:
            on_uneven()
        return enter(join)


def _objects(*described: tuple[str, str, str]) -> list[tuple[Any, str]]:
    """Return the live objects of some classes, each with the words for its class."""
    classes = [(getattr(sys.modules.get(module), name, None), words) for module, name, words in described]
    known = [(cls, words) for cls, words in classes if cls is not None]
    every = gc.get_objects() if known else []
    return [(each, words) for cls, words in known for each in every if issubclass(type(each), cls)]


def _words(objects: list[tuple[Any, str]]) -> list[str]:
    return list(dict.fromkeys(words for _object, words in objects))


def _keep_starts_apart(job: str) -> None:
    """Put the entries by which the program's processes find each other under a prefix of this start of the job alone.

    A store may outlive the processes (`torchrun --master-port`), and still hold the addresses of earlier ones.
    """
    handlers: Any = _rendezvous_handlers
    original = handlers["env"]

    def handler(*arguments: Any, **named: Any) -> Iterator[Any]:
        for store, rank, world in original(*arguments, **named):
            yield torch.distributed.PrefixStore(f"detrain/{job}", store), rank, world

    handlers["env"] = handler


def have_groups_outlive_reducers() -> None:
    """Keep the process groups of all models that are wrapped in DDP from now on alive until their reducers are gone."""
    made: Any = DistributedDataParallel._ddp_init_helper
    moved: Any = DistributedDataParallel._update_process_group

    def init(model: Any, *arguments: Any, **named: Any) -> None:
        made(model, *arguments, **named)  # called inside `__init__`: warnings name the caller of that
        _keep_group(model)

    def update(model: Any, group: Any) -> None:
        moved(model, group)
        _keep_group(model)

    DistributedDataParallel._ddp_init_helper = init
    DistributedDataParallel._update_process_group = update
    atexit.register(_at_exit)


def _keep_group(model: Any) -> None:
    _kept.difference_update([each for each in _kept if not each.alive])
    for each in (model.reducer, model.logger):  # the logger refers to the reducer, too
        finalizer = weakref.finalize(each, _let_go, model.process_group)
        finalizer.atexit = False
        _kept.add(finalizer)


def _let_go(_group: object) -> None:
    """Do nothing: the group is deleted when this returns, if nothing else refers to it."""


def _at_exit() -> None:
    """Keep the existing groups for ever, as Python deletes objects in any order from here on, and give the lock to the
    threads that wait for it.
    """
    for found in [each.peek() for each in _kept]:
        if found is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(found[2][0]))
            time.sleep(_SWITCH_S)
