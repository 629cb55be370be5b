"""Plans: what is drawn is the population, whatever the strata and their shares."""

from __future__ import annotations

import collections
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from detrain.base.errors import DetrainError, FaultInvalid, UsageError
from detrain.faults.population.frame import Rule, Selection, frame_of
from detrain.faults.population.groups import Group
from detrain.faults.population.plan import SampledPlan, in_turn, sampled_plan
from detrain.faults.population.profile import profile_of, work_of
from tests.population import made

PROFILE = made.profile()


def element_counts(rule: Rule) -> dict[tuple[str, int], float]:
    """What the rule counts for each site in each kind of step, by hand from the lists of sites."""
    found = {}
    for kind, (batch, steps) in enumerate(((8, 9), (3, 3))):
        for site in made.sites(batch):
            if not site.is_alive or site.stage == "memory":
                continue
            count = prod(site.operands["output"].shape) * site.executions * steps
            size = {"float32": 4, "int64": 8, "bool": 1}[site.operands["output"].dtype]
            factor = {"elements": 1, "bytes": size, "work": work_of(site), "site": 0}[rule]
            found[site.name, kind] = float(count * factor if rule != "site" else steps)
    return found


@pytest.mark.parametrize("rule", ["elements", "bytes", "work", "site"])
def test_a_site_has_the_share_that_the_rule_says(rule: Rule) -> None:
    frame = frame_of(PROFILE, Selection(rule=rule, models=("FLIP:1", "ZERO", "ADJ:2")))

    found: collections.Counter[tuple[str, int]] = collections.Counter()
    for cell in frame.cells:
        found[cell.output.site.name, cell.output.kind] += cell.share
    # Bools are of SETP, of which FLIP:1 is the only model among these: all of their share is its.
    wanted = element_counts(rule)
    total = sum(wanted.values())
    assert found.keys() == wanted.keys()
    for key, count in wanted.items():
        assert found[key] == pytest.approx(count / total)


def test_what_no_trial_is_made_of_has_its_exact_share() -> None:
    frame = frame_of(PROFILE, Selection(modes=("IOA",), groups=("GPR",)))

    rows, short = 8, 3
    dead = 9 * rows * 100 + 3 * short * 100
    whole = dead + sum(each.in_all for each in PROFILE.outputs if Group.GPR in each.groups)
    inside = {}
    for each in PROFILE.outputs:
        if Group.GPR in each.groups and each.elements > 1:
            width = (each.elements - 1).bit_length()
            pairs = [(i, i ^ 1 << bit) for i in range(each.elements) for bit in range(width)]
            inside[each.site.name, each.kind] = each.in_all * sum(to < each.elements for _, to in pairs) / len(pairs)
    assert frame.left.dead == pytest.approx(dead / whole)
    assert frame.left.unfit == pytest.approx(12 / whole)  # the count of steps: one element has no address bits
    assert 1 - frame.left.dead - frame.left.unfit - frame.left.outside == pytest.approx(sum(inside.values()) / whole)


def drawn_frequencies(plan: SampledPlan) -> dict[tuple[str, int], float]:
    """Shares of the sites, by the weights of the trials."""
    found: collections.Counter[tuple[str, int]] = collections.Counter()
    for number in range(plan.count):
        facts, experiment = plan.trial(number)
        found[facts.site, int(experiment.at[2] == 3)] += facts.weight
    total = sum(found.values())
    return {key: value / total for key, value in found.items()}


@pytest.mark.parametrize("shares", [None, "even"])
def test_trials_by_their_weights_are_the_population(shares: str | None) -> None:
    choice = Selection(seed=4)
    names = frame_of(PROFILE, choice).strata
    plan = sampled_plan(PROFILE, choice, 4000, shares=dict.fromkeys(names, 1.0) if shares else None)
    wanted = element_counts("elements")
    total = sum(wanted.values())

    found = drawn_frequencies(plan)

    for key, count in wanted.items():
        assert found.get(key, 0.0) == pytest.approx(count / total, abs=0.025)


def test_elements_runs_and_bits_are_drawn_uniformly() -> None:
    plan = sampled_plan(PROFILE, Selection(seed=1, groups=("LDS",)), 3000)
    trials = [plan.trial(number) for number in range(plan.count)]
    of_whole = [(facts, experiment) for facts, experiment in trials if experiment.at[2] < 3]

    assert stats.chisquare(np.bincount([facts.position for facts, _ in of_whole], minlength=96)).pvalue > 0.001
    assert stats.chisquare(np.bincount([facts.occurrence for facts, _ in of_whole], minlength=3)).pvalue > 0.001
    assert stats.chisquare([sum(e.at == step for _, e in of_whole) for step in made.STEPS if step[2] < 3]).pvalue > 0.001
    masks = [int(e.injection.array("flip")[0]) & 0xFFFFFFFF for _, e in of_whole if e.injection is not None]
    assert stats.chisquare(np.bincount([mask.bit_length() - 1 for mask in masks], minlength=32)).pvalue > 0.001


def test_a_trial_is_a_pure_function_of_profile_seed_and_number() -> None:
    short, long = (sampled_plan(made.profile(), Selection(seed=7), count) for count in (60, 61))
    other = sampled_plan(PROFILE, Selection(seed=8), 60)

    assert [short.trial(number) for number in range(60)] == [
        sampled_plan(PROFILE, Selection(seed=7), 60).trial(n) for n in range(60)
    ]
    assert other.digest != short.digest
    assert [other.trial(number)[1] for number in range(60)] != [short.trial(number)[1] for number in range(60)]
    assert long.count == 61


