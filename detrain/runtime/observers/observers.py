"""Who is told of cuts beside the checkpointer: the experiment that a run is, and `detrain verify`."""

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
    """Hears of cuts, in this order:

    `at_cut`, `end_body`, the guard's look, `end_epoch`; it changes nothing of the program.
    """

    def at_cut(self, cut: Cut) -> None:
        """A cut is reached."""

    def end_body(self, cut: Cut, frame: FrameType) -> None:
        """The body of a batch, if there was one, is over."""

    def begin_epoch(self, cursor: Cursor) -> None:
        """An epoch begins; a run that goes on at its start hears `has_resumed` instead."""

    def end_epoch(self, frame: FrameType) -> None:
        """An epoch is over, what comes after its batches included."""

    def end_load(self) -> None:
        """A loader has run out."""

    def begin_body(self, address: Address) -> None:
        """The body of a batch is about to run."""

    def next_body(self, address: Address, batches_done: int) -> int:
        """Return the number of the first batch of an epoch, from the one at an address on, of whose body it must be
        told, and of cuts before that.
        """
        del batches_done
        return address[-1]

    def end_loop(self) -> None:
        """A training loop has run out, or is being left."""

    def end_phase(self) -> None:
        """A training loop has been left, which was trained in."""

    def is_saving(self, cursor: Cursor) -> None:
        """A checkpoint is being taken."""

    def has_resumed(self, cursor: Cursor) -> None:
        """The state of the newest checkpoint has been set."""

    def finish(self) -> None:
        """The program ends, and nothing more happens in its loops."""

    def end(self) -> None:
        """All batches are on record."""


class ExperimentObserver(Observer):
    """Tells the experiment of bodies and epochs, and what the guard sees."""

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
        """Note what the step says."""
        kept = lambda: accuracies(frame, self._adapters.to_array, stale=self._experiment.stale)  # noqa: E731
        self._experiment.end_body(kept, is_last=cut != "load")

    def end_epoch(self, frame: FrameType) -> None:
        """Note what the epoch says."""
        if not self._plan.is_resuming:
            stale = self._experiment.stale
            kept = lambda: accuracies(frame, self._adapters.to_array, is_after_epoch=True, stale=stale)  # noqa: E731
            self._experiment.end_epoch(self._position.phase, self._position.epoch, kept)

    def end_load(self) -> None:
        """The step that has ended was the last of its epoch."""
        self._experiment.end_load()

    def end_loop(self) -> None:
        """What comes behind is not looked at, perhaps."""
        if not self._plan.is_resuming:
            self._experiment.end_loop()

    def begin_body(self, address: Address) -> None:
        """Arm the fault, if it is due. What it changes of what is loaded from then on is an outcome."""
        self._experiment.end_body()
        self._experiment.begin(address)
        may_differ = self._config.allow_environment or self._experiment.is_struck
        if may_differ != self._batches.may_differ:
            self._batches.record_waiting()
            self._batches.may_differ = may_differ

    def finish(self) -> None:
        """The program ends."""
        self._experiment.finish()


class VerifyObserver(Observer):
    """Kills the process where `detrain verify` wants it, and leaves digests behind."""

    def __init__(self, trial: VerifyPlan, position: Position, plan: ResumePlan, adapters: Adapters) -> None:
        self._trial, self._position, self._plan, self._adapters = trial, position, plan, adapters
        self._has_looked = False

    def begin_body(self, address: Address) -> None:
        """Kill the process, if this is the batch; note what training changes: behind the loop its name may be read no
        more. A look costs a tenth of a short step: there is one at the first body, at each whose number is a power of
        two, and where the batches are over.
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
        """Look once more."""
        self._adapters.look_at_names()

    def end_phase(self) -> None:
        """Note the variables."""
        if not self._plan.is_forwarding:
            self._trial.at_end(f"phase {self._position.phase}", self._adapters.tensors())

    def begin_epoch(self, cursor: Cursor) -> None:
        """Note how much has been printed."""
        self._trial.at_cut("begun at", f"{cursor} {cursor.cut}")

    def is_saving(self, cursor: Cursor) -> None:
        """Note how much has been printed."""
        self._trial.at_cut("saved at", f"{cursor} {cursor.cut}")

    def has_resumed(self, cursor: Cursor) -> None:
        """Note how much has been printed."""
        self._trial.at_cut("resumed at", f"{cursor} {cursor.cut}")

    def end(self) -> None:
        """Note the variables."""
        if not self._plan.is_resuming:
            self._trial.at_end("the program", self._adapters.tensors())
