"""The spread of golden runs with other seeds: a fault harms a training only if its effect goes beyond that.

A training with another seed ends elsewhere, and is as good. So a trial is compared with several golden runs of other
seeds by a number that the program itself gives: its loss, a number that it prints, or one that the user's function
computes from its final variables. A fault did harm if the trial lies outside of the interval for one more golden run
(a prediction interval, Hahn and Meeker 1991, 4.7; one-sided for a loss, as a lower loss is no harm).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Final

import msgspec
import numpy as np

from detrain.base.cursor import Address
from detrain.campaign.judging.check import is_function
from detrain.campaign.judging.judge import said_by
from detrain.campaign.trial_log import TrialResult
from detrain.faults.outcome_classes import Outcome
from detrain.faults.statistics.intervals import library

SURE: Final = 0.99
"""The probability that one more golden run lies inside."""
LEAST_RUNS: Final = 4
"""The fewest golden runs, including the one that trials are compared with."""
NO_STEP: Final = "finite (no step behind the fault to classify by)"
"""The outcome of a trial whose variables differ, and that has no step behind the faulty one."""
NO_NUMBER: Final = "finite (it gave no number to judge by)"
"""The outcome of a trial that ended before its program printed the number for `--metric`, or before the program's
end."""
FEW_RUNS: Final = "finite (too few golden runs have its steps)"
_MOST_STEPS: Final = 49
"""A loss is the mean over this many steps at a trial's end: as many as the definition of masked takes for accuracy."""


class Spread(msgspec.Struct, frozen=True, dict=True):
    """Golden runs of several seeds, and the number that is measured in each."""

    runs: Sequence[TrialResult]
    """The golden runs of other seeds."""
    metric: str = ""
    """A pattern whose last match in the program's output holds the number, or a function of the user's
    (module:function); empty: the loss.
    """
    golden: float | None = None
    """The number that the user's function gave for the golden run that trials are compared with."""

    @property
    def _is_asked(self) -> bool:
        return is_function(self.metric)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(self.metric)

    def outcome(self, golden: TrialResult, trial: TrialResult, at: Address) -> str:
        """Return the outcome of a trial with finite steps and a fault at a cursor: masked, worse, or the reason why
        neither is known.
        """
        known, faulty = golden.by_cursor(), trial.by_cursor()
        behind = sorted(cursor for cursor in faulty if cursor in known and cursor[2] >= 0 and cursor > at)
        end = max(behind, default=at) if trial.end != "program" else None
        measured = self._measured(trial, behind, at, end)
        if measured is None:
            return NO_NUMBER if self.metric else NO_STEP
        found = [self._measured(run, behind, at, end) for run in self.runs]
        found.append(self.golden if self._is_asked else self._measured(golden, behind, at, end))
        usual = np.array([each for each in found if each is not None and math.isfinite(each)])
        if len(usual) < LEAST_RUNS:
            return FEW_RUNS
        low, high = interval(usual, is_one_sided=not self.metric)
        return (Outcome.MASKED if low <= measured <= high else Outcome.WORSE).value

    def _measured(self, run: TrialResult, behind: Sequence[Address], at: Address, end: Address | None) -> float | None:
        """Return the number of a run at a trial's end; None if it has none. `behind`: the trial's steps behind its
        fault; `end`: the last of them, None for the program's end.
        """
        if self._is_asked:
            return run.measured
        if self.metric:
            matches = list(self._pattern.finditer(said_by(run, at, end)))
            return _number(matches[-1]) if matches else None
        steps = run.by_cursor()
        losses = [float(steps[cursor].series["loss"]) for cursor in behind if cursor in steps and "loss" in steps[cursor].series]
        return float(np.mean(losses[-_MOST_STEPS:])) if losses else None


def interval(values: np.ndarray[tuple[int], np.dtype[np.float64]], *, is_one_sided: bool) -> tuple[float, float]:
    """Return the interval in which one more value lies with probability `SURE`, by normally distributed [values]."""
    count = len(values)
    quantile = SURE if is_one_sided else (1 + SURE) / 2
    reach = float(library("scipy.stats").t.ppf(quantile, count - 1) * values.std(ddof=1) * math.sqrt(1 + 1 / count))
    middle = float(values.mean())
    return (-math.inf if is_one_sided else middle - reach), middle + reach


def _number(match: re.Match[str]) -> float:
    """Return the number of a match: its first group, or else all of it; NaN for a text that is no number."""
    try:
        return float(match[1] if match.re.groups else match[0])
    except (TypeError, ValueError):
        return math.nan
