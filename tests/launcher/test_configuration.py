"""How a run goes is settled without starting it: the probes, its number, and where it goes on."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import msgspec
import pytest

from detrain.base.config import RESTARTED
from detrain.base.cursor import Cursor
from detrain.base.errors import AnotherProgram, EnvironmentChanged, NoStructure, ProgramNotFound, UsageError
from detrain.base.options import Every, Options, TraceOptions
from detrain.launcher.configuration import configure, configure_trace
from detrain.launcher.program import Program
from detrain.launcher.structure import find_structure, info_owner
from detrain.store import Catalogue
from detrain.store.journal import Journal
from tests.store.homes import epoch, state

LOOPS = """
import tensorflow as tf
for epoch in range(3):
    for x in data:
        optimizer.apply_gradients(x)
"""
FLAT = LOOPS.replace("for epoch in range(3):\n    ", "").replace("\n        opt", "\n    opt")


@pytest.fixture
def program(tmp_path: Path) -> Program:
    (tmp_path / "train.py").write_text(LOOPS)
    return Program.find(str(tmp_path / "train.py"), is_module=False)


def save(home: Path, program: Program, run: int, cursor: Cursor, **fields: object) -> None:
    """Leave a checkpoint as a run of the program leaves it."""
    config, _ = configure(program, (), Options(home=str(home), fresh=True))
    journal = Journal(Catalogue(home).journal(program.name, run), 0)
    journal.add_batch((0, 0, 0), bytes(16))
    journal.flush()
    journal.sync()
    snapshot = state(cursor, journal_bytes=journal.size)
    meta = msgspec.structs.replace(snapshot.meta, run=run, **{"environment": config.environment, **fields})
    Catalogue(home).save(program.name, run, cursor, dataclasses.replace(snapshot, meta=meta))


def test_a_first_run_starts_anew_with_probes_in_its_source(program: Program, tmp_path: Path) -> None:
    config, meta = configure(program, ("--lr", "1"), Options(home=str(tmp_path / "ckpt")), command=("run", "train.py"))

    assert meta is None
    assert (config.run, config.seed, config.stations, config.every) == (1, 0, (), Every(1, "epochs"))
    assert (config.program, config.arguments, config.command) == ("train", ("--lr", "1"), ("run", "train.py"))
    assert list(config.edits) == list(config.edited) == [str(program.path)]
    assert config.info == str(tmp_path / "ckpt" / "inst.info")


def test_without_a_loop_over_epochs_checkpoints_are_ten_minutes_apart(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "flat.py").write_text(FLAT)

    config, _ = configure(Program.find(str(tmp_path / "flat.py"), is_module=False), (), Options(home=str(tmp_path / "ckpt")))

    assert config.every == Every(10, "minutes")


def test_a_run_goes_on_from_its_newest_checkpoint_with_its_seed(program: Program, tmp_path: Path) -> None:
    for number in (1, 2):
        save(tmp_path / "ckpt", program, 1, epoch(number), seed=7)

    config, meta = configure(program, (), Options(home=str(tmp_path / "ckpt")))

    assert meta is not None
    assert (meta.epoch, config.run, config.seed) == (2, 1, 7)
    assert [Path(path).name for path in config.stations] == ["train-r1-p0-e00002-e000000.h5"]
    assert configure(program, (), Options(home=str(tmp_path / "ckpt"), fresh=True))[0].run == 2


def test_what_the_guard_starts_again_is_the_same_run(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2):
        save(tmp_path / "ckpt", program, number, epoch(1))
    monkeypatch.setenv(RESTARTED, "2")

    config, meta = configure(program, (), Options(home=str(tmp_path / "ckpt"), fresh=True))

    assert (meta is not None, config.run, config.is_restarted, config.fresh) == (True, 2, True, False)

    monkeypatch.setenv(RESTARTED, "5")  # it was killed before its first checkpoint
    config, meta = configure(program, (), Options(home=str(tmp_path / "ckpt")))

    assert (meta, config.run, config.is_restarted) == (None, 5, True)


def test_what_may_not_be_resumed_is_refused(program: Program, tmp_path: Path) -> None:
    save(tmp_path / "ckpt", program, 1, epoch(1), seed=7)

    with pytest.raises(UsageError, match="--seed 3 is not the seed of the run to resume, 7"):
        configure(program, (), Options(home=str(tmp_path / "ckpt"), seed=3))
    with pytest.raises(AnotherProgram, match="with arguments"):
        configure(program, ("--lr", "1"), Options(home=str(tmp_path / "ckpt")))


def test_another_program_starts_beside_the_first_and_says_so(
    program: Program, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path / "ckpt", program, 1, epoch(1), seed=7)
    (tmp_path / "other.py").write_text(LOOPS)

    other = Program.find(str(tmp_path / "other.py"), is_module=False)

    assert configure(other, (), Options(home=str(tmp_path / "ckpt")))[1] is None
    assert "holds checkpoints of 'train', none of 'other', which starts beside them" in capfd.readouterr().err


def test_another_environment_is_refused_unless_it_is_allowed(program: Program, tmp_path: Path) -> None:
    config, _ = configure(program, (), Options(home=str(tmp_path / "ckpt")))
    save(tmp_path / "ckpt", program, 1, epoch(1), environment={**config.environment, "python": "2.7"})

    with pytest.raises(EnvironmentChanged, match="python"):
        configure(program, (), Options(home=str(tmp_path / "ckpt")))
    assert configure(program, (), Options(home=str(tmp_path / "ckpt"), allow_environment=True))[1] is not None


def test_a_bare_run_has_no_probes_and_makes_no_folder(program: Program, tmp_path: Path) -> None:
    config, _ = configure(program, (), Options(bare=True, home=str(tmp_path / "ckpt"), seed=4))

    assert (config.bare, config.edits, config.seed) == (True, {}, 4)
    assert not (tmp_path / "ckpt").exists()


def test_a_second_round_of_tracing_needs_a_first(program: Program, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no first round"):
        configure_trace(program, (), TraceOptions(home=str(tmp_path / "ckpt"), second=True))

    config = configure_trace(program, (), TraceOptions(home=str(tmp_path / "ckpt"), epochs=2))

    assert config.trace is not None
    assert (config.trace.epochs, config.trace.info) == (2, str(tmp_path / "ckpt" / "inst.info"))


def test_a_program_is_found_by_its_path_or_refused(tmp_path: Path) -> None:
    with pytest.raises(ProgramNotFound, match="no program at"):
        Program.find(str(tmp_path / "gone.py"), is_module=False)
    with pytest.raises(ProgramNotFound, match="no module 'no_such_module'"):
        Program.find("no_such_module", is_module=True)


def test_a_program_that_trains_with_another_framework_has_no_structure(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import mlx\nprint(mlx)\n")

    with pytest.raises(NoStructure, match="it imports mlx"):
        find_structure(Program.find(str(tmp_path / "train.py"), is_module=False), tmp_path)


@pytest.mark.parametrize(("content", "owner"), [({"program": "train"}, "train"), ({}, ""), ([], ""), ({"program": 1}, "")])
def test_an_inst_info_says_whose_it_is(content: object, owner: str, tmp_path: Path) -> None:
    (tmp_path / "inst.info").write_text(json.dumps(content))

    assert info_owner(tmp_path / "inst.info") == owner
    assert info_owner(tmp_path / "gone") == ""
