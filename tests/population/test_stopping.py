"""Planned looks at rows, pilots; and that a campaign finds what enumeration finds."""

from __future__ import annotations

from math import prod

import msgspec
import numpy as np
import pytest

from detrain.faults.population.frame import Selection
from detrain.faults.population.plan import sampled_plan
from detrain.faults.population.stopping import last_look, shares_by_pilot
from detrain.faults.population.trial_row import TrialRow
from detrain.faults.statistics.estimates import Sample
from detrain.faults.statistics.intervals import Looks
from tests.population import made, made_rows

PROFILE = made.profile()


def is_harmful(row: TrialRow) -> bool:
    return row.outcome != "masked"


ROWS = made_rows.rows(300)
LOOKS = Looks(300)


def test_a_look_waits_for_all_trials_before_it() -> None:
    known = [row for row in ROWS if row.number not in (100, 200)]

    assert LOOKS.at == (38, 75, 150, 300)
    assert last_look(ROWS[:20], [], LOOKS, is_harmful, 0.01) is None
    late = last_look(known, [], LOOKS, is_harmful, 0.01)
    whole = last_look(known, [100, 200], LOOKS, is_harmful, 0.01)
    assert late is not None
    assert whole is not None
    assert (late.trials, whole.trials) == (75, 300)


def test_a_look_does_not_see_what_is_behind_it() -> None:
    before = ROWS[:150]
    one = last_look(before, [], LOOKS, is_harmful, 0.5, made_rows.plan(300).strata)
    more = [msgspec.structs.replace(row, outcome="crash") for row in ROWS[150:290]]

    assert one is not None
    assert one.may_stop
    assert last_look([*before, *more], [], LOOKS, is_harmful, 0.5, made_rows.plan(300).strata) == one


def test_a_narrow_interval_is_not_reached_by_few_trials() -> None:
    look = last_look(ROWS, [], LOOKS, is_harmful, 0.01)

    assert look is not None
    low, high = look.interval
    assert not look.may_stop
    assert (high - low) / 2 > 0.01


def test_a_pilot_gives_more_trials_to_what_is_less_sure() -> None:
    rows = [msgspec.structs.replace(ROWS[0], number=number, stratum=("a", "b")[number % 2]) for number in range(40)]
    rows = [msgspec.structs.replace(row, outcome="other" if row.stratum == "a" and row.number % 4 else "masked") for row in rows]

    shares = shares_by_pilot({"a": 0.5, "b": 0.5}, rows, is_harmful)

    assert sum(shares.values()) == pytest.approx(1)
    assert shares["a"] > shares["b"]


def harms(site: str, batch: int, occurrence: int, position: int, bit: int) -> bool:
    """A program's answer to each fault, without chance."""
    return bit >= 28 or (site.startswith("backward") and bit > 20) or (position * 7 + bit * 3 + batch + occurrence) % 11 == 0


def enumerated() -> float:
    """The share of harmful faults among all that there are: each element of each run in each step, each bit."""
    widths = {"float32": 32, "int64": 64, "bool": 1}
    harmful = total = 0.0
    for step in made.STEPS:
        for site in made.sites(3 if step[2] == 3 else 8):
            if not site.is_alive or site.stage == "memory":
                continue
            output = site.operands["output"]
            for occurrence in range(site.executions):
                for position in range(prod(output.shape)):
                    width = widths[output.dtype]
                    count = sum(harms(site.name, step[2], occurrence, position, bit) for bit in range(width))
                    harmful += count / width
                    total += 1
    return harmful / total


def held(campaigns: int, trials: int) -> int:
    """Return in how many campaigns the interval has the share that enumeration gives."""
    truth, count = enumerated(), 0
    for seed in range(campaigns):
        plan = sampled_plan(PROFILE, Selection(seed=seed), trials)
        events, strata = [], []
        for number in range(trials):
            facts, experiment = plan.trial(number)
            assert experiment.injection is not None
            mask = int(experiment.injection.array("flip")[0]) & ((1 << 64) - 1)
            bit = (mask & -mask).bit_length() - 1
            events.append(harms(facts.site, facts.batch, facts.occurrence, facts.position, bit))
            strata.append(facts.stratum)
        found = Sample(np.ones(trials), np.array(strata), plan.strata).estimate(np.array(events))
        count += found.low <= truth <= found.high
    return count


def test_a_campaign_finds_what_enumeration_finds() -> None:
    assert held(8, 200) >= 6


@pytest.mark.slow
def test_campaigns_find_what_enumeration_finds_as_often_as_they_say() -> None:
    assert held(200, 300) >= 184  # of 200 at 95 %, fewer are one in thirty
