"""Confirms, in a run with probes, that updates happen in the loops with probes. Static analysis proposes the loops, the
run confirms them.

If the run updates weights in other loops before it reaches a loop with probes, detrain writes these loops down and
starts the program again. So it does if a loop over epochs itself updates, as the batch loop in it is one that a
framework traces. Later, or once there is a checkpoint, it can only warn, as checkpoints count the loops with
probes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from detrain.base import messages
from detrain.base.compiled_sources import tree_of
from detrain.base.config import Config
from detrain.base.structure import Loop, Structure, loop_nodes, write_info
from detrain.python.inspect.frames import installed_package, is_user_file, outwards
from detrain.python.inspect.named import main_module
from detrain.python.inspect.names import FRAMEWORKS
from detrain.python.outside.clock_and_entropy import now
from detrain.python.process import children
from detrain.tracer.inference import LoopKey
from detrain.tracer.observer import UpdateObserver

_RESTARTED: Final = "DETRAIN_RESTARTED"
_MANY: Final = 20
"""So many updates outside of loops are more than a program needs to build its optimizers before it trains."""


class Confirmation:
    """The session's work at updates, until the loops are confirmed."""

    def __init__(self, config: Config, begin: Callable[[float], None], has_checkpoint: Callable[[], bool]) -> None:
        """`begin` gets the time at which the program entered a loop (seconds since 1970), before a new start."""
        self._config = config
        self._begin = begin
        self._has_checkpoint = has_checkpoint
        self._began_at = 0.0
        self._structure = config.structure or Structure((), "")
        self._stray: UpdateObserver | None = None
        self._stray_updates = 0
        self._is_in_epoch = False
        self.is_restart = os.environ.pop(_RESTARTED, "") != ""
        """Whether this process was started again, with probes in the loops where the one before it saw updates."""
        self.may_start_again = not self.is_restart and not config.stations and bool(config.command)
        """Whether the program may still be started again, with probes in other loops."""

    def set_structure(self, structure: Structure) -> None:
        """Take the loops that carry probes now, as another cell of a notebook is about to run."""
        self._structure = structure

    def in_body(self) -> None:
        """Write the structure down, as a body of a loop with probes updates weights for the first time."""
        self.may_start_again = False
        if not self._config.info or not self._structure.nests:
            return
        observer = UpdateObserver(lambda _observer: None)
        observer.on_update(0)
        observer.stop()
        nests = tuple(
            msgspec.structs.replace(nest, is_confirmed=True, evidence=(*nest.evidence, "the first run updated weights in its body"))
            if (nest.batch_loop.file, nest.batch_loop.line) in observer.loops
            else nest
            for nest in self._structure.nests
        )
        self._write(msgspec.structs.replace(self._structure, nests=nests, source="static analysis, confirmed by a run"))

    def outside(self, what: int, *, is_in_epoch: bool = False) -> None:
        """Note an update of weights outside of all loops with probes, or in an epoch loop without a batch so far."""
        self._is_in_epoch = is_in_epoch
        if self._stray is None:
            self._stray, self._began_at = UpdateObserver(self._look), now()
        self._stray.on_update(what)
        self._stray_updates += 1
        if self._stray_updates % _MANY == 0 and self._stray_updates <= 2 * _MANY and not self._stray.loops:
            self._look_in_library()

    def _look_in_library(self) -> None:
        """Have the loops of the library that trains looked for, too: once, while they can still get probes; else warn.
        The run that begins again counts the library as a part of the program.
        """
        file, place = _library_loop()
        if file and self._stray_updates == _MANY and self.may_start_again and not self._has_checkpoint():
            assert self._stray is not None
            self._stray.stop()
            self._stray = UpdateObserver(self._look, library=installed_package(file))
        elif self._stray_updates == _MANY or self.may_start_again:
            messages.warn(
                f"weights have been updated {self._stray_updates} times, in no loop of the program's own ({place}, which has no "
                "probes): no checkpoint is taken there, and a kill goes back to before it; write that loop in the program "
                "(`detrain info` says where probes are)"
            )

    def _look(self, observer: UpdateObserver) -> None:
        if not observer.knows_batch_loop:
            return
        nests = self._structure.nests
        epochs = {_key(nest.epoch_loop) for nest in nests if nest.epoch_loop is not None}
        batches = {_key(nest.batch_loop) for nest in nests}
        known = observer.batch_loops & epochs if self._is_in_epoch else set[LoopKey]()
        if observer.loops & (batches | epochs - known) or (self._is_in_epoch and not known):
            return
        observer.stop()
        left = tuple(nest for nest in nests if nest.epoch_loop is None or _key(nest.epoch_loop) not in known)
        seen = observer.outcome(msgspec.structs.replace(self._structure, nests=left), has_ended=False).structure
        first = next((f"{Path(nest.batch_loop.file).name}:{nest.batch_loop.line}" for nest in seen.nests), "")
        if not self.may_start_again or not first or self._has_checkpoint():
            if not self._is_in_epoch:
                lost = "which has no probes: a kill there goes back to before it"
                messages.warn(f"weights are updated in the loop at {first}, {lost}")
            return
        home = Path(self._config.home) if self._config.ranks is None else Path(self._config.home).parent
        self._write(seen, Path(self._config.info or home / "inst.info"))
        why = "whose inner loop is traced" if self._is_in_epoch else "not found by static analysis"
        messages.say(f"weights are updated in the loop at {first}, {why}: starting again with probes there")
        self._begin(self._began_at)
        os.environ[_RESTARTED] = "1"
        children.start_again(self._config.command)

    def _write(self, structure: Structure, info: Path | None = None) -> None:
        if self._config.ranks is not None and self._config.ranks.rank:
            return  # rank 0 writes it
        path = info or Path(self._config.info)
        base = Path(getattr(main_module(), "__file__", None) or ".").resolve().parent
        try:
            write_info(msgspec.structs.replace(structure, program=self._config.program, base=str(base)), path, base)
        except OSError as error:
            messages.warn(f"cannot write {str(path)!r}: {error.strerror or error}")


def _key(loop: Loop) -> LoopKey:
    return loop.file, loop.line


def _library_loop() -> tuple[str, str]:
    """Return the file of the innermost running loop of a library that is no framework, and its place in words."""
    for frame in outwards(sys._getframe()):
        package, file = frame.f_globals.get("__name__", "").partition(".")[0], frame.f_code.co_filename
        if package not in FRAMEWORKS and package not in sys.stdlib_module_names and not is_user_file(file):
            lines = [line for line, end in _loops_of(file) if line <= frame.f_lineno <= end]
            if lines:
                return file, f"{package}'s, {Path(file).name}:{max(lines)} in {frame.f_code.co_qualname}()"
    return "", "a library's"


def _loops_of(file: str) -> list[tuple[int, int]]:
    return [(line, node.end_lineno or line) for line, node in loop_nodes(tree_of(file)).items()]
