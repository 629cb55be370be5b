"""How long a trial may take: its steps from the fault on, beside the same steps of the golden run.

A fault in a number that the program counts by can make a step go on for hours. So a trial that takes ten times as long
as the golden run did, and ten seconds at least, hangs (NVBitFI has the same factor). The start of its process counts
for nothing, nor do the steps before the fault.

A machine may be slower now than it was for the golden run: others use it. So the limit goes by how fast it is now: by
the trial before in the same process, or by a run of the same steps without the fault.
"""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from detrain.base.cursor import Address
from detrain.campaign.trial_log import TrialResult
from detrain.faults.experiment import Experiment

TIMES_GOLDEN: Final = 10.0
LEAST_S: Final = 10.0
_START_S: Final = 3600.0
"""For what comes before the fault: the start, and loading on to its step. No fault is to blame for it."""
_END_S: Final = 600.0
"""For what is left once a trial has said its last: the process ends."""
_SLOWER: Final = 1.5
"""A machine that is so much slower now gives a trial another try."""
_PATIENCE: Final = 3.0
_PATIENCE_S: Final = 0.2
"""A trial that takes so many times as long as usual, and so many seconds, is left to a process of its own, where it can
be. It decides about time alone."""


@dataclass(frozen=True)
class TimeLimit:
    """Seconds that a trial has: until its fault, and from there on. Infinite for a run without a fault."""

    until_fault: float = math.inf
    from_fault: float = math.inf

    def is_longer(self, than: TimeLimit) -> bool:
        """Return whether this limit is that of a slower machine."""
        return self.from_fault > _SLOWER * than.from_fault


def limit_of(plan: Experiment, golden: TrialResult, given: float | None, pace: float = 1.0) -> TimeLimit:
    """Return the time limit of a trial; `given` is what the user allows from the fault on, in seconds, or None.

    `pace`: how many times as long as the golden run's the steps take on this machine now.

    What the golden run's first step took (compiling, mostly) is added: in a process that has begun at a checkpoint the
    faulty step is the first.
    """
    if plan.injection is None:
        return TimeLimit()
    spent = {_in_order(at): seconds for at, seconds in golden.spent.items()}
    first = spent[min(spent)] if spent else 0.0
    from_fault = max(LEAST_S, TIMES_GOLDEN * max(pace, 1.0) * (usual_s(plan, golden) + first)) if given is None else given
    return TimeLimit(_START_S + TIMES_GOLDEN * max(pace, 1.0) * sum(spent.values()), from_fault)


def patience_s(plan: Experiment, golden: TrialResult, pace: float) -> float:
    """Return for how long the other trials of its process wait for one, in seconds from its fault on."""
    return max(_PATIENCE_S, _PATIENCE * max(pace, 1.0) * usual_s(plan, golden))


def usual_s(plan: Experiment, golden: TrialResult) -> float:
    """Return how long the golden run took from the first step that a trial hits to the trial's end, in seconds."""
    spent = {_in_order(at): seconds for at, seconds in golden.spent.items()}
    steps = [at for at in sorted(spent) if at >= plan.at]
    if plan.count is not None:
        trained = [at for at in steps if at[2] < math.inf][: plan.count]
        last = trained[-1] if trained and len(trained) == plan.count else (math.inf,)
    else:
        last = plan.until or (math.inf,)
    return sum(spent[at] for at in steps if at <= last)


def _in_order(at: Address) -> tuple[float, ...]:
    """Return a cursor by which what follows the steps of an epoch is behind them."""
    return (*at[:2], at[2] if at[2] >= 0 else math.inf)


@dataclass
class Watch:
    """Watches a trial by its log, and says when its time is over."""

    log: Path
    limit: TimeLimit
    since: float = field(default_factory=time.monotonic)
    """When what it is at began: its part of the process, its fault, its end."""
    armed_at: float | None = None
    """When its fault was armed."""
    is_over: bool = False
    """Whether the trial has said its last: what follows is not its doing."""
    _read: int = 0
    _rest: bytes = b""

    def since_fault_s(self) -> float:
        """Return for how long the trial has been going on; 0 before its fault."""
        return time.monotonic() - self.armed_at if self.armed_at is not None else 0.0

    @property
    def is_armed(self) -> bool:
        """Whether its fault was armed."""
        return self.armed_at is not None

    def is_late(self) -> bool:
        """Look at what is new in the log; return whether the trial has taken too long."""
        with contextlib.suppress(FileNotFoundError), self.log.open("rb") as file:
            file.seek(self._read)
            new = file.read()
            self._read += len(new)
            *lines, self._rest = (self._rest + new).split(b"\n")
            for line in lines:
                if not self.is_armed and b'"is_armed":true' in line:
                    self.armed_at = self.since = time.monotonic()
                if not self.is_over and b'"end":' in line:
                    self.is_over, self.since = True, time.monotonic()
        limit = _END_S if self.is_over else self.limit.from_fault if self.is_armed else self.limit.until_fault
        return time.monotonic() - self.since > limit
