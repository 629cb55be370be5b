"""Probes on disk: what is written in place goes back to the byte, and files of others are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from detrain.base.errors import UsageError
from detrain.launcher.instrumented_files import copy_of, instrumented, remove_probes, write_elsewhere, write_in_place
from detrain.launcher.program import Program
from tests.launcher.test_configuration import LOOPS


@pytest.fixture
def program(tmp_path: Path) -> Program:
    (tmp_path / "train.py").write_text(LOOPS)
    return Program.find(str(tmp_path / "train.py"), is_module=False)


def test_what_is_written_in_place_is_taken_out_to_the_byte(program: Program, tmp_path: Path) -> None:
    assert list(write_in_place(instrumented(program, tmp_path))) == [program.path]
    assert "record_batch" in program.path.read_text()
    assert copy_of(program.path).read_text() == LOOPS
    assert instrumented(program, tmp_path) == {}

    assert list(remove_probes(program)) == [program.path]
    assert program.path.read_text() == LOOPS
    assert not copy_of(program.path).exists()
    assert list(remove_probes(program)) == []


def test_another_file_is_not_replaced(program: Program, tmp_path: Path) -> None:
    changed = instrumented(program, tmp_path)
    other = tmp_path / "other.py"
    other.write_text("mine = 1\n")
    copy_of(program.path).write_text("mine = 2\n")

    with pytest.raises(UsageError, match="is there already"):
        list(write_elsewhere(program, changed, other))
    with pytest.raises(UsageError, match="is the program itself"):
        list(write_elsewhere(program, changed, program.path))
    with pytest.raises(UsageError, match=r"train\.py\.orig' is there already"):
        list(write_in_place(changed))

    assert (other.read_text(), program.path.read_text()) == ("mine = 1\n", LOOPS)


def test_a_copy_of_ours_is_written_again(program: Program, tmp_path: Path) -> None:
    changed = instrumented(program, tmp_path)
    for _ in range(2):
        assert list(write_elsewhere(program, changed, tmp_path / "out.py")) == [tmp_path / "out.py"]
    assert (tmp_path / "out.py").read_bytes() == changed[program.path]
