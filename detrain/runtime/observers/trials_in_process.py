"""Several trials in one process: each starts from a moment in memory, and the process goes back to it when the trial is
over.

Trials come in the order of their cursors. Between them the run goes on without a fault, and what it says of those steps
is written down, too: were anything left behind by a trial, it would not be what the golden run says. A process that
cannot go back exactly says why and ends; the trials that it has not come to are for another.
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
"""How a trial ends that has come to the state of a step without a fault: it can only go on as the golden run does."""
UNFIRED: Final = "not fired"
"""How a trial ends whose fault was not done: its site did not run, or has another shape in this step."""

ALONE: Final = "the site alone changes bits"
"""How a trial ends that is to be compared with a run that has its site in place, and not with the program's own."""


class TrialsInProcess(ExperimentRun):
    """The trials of this process. What `ExperimentRun` does for one, this does for each."""

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
        """Whether the step of the trial's fault has been begun."""
        return self.is_struck or self._done > 0

    @property
    def is_reference(self) -> bool:
        """Whether this is a step without a fault, before trials of that step: where they come to the same, they end."""
        return self.plan.injection is None and self.plan.count == 1 and len(self._waiting) > 1

    @property
    def may_be_equal(self) -> bool:
        """Whether the faulty step, and it alone, has been done, and no other is hit."""
        return self.plan.steps == 1 and self._done == 1 and self._has_fired and not self.is_over

    def stop(self, why: str) -> None:
        """End the trial."""
        if not self._is_ending and not self.is_over:
            self._write(Log(end=why))
            self.is_over = True

    def ends_with_error(self, error: Exception, frame: FrameType) -> bool:
        """End the trial with an exception that the program does not catch, as it would end the process."""
        is_of_trial = self._body is not None and self._body >= self.plan.at and self.plan.ends_with_loop and not self.is_over
        if not is_of_trial or self._instruments is None or any(map(catches, user_frames(frame))):
            return False
        if self._is_armed:
            self._instruments.disarm()
        self._write(Log(crash=type(error).__name__))
        self.is_over = True
        return True

    def finish(self) -> None:
        """The program ends."""
        if self.is_over:
            self.leave("the training loop has been left behind a trial")
        super().finish()

    def _disarm(self, body: Address) -> None:
        """A fault that was not done ends its trial, and not the process."""
        try:
            super()._disarm(body)
        except (FaultInvalid, FaultNotFired) as error:
            self.stop(f"{UNFIRED}: {error.what}")
            return
        if self._instruments is not None and self._instruments.is_unarmed_equal() is False and not self.plan.has_twin:
            self.stop(ALONE)

    def _has_digest(self, body: Address, *, is_last: bool) -> bool:
        """Steps before the fault are compared with the golden run's, each of them."""
        return (self.plan.has_digests and body < self.plan.at) or super()._has_digest(body, is_last=is_last)

    def has_copy(self) -> bool:
        """The run is where the trial begins: have a copy of the process do it and those behind it, if there can be one.

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
        """The run is where the trial begins: note what is there."""
        self._write(Log(start=self._digest_now(), process=self._reserve.number))

    def next(self) -> None:
        """Take up the next trial, where the last one began. Ends the process behind the last."""
        self._waiting.pop(0)
        if not self._waiting or not claim(self._waiting[0].log):  # done, or left in a trial that has taken long
            self._exit()
        self._begin_next()

    def _begin_next(self) -> None:
        self.is_over = False
        self._log.close()
        self._take_up(self._waiting[0])

    def leave(self, why: str) -> NoReturn:
        """End the process: another one can begin the next trial."""
        self._tell_next(Log(left=why))

    def give_up(self, why: str) -> NoReturn:
        """End the process: there is no exact way back."""
        if self.is_over:
            self._tell_next(Log(obstacle=why))
        self._write(Log(obstacle=why))  # in the middle of a trial whose batches cannot be handed out again
        self._exit()

    def _tell_next(self, why: Log) -> NoReturn:
        """End the process, and say in the next trial's log why."""
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
        """Return what the series remembers."""
        return self._instruments.series.state() if self._instruments is not None else None

    def set_series_state(self, state: object) -> None:
        """Have the series remember what it did."""
        if self._instruments is not None:
            self._instruments.series.set_state(state)
