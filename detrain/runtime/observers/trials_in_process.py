"""Several trials in one process: each starts from a moment in memory, and the process goes back to it when the trial is
over.

Trials come in the order of their cursors. Between them the run goes on without a fault. Its log lines for those steps
must equal the golden run's, which shows that no trial left a trace. A process that cannot go back exactly says why and
ends; another process does the trials that it has not come to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from detrain.base import messages
from detrain.base.cursor import Address
from detrain.base.digest import Array
from detrain.base.errors import FaultInvalid, FaultNotFired
from detrain.faults.experiment import Experiment
from detrain.python.inspect.frames import catches, user_frames
from detrain.runtime.observers.experiment_run import ExperimentRun, Log
from detrain.runtime.observers.reserve import Reserve, claim
from detrain.runtime.observers.said import OutputStreams

EQUAL: Final = "equal"
"""The end of a trial that has come to the state of a step without a fault: it can only go on as the golden run does."""
UNFIRED: Final = "not fired"
"""The end of a trial in which the fault was not done: its site did not run, or has another shape in this step."""

ALONE: Final = "the site alone changes bits"
"""The end of a trial that must be compared with a run that has its site in place, not with the program's own run."""


class TrialsInProcess(ExperimentRun):
    """The trials of this process: an `ExperimentRun` that takes up one experiment after another."""

    def __init__(self, plans: Sequence[Experiment], tensors: Callable[[], Mapping[str, Array]], drain: Callable[[], None]) -> None:
        self._waiting = list(plans)
        self._reserve = Reserve()
        super().__init__(plans, tensors, drain)

    @property
    def plans(self) -> Sequence[Experiment]:
        """The experiments that are not over."""
        return self._waiting

    @property
    def is_begun(self) -> bool:
        """Whether the step of the trial's fault has begun."""
        return self.is_struck or self._done > 0

    @property
    def is_reference(self) -> bool:
        """Whether this is a step without a fault, before trials of that step: they end if they come to its state."""
        return self.plan.injection is None and self.plan.count == 1 and len(self._waiting) > 1

    @property
    def may_be_equal(self) -> bool:
        """Whether exactly the faulty step has been done, and no further step is hit."""
        return self.plan.steps == 1 and self._done == 1 and self._has_fired and not self.is_over

    def stop(self, why: str) -> None:
        """End the trial."""
        if not self._is_ending and not self.is_over:
            self._write(Log(end=why))
            self.is_over = True

    def ends_with_error(self, error: Exception, frame: FrameType) -> bool:
        """End the trial if the program does not catch an exception, which would end the process; return whether so."""
        is_of_trial = self._body is not None and self._body >= self.plan.at and self.plan.ends_with_loop and not self.is_over
        if not is_of_trial or self._instruments is None or any(map(catches, user_frames(frame))):
            return False
        if self._is_armed:
            self._note_hits()
        self._write(Log(crash=type(error).__name__))
        self.is_over = True
        return True

    def finish(self) -> None:
        """Finish, as the program ends."""
        if self.is_over:
            self.leave("the training loop has been left behind a trial")
        super().finish()

    def _disarm(self, body: Address) -> None:
        """Disarm the fault; if it was not done, end only its trial, and not the process."""
        try:
            super()._disarm(body)
        except (FaultInvalid, FaultNotFired) as error:
            self.stop(f"{UNFIRED}: {error.what}")
            return
        if self._instruments is not None and self._instruments.is_unarmed_equal() is False and not self.plan.has_twin:
            self.stop(ALONE)

    def _has_digest(self, body: Address, *, is_last: bool) -> bool:
        """Return whether a step gets a digest: each one before the fault does, for comparison with the golden run."""
        return (self.plan.has_digests and body < self.plan.at) or super()._has_digest(body, is_last=is_last)

    def has_copy(self) -> bool:
        """Have a copy of the process do this trial, which begins here, and those behind it, if it can be copied.

        Return whether this is the process that has waited, and has taken up a trial of another step.
        """
        at = self.plan.at
        while self._waiting[0].at == at and len(self._waiting) > 1 and self._reserve.can_copy(Path(self.plan.log).parent):
            place = self._reserve.wait([plan.log for plan in self._waiting])
            if not place:
                self._streams = OutputStreams()
                return False
            del self._waiting[:place]
            self._begin_next()
        return self._waiting[0].at != at

    def note_start(self) -> None:
        """Log the digest of the variables, as the run is at the trial's beginning."""
        self._write(Log(start=self._digest_now(), process=self._reserve.number))

    def next(self) -> None:
        """Take up the next trial, at the place where the last one began. End the process if there is none."""
        self._waiting.pop(0)
        if not self._waiting or not claim(self._waiting[0].log):  # all are done, or another process took over
            self._exit()
        self._begin_next()

    def _begin_next(self) -> None:
        self.is_over = False
        self._log.close()
        self._take_up(self._waiting[0])

    def leave(self, why: str) -> NoReturn:
        """End the process, and say why; another one can begin the next trial."""
        self._tell_next(Log(left=why))

    def give_up(self, why: str) -> NoReturn:
        """End the process, and say why there is no exact way back."""
        if self.is_over:
            self._tell_next(Log(obstacle=why))
        self._write(Log(obstacle=why))  # in the middle of a trial whose batches cannot be handed out again
        self._exit()

    def _tell_next(self, why: Log) -> NoReturn:
        """End the process, and write the reason into the next trial's log."""
        self._waiting.pop(0)
        if self._waiting and claim(self._waiting[0].log):
            self._take_up(self._waiting[0])
            self._write(why)
        self._exit()

    def _exit(self) -> NoReturn:
        self._drain()
        messages.flush_output()
        self._reserve.end(0)

    def series_state(self) -> object:
        """Return the memory of the series."""
        return self._instruments.series.state() if self._instruments is not None else None

    def set_series_state(self, state: object) -> None:
        """Restore the memory of the series."""
        if self._instruments is not None:
            self._instruments.series.set_state(state)