def test_a_longer_plan_of_one_allocation_begins_with_the_shorter_one() -> None:
    short = sampled_plan(PROFILE, Selection(seed=7), 200)
    long = SampledPlan(PROFILE, short.choice, 900, short.allocation)

    assert long.digest == short.digest
    assert [long.trial(number) for number in range(200)] == [short.trial(number) for number in range(200)]


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=12), st.integers(1, 400))
def test_each_prefix_has_each_stratums_share(weights: list[float], count: int) -> None:
    shares = np.array(weights) / sum(weights)

    order = in_turn(shares, count)

    assert order.shape == (count,)
    for prefix in range(1, count + 1):
        counts = np.bincount(order[:prefix], minlength=len(shares))
        assert np.all(np.abs(counts - prefix * shares) <= 1 + len(shares) * shares)


def test_a_small_stratum_gets_trials_enough() -> None:
    plan = sampled_plan(PROFILE, Selection(), 300)
    counts = collections.Counter(plan.trial(number)[0].stratum for number in range(300))

    assert set(counts) == set(plan.strata)
    assert min(counts.values()) >= 4
    assert min(plan.strata.values()) * 300 < 1
    assert sum(share for _, share in plan.allocation) == pytest.approx(1)


@pytest.mark.parametrize(
    ("choice", "error", "message"),
    [
        (Selection(groups=("FPU",)), UsageError, "no group 'FPU'"),
        (Selection(groups=("DFMA",)), FaultInvalid, "no live output of DFMA"),
        (Selection(groups=("PR",), models=("ZERO",)), FaultInvalid, "goes with PR.*\n.*FLIP:1"),
        (Selection(modes=("IOA",), models=("RANDOM",), groups=("GPR",)), FaultInvalid, "mode IOA"),
        (Selection(modes=("IOA",), models=("RANDOM",)), FaultInvalid, "nothing can be drawn"),
        (Selection(modes=("RF",), models=("ZERO",)), FaultInvalid, "goes with memory in mode RF\n.*FLIP:1, ADJ:2"),
        (Selection(modes=("RF",), stage="stream"), FaultInvalid, "no live output of memory"),
        (Selection(modes=("RD",)), UsageError, "modes RD"),  # type: ignore[arg-type]
        (Selection(site="nothing*"), FaultInvalid, "nothing can be drawn"),
        (Selection(models=("N64_WT_GLB",), groups=("SETP",)), FaultInvalid, "nothing can be drawn"),
        (Selection(models=("FLOP",)), FaultInvalid, "no fault model 'FLOP'"),
    ],
)
def test_what_cannot_be_drawn_is_refused(choice: Selection, error: type[DetrainError], message: str) -> None:
    with pytest.raises(error, match=message):
        sampled_plan(PROFILE, choice, 10)


def test_memory_is_drawn_by_its_bytes_in_each_step() -> None:
    plan = sampled_plan(PROFILE, Selection(modes=("RF",), models=("FLIP:1", "ADJ:2"), rule="bytes", seed=6), 2000)
    trials = [plan.trial(number) for number in range(2000)]

    assert plan.strata == pytest.approx({"weight × memory": 120 / 128, "slot × memory": 8 / 128})
    assert {(facts.group, facts.mode, facts.occurrence) for facts, _ in trials} == {(-1, "RF", 0)}
    assert {(facts.stage, facts.layer) for facts, _ in trials} == {("weight", "net.weight"), ("slot", "steps")}
    assert all(experiment.injection is not None and experiment.injection.is_in_memory for _, experiment in trials)
    of_weight = [(facts, experiment) for facts, experiment in trials if facts.stage == "weight"]
    assert stats.chisquare(np.bincount([facts.position for facts, _ in of_weight], minlength=30)).pvalue > 0.001
    assert stats.chisquare([sum(e.at == step for _, e in of_weight) for step in made.STEPS]).pvalue > 0.001


def test_modes_together_are_of_no_one_population() -> None:
    assert frame_of(PROFILE, Selection(modes=("IOV", "RF"))).overlaps
    assert frame_of(PROFILE, Selection(groups=("GPR", "FFMA"))).overlaps
    assert not frame_of(PROFILE, Selection(groups=("LDS", "FFMA"))).overlaps
    assert not frame_of(PROFILE, Selection(groups=("GPR",))).overlaps


def test_another_pilots_strata_are_refused() -> None:
    with pytest.raises(FaultInvalid, match="strata are others"):
        sampled_plan(PROFILE, Selection(), 10, shares={"forward × FFMA": 1.0})


def test_a_number_outside_of_the_plan_is_refused() -> None:
    with pytest.raises(FaultInvalid, match="no trial 10 in a plan of 10"):
        sampled_plan(PROFILE, Selection(), 10).trial(10)


def test_groups_that_no_model_goes_with_are_left_out_and_counted_where_none_was_asked_for() -> None:
    frame = frame_of(PROFILE, Selection(models=("ADJ:2",)))

    bools = 9 * 8 + 3 * 3
    live = sum(each.in_all for each in PROFILE.outputs)
    assert Group.SETP_OP not in {cell.group for cell in frame.cells}
    assert frame.left.unfit == pytest.approx(bools / (live + sum(each.in_all for each in PROFILE.dead)))


def test_a_site_that_is_too_small_for_a_model_is_left_out_and_counted() -> None:
    profile = profile_of("toy", (), [((0, 0, 0), [made.site("add", (40,)), made.site("exp", (10,))], made.STEPS)])
    frame = frame_of(profile, Selection(models=("N16_RD",)))

    assert [cell.output.site.op for cell in frame.cells] == ["add"]
    assert frame.left.unfit == pytest.approx(10 / 50)
