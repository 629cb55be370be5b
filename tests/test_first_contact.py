"""What a stranger meets first: the doctor's look at the installation, and the report of a defect."""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from detrain.base.errors import DetrainError, StoreError, UsageError
from detrain.cli import doctor, main
from detrain.python.process.defect_report import defect
from detrain.verify.installation import Check, check_installation


def _by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.what: check for check in checks}


def _say_versions(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]) -> None:
    def version(package: str) -> str:
        if package not in versions:
            raise importlib.metadata.PackageNotFoundError(package)
        return versions[package]

    monkeypatch.setattr(importlib.metadata, "version", version)


def test_the_doctor_tries_the_folder_of_the_checkpoints_and_leaves_nothing(tmp_path: Path) -> None:
    found = _by_name(check_installation(tmp_path / "ckpt"))

    assert found[f"checkpoints in {tmp_path}"].found.startswith("written, synced and renamed")
    assert found["locks there"].is_good
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)

    check = check_installation(tmp_path)[-1]

    assert (check.is_good, check.found) == (False, "cannot be written: No space left on device")
    assert "--ckpt" in check.todo


@pytest.mark.parametrize(
    ("version", "is_good"), [("2.8.1", False), ("2.9.0", True), ("2.14.1+cpu", True), ("2.15.0", True), ("2.16.0", False)]
)
def test_a_version_that_is_not_known_is_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, *, is_good: bool
) -> None:
    _say_versions(monkeypatch, {"torch": version})

    check = _by_name(check_installation(tmp_path))["PyTorch"]

    assert (check.found, check.is_good) == (version, is_good)
    assert is_good or "pip install 'detrain[torch]'" in check.todo


def test_without_a_framework_the_doctor_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _say_versions(monkeypatch, {})

    status = main(["doctor", "--quick", "--json", "--ckpt", str(tmp_path)])

    rows = {row["what"]: row for row in json.loads(capsys.readouterr().out)["installation"]}
    assert status == 1
    assert all(f"'detrain[{extra}]'" in rows["frameworks"]["todo"] for extra in ("tensorflow", "torch", "jax"))


def test_a_defect_is_reported_in_a_file_without_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = "x" * 5000

    def break_down(_home: Path) -> list[Check]:
        raise ZeroDivisionError(f"weights {secret}")

    monkeypatch.setattr(doctor, "check_installation", break_down)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    status = main(["doctor", "--quick"])

    (report,) = tmp_path.glob("detrain-report-*.txt")
    text = report.read_text()
    assert status == 70
    assert str(report) in capsys.readouterr().err
    assert "ZeroDivisionError: weights xxx" in text
    assert "in break_down" in text
    assert f"numpy {importlib.metadata.version('numpy')}" in text
    assert secret not in text
    assert "raise ZeroDivisionError" not in text  # no line of source


def test_the_report_has_the_loops_that_a_run_wrote_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "inst.info").write_text('{"nests": []}')

    defect(ValueError("1"), tmp_path)

    (report,) = tmp_path.glob("detrain-report-*.txt")
    assert 'structure\n{"nests": []}' in report.read_text()


def test_a_folder_that_is_removed_under_a_process_is_no_defect(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    here.rmdir()

    assert isinstance(defect(FileNotFoundError("here")), StoreError)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr().err == ""


def test_what_trains_through_fit_is_shown_also_beside_a_loop_in_another_module(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = Path(__file__).resolve().parents[1] / "examples/digits/fit.py"

    assert main(["info", "--ckpt", str(tmp_path), str(program)]) == 0

    shown = capsys.readouterr().out
    assert "fit.py:45              model.fit" in shown
    assert shown.index("trains through fit") < shown.index("batch loop   train.py:84")


def test_explain_has_a_paragraph_for_each_error_and_each_kind_of_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    names = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}

    assert {"refused", "allowed", "harmless"} <= names.keys()
    for error in _all_errors(DetrainError):
        assert names[error.slug] == [str(error.exit_code)]
        assert main(["explain", error.slug]) == 0
        said = capsys.readouterr().out
        assert said.startswith(f"Exit code {error.exit_code}")
        assert "](" not in said
        assert main(["explain", str(error.exit_code)]) == 0
        assert capsys.readouterr().out == said
    assert main(["explain", "allowed"]) == 0
    assert "--allow-lost" in capsys.readouterr().out
    assert main(["explain", "nonsense"]) == UsageError.exit_code


def _all_errors(kind: type[DetrainError]) -> Iterator[type[DetrainError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _all_errors(each)
