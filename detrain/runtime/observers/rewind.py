"""The moment in memory from which the trials of a process start, one after another, and the way back to it.

A trial may run over the end of its epoch. To go back from there, the running batch loop ends at once, the code behind
it in the epoch runs as in any epoch, and the epoch loop hands the trial's epoch out again. When the program enters that
epoch's batch loop, the moment is put back: until then the run still has the trial's state, which is thrown away.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from types import FrameType, MappingProxyType
from typing import Any, Final, NoReturn, cast

import msgspec

from detrain.adapters.api import CannotGoBackError
from detrain.base.cursor import NOTHING, Address, Cursor
from detrain.guard.detector import Guard
from detrain.python.codec.baseline import Baseline
from detrain.python.inspect.frames import names_of, user_frames, write_locals
from detrain.python.inspect.progress import is_plain_iterator
from detrain.python.loaders.strategy import RunningLoop
from detrain.python.loaders.unchanged import Reads
from detrain.runtime.observers.experiment_run import StepLine
from detrain.runtime.observers.trials_in_process import EQUAL, TrialsInProcess
from detrain.runtime.rollback.ring import HeldMoment, Ring, StateAtCut, is_same
from detrain.runtime.state.whole_state import WholeState

_CHANGED: Final = "a step has changed something that the loader reads"
_ProgramState = tuple[str, object]
"""The digest of the program's state, and the memory of the series."""


class Rewind(Ring):
    """One moment that is held, and the batches since then.

    A load can be taken back if it runs no Python of the program, or Python that changes no state of the program and
    reads nothing that a step changes. A trial that has left the loop comes back by entering it again: the new loop then
    draws on from the old loop's iterator.
    """

    puts_files_back = True

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
        """The memory of the series at the moment."""
        self._reference: tuple[StepLine, _ProgramState] | None = None
        """The last step without a fault, and the state behind it."""
        self._before_load: StateAtCut | None = None
        """The state before the load that runs the program's Python; None for a load that does not."""
        self._reads: Reads | None = None
        """The objects that a loader in Python reads, as they were behind its last load."""
        self._is_away = False
        """Whether the loop of the moment has been left."""
        self._kept: tuple[object, tuple[object, int], Baseline] | None = None
        """The iterator of the moment's loop, the loop's place in the code, and the baseline before the loop."""
        self._names: Mapping[str, object] = MappingProxyType({})
        """The values of the loop function's names at the moment."""
        self.is_returning = False
        """Whether the run is on its way back into the trial's epoch: its batch loops end at once."""
        self._is_entered = False
        """Whether that epoch has begun again."""
        self._epochs: dict[int, Any] = {}
        """The items that the running epoch loop has handed out, by epoch."""
        self._has_epochs = False
        """Whether the epoch loop can hand an epoch out again."""

    # The loops.

    def clear(self) -> None:
        """Hold no moment."""
        super().clear()
        self._is_away, self._kept, self._reads = False, None, None

    def leave(self) -> None:
        """Note that the batch loop has been left."""
        if self._campaign.is_over or self._campaign.is_begun:
            self._is_away = True
        elif not self.is_returning:
            self.clear()

    def begin_phase(self) -> None:
        """Note that an epoch loop is about to be entered."""
        self._epochs, self._has_epochs = {}, False

    def begin_epoch(self, frame: FrameType) -> None:
        """Keep the values of the loop function's names, as an epoch begins that is not this process's first."""
        if not self._campaign.is_begun and not self._campaign.is_over:
            self._campaign.stale = dict(next((names_of(each) for each in user_frames(frame)), {}))

    def leave_loop(self) -> None:
        """End the process if the epoch loop was left in a trial: nothing hands the epoch out again."""
        if self._campaign.is_over:
            self._campaign.leave("the training loop was left in a trial")

    def returns(self) -> bool:
        """Return whether the run goes back into the trial's epoch, now that an epoch is over.

        Ends the process if there is no way back.
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
        """Return the next epoch and the item that was handed out with it; NOTHING if the epoch is a new one."""
        if self.is_returning:
            if self._is_entered:
                self._campaign.leave("the trial's loop was not entered again")
            self._is_entered = True
            count = self._campaign.plan.at[1]
        return count, self._epochs.get(count, NOTHING)

    def keep_epoch(self, iterator: Iterator[Any], count: int, item: object) -> None:
        """Keep the item of an epoch that is handed out."""
        self._has_epochs = is_plain_iterator(iterator)  # another iterator may give other items, or have side effects
        self._epochs[count] = item

    # Back.

    def at_cut(self, cursor: Cursor, batches_done: int, source: object = None, frame: FrameType | None = None) -> HeldMoment | None:
        """Go back if the trial is over; return the moment to go on from, else None."""
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
            if not is_here or not self._campaign.plan.at[2]:
                self._campaign.leave(str(error))
            self._campaign.give_up(str(error))
        self._campaign.set_series_state(self._series)
        self._campaign.next()
        if self._is_start(moment.address):  # the next trial starts from the same moment
            self._campaign.note_start()
        return moment

    def _come_back(self, source: Any, frame: FrameType) -> bool:
        """Let a loop draw on from the old iterator if it is the moment's loop, entered again; return whether it is.
        Ends the process if this cannot be done exactly.
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

    def go_back(self, source: object, frame: FrameType) -> HeldMoment:
        """Put the state of the moment back, wherever behind it the loop is."""
        if self._moments and self._moments[0].is_here(source, frame):
            self._next = len(self._moments)  # also keeps the loads that were not handed out again this time
        moment = super().go_back(source, frame)
        # The program binds these names again before it reads them, but the search for a step's metrics reads them.
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
        """Keep the state behind a step without a fault, or end a trial that has come to the same state.

        First compare the step's metrics and the digest of all variables, as mostly these differ. The loss does not
        count: later steps do not depend on it.
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
        """Whether the next load has been done before."""
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
        """Hold this moment from now on. Keep the batches behind it that have been loaded already."""
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
            self._moments.append(HeldMoment(address, batches_done, weakref.ref(source), id(frame), first.state))
            self._next = len(self._moments) - 1

    def load(self, frame: FrameType) -> object:
        """Return the batch of a step that is run again, or NOTHING: then the loader is to be asked."""
        self._before_load = None
        if self._next < len(self._moments) and not self._is_away:
            has_changed = self._reads is not None and not self._reads.is_same()
            if has_changed and self.is_again:
                self.fail(_CHANGED)
            if has_changed:
                self._note(_CHANGED)
            loop = self._moments[0].source()
            if not self.is_again and self._moments[0].way is None and loop is not None and not is_plain_iterator(loop.iterator):
                self._before_load = self._state(frame)
        return super().load(frame)

    def keep(self, item: object, loader: object, frame: FrameType) -> None:
        """Keep the batch that a load has returned."""
        if self._is_away:
            self.end_load()
        elif self._next < len(self._moments):
            super().keep(item, loader, frame)
            load = self._moments[self._next - 1].load
            if load is None or load.after is None:
                return
            before, reads = self._before_load, Reads(loader, self._adapters.to_array)
            is_held = any(value is loader for value, _path, _place in load.after.places)
            if before is not None and reads.is_known and not is_held and is_same(before, load.after):
                load.after, self._reads = None, reads
            else:
                self._note("the loader runs Python")


def _place(frame: FrameType) -> tuple[object, int]:
    """Return the place in the code of a loop that is about to load."""
    return frame.f_code, frame.f_lasti
