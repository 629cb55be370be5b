"""Records, and pictures of campaigns: these say of the records what a count of them says."""

from __future__ import annotations

import re
from pathlib import Path

import click
import msgspec
import pytest

from detrain.base.errors import FaultInvalid, UsageError
from detrain.campaign.trial_log import TrialResult
from detrain.cli.faults.inject import command as inject
from detrain.cli.faults.random import command as random
from detrain.faults.experiment import Alarm, Experiment, Injection
from detrain.faults.record import FaultRecord, Step, read_record, write_record
from detrain.reports.campaign_plot import plot_campaign
from detrain.runtime.observers import experiment_run as runtime


def record(model: str, outcome: str, losses: list[float | str], alarm: Alarm | None = None) -> FaultRecord:
    nothing = {"positions": b"", "sources": b"", "keep": b"", "flip": b""}
    injection = Injection(site="net/<conv>", operand="output", worker=0, dtype="float32", shape=(4,), **nothing)
    return FaultRecord(
        program="train",
        arguments=("--epochs", "2"),
        sources={},
        environment={},
        model=model,
        seed=1,
        experiment=Experiment(log="", injection=injection, at=(0, 1, 2)),
        elements=(),
        elements_digest="",
        fired=1,
        steps=tuple(Step((0, 1, 2 + index), "", {"loss": loss}) for index, loss in enumerate(losses)),
        end="",
        outcome=outcome,
        alarm=alarm,
    )


RECORDS = [
    *[record("RD", "masked", [0.5, 0.4]) for _ in range(3)],
    record("INPUT", "immediate INF/NaN", ["nan"], Alarm(1, "velocity", "nan", 1.0, "norm")),
    record("INPUT", "other", [-0.5, 1e30, 0.25]),
]


GOLDEN = TrialResult(
    status=0,
    steps=tuple(runtime.StepLine(0, at // 4, at % 4, {"loss": 1.0 / (at + 1), "accuracy": at / 12}) for at in range(12)),
    end="over",
)


@pytest.mark.parametrize("suffix", [".png", ".svg", ".html"])
def test_a_campaign_is_drawn(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"campaign{suffix}"

    plot_campaign(path, RECORDS, GOLDEN)

    content = path.read_bytes()
    assert content.startswith({".png": b"\x89PNG", ".svg": b"<?xml", ".html": b"<!doctype html>"}[suffix])
    if suffix == ".html":
        text = content.decode()
        assert "masked: 3, immediate INF/NaN: 1, other: 1" in text
        rows = [re.findall("<td>(.*?)</td>", row) for row in re.findall("<tr>(.*?)</tr>", text)[1:]]
        assert [row[1] for row in rows] == ["RD", "RD", "RD", "INPUT", "INPUT"]
        said = re.findall("<!-- (.*?) -->", text)  # of each text that matplotlib draws as paths
        assert {"golden", "masked", "other", "loss", "accuracy", "immediate INF/NaN"} <= set(said)
        assert rows[3] == ["3", "INPUT", "net/&lt;conv&gt;", "output", "1:2", "immediate INF/NaN", "after 1 steps: velocity"]


@pytest.mark.parametrize("records", [RECORDS[:1], RECORDS[3:4]], ids=["masked alone", "no finite loss"])
def test_a_campaign_of_one_kind_is_drawn(records: list[FaultRecord], tmp_path: Path) -> None:
    plot_campaign(tmp_path / "one.png", records, GOLDEN)

    assert (tmp_path / "one.png").stat().st_size > 0


@pytest.mark.parametrize(("number", "todo"), [(0, "has written"), (2, "newer detrain")])
def test_a_record_of_another_format_is_refused(number: int, todo: str, tmp_path: Path) -> None:
    path = tmp_path / "trial.json"
    write_record(path, RECORDS[0])
    assert read_record(path) == RECORDS[0]
    write_record(path, msgspec.structs.replace(RECORDS[0], format=number))

    with pytest.raises(FaultInvalid, match=f"format {number}, this detrain reads 1") as refused:
        read_record(path)

    assert todo in refused.value.todo


@pytest.mark.parametrize("command", [random, inject])
def test_a_file_that_can_be_no_picture_is_refused_before_anything_runs(command: click.Command, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit('it ran')")

    with pytest.raises(UsageError, match="is no picture"):
        command.main(["--plot", str(tmp_path / "a.txt"), str(tmp_path / "train.py")], standalone_mode=False)
