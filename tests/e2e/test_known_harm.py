"""A campaign on a model so small that NumPy computes what each fault does: each outcome, and the share of all."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom, t

from detrain.campaign.engine.ledger import Ledgers
from detrain.faults.experiment import Experiment
from detrain.faults.population.facts import Facts
from detrain.faults.population.frame import Selection
from detrain.faults.population.plan import sampled_plan
from detrain.faults.population.profile import read_profile
from detrain.faults.statistics.estimates import Sample
from tests.e2e.runs import detrain

torch = pytest.importorskip("torch")

PROGRAM = """
import torch
weight = torch.nn.Parameter(torch.randn(4))
optimizer = torch.optim.SGD([weight], 0.02)
rows = torch.tensor([[(7 * step + 3 * column) % 5 - 1.5 for column in range(4)] for step in range(12)])
for epoch in range(1):
    for step in range(12):
        loss = ((weight * rows[step]).sum() - float(step % 3)) ** 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
STEPS, WIDTH, AFTER, SEEDS, TRIALS = 12, 4, 5, 6, 160
ROWS = np.array([[(7 * step + 3 * column) % 5 - 1.5 for column in range(WIDTH)] for step in range(STEPS)], np.float32)
Floats = NDArray[np.float32]


def trained(weight: Floats, fault: tuple[int, int, int] | None = None) -> tuple[list[float], Floats]:
    """The loss of each step, and the weights at the end; `fault`: in which step which bit of which product is
    flipped.
    """
    losses = []
    with np.errstate(all="ignore"):
        for step in range(STEPS):
            products = weight * ROWS[step]
            if fault is not None and fault[0] == step:
                products.view(np.uint32)[fault[1]] ^= np.uint32(1) << np.uint32(fault[2])
            error = products.sum(dtype=np.float32) - np.float32(step % 3)
            losses.append(float(error * error))
            weight = weight - np.float32(0.02) * (np.float32(2) * error * ROWS[step])
    return losses, weight


def losses(weight: Floats, fault: tuple[int, int, int] | None = None) -> list[float]:
    return trained(weight, fault)[0]


def initial(seed: int) -> Floats:
    torch.manual_seed(seed)
    return np.asarray(torch.randn(WIDTH).numpy(), np.float32)


GOLDEN = [losses(initial(seed)) for seed in range(SEEDS + 1)]


def outcome(step: int, position: int, bit: int) -> tuple[str, float]:
    """What comes of a fault, and how near the number that decides it is to where it would be another."""
    found = losses(initial(0), (step, position, bit))[step : step + AFTER]
    if not all(map(math.isfinite, found)):
        return ("immediate INF/NaN" if not all(map(math.isfinite, found[:2])) else "short-term INF/NaN"), 1.0
    if len(found) == 1:
        return "", 1.0
    usual = [np.mean(each[step + 1 : step + AFTER]) for each in GOLDEN]
    reach = t.ppf(0.99, SEEDS) * np.std(usual, ddof=1) * math.sqrt(1 + 1 / (SEEDS + 1))
    limit = float(np.mean(usual) + reach)
    measured = float(np.mean(found[1:]))
    return ("masked" if measured <= limit else "worse than golden runs"), abs(measured - limit) / limit


HARMFUL = ("worse than golden runs", "immediate INF/NaN", "short-term INF/NaN")
WHERE = ("--site", "forward/mul", "--models", "FLIP:1", "--strata", "stage")


