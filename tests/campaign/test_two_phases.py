"""A campaign of two phases: what is run on follows from the first phase alone, and the estimate is of all trials."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from detrain.campaign.engine.driver import Driver, lease_size
from detrain.campaign.engine.ledger import Ledgers
from detrain.faults.outcome_classes import Outcome
from detrain.faults.population.stopping import ENDED, class_of, classes_of, second_phase
from detrain.faults.population.trial_row import OUTSIDE, TrialRow
from detrain.reports.campaign.about import about_plan
from detrain.reports.campaign.page import lines_of, page_of
from detrain.reports.campaign.summary import summarize
from detrain.reports.campaign.two_phase import Later, later_of
from tests.campaign.test_engine import PROGRAM, run
from tests.campaign.test_stop_at import Made, campaign
from tests.e2e.runs import detrain, environment
from tests.population import made_rows

COUNT = 600
PLAN = made_rows.plan(COUNT)


def both_phases() -> tuple[list[TrialRow], list[TrialRow]]:
    """Return rows behind a first phase, and of all trials at the horizon: the further off the worse."""
    rng = np.random.default_rng(0)
    first, last = [], []
    for row in made_rows.rows(COUNT):
        size = float(10 ** rng.uniform(-8, 1))
        kind = rng.choice(["equal", "ended", "far"], p=[0.4, 0.1, 0.5])
        early = msgspec.structs.replace(
            row,
            outcome=Outcome.OTHER.value if kind == "far" else Outcome.MASKED.value if kind == "equal" else Outcome.CRASH.value,
            end="crash: E" if kind == "ended" else "until",
            is_equal=bool(kind == "equal"),
            golden_loss=1.0,
            loss=None if kind == "ended" else 1.0 if kind == "equal" else 1 + size,
        )
        harm = {"equal": 0.01, "far": min(0.9, max(0.02, 0.5 + np.log10(size) / 8))}
        is_harmful = kind == "ended" or rng.random() < harm[str(kind)]
        first.append(early)
        outcome = early.outcome if kind == "ended" else Outcome.SLOW.value if is_harmful else Outcome.MASKED.value
        last.append(msgspec.structs.replace(early, outcome=outcome, steps=20))
    return first, last


def later(first: list[TrialRow], last: list[TrialRow], trials: int, seed: int) -> Later:
    numbers = second_phase(first, trials, seed)
    ran = [row for row in last if row.number in set(numbers)]
    return later_of(first, ran, numbers, PLAN.strata, steps=(3, 20), unfired=0, confidence=0.95)


def test_what_is_run_on_follows_from_the_rows_in_whatever_order_they_came() -> None:
    first, _ = both_phases()

    numbers = second_phase(first, 150, seed=4)

    assert second_phase(list(reversed(first)), 150, seed=4) == numbers == sorted(set(numbers))
    assert second_phase(first, 150, seed=5) != numbers
    assert len(numbers) == 150
    classes = classes_of(first)
    assert not any(classes[number] == ENDED for number in numbers)  # run on, it would be the same
    assert {classes[number] for number in numbers} == set(classes.values()) - {ENDED}
    assert set(second_phase(first, COUNT * 2, seed=4)) == {number for number, name in classes.items() if name != ENDED}


def test_how_far_a_trial_is_off_is_told_by_its_loss() -> None:
    row = msgspec.structs.replace(made_rows.rows(1)[0], end="until", is_equal=False, loss=1.5, golden_loss=1.0)
    classes = [
        class_of(msgspec.structs.replace(row, loss=loss, is_equal=is_equal, end=end))
        for loss, is_equal, end in (
            (1.0, True, "until"),
            (1.0, False, "until"),
            (1 + 1e-7, False, "until"),
            (1.05, False, "until"),
            (9.0, False, "until"),
            (None, False, "until"),
            (1.5, False, "non-finite loss"),
        )
    ]
    assert len(set(classes)) == len(classes)
    assert not classes_of([msgspec.structs.replace(row, outcome=OUTSIDE)])


def test_the_estimate_is_of_all_trials_though_few_were_run_on() -> None:
    """Against the shares when all have run on, weighed by strata: in the mean over choices they are equal."""
    first, last = both_phases()
    whole = later(first, last, COUNT * 2, seed=0)
    found = [later(first, last, 200, seed) for seed in range(80)]
    assert whole.masked is not None
    shares = np.array([each.masked.share for each in found if each.masked is not None])
    sizes = {name: sum(row.stratum == name for row in first) for name in PLAN.strata}
    weights = np.array([PLAN.strata[row.stratum] / sizes[row.stratum] for row in first])
    truth = float(weights[[row.outcome == "masked" for row in last]].sum() / weights.sum())

    assert whole.masked.share == pytest.approx(truth)
    assert len(shares) == 80
    assert abs(shares.mean() - truth) < 3 * shares.std() / np.sqrt(80)
    assert sum(each.masked.low <= truth <= each.masked.high for each in found if each.masked is not None) >= 70
    assert all(200 < each.masked.effective < COUNT for each in found if each.masked is not None)


def test_nothing_is_estimated_before_the_second_phase_is_whole_and_the_report_says_so() -> None:
    first, last = both_phases()
    numbers = second_phase(first, 100, seed=1)
    some = [row for row in last if row.number in set(numbers[:60])]
    part = later_of(first, some, numbers, PLAN.strata, steps=(3, 20), unfired=0, confidence=0.95)
    whole = later(first, last, 100, seed=1)

    assert (part.missing, part.masked, part.outcomes) == (len(numbers) - 60, None, {})
    for each, said in ((part, "have not been run yet"), (whole, "behind the first phase")):
        summary = summarize(first, about_plan(PLAN), later=each)
        assert said in "\n".join(lines_of(summary))
        assert said in page_of(summary)


def test_two_rows_of_a_number_must_be_of_one_fault() -> None:
    first, last = both_phases()
    numbers = second_phase(first, 40, seed=1)
    last[numbers[0]] = msgspec.structs.replace(last[numbers[0]], position=last[numbers[0]].position + 1)
    ran = [row for row in last if row.number in set(numbers)]

    with pytest.raises(Exception, match=f"trial {numbers[0]} is another fault in its second phase: position"):
        later_of(first, ran, numbers, PLAN.strata, steps=(3, 20), unfired=0, confidence=0.95)


def test_a_driver_does_the_numbers_that_it_is_given(tmp_path: Path) -> None:
    engine = Made(tmp_path, made_rows.rows(960))
    numbers = list(range(7, 700, 3))

    progress = Driver(campaign(tmp_path), engine, lambda _progress: None, numbers=numbers).run()

    assert (progress.count, progress.done) == (len(numbers), len(numbers))


@pytest.mark.parametrize(("trials", "slots", "size"), [(200, 2, 100), (20, 2, 16), (20, 1, 20), (2000, 2, 334), (99_999, 4, 2048)])
def test_each_slot_has_a_lease_where_trials_are_few(trials: int, slots: int, size: int) -> None:
    assert lease_size(trials, slots) == size


@pytest.mark.slow
def test_both_phases_come_to_the_same_tables_whoever_ran_them_and_the_second_is_that_of_a_whole_campaign(tmp_path: Path) -> None:
    """Whole commands, of which one is killed. The oracle is a campaign in which all trials go to the horizon."""
    pytest.importorskip("torch")
    (tmp_path / "program.py").write_text(PROGRAM)
    options = ("-n", 30, "--after", 4, "--by", "site", "--seed", 1)
    for more in (("--two-phase", 9, "--first", 1), ("--name", "whole")):
        planned = detrain("campaign", "plan", *options, *more, "program.py", cwd=tmp_path)
        assert planned.status == 0, planned.err
    before = detrain("campaign", "status", "program.py", cwd=tmp_path)
    assert "it begins when the first is over" in before.out
    (folder,) = tmp_path.glob("ckpt/*/*/campaign-campaign")
    second = folder.with_name("second-campaign")
    one = run(tmp_path, "--workers", 1)
    for each in (folder, second):
        (each / "ledger").rename(each / "of-one")

    driver = [sys.executable, "-m", "detrain", "campaign", "run", "--workers", "2", "program.py"]
    process = subprocess.Popen(driver, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL)
    while not list((second / "ledger").glob("*")) and process.poll() is None:
        time.sleep(0.2)
    process.kill()
    process.wait()
    again = run(tmp_path, "--workers", 2)
    whole = run(tmp_path, "--workers", 2, "--name", "whole")

    known = {row.number: row.timeless() for row in Ledgers(folder.with_name("campaign-whole") / "ledger", whole["plan"]).rows()}
    rows = list(Ledgers(second / "ledger", again["second"]["plan"]).rows())
    assert (one["digest"], one["second"]["digest"]) == (again["digest"], again["second"]["digest"])
    assert again["second"]["count"] == again["second"]["done"] == len(rows) == 9
    assert all(row.timeless() == known[row.number] for row in rows)
    report = detrain("campaign", "report", "--json", "program.py", cwd=tmp_path)
    later = json.loads(report.out)["later"]
    assert (later["second"], later["missing"], later["first_steps"], later["horizon"]) == (9, 0, 1, 4)
    refused = detrain("campaign", "run", "--stop-at", 5, "program.py", cwd=tmp_path)
    assert (refused.status, "two phases" in refused.err) == (64, True), refused.err
