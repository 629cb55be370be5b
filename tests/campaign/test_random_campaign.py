"""A campaign counts what its records say, and takes no record for its own that is not."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from detrain.base.errors import AnotherProgram, EnvironmentChanged, FaultInvalid, UsageError
from detrain.campaign.drawn_trials import Drawing
from detrain.campaign.outcomes import USUAL, read_thresholds
from detrain.campaign.random_campaign import RandomCampaign, plan_campaign
from detrain.campaign.subject import Subject
from detrain.campaign.tally import tally
from detrain.campaign.trial_log import TrialResult
from detrain.campaign.trial_record import check_same, file_name
from detrain.faults.experiment import Alarm
from detrain.faults.models import model_named
from detrain.faults.record import FaultRecord, write_record
from detrain.faults.statistics.wilson import wilson
from detrain.launcher.program import Program
from tests.faults.test_drawing import SITES
from tests.faults.test_records import RECORDS, record


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    (tmp_path / "train.py").write_text("x = 1\n")
    return Subject(Program.find(str(tmp_path / "train.py"), is_module=False), (), tmp_path / "ckpt")


@pytest.fixture
def campaign(subject: Subject, tmp_path: Path) -> RandomCampaign:
    drawing = Drawing(1, {0: SITES[:1]}, [model_named("RD")], [(0, 0, batch) for batch in range(9)], None)
    return RandomCampaign(subject, drawing, TrialResult(0, (), "program"), 5, ("*", None), USUAL, tmp_path / "records")


def of_trial(campaign: RandomCampaign, number: int) -> FaultRecord:
    model, plan = campaign.drawing.trial(number, campaign.after)
    return msgspec.structs.replace(
        record(model.name, "masked", [0.5]),
        arguments=(),
        sources=campaign.subject.sources(),
        environment=campaign.subject.environment(),
        experiment=plan,
        thresholds=USUAL,
    ).signed()


def test_outcomes_are_counted_the_most_frequent_first() -> None:
    late = record("RD", "masked", [0.5], Alarm(7, "kernel", "nan", 1.0, "norm"))

    counts = tally([*RECORDS[::-1], late])

    assert [(each.outcome, each.count) for each in counts] == [("masked", 4), ("other", 1), ("immediate INF/NaN", 1)]
    assert [(each.seen_soon, each.seen_later) for each in counts] == [(0, 1), (0, 0), (1, 0)]
    assert counts[0].interval == wilson(4, 6)
    assert counts[2].seen_interval == wilson(1, 1)
    assert tally([]) == []


def test_a_record_of_the_campaign_is_known_again(campaign: RandomCampaign) -> None:
    campaign.folder.mkdir()
    mine = of_trial(campaign, 3)
    write_record(campaign.path(3), mine)

    assert campaign.known(3) == mine
    assert campaign.known(4) is None


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
    change: dict[str, object], error: type[Exception], words: str, campaign: RandomCampaign
) -> None:
    campaign.folder.mkdir()
    write_record(campaign.path(0), msgspec.structs.replace(of_trial(campaign, 0), **change).signed())

    with pytest.raises(error, match=words):
        campaign.known(0)


def test_an_altered_record_is_refused(campaign: RandomCampaign) -> None:
    campaign.folder.mkdir()
    write_record(campaign.path(0), msgspec.structs.replace(of_trial(campaign, 0), outcome="crash"))

    with pytest.raises(FaultInvalid, match="was altered since it was written"):
        campaign.known(0)


def test_of_another_environment_a_record_is_taken_where_that_is_allowed(campaign: RandomCampaign) -> None:
    elsewhere = msgspec.structs.replace(of_trial(campaign, 0), environment={})

    check_same(elsewhere, campaign.subject, allow_environment=True)
    with pytest.raises(EnvironmentChanged):
        check_same(elsewhere, campaign.subject, allow_environment=False)


def test_each_fault_has_a_file_of_its_own(campaign: RandomCampaign) -> None:
    names = {file_name(of_trial(campaign, number)) for number in range(8)}

    assert len(names) == 8
    assert all(name.startswith("RD-0-") and name.endswith(".json") for name in names)


@pytest.mark.parametrize("text", ["2", "a:3", "1:b"])
def test_epochs_that_are_no_range_are_refused_before_anything_runs(text: str, subject: Subject) -> None:
    with pytest.raises(UsageError, match="is not a range"):
        plan_campaign(subject, [model_named("RD")], epochs=text)
