"""Trials that end early: one that has come to the golden run's whole state goes on as the golden run does.

Before the trials of a step their process does that step once without a fault, and keeps a digest of the whole state
behind it. A trial that comes to the same one is over. What its row says of the steps that are left out, the golden run
says.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from detrain.base.cursor import Address
from detrain.campaign.trial_log import TrialResult
from detrain.faults.experiment import Experiment
from detrain.runtime.observers.experiment_run import StepLine

_SHARE: Final = 0.15
"""Of trials that end early: a tenth to a third. It decides about time alone."""
_COST: Final = 1.5
"""Steps' time that it takes to do one without a fault, and to go back."""


@dataclass
class EarlyEnds:
    """How trials go on that have come to the golden run's state."""

    golden: TrialResult

    @cached_property
    def known(self) -> dict[Address, StepLine]:
        """The golden run's lines by their cursors."""
        return self.golden.by_cursor()

    @cached_property
    def _steps(self) -> list[Address]:
        return sorted(cursor for cursor in self.known if cursor[2] >= 0)

    def pay(self, trials: Sequence[Experiment]) -> bool:
        """Return whether trials of one step end early often enough for a step without a fault before them.

        Not where there is no telling how they would go on: to the program's end, or over a step whose loss is no
        number. A process cannot go back to a step that leaves behind what it traces or makes: the first of all, and the
        last of an epoch, whose batch may be the first short one.
        """
        phase, epoch, batch = trials[0].at
        is_between = (epoch, batch) != (0, 0) and (phase, epoch, batch + 1) in self.known
        windows = [self.window(plan) for plan in trials] if is_between else [None]
        saved = sum(sum(cursor[2] >= 0 for cursor in window) - 1 for window in windows if window is not None)
        return None not in windows and saved * _SHARE > _COST

    def window(self, plan: Experiment) -> list[Address] | None:
        """Return the lines over which a trial goes from its fault on; None where that cannot be told.

        They are the steps, and what follows the steps of the epochs that it leaves behind.
        """
        if plan.count is None or plan.steps != 1 or not plan.ends_with_loop or not plan.has_digests:
            return None
        first = bisect.bisect_left(self._steps, plan.at)
        steps = [cursor for cursor in self._steps[first : first + plan.count] if cursor[0] == plan.at[0]]
        if not steps or steps[0] != plan.at:
            return None
        epochs = range(plan.at[1], steps[-1][1] + (len(steps) < plan.count))
        lines = [*steps, *(cursor for epoch in epochs if (cursor := (plan.at[0], epoch, -1)) in self.known)]
        is_finite = all(math.isfinite(float(value)) for cursor in lines for value in self.known[cursor].series.values())
        return lines if is_finite else None

    def run_on(self, done: TrialResult, plan: Experiment) -> TrialResult:
        """Return a trial that has ended early as it would be had it run on."""
        window, mine = self.window(plan), done.by_cursor()
        assert window is not None
        last, steps = max(mine), sum(cursor[2] >= 0 for cursor in window)
        return replace(
            done,
            steps=(*done.steps, *(self.known[cursor] for cursor in window if cursor not in mine)),
            end="until" if steps == plan.count else "loop",
            said=(*done.said, *(each for each in self.golden.said if each.place > (*last, True))),
            early_after=sum(cursor >= plan.at for cursor in mine),
        )
