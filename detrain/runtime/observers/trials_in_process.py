"""Several trials in one process: each starts from a moment in memory, and the process goes back to it when the trial is
over.

Trials come in the order of their cursors. Between them the run goes on without a fault, and what it says of those steps
is written down, too: were anything left behind by a trial, it would not be what the golden run says. A process that
cannot go back exactly says why and ends; the trials that it has not come to are for another.

A trial may run over the end of its epoch. To go back from there, the batch loop that is running is ended at once, what
follows it in the epoch runs as in any, and the loop over epochs hands the trial's epoch out again. Where its batch loop
is entered, the moment is put back: until then the run is the trial's, whose state is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn, cast

import msgspec

from detrain.base.cursor import NOTHING, Address, Cursor
from detrain.base.digest import Array
from detrain.base.errors import FaultInvalid, FaultNotFired
from detrain.faults.experiment import Experiment
from detrain.guard.bounds import Mark
from detrain.guard.detector import Guard
from detrain.python.codec.api import Baseline
from detrain.python.inspect.frames import catches, names_of, user_frames
from detrain.python.loaders.strategy import RunningLoop
from detrain.runtime.observers.experiment_run import ExperimentRun, Log, StepLine
from detrain.runtime.rollback.ring import CannotGoBackError, Moment
from detrain.runtime.rollback.trial_window import Window
from detrain.runtime.state.whole_state import WholeState

EQUAL: Final = "equal"
"""How a trial ends that has come to the state of a step without a fault: it can only go on as the golden run does."""
UNFIRED: Final = "not fired"
"""How a trial ends whose fault was not done: its site did not run, or has another shape in this step."""


_ProgramState = tuple[str, object]
"""The program's, as a digest, and what the series remembers."""


class TrialsInProcess(ExperimentRun):
    """The trials of this process. What `ExperimentRun` does for one, this does for each."""

    def __init__(self, plans: Sequence[Experiment], tensors: Callable[[], Mapping[str, Array]], drain: Callable[[], None]) -> None:
        self._waiting = list(plans)
        self._is_over = False
        super().__init__(plans, tensors, drain)

    @property
    def plans(self) -> Sequence[Experiment]:
        """The experiments that are not over."""
        return self._waiting

    @property
    def is_over(self) -> bool:
        """Whether the trial has ended, so that the run has to go back."""
        return self._is_over

    @property
    def is_begun(self) -> bool:
        """Whether the step of the trial's fault has been begun."""
        return self.is_struck or self._done > 0

    @property
    def is_reference(self) -> bool:
        """Whether this is a step without a fault, before trials of that step: where they come to the same, they end."""
        return self.plan.injection is None and self.plan.count == 1 and len(self._waiting) > 1

    @property
    def may_be_equal(self) -> bool:
        """Whether the faulty step, and it alone, has been done."""
        return self._done == 1 and self._has_fired and not self._is_over

    def stop(self, why: str) -> None:
        """End the trial."""
        if not self._is_ending and not self._is_over:
            self._write(Log(end=why))
            self._is_over = True

    def ends_with_error(self, error: Exception, frame: FrameType) -> bool:
        """End the trial with an exception that the program does not catch, as it would end the process."""
        is_of_trial = self._body is not None and self._body >= self.plan.at and self.plan.ends_with_loop and not self._is_over
        if not is_of_trial or self._instruments is None or any(map(catches, user_frames(frame))):
            return False
        if self._is_armed:
            self._instruments.disarm()
        self._write(Log(crash=type(error).__name__))
        self._is_over = True
        return True

    def end_body(self, kept: Callable[[], Mapping[str, float]] = dict, *, is_last: bool = False) -> None:
        """The body of a batch, if there was one, is over."""
        if not self._is_over:
            super().end_body(kept, is_last=is_last)

    def note_alarm(self, variable: str, norm: float, bound: float, kind: str) -> None:
        """The guard has seen something at the end of a body."""
        if not self._is_over:
            super().note_alarm(variable, norm, bound, kind)

    def end_loop(self) -> None:
        """The training loop is over."""
        if not self._is_over:
            super().end_loop()

    def end_epoch(self, phase: int, epoch: int, kept: Callable[[], Mapping[str, float]] = dict) -> None:
        """An epoch is over, what comes after its batches (validation) included."""
        if not self._is_over:
            super().end_epoch(phase, epoch, kept)

    def end_load(self) -> None:
        """The loader has run out."""
        if not self._is_over:
            super().end_load()

    def finish(self) -> None:
        """The program ends."""
        if self._is_over:
            self.leave("the training loop has been left behind a trial")
        super().finish()

    def _disarm(self, body: Address) -> None:
        """A fault that was not done ends its trial, and not the process."""
        try:
            super()._disarm(body)
        except (FaultInvalid, FaultNotFired) as error:
            self.stop(f"{UNFIRED}: {error.what}")

    def _has_digest(self, body: Address, *, is_last: bool) -> bool:
        """Steps before the fault are compared with the golden run's, each of them."""
        return (self.plan.has_digests and body < self.plan.at) or super()._has_digest(body, is_last=is_last)

    def note_start(self) -> None:
        """The run is where the trial begins: note what is there."""
        self._write(Log(start=self._digest_now()))

    def next(self) -> None:
        """Take up the next trial, where the last one began. Ends the process behind the last."""
        self._waiting.pop(0)
        if not self._waiting:
            self._exit()
        self._is_over = False
        self._log.close()
        self._take_up(self._waiting[0])

    def leave(self, why: str) -> NoReturn:
        """End the process: another one can begin the next trial."""
        self._waiting.pop(0)
        if self._waiting:
            self._take_up(self._waiting[0])
            self._write(Log(left=why))
        self._exit()

    def give_up(self, why: str) -> NoReturn:
        """End the process: there is no exact way back."""
        if self._is_over:
            self._waiting.pop(0)
            if self._waiting:
                self._take_up(self._waiting[0])
                self._write(Log(obstacle=why))
        else:  # in the middle of a trial whose batches cannot be handed out again
            self._write(Log(obstacle=why))
        self._exit()

    def series_state(self) -> object:
        """Return what the series remembers."""
        return self._instruments.state() if self._instruments is not None else None

    def set_series_state(self, state: object) -> None:
        """Have the series remember what it did."""
        if self._instruments is not None:
            self._instruments.set_state(state)


