"""Twins: runs with a trial's site in place and no fault, for sites that alone change bits of a compiled step.

Such a trial is compared with its twin instead of the golden run. The same processes do both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec

from detrain.base.cursor import Address
from detrain.campaign.trial_log import TrialResult
from detrain.faults.experiment import Experiment


def number_of_trial(number: int) -> int:
    """Return the number of a trial, given its own number or its twin's."""
    return max(number, ~number)


class Pairs(msgspec.Struct):
    """Trials with their twins: a trial whose site alone changes bits is compared with a run that has the site in place
    and no fault. The twin of trial 3 has the number ~3.
    """

    golden: TrialResult
    _halves: dict[int, TrialResult] = {}

    @staticmethod
    def with_twins(chunk: Mapping[int, Experiment], changing: Collection[object]) -> dict[int, Experiment]:
        """Return the trials with the twins that they need; `changing`: the places whose instruments change bits."""
        found = dict[int, Experiment]()
        for number, plan in chunk.items():
            has_twin = plan.injection is not None and plan.injection.place in changing
            if has_twin:
                found[~number] = msgspec.structs.replace(plan, is_armed=False)
            found[number] = msgspec.structs.replace(plan, has_twin=has_twin)
        return found

    def take(self, number: int, done: TrialResult, plan: Experiment) -> Iterator[tuple[int, TrialResult]]:
        """Take the result of a trial or a twin; yield the trial as soon as both are there."""
        if plan.is_armed and (not plan.has_twin or done.is_unfired or done.is_unarmed_equal):
            yield number, done
            return
        self._halves[number] = done
        trial, twin = (self._halves.get(each) for each in (number_of_trial(number), ~number_of_trial(number)))
        if trial is not None and twin is not None:
            yield number_of_trial(number), msgspec.structs.replace(trial, twin=self._whole(twin, plan.at))

    def _whole(self, twin: TrialResult, at: Address) -> TrialResult:
        """Return a twin completed by the golden run's steps before it."""
        known = self.golden.by_cursor()
        before = {cursor: step for cursor, step in known.items() if cursor < at and (cursor[2] >= 0 or cursor[:2] < at[:2])}
        return msgspec.structs.replace(twin, steps=tuple({**before, **twin.by_cursor()}.values()))
