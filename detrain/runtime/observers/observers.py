"""The observers of cuts beside the checkpointer: a run's fault experiment, and `detrain verify`."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from detrain.adapters.group import Adapters
from detrain.base.config import Config
from detrain.base.cursor import Address, Cursor, Cut
from detrain.python.inspect.program_metrics import accuracies
from detrain.python.loaders.batch_digests import Batches
from detrain.runtime.state.position import Position
from detrain.runtime.state.resume_plan import ResumePlan

if TYPE_CHECKING:
    from detrain.guard.detector import Guard
    from detrain.runtime.observers.experiment_run import ExperimentRun
    from detrain.runtime.observers.verify_hooks import VerifyPlan


class Observer:
    """An observer of cuts. The session calls it in this order:

    `at_cut`, `end_body`, the guard's look, `end_epoch`. It does not change the program's state.
    """

    def at_cut(self, cut: Cut) -> None:
        """Take note that a cut is reached."""

    def end_body(self, cut: Cut, frame: FrameType) -> None:
        """Take note that a batch's body, if there was one, is over."""

    def begin_epoch(self, cursor: Cursor) -> None:
        """Take note that an epoch begins; a run that resumes at its start calls `has_resumed` instead."""

    def end_epoch(self, frame: FrameType) -> None:
        """Take note that an epoch is over, also the code behind its batches."""

    def end_load(self) -> None:
        """Take note that a loader has run out."""

    def begin_body(self, address: Address) -> None:
        """Take note that a batch's body is about to run."""

    def next_body(self, address: Address, batches_done: int) -> int:
        """Return the number of the first batch of an epoch, from `address` on, of which the observer must be told: of
        the body, and of the cuts before it.
        """
        del batches_done
        return address[-1]

    def end_loop(self) -> None:
        """Take note that a training loop has run out, or is being left."""

    def end_phase(self) -> None:
        """Take note that the program has left a training loop."""

    def is_saving(self, cursor: Cursor) -> None:
        """Take note that a checkpoint is being taken."""

    def has_resumed(self, cursor: Cursor) -> None:
        """Take note that the state of the newest checkpoint has been set."""

    def finish(self) -> None:
        """Take note that the program ends: no more batches run in its loops."""

    def end(self) -> None:
        """Take note that all batches are on record."""


class ExperimentObserver(Observer):
    """Tells the experiment of bodies, of epochs and of the guard's alarms."""

    def __init__(
        self,
        experiment: ExperimentRun,
        guard: Callable[[], Guard | None],
        position: Position,
        plan: ResumePlan,
        adapters: Adapters,
        batches: Batches,
        config: Config,
    ) -> None:
        self._experiment, self._guard, self._position, self._plan = experiment, guard, position, plan
        self._adapters, self._batches, self._config = adapters, batches, config

    def at_cut(self, cut: Cut) -> None:
        """Have the guard look, if it only detects."""
        guard, position = self._guard(), self._position
        if guard is None or guard.recovers or not position.is_in_phase or self._plan.is_resuming:
            return
        guard.must_go_back(position.cursor(cut), position.batches_done)
        seen = guard.alarm
        if seen is not None:
            self._experiment.note_alarm(seen.key, seen.norm, seen.bound, seen.kind)

    def end_body(self, cut: Cut, frame: FrameType) -> None:
        """Note the losses and metrics of the step."""
        kept = lambda: accuracies(frame, self._adapters.to_array, stale=self._experiment.stale)  # noqa: E731
        self._experiment.end_body(kept, is_last=cut != "load")

    def end_epoch(self, frame: FrameType) -> None:
        """Note the losses and metrics of the epoch, and of its last step, if that is open: a `break` left the loop."""
        if not self._plan.is_resuming:
            self.end_body("end", frame)
            stale = self._experiment.stale
            kept = lambda: accuracies(frame, self._adapters.to_array, is_after_epoch=True, stale=stale)  # noqa: E731
            self._experiment.end_epoch(self._position.phase, self._position.epoch, kept)

    def end_load(self) -> None:
        """Note that the step that has ended was the last of its epoch."""
        self._experiment.end_load()

    def end_loop(self) -> None:
        """Tell the experiment that the loop is over: it may end the trial here."""
        if not self._plan.is_resuming:
            self._experiment.end_loop()

    def begin_body(self, address: Address) -> None:
        """Arm the fault if it is due. From then on other batches are no error: they are an outcome of the fault."""
        self._experiment.end_body()
        self._experiment.begin(address)
        may_differ = self._config.allow_environment or self._experiment.is_struck
        if may_differ != self._batches.may_differ:
            self._batches.record_waiting()
            self._batches.may_differ = may_differ

    def finish(self) -> None:
        """Finish the experiment, as the program ends."""
        self._experiment.finish()


class VerifyObserver(Observer):
    """Kills the process at the place that `detrain verify` asks for, and leaves digests behind."""

    def __init__(self, trial: VerifyPlan, position: Position, plan: ResumePlan, adapters: Adapters) -> None:
        self._trial, self._position, self._plan, self._adapters = trial, position, plan, adapters
        self._has_looked = False

    def begin_body(self, address: Address) -> None:
        """Kill the process if this is the batch for it. Note the objects that training changes: behind the loop their
        names may no longer be read. A look costs a tenth of a short step, so look at the first body, at bodies with a
        power of two as their number, and when the batches are over.
        """
        batch = address[-1]
        if not self._has_looked or batch & (batch - 1) == 0:
            self._adapters.look_at_names()
            self._has_looked = True
        self._trial.at_batch(self._position.batches_done, address)

    def next_body(self, address: Address, batches_done: int) -> int:
        """See `Observer.next_body`."""
        batch = address[-1]
        if not self._has_looked or not batch:
            return batch
        return min(1 << (batch - 1).bit_length(), self._trial.next_batch(address, batches_done))

    def end_load(self) -> None:
        """Look once more for the objects that training changes."""
        self._adapters.look_at_names()

    def end_phase(self) -> None:
        """Note the digests of the variables behind the loop."""
        if self._plan.is_resuming:  # a station of this phase has been passed, whose state may be of other objects
            self._adapters.look_at_names()
        if not self._plan.is_forwarding:
            self._trial.at_end(f"phase {self._position.phase}", self._adapters.tensors())

    def begin_epoch(self, cursor: Cursor) -> None:
        """Note how much the program has printed."""
        self._trial.at_cut("begun at", f"{cursor} {cursor.cut}")

    def is_saving(self, cursor: Cursor) -> None:
        """Note how much the program has printed."""
        self._trial.at_cut("saved at", f"{cursor} {cursor.cut}")

    def has_resumed(self, cursor: Cursor) -> None:
        """Note how much the program has printed; look once more, as the state may be of other objects."""
        self._adapters.look_at_names()
        self._trial.at_cut("resumed at", f"{cursor} {cursor.cut}")

    def end(self) -> None:
        """Note the digests of the variables at the program's end."""
        if not self._plan.is_resuming:
            self._trial.at_end("the program", self._adapters.tensors())
