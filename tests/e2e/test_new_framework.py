"""A framework that detrain was never told of: all that it takes are one entry and one adapter, brought by a package."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e.runs import detrain, environment, plain

FILES = Path(__file__).parent / "new_framework"
ENTRY = "[detrain.frameworks]\npenny = penny_for_detrain:PENNY\n"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the program; the framework and what it says to detrain are installed beside it."""
    place = tmp_path / "site-packages"
    about = place / "penny-1.2.3.dist-info"
    about.mkdir(parents=True)
    for name in ("penny.py", "penny_for_detrain.py"):
        shutil.copy(FILES / name, place)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: penny\nVersion: 1.2.3\n")
    (about / "entry_points.txt").write_text(ENTRY)
    monkeypatch.setenv("PYTHONPATH", f"{place}:{environment().get('PYTHONPATH', '')}")
    shutil.copy(FILES / "train.py", tmp_path)
    return tmp_path


@pytest.mark.parametrize(("every", "dies_at"), [("3b", "3:5"), ("1", "2:0"), ("1b", "0:6")])
def test_a_killed_training_goes_on_to_the_same_bits(every: str, dies_at: str, installed: Path) -> None:
    whole = detrain("run", "--ckpt", "whole", "train.py", cwd=installed).ok()
    assert detrain("run", "--every", every, "train.py", cwd=installed, DIE_AT=dies_at).status == -9
    resumed = detrain("run", "--every", every, "train.py", cwd=installed).ok()

    lines = resumed.out.splitlines()
    assert lines == whole.out.splitlines()[-len(lines) :]
    assert len(lines) == 5 - int(dies_at[0])
    assert "REFUSED" not in resumed.err


def test_what_runs_is_the_programs_own_training(installed: Path) -> None:
    """The adapter changes no bit: a program that seeds as the run does gives the same without detrain."""
    program = (installed / "train.py").read_text().replace("import penny\n", "import penny\n\npenny.seed(0)\n")
    (installed / "train.py").write_text(program)
    assert plain("train.py", cwd=installed).out == detrain("run", "train.py", cwd=installed).out


def test_every_command_knows_it(installed: Path) -> None:
    """By its entry alone: what a checkpoint holds, which versions are known."""
    assert "Penny's parameters that the program can reach" in detrain("info", "train.py", cwd=installed).out
    assert "Penny" in detrain("doctor", "--quick", cwd=installed).out
    (installed / "site-packages" / "penny.py").write_text((FILES / "penny.py").read_text().replace('"1.2.3"', '"1.3.0"'))
    later = detrain("run", "train.py", cwd=installed)
    assert "Penny 1.3.0 is not supported: this detrain knows 1.2" in later.err
    assert "install penny>=1.2,<1.3" in later.err
