"""The time limit of a trial, taken from the golden run's time for the same steps.

A fault in a number that the program counts by can make a step go on for hours. So a trial hangs if it takes ten times
as long as the golden run did, and at least ten seconds (NVBitFI has the same factor). The start of its process and the
steps before the fault do not count.

Other users may have made the machine slower than it was for the golden run. So the limit follows its present speed, as
the trial before in the same process shows it, or a run of the same steps without the fault.

A trial that takes long is left to the copy of its process that does it, while another copy does the trials behind it.
If a process has no copies (detrain.runtime.observers.reserve), the other trials wait until that trial's time is over.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from detrain.base.child_processes import has_ended
from detrain.base.cursor import Address
from detrain.base.free_memory import free_bytes
from detrain.campaign.trial_log import HANG, TrialResult, read_log
from detrain.faults.experiment import Experiment
from detrain.runtime.observers.reserve import GO_ON
from detrain.runtime.observers.trials_in_process import ALONE

TIMES_GOLDEN: Final = 10.0
LEAST_S: Final = 10.0
_START_S: Final = 3600.0
"""Limit for the time before the fault: the start, and loading on to its step. No fault is to blame for it."""
_END_S: Final = 600.0
"""Limit for the end of the process, once the trial's log has its end."""
_SLOWER: Final = 1.5
"""A trial gets another try if the machine is slower by more than this factor."""
_PATIENCE: Final = 3.0
_PATIENCE_S: Final = 0.2
"""A trial that takes this many times the usual, and this many seconds, is left to a process of its own if possible.
They decide about time alone."""

_MOST: Final = 32
"""The most copies that trials are left to at a time."""
_ROOM: Final = 4
"""Free memory that another copy needs, in multiples of a copy's memory: each copy comes to own the pages it changes."""
_ENDED: Final = "program"


class TimeLimit(msgspec.Struct, frozen=True):
    """Seconds that a trial may take before its fault, and from there on. Infinite for a run without a fault."""

    until_fault: float = math.inf
    from_fault: float = math.inf

    def is_longer(self, than: TimeLimit) -> bool:
        """Return whether this limit shows a slower machine than the other one."""
        return self.from_fault > _SLOWER * than.from_fault


def limit_of(plan: Experiment, golden: TrialResult, given: float | None, pace: float = 1.0) -> TimeLimit:
    """Return the time limit of a trial; `given`: the user's own limit from the fault on, in seconds, or None.

    `pace`: the present duration of steps on this machine, in multiples of the golden run's.

    The golden run's first step (compiling, mostly) is added: if a process began at a checkpoint, the faulty step is its
    first.
    """
    if plan.injection is None:
        return TimeLimit()
    spent = {_in_order(at): seconds for at, seconds in golden.spent.items()}
    first = spent[min(spent)] if spent else 0.0
    from_fault = max(LEAST_S, TIMES_GOLDEN * max(pace, 1.0) * (usual_s(plan, golden) + first)) if given is None else given
    return TimeLimit(_START_S + TIMES_GOLDEN * max(pace, 1.0) * sum(spent.values()), from_fault)


def patience_s(plan: Experiment, golden: TrialResult, pace: float) -> float:
    """Return how many seconds the other trials of a process wait for one, from its fault on."""
    return max(_PATIENCE_S, _PATIENCE * max(pace, 1.0) * usual_s(plan, golden))


def usual_s(plan: Experiment, golden: TrialResult) -> float:
    """Return the golden run's time, in seconds, from the first step that a trial hits to the trial's end."""
    spent = {_in_order(at): seconds for at, seconds in golden.spent.items()}
    steps = [at for at in sorted(spent) if at >= plan.at]
    if plan.count is not None:
        trained = [at for at in steps if at[2] < math.inf][: plan.count]
        last = trained[-1] if trained and len(trained) == plan.count else (math.inf,)
    else:
        last = plan.until or (math.inf,)
    return sum(spent[at] for at in steps if at <= last)


