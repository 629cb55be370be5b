"""A campaign counts what its records say, and takes no record for its own that is not."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from detrain.base.errors import AnotherProgram, EnvironmentChanged, FaultInvalid, UsageError
from detrain.campaign.outcomes import read_thresholds
from detrain.campaign.planning.drawn_plan import Drawn, DrawnPlan, drawn_plan
from detrain.campaign.subject import Subject
from detrain.campaign.trial_record import check_same, file_name
from detrain.campaign.trials_done import TrialFolder
from detrain.cli.faults.random import rows_of
from detrain.faults.experiment import Alarm
from detrain.faults.models import model_named
from detrain.faults.outcome_classes import USUAL
from detrain.faults.record import FaultRecord, write_record
from detrain.faults.statistics.intervals import wilson
from detrain.launcher.program import Program
from tests.faults.test_drawing import SITES
from tests.faults.test_records import RECORDS, record


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    (tmp_path / "train.py").write_text("x = 1\n")
    return Subject(Program.find(str(tmp_path / "train.py"), is_module=False), (), tmp_path / "ckpt")


@pytest.fixture
def campaign(subject: Subject, tmp_path: Path) -> TrialFolder:
    steps = [(0, 0, batch) for batch in range(9)]
    plan = DrawnPlan(1, 9, [model_named("RD")], {0: SITES[:1]}, steps, lambda _at: SITES[:2], after=5)
    return TrialFolder(tmp_path / "records", subject, plan, 1, USUAL)


def of_trial(campaign: TrialFolder, number: int, *, is_again: bool = False) -> FaultRecord:
    facts, plan = campaign.plan.trial(number)
    again = campaign.plan.again(number, plan) if is_again else None
    return msgspec.structs.replace(
        record(facts.model, "masked", [0.5]),
        arguments=(),
        sources=campaign.subject.sources(),
        environment=campaign.subject.environment(),
        experiment=plan if again is None else again[1],
        thresholds=USUAL,
    ).signed()


def test_outcomes_are_counted_the_most_frequent_first() -> None:
    late = record("RD", "masked", [0.5], Alarm(7, "kernel", "nan", 1.0, "norm"))

    rows = rows_of([*RECORDS[::-1], late])

    assert [row[:3] for row in rows] == [
        ("masked", "4", "66.7%"),
        ("other", "1", "16.7%"),
        ("immediate INF/NaN", "1", "16.7%"),
    ]
    assert [row[4:6] for row in rows] == [("0 (0.0%)", "1"), ("0 (0.0%)", "0"), ("1 (100.0%)", "0")]
    for text, (count, total) in ((rows[0][3], (4, 6)), (rows[2][6], (1, 1))):
        low, high = wilson(count, total)
        assert text == f"{low:.1%} – {high:.1%}"
    assert rows_of([]) == []


def test_a_record_of_the_campaign_is_known_again(campaign: TrialFolder) -> None:
    campaign.folder.mkdir()
    mine = of_trial(campaign, 3)
    write_record(campaign.path(3), mine)

    again = next(n for n in range(4, 9) if campaign.plan.again(n, campaign.plan.trial(n)[1]) is not None)
    write_record(campaign.path(again), of_trial(campaign, again, is_again=True))

    assert campaign.known(3) == mine
    assert campaign.known(again) == of_trial(campaign, again, is_again=True)
    assert campaign.known(2) is None


def test_a_record_of_another_fault_is_refused(campaign: TrialFolder) -> None:
    campaign.folder.mkdir()
    write_record(campaign.path(3), of_trial(campaign, 4))

    with pytest.raises(FaultInvalid, match="its fault is another"):
        campaign.known(3)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"arguments": ("--lr", "1")}, AnotherProgram, "arguments"),
        ({"sources": {"train.py": "other"}}, AnotherProgram, r"source train\.py"),
        ({"environment": {"python": "2.7"}}, EnvironmentChanged, "python was '2.7'"),
        ({"thresholds": read_thresholds(["sharp_loss=0.4"])}, FaultInvalid, "other thresholds"),
    ],
)
def test_a_record_of_another_campaign_is_refused(
    change: dict[str, object], error: type[Exception], words: str, campaign: TrialFolder
) -> None:
    campaign.folder.mkdir()
    write_record(campaign.path(0), msgspec.structs.replace(of_trial(campaign, 0), **change).signed())

    with pytest.raises(error, match=words):
        campaign.known(0)


def test_an_altered_record_is_refused(campaign: TrialFolder) -> None:
    campaign.folder.mkdir()
    write_record(campaign.path(0), msgspec.structs.replace(of_trial(campaign, 0), outcome="crash"))

    with pytest.raises(FaultInvalid, match="was altered since it was written"):
        campaign.known(0)


def test_of_another_environment_a_record_is_taken_where_that_is_allowed(campaign: TrialFolder) -> None:
    elsewhere = msgspec.structs.replace(of_trial(campaign, 0), environment={})

    check_same(elsewhere, campaign.subject, allow_environment=True)
    with pytest.raises(EnvironmentChanged):
        check_same(elsewhere, campaign.subject, allow_environment=False)


def test_each_fault_has_a_file_of_its_own(campaign: TrialFolder) -> None:
    names = {file_name(of_trial(campaign, number)) for number in range(8)}

    assert len(names) == 8
    assert all(name.startswith("RD-0-") and name.endswith(".json") for name in names)


@pytest.mark.parametrize("text", ["2", "a:3", "1:b"])
def test_epochs_that_are_no_range_are_refused_before_anything_runs(text: str, subject: Subject) -> None:
    with pytest.raises(UsageError, match="is not a range"):
        drawn_plan(subject, Drawn(models=("RD",), epochs=text), seed=0, count=1, after=None)
