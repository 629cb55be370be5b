"""Processes that a program starts itself: one that joins a process group is a rank that no launcher has announced to
detrain. detrain refuses it there, before it trains, and its end ends the run.

If a launcher has started the ranks, `torch.multiprocessing.spawn` need not start them: each rank itself calls the
function that was to be spawned, with its own number. If this function joins no group, it was not the training, and the
run is refused, too. The program's own processes also import this module: so it imports PyTorch in functions only.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any, Final, NoReturn

from detrain.base import messages
from detrain.base.config import Ranks
from detrain.base.errors import FrameworkUnsupported
from detrain.base.in_place import in_place_of
from detrain.python.inspect.frames import is_user_file

_NO_RANKS: Final = ("multiprocessing.", "torch.utils.data.")
"""Beginnings of names of modules with functions that never run as ranks: Python's servers, workers of loaders."""
_AGENTS_STORE: Final = "TORCHELASTIC_USE_AGENT_STORE"
_AS_IT_IS: Final = ", as it is: each rank calls the function that it was to start"
_SELF: Final = ", with the function that trains called by each rank itself, as under torchrun; or run it with --bare"


class OwnRanks:
    """Watches for processes that join a process group. `fail` ends the process with an error.

    Make one right after the import of PyTorch.
    """

    def __init__(self, ranks: Ranks | None, fail: Callable[[FrameworkUnsupported], NoReturn]) -> None:
        import torch.multiprocessing

        self._ranks, self._fail, self._process = ranks, fail, os.getpid()
        self._refusal = _refusal("N", _SELF)
        self._address, self._has_joined = _address(), False
        _replace_join(self._joining, self._joined)
        of_processes: Any = BaseProcess
        start = of_processes.start
        of_processes.start = functools.wraps(start)(lambda process: self._start(start, process))
        spawning: Any = sys.modules["torch.multiprocessing.spawn"]
        several: Any = spawning.start_processes

        @in_place_of(spawning, "start_processes", torch.multiprocessing)
        def start_processes(*arguments: Any, **named: Any) -> Any:
            given = inspect.signature(several).bind(*arguments, **named)
            given.apply_defaults()
            call = given.arguments
            is_simple = call["join"] and _is_programs(call["fn"])
            if is_simple and self._is_of_ranks(call["nprocs"]):
                return self._call(call["fn"], call["args"])
            with self._starting(call["nprocs"], _AS_IT_IS if is_simple else _SELF):
                return several(*arguments, **named)

    def _joining(self) -> None:
        """Note that the process is about to join a group of several processes."""
        if os.getpid() != self._process:
            _end_child(self._refusal)
        if self._address != _address():
            os.environ.pop(_AGENTS_STORE, None)  # the launcher does not listen where the program says

    def _joined(self, world: int) -> None:
        """Note that the process has joined a group of `world` processes. If it must end, the others notice and end."""
        self._has_joined = True
        if self._ranks is None and world > 1:
            self._fail(unannounced(world))

    def _is_of_ranks(self, count: int) -> bool:
        """Return whether this count of processes is that of the ranks that a launcher has started."""
        if self._ranks is None or self._has_joined:
            return False
        return count == (self._ranks.local_world or self._ranks.world)

    def _call(self, function: Any, arguments: Any) -> None:
        """Call the function in place of the spawned process with this rank's number."""
        assert self._ranks is not None
        function(self._ranks.rank if self._ranks.local_rank is None else self._ranks.local_rank, *arguments)
        if not self._has_joined:
            self._fail(
                FrameworkUnsupported(
                    "the function that torch.multiprocessing.spawn was to run in as many processes as there are ranks has joined "
                    "no process group: each rank has called it for its own number, and other ranks' results are not here",
                    "let rank 0 alone start other processes than the ranks, in another number; or run it with --bare",
                )
            )

    @contextmanager
    def _starting(self, count: int, todo: str) -> Iterator[None]:
        before, self._refusal = self._refusal, _refusal(str(count), todo)
        try:
            yield
        finally:
            self._refusal = before

    def _start(self, start: Callable[[BaseProcess], None], process: BaseProcess) -> None:
        """Start a process that is refused if it joins a group; this process then ends, too, when it learns of that."""
        module = getattr(getattr(process, "_target", None), "__module__", None) or ""
        if f"{module}.".startswith(_NO_RANKS):
            return start(process)
        process.run = _WatchedRank(type(process).run, process)  # type: ignore[method-assign]
        try:
            start(process)
        finally:
            del process.run
        popen: Any = process._popen  # type: ignore[attr-defined]
        poll, refusal = popen.poll, self._refusal

        def polled(*arguments: Any, **named: Any) -> Any:
            status = poll(*arguments, **named)
            if status == refusal.exit_code and os.getpid() == self._process:
                self._fail(refusal)
            return status

        popen.poll = polled
        return None


class _WatchedRank:
    """The `run` of a process that the program starts."""

    def __init__(self, run: Callable[[Any], None], process: BaseProcess) -> None:
        self._run, self._of = run, process

    def __call__(self) -> None:
        global _is_watched  # noqa: PLW0603 - it is the process's own
        _is_watched = True
        if "torch.distributed" in sys.modules:
            _replace_join(lambda: os._exit(FrameworkUnsupported.exit_code))
        vars(self._of).pop("run", None)
        self._run(self._of)


_is_watched = False
"""Whether the parent process watches how this one ends."""


def _replace_join(joining: Callable[[], None], joined: Callable[[int], None] = lambda _world: None) -> None:
    """Call `joining` before and `joined` after a process joins a group of more than one."""
    import torch.distributed
    from torch.distributed import distributed_c10d

    if not torch.distributed.is_available():
        return
    join: Any = distributed_c10d.init_process_group

    @in_place_of(distributed_c10d, "init_process_group", torch.distributed)
    def init_process_group(*arguments: Any, **named: Any) -> None:
        given = named.get("world_size", arguments[3] if len(arguments) > 3 else -1)
        said = os.environ.get("WORLD_SIZE", "")
        is_alone = given == 1 or (given < 0 and said == "1")
        if not is_alone:
            joining()
        join(*arguments, **named)
        if not is_alone:
            joined(torch.distributed.get_world_size())


def _refusal(count: str, todo: str) -> FrameworkUnsupported:
    return FrameworkUnsupported(
        "the program trains in processes that it has started itself (torch.distributed), whose checkpoints do not belong together",
        f"start it by `detrain launch --nproc-per-node {count}`{todo}",
    )


def unannounced(world: int) -> FrameworkUnsupported:
    """Return the refusal of a group of processes that detrain does not know to be one job."""
    return FrameworkUnsupported(
        f"the program trains in {world} processes (torch.distributed) that detrain does not know to be one job: their checkpoints "
        "do not belong together",
        f"{Ranks.how_to_start(world)}; or run it with --bare",
    )


def _end_child(error: FrameworkUnsupported) -> NoReturn:
    """End a process that the program has forked."""
    if _is_watched:
        os._exit(error.exit_code)
    messages.flush_output()
    messages.put_last(error.printed())
    os._exit(error.exit_code)


def _is_programs(function: Any) -> bool:
    code = getattr(getattr(function, "func", function), "__code__", None)
    return code is not None and is_user_file(code.co_filename)


def _address() -> tuple[str | None, str | None]:
    return os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
