"""The moment in memory from which the trials of a process start, one after another, and the way back to it.

A trial may run over the end of its epoch. To go back from there, the batch loop that is running is ended at once, what
follows it in the epoch runs as in any, and the loop over epochs hands the trial's epoch out again. Where its batch loop
is entered, the moment is put back: until then the run is the trial's, whose state is thrown away.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from types import FrameType, MappingProxyType
from typing import Any, NoReturn, cast

import msgspec

from detrain.adapters.api import CannotGoBackError
from detrain.base.cursor import NOTHING, Address, Cursor
from detrain.guard.detector import Guard
from detrain.python.codec.baseline import Baseline
from detrain.python.inspect.frames import names_of, user_frames, write_locals
from detrain.python.inspect.progress import is_plain_iterator
from detrain.python.loaders.strategy import RunningLoop
from detrain.runtime.observers.experiment_run import StepLine
from detrain.runtime.observers.trials_in_process import EQUAL, TrialsInProcess
from detrain.runtime.rollback.ring import Moment, Ring
from detrain.runtime.state.whole_state import WholeState

_ProgramState = tuple[str, object]
"""The program's, as a digest, and what the series remembers."""


class Rewind(Ring):
    """One moment that is held, and the batches since then.

    Only loads that run no Python of the program can be taken back. A trial that has left the loop comes back by
    entering it again: the loop that is entered then draws on from what the other one drew from.
    """

    def __init__(
        self,
        campaign: TrialsInProcess,
        whole: WholeState,
        guard: Guard | None,
        set_baseline: Callable[[Baseline], None],
    ) -> None:
        super().__init__(1, whole, guard)
        self._campaign, self._set_baseline = campaign, set_baseline
        self._series: object = None
        """What the series remembered at the moment."""
        self._reference: tuple[StepLine, _ProgramState] | None = None
        """The step without a fault that was done last, and the state behind it."""
        self._is_away = False
        """Whether the loop of the moment has been left."""
        self._kept: tuple[object, tuple[object, int], Baseline] | None = None
        """What the loop of the moment draws from, where it stands, and what was there before it."""
        self._names: Mapping[str, object] = MappingProxyType({})
        """What the names of the loop's function were bound to at the moment."""
        self.is_returning = False
        """Whether the run is on its way back into the trial's epoch: its batch loops end at once."""
        self._is_entered = False
        """Whether that epoch has been begun again."""
        self._epochs: dict[int, Any] = {}
        """What the loop over epochs that is running has handed out."""
        self._has_epochs = False
        """Whether it can hand one out again."""

    # The loops.

    def clear(self) -> None:
        """Hold nothing."""
        super().clear()
        self._is_away, self._kept = False, None

    def leave(self) -> None:
        """The batch loop has been left."""
        if self._campaign.is_over or self._campaign.is_begun:
            self._is_away = True
        elif not self.is_returning:
            self.clear()

    def begin_phase(self) -> None:
        """A loop over epochs is about to be entered."""
        self._epochs, self._has_epochs = {}, False

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
        if not self._has_epochs or not self._moments:
            self._campaign.leave("a trial has run over the end of its epoch, which nothing hands out again")
        self._is_away = self.is_returning = True
        return True

    def next_epoch(self, count: int) -> tuple[int, Any]:
        """Return the epoch that comes next, and what was handed out with it; NOTHING: it is for the first time."""
        if self.is_returning:
            if self._is_entered:
                self._campaign.leave("the trial's loop was not entered again")
            self._is_entered = True
            count = self._campaign.plan.at[1]
        return count, self._epochs.get(count, NOTHING)

    def keep_epoch(self, iterator: Iterator[Any], count: int, item: object) -> None:
        """An epoch is handed out."""
        self._has_epochs = is_plain_iterator(iterator)  # or it may give something else, or do more
        self._epochs[count] = item

    # Back.

    def at_cut(self, cursor: Cursor, batches_done: int, source: object = None, frame: FrameType | None = None) -> Moment | None:
        """If the trial is over, go back and return the moment to go on from."""
        is_here = False
        if frame is not None and source is not None and self._moments and self._moments[0].is_here(source, frame):
            is_here = True
            self._compare(cast(RunningLoop, source), frame)
        if not self._campaign.is_over:
            return None
        if frame is None or source is None or not (is_here or self._is_entered):
            self.is_returning or self.returns()
            return None
        if not is_here and not self._come_back(source, frame):
            return None
        try:
            moment = self.go_back(source, frame)
        except CannotGoBackError as error:
            if not is_here or not any(self._campaign.plan.at[1:]):
                self._campaign.leave(str(error))
            self._campaign.give_up(str(error))
        self._campaign.set_series_state(self._series)
        self._campaign.next()
        if self._is_start(moment.address):  # the moment that is held is this trial's, too
            self._campaign.note_start()
        return moment

    def _come_back(self, source: Any, frame: FrameType) -> bool:
        """If a loop that has been entered is the moment's, entered again, let it draw on from what that one drew from,
        and return True. Ends the process where that cannot be.
        """
        if self._kept is None:
            self._campaign.leave("no step of this loop is behind it")
        iterator, place, baseline = self._kept
        if place != _place(frame):
            return False
        if id(frame) != self._moments[0].frame and frame.f_code.co_cellvars:
            self._campaign.leave("the loop is in a function that has been called again, whose names others hold")
        source.iterator = iterator
        for moment in self._moments:
            moment.source, moment.frame = weakref.ref(source), id(frame)
        self._is_away = self.is_returning = self._is_entered = False
        self._set_baseline(baseline)
        return True

    def go_back(self, source: object, frame: FrameType) -> Moment:
        """Put the state of the moment back, wherever behind it the loop is."""
        if self._moments and self._moments[0].is_here(source, frame):
            self._next = len(self._moments)  # loads that were not handed out again this time are there still
        moment = super().go_back(source, frame)
        # Nobody reads these names before they are bound again, but who looks for what the program says of a step.
        for each in list(user_frames(frame))[:1]:
            now = names_of(each)
            stale = {name: self._names.get(name) for name, value in now.items() if self._names.get(name, self) is not value}
            if stale:
                write_locals(each, stale)
        return moment

    def fail(self, why: str) -> NoReturn:
        """End the process: a batch cannot be handed out again."""
        self._campaign.give_up(why)

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
        state = self._whole.digest(frame, loop, self._campaign.plan.at, self._moments[0].files)
        return state, self._campaign.series_state()

    # Forward.

    @property
    def is_again(self) -> bool:
        """Whether the load that comes next has been done before."""
        return not self._is_away and super().is_again

    def hold(self, address: Address, batches_done: int, source: Any, frame: FrameType) -> None:
        """Hold the moment before a load, if a trial starts here; else note that a load follows."""
        if source is None:
            return
        if self._is_start(address):
            self._start(address, batches_done, source, frame)
            if not self._campaign.has_copy():
                self._campaign.note_start()
        elif self._campaign.is_begun:
            self._follow(address, batches_done, source, frame)

    def _is_start(self, address: Address) -> bool:
        return not self._campaign.is_begun and address == self._campaign.plan.at

    def _start(self, address: Address, batches_done: int, source: Any, frame: FrameType) -> None:
        """Hold this moment from now on. Batches behind it that have been loaded already stay."""
        ahead = self._moments[self._next + 1 :] if self.is_again else []
        load = self._moments[self._next].load if self.is_again else None
        if not ahead and load is None:
            self.clear()
        self._moments = []
        super().hold(address, batches_done, source, frame)
        self._series = self._campaign.series_state()
        self._kept = source.iterator, _place(frame), self._whole.baseline()
        self._names = dict(next((names_of(each) for each in user_frames(frame)), {}))
        self._moments[0].load = load
        self._moments += ahead
        self._next = 0

    def _follow(self, address: Address, batches_done: int, source: object, frame: FrameType) -> None:
        """Note that a batch is about to be loaded behind the moment that is held."""
        if not self._moments or self._is_away or self.is_again:
            return
        first = self._moments[0]
        if first.way is None and first.is_here(source, frame):
            self._moments.append(Moment(address, batches_done, weakref.ref(source), id(frame), first.state))
            self._next = len(self._moments) - 1

    def keep(self, item: object, loader: object, frame: FrameType) -> None:
        """Keep what a load has returned."""
        if self._is_away:
            self.end_load()
        elif self._next < len(self._moments):
            super().keep(item, loader, frame)
            load = self._moments[self._next - 1].load
            if load is not None and load.after is not None:
                self._note("the loader runs Python")


def _place(frame: FrameType) -> tuple[object, int]:
    """Return where a loop stands that is about to load."""
    return frame.f_code, frame.f_lasti