class Rewind:
    """The way back of a campaign: what detrain.runtime.rollback.recovery.Recovery is to a run with a guard."""

    def __init__(
        self,
        campaign: TrialsInProcess,
        window: Window,
        guard: Guard | None,
        baseline: Callable[[], Baseline],
        set_baseline: Callable[[Baseline], None],
        kept_in: Path,
        whole: WholeState,
    ) -> None:
        self.guard: Final = guard
        self._whole = whole
        self._reference: tuple[StepLine, _ProgramState] | None = None
        """The step without a fault that was done last, and the state behind it."""
        self._campaign, self._window, self._kept_in = campaign, window, kept_in
        self._baseline, self._set_baseline = baseline, set_baseline
        self.is_returning = False
        """Whether the run is on its way back into the trial's epoch: its batch loops end at once."""
        self._is_entered = False
        """Whether that epoch has been begun again."""
        self.has_epochs = False
        """Whether the loop over epochs that is running can hand one out again."""

    def leave(self) -> None:
        """The batch loop has been left."""
        if self._campaign.is_over or self._campaign.is_begun:
            self._window.is_away = True
        elif not self.is_returning:
            self._window.clear()

    def begin_epoch(self, frame: FrameType) -> None:
        """An epoch begins, which is not the first of this process."""
        if not self._campaign.is_begun and not self._campaign.is_over:
            self._campaign.stale = dict(next((names_of(each) for each in user_frames(frame)), {}))

    def leave_loop(self) -> None:
        """The loop over epochs has been left: nothing hands an epoch out again."""
        if self._campaign.is_over:
            self._campaign.leave("the training loop was left in a trial")

    def returns(self) -> bool:
        """Return whether the run is on its way back into the trial's epoch, now that an epoch is over.

        Ends the process where there is no way.
        """
        if not self._campaign.is_over:
            return False
        if self._is_entered:
            self._campaign.leave("the trial's loop was not entered again")
        if not self.has_epochs or not self._window.is_held:
            self._campaign.leave("a trial has run over the end of its epoch, which nothing hands out again")
        self._window.is_away = self.is_returning = True
        return True

    def epoch_again(self) -> int:
        """Return the epoch that is to be handed out again; -1 if it is not."""
        if not self.is_returning:
            return -1
        if self._is_entered:
            self._campaign.leave("the trial's loop was not entered again")
        self._is_entered = True
        return self._campaign.plan.at[1]

    @property
    def is_again(self) -> bool:
        """Whether steps are being run again."""
        return self._window.is_again

    def at_cut(self, cursor: Cursor, batches_done: int, source: object = None, frame: FrameType | None = None) -> Moment | None:
        """If the trial is over, go back and return the moment to go on from."""
        if source is not None and frame is not None and self._window.is_of(source, frame):
            self._compare(cast(RunningLoop, source), frame)
        if not self._campaign.is_over:
            return None
        crosses = not self._window.is_of(source, frame)
        if crosses:
            if not self._is_entered or frame is None or source is None:
                self.is_returning or self.returns()
                return None
            try:
                baseline = self._window.come_back(source, frame)
            except CannotGoBackError as error:
                self._campaign.leave(str(error))
            if baseline is None:
                return None
            self._set_baseline(baseline)
            self.is_returning = self._is_entered = False
        assert frame is not None
        try:
            moment = self._window.go_back(source, frame, self._baseline(), self._kept_in)
        except CannotGoBackError as error:
            if crosses or not any(self._campaign.plan.at[1:]):
                self._campaign.leave(str(error))
            self._campaign.give_up(str(error))
        bounds, series = cast(tuple[Mark, object], moment.extra)
        if self.guard is not None:
            self.guard.go_back(bounds)
        self._campaign.set_series_state(series)
        self._campaign.next()
        if self._is_start(moment.address):  # the moment that is held is this trial's, too
            self._campaign.note_start()
        return moment

    def _compare(self, loop: RunningLoop, frame: FrameType) -> None:
        """Keep the state behind a step without a fault, or end a trial that has come to the same one.

        What the step has said but for its loss, of which later ones say nothing, and the digest of all variables are
        compared first: mostly they differ.
        """
        campaign, known = self._campaign, self._reference
        if campaign.last is None or self.guard is not None:
            return
        last = msgspec.structs.replace(campaign.last, series={**campaign.last.series, "loss": ""})
        if campaign.is_reference and campaign.is_over and last.state:
            state = self._state_of(loop, frame)
            self._reference = (last, state) if state[0] else None
        elif campaign.may_be_equal and known is not None and known[0] == last and self._state_of(loop, frame) == known[1]:
            campaign.stop(EQUAL)

    def _state_of(self, loop: RunningLoop, frame: FrameType) -> _ProgramState:
        files = self._window.moments[0].files
        state = self._whole.digest(frame, loop, self._baseline(), self._campaign.plan.at, files)
        return state, self._campaign.series_state()

    def hold(self, address: Address, batches_done: int, source: object, frame: FrameType) -> None:
        """Hold the moment before a load, if a trial starts here; else note that a load follows."""
        if source is None:
            return
        if self._is_start(address):
            self._start(address, batches_done, source, frame)
        elif self._campaign.is_begun:
            self._window.follow(address, batches_done, source, frame)

    def load(self, frame: FrameType) -> object:
        """Return the batch of a step that is run again, or NOTHING: then the loader is to be asked."""
        try:
            item = self._window.serve(frame, self._baseline())
        except CannotGoBackError as error:
            self._campaign.give_up(str(error))
        if item is NOTHING:
            self._window.begin_load()
        return item

    def end_load(self) -> None:
        """The loader has run out."""
        self._window.end_load()

    def keep(self, item: object, loader: object, frame: FrameType) -> None:
        """Keep what the loader has returned."""
        self._window.keep(item, loader, frame, self._baseline())

    def note_fetched(self, parts: list[Array]) -> None:
        """Keep a batch that a body has fetched itself."""
        self._window.note_fetched(parts)

    def _is_start(self, address: Address) -> bool:
        return not self._campaign.is_begun and address == self._campaign.plan.at

    def _start(self, address: Address, batches_done: int, source: object, frame: FrameType) -> None:
        bounds = self.guard.bounds.mark() if self.guard is not None else ({}, ())
        extra = bounds, self._campaign.series_state()
        self._window.start(address, batches_done, source, frame, self._baseline(), extra)
        self._campaign.note_start()