@pytest.mark.slow
def test_each_outcome_and_the_share_of_harm_are_those_of_numpy(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    plan = ("-n", TRIALS, "--after", AFTER, "--spread", SEEDS, *WHERE, "--json", "program.py")
    detrain("campaign", "plan", *plan, cwd=tmp_path).ok()
    assert detrain("campaign", "run", "--workers", 1, "program.py", cwd=tmp_path).status == 0
    report = json.loads(detrain("campaign", "report", "--json", "program.py", cwd=tmp_path).out)
    ledger = next(tmp_path.glob("ckpt/*/*/campaign-campaign/ledger"))
    rows = list(Ledgers(ledger, report["about"]["plan_digest"]).rows())

    assert len(rows) == TRIALS
    sure = 0
    for row in rows:
        expected, margin = outcome(row.batch, row.position, row.bits[0])
        if margin > 1e-3 and expected:
            sure += 1
            assert row.outcome == expected, (row.batch, row.position, row.bits)
    assert sure >= 0.9 * TRIALS
    assert {row.outcome for row in rows} >= {"masked", "worse than golden runs"}

    everything = [outcome(*fault)[0] for fault in itertools.product(range(STEPS), range(WIDTH), range(32))]
    for verdict, names in (
        ("masked", ("masked",)),
        ("harmful", HARMFUL),
    ):
        share = sum(each in names for each in everything) / len(everything)
        # The last step's faults are equal, or not judged: as many as there are of one step at most.
        assert report[verdict]["low"] - 1 / STEPS <= share <= report[verdict]["high"] + 1 / STEPS, verdict


@pytest.mark.slow
@pytest.mark.parametrize("trials", [60, 400])
def test_of_five_hundred_campaigns_as_many_hold_the_share_of_harm_as_is_said(tmp_path: Path, trials: int) -> None:
    """The plans are drawn as the command draws them; what comes of each trial is NumPy's."""
    (tmp_path / "program.py").write_text(PROGRAM)
    detrain("campaign", "plan", "-n", trials, "--after", AFTER, *WHERE, "program.py", cwd=tmp_path).ok()
    profile = read_profile(next(tmp_path.glob("ckpt/*/*/profile.json")))
    harmful = {fault: outcome(*fault)[0] in HARMFUL for fault in itertools.product(range(STEPS), range(WIDTH), range(32))}
    truth = sum(harmful.values()) / len(harmful)

    campaigns, held = 500, 0
    for seed in range(campaigns):
        choice = Selection(seed=seed, models=("FLIP:1",), strata=("stage",), site="forward/mul")
        plan = sampled_plan(profile, choice, trials, after=AFTER)
        drawn = [plan.trial(number) for number in range(trials)]
        events = np.array([harmful[_fault(*each)] for each in drawn])
        facts = [each for each, _ in drawn]
        weights, strata = np.array([each.weight for each in facts]), np.array([each.stratum for each in facts])
        estimate = Sample(weights, strata, plan.strata).estimate(events)
        held += estimate.low <= truth <= estimate.high

    # No fewer than one in a thousand sets of campaigns whose intervals hold the truth in 95 of 100.
    assert held >= binom.ppf(1e-3, campaigns, 0.95), (held, truth)


def _fault(facts: Facts, experiment: Experiment) -> tuple[int, int, int]:
    """The step, the product and the bit that a trial flips."""
    assert experiment.injection is not None
    (operand,) = experiment.injection.array("flip")
    return facts.batch, facts.position, int(operand).bit_length() - 1


METRIC = """
import numpy as np
def distance(variables):
    (weight,) = variables.values()
    return float(np.abs(weight.astype(np.float64)).sum())
"""


def distances(weight: Floats, fault: tuple[int, int, int] | None = None) -> float:
    """What the function above gives for the weights at the program's end."""
    return float(np.abs(trained(weight, fault)[1].astype(np.float64)).sum())


@pytest.mark.slow
def test_trials_are_judged_by_a_function_of_the_users_as_numpy_judges_them(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "metric.py").write_text(METRIC)
    asked = ("--spread", SEEDS, "--metric", "metric:distance", "--models", "BIT:27", "--site", "forward/mul")
    detrain("campaign", "plan", "-n", 24, *asked, "program.py", cwd=tmp_path).ok()
    assert detrain("campaign", "run", "--workers", 2, "program.py", cwd=tmp_path).status == 0
    report = json.loads(detrain("campaign", "report", "--json", "program.py", cwd=tmp_path).out)
    ledger = next(tmp_path.glob("ckpt/*/*/campaign-campaign/ledger"))
    rows = list(Ledgers(ledger, report["about"]["plan_digest"]).rows())

    usual = [distances(initial(seed)) for seed in range(SEEDS + 1)]
    reach = t.ppf(0.995, SEEDS) * np.std(usual, ddof=1) * math.sqrt(1 + 1 / (SEEDS + 1))
    seen = set()
    for row in rows:
        fault = row.batch, row.position, row.bits[0]
        if not all(map(math.isfinite, losses(initial(0), fault)[row.batch :])):
            continue
        far = abs(distances(initial(0), fault) - np.mean(usual))
        if abs(far - reach) > 1e-3 * reach:
            seen.add(row.outcome)
            assert row.outcome == ("masked" if far <= reach else "worse than golden runs"), fault
    assert seen == {"masked", "worse than golden runs"}


def test_a_function_that_judges_the_end_goes_with_no_horizon(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    asked = ("--spread", SEEDS, "--metric", "metric:distance", "--after", 3)
    done = detrain("campaign", "plan", "-n", 24, *asked, "program.py", cwd=tmp_path)

    assert done.status == 64
    assert "judges the program's end, and --after 3" in done.err
