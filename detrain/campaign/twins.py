"""Twins of trials: runs that have the site in place and no fault, where the site alone changes bits of a compiled step.

What the golden run is to other trials, the twin is to such a one. It is done as a trial is, by the same processes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec

from detrain.base.cursor import Address
from detrain.campaign.trial_log import TrialResult
from detrain.faults.experiment import Experiment


def number_of_trial(number: int) -> int:
    """Return the number of a trial, given it or its twin's."""
    return max(number, ~number)


class Pairs(msgspec.Struct):
    """Trials whose site alone changes bits, each with a twin that has the site in place and no fault: as the golden run
    of such a trial has. The twin of trial 3 has the number ~3.
    """

    golden: TrialResult
    _halves: dict[int, TrialResult] = {}

    @staticmethod
    def with_twins(chunk: Mapping[int, Experiment], changing: Collection[object]) -> dict[int, Experiment]:
        """Return trials with the twins that they need, given the places at which sites have changed bits."""
        found = dict[int, Experiment]()
        for number, plan in chunk.items():
            has_twin = plan.injection is not None and plan.injection.place in changing
            if has_twin:
                found[~number] = msgspec.structs.replace(plan, is_armed=False)
            found[number] = msgspec.structs.replace(plan, has_twin=has_twin)
        return found

    def take(self, number: int, done: TrialResult, plan: Experiment) -> Iterator[tuple[int, TrialResult]]:
        """Take what came of a trial or a twin; yields the trial as soon as there is all of it."""
        if plan.is_armed and (not plan.has_twin or done.is_unfired or done.is_unarmed_equal):
            yield number, done
            return
        self._halves[number] = done
        trial, twin = (self._halves.get(each) for each in (number_of_trial(number), ~number_of_trial(number)))
        if trial is not None and twin is not None:
            yield number_of_trial(number), msgspec.structs.replace(trial, twin=self._whole(twin, plan.at))

    def _whole(self, twin: TrialResult, at: Address) -> TrialResult:
        """Return a twin with the golden run's steps before it."""
        known = self.golden.by_cursor()
        before = {cursor: step for cursor, step in known.items() if cursor < at and (cursor[2] >= 0 or cursor[:2] < at[:2])}
        return msgspec.structs.replace(twin, steps=tuple({**before, **twin.by_cursor()}.values()))
