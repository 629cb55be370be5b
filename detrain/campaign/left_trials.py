"""Trials that take long: each is left to the copy of its process that does it, while another copy does those behind.

Where a process has no copies (detrain.runtime.observers.reserve), nothing is left: the others wait until the time of
the trial is over.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from detrain.base.child_processes import has_ended
from detrain.base.free_memory import free_bytes
from detrain.campaign.time_limit import TimeLimit, Watch, patience_s
from detrain.campaign.trial_log import HANG, TrialResult, read_log
from detrain.faults.experiment import Experiment
from detrain.runtime.observers.reserve import GO_ON
from detrain.runtime.observers.trials_in_process import ALONE

_MOST: Final = 32
"""Copies that trials are left to at a time."""
_ROOM: Final = 4
"""Times the memory of a copy that has to be free for another: each comes to own what it changes."""
_ENDED: Final = "program"


@dataclass(frozen=True)
class _Left:
    number: int
    plan: Experiment
    watch: Watch
    process: int
    is_sound: bool
    """Whether it is known to have begun where the golden run is."""


@dataclass
class LeftTrials:
    """The trials of a process that have been left."""

    golden: TrialResult
    _left: list[_Left] = field(default_factory=list)
    _asked: str = ""

    def __bool__(self) -> bool:
        return bool(self._left)

    def ask(self, logs: Sequence[Path], index: int, plan: Experiment, watch: Watch, pace: float, *, is_late: bool) -> bool:
        """Have the process go on behind a trial that takes long. Returns whether it does, or will."""
        is_slow = watch.is_armed and not watch.is_over and watch.since_fault_s() > patience_s(plan, self.golden, pace)
        if index + 1 == len(logs) or watch.is_over or not watch.is_armed or not (is_late or is_slow):
            return False
        process = read_log(logs[index]).process
        if not process or not (is_late or (len(self._left) < _MOST and _has_room(process))):
            return False
        if self._asked != str(logs[index + 1]):
            self._asked = str(logs[index + 1])
            written = logs[index].with_name(f"{GO_ON}.new")
            written.write_text(self._asked)
            written.replace(logs[index].with_name(GO_ON))
        return True

    def add(self, number: int, plan: Experiment, watch: Watch, process: int, *, is_sound: bool) -> None:
        """Take a trial that its process has gone on behind."""
        self._left.append(_Left(number, plan, watch, process, is_sound))

    def over(self, limit_of: Callable[[Experiment], TimeLimit], *, is_paced: bool) -> Iterator[tuple[int, TrialResult | None]]:
        """Yield the trials that are over, with what came of them; None: that is not known.

        `limit_of` says what limit a trial has, as fast as the machine is now; `is_paced`: whether that is known.
        """
        for each in tuple(self._left):
            if each.watch.is_late() and not each.watch.is_over:
                limit = limit_of(each.plan)
                if limit.is_longer(each.watch.limit):
                    each.watch.limit = limit
                    continue
                is_hang = True
            elif each.watch.is_over or has_ended(each.process):
                is_hang = False
            else:
                continue
            self._left.remove(each)
            with contextlib.suppress(ProcessLookupError):  # it has its number until the process that waits has ended
                os.kill(each.process, signal.SIGKILL)
            done = replace(read_log(each.watch.log), seconds=round(each.watch.since_fault_s(), 4))
            if is_hang:
                yield each.number, replace(done, status=HANG, end="") if is_paced else None
            else:
                is_known = each.is_sound and done.is_whole and done.end not in (ALONE, _ENDED)
                yield each.number, done if is_known else None


def _has_room(process: int) -> bool:
    """Return whether there is memory for a copy more."""
    try:
        own = int(Path(f"/proc/{process}/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # it has ended
        return True
    return free_bytes() > _ROOM * own