def _in_order(at: Address) -> tuple[float, ...]:
    """Return a sort key for cursors: the time behind an epoch's steps (batch -1) comes after them."""
    return (*at[:2], at[2] if at[2] >= 0 else math.inf)


class Watch(msgspec.Struct):
    """Watches a trial by its log, and tells when its time is over."""

    log: Path
    limit: TimeLimit
    since: float = msgspec.field(default_factory=time.monotonic)
    """The start of its present part: its part of the process, its fault, or its end."""
    armed_at: float | None = None
    """The time at which its fault was armed."""
    is_compiling: bool = False
    """True while a function is compiled for the fault, which the golden run has not done."""
    is_over: bool = False
    """True if the log has the trial's end: later events are not its doing."""
    _read: int = 0
    _rest: bytes = b""

    def since_fault_s(self) -> float:
        """Return the seconds since the trial's fault; 0 before it, and while a function is compiled for it."""
        return time.monotonic() - self.armed_at if self.armed_at is not None and not self.is_compiling else 0.0

    @property
    def is_armed(self) -> bool:
        """True if the trial's fault was armed."""
        return self.armed_at is not None

    def is_late(self) -> bool:
        """Read the new lines of the log; return whether the trial has taken too long."""
        with contextlib.suppress(FileNotFoundError), self.log.open("rb") as file:
            file.seek(self._read)
            new = file.read()
            self._read += len(new)
            *lines, self._rest = (self._rest + new).split(b"\n")
            for line in lines:
                if not self.is_armed and b'"is_armed":true' in line:
                    self.armed_at = self.since = time.monotonic()
                if self.is_armed and b'"compiling":' in line:
                    self.is_compiling = b'"begun"' in line
                    self.armed_at = self.since = time.monotonic()
                if not self.is_over and b'"end":' in line:
                    self.is_over, self.since = True, time.monotonic()
        is_of_fault = self.is_armed and not self.is_compiling
        limit = _END_S if self.is_over else self.limit.from_fault if is_of_fault else self.limit.until_fault
        return time.monotonic() - self.since > limit


class _Left(msgspec.Struct, frozen=True):
    number: int
    plan: Experiment
    watch: Watch
    process: int
    is_sound: bool
    """True if the trial is known to have begun in the golden run's state."""


class LeftTrials(msgspec.Struct):
    """The trials of a process that were left to its copies."""

    golden: TrialResult
    _left: list[_Left] = []
    _asked: str = ""

    def __bool__(self) -> bool:
        return bool(self._left)

    def ask(self, logs: Sequence[Path], index: int, plan: Experiment, watch: Watch, pace: float, *, is_late: bool) -> bool:
        """Have the process go on behind a trial that takes long. Return whether it does, or will."""
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
        """Take a trial that its process has left behind."""
        self._left.append(_Left(number, plan, watch, process, is_sound))

    def over(self, limit_of: Callable[[Experiment], TimeLimit], *, is_paced: bool) -> Iterator[tuple[int, TrialResult | None]]:
        """Yield the trials that are over, with their results; None for an unknown result.

        `limit_of` returns the limit of a trial at the machine's present speed; `is_paced`: whether the speed is known.
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
            with contextlib.suppress(ProcessLookupError):  # its number stays its own until the waiting process ends
                os.kill(each.process, signal.SIGKILL)
            done = msgspec.structs.replace(read_log(each.watch.log), seconds=round(each.watch.since_fault_s(), 4))
            if is_hang:
                yield each.number, msgspec.structs.replace(done, status=HANG, end="") if is_paced else None
            else:
                is_known = each.is_sound and done.is_whole and done.end not in (ALONE, _ENDED)
                yield each.number, done if is_known else None


def _has_room(process: int) -> bool:
    """Return whether there is memory for one more copy."""
    try:
        own = int(Path(f"/proc/{process}/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # it has ended
        return True
    return free_bytes() > _ROOM * own
