"""Files with settings that a program reads before its loop: another content at the resume is refused, as other
arguments are. What the run itself writes there is no other content.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from detrain.base.errors import EnvironmentChanged
from tests.e2e.forkserver import Server
from tests.e2e.programs import PRELUDE
from tests.e2e.refused import assert_refused

PROGRAM = PRELUDE("""
import configparser
import json
import os
from pathlib import Path

def settings():
    if Path("run.py").exists():
        exec(Path("run.py").read_text(), held := {})
        return {"rate": held["rate"]}
    if Path("run.json").exists():
        return json.loads(Path("run.json").read_text())
    held = configparser.ConfigParser()
    held.read("run.ini")
    return {"rate": float(held["train"]["rate"])} if held.sections() else {"rate": 0.5}

held = settings()
past = json.load(open("past.json")) if os.path.exists("past.json") else []
optimizer = Optimizer(np.ones(3))
for epoch in range(4):
    for step in range(3):
        optimizer.apply_gradients(np.random.normal(size=3) * held["rate"])
        die(f"{epoch}:{step}")
    if "DURING":
        json.dump([*past, epoch], open("past.json", "w"))
past.append(float(optimizer.weights.sum()))
json.dump(past, open("past.json", "w"))
die("behind")
show(optimizer.weights)
""")


@pytest.mark.parametrize(
    ("name", "first", "then"),
    [
        ("run.json", '{"rate": 0.5}', '{"rate": 0.25}'),
        ("run.ini", "[train]\nrate = 0.5\n", "[train]\nrate = 0.25\n"),
        ("run.py", "rate = 0.5\n", "rate = 0.25\n"),
    ],
)
def test_other_settings_are_refused_and_the_first_ones_go_on(
    name: str, first: str, then: str, server: Server, tmp_path: Path
) -> None:
    """The resumed run went on with the first run's settings, and said nothing of the new ones."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / name).write_text(first)
    whole = server.detrain("run", "--bare", "program.py", cwd=tmp_path).ok()
    (tmp_path / "past.json").unlink()
    server.detrain("run", "program.py", cwd=tmp_path, DIE_AT="2:1").died()

    (tmp_path / name).write_text(then)
    refused = server.detrain("run", "program.py", cwd=tmp_path)
    (tmp_path / name).write_text(first)
    resumed = server.detrain("run", "program.py", cwd=tmp_path).ok()

    assert_refused(refused, EnvironmentChanged, f"{name} has changed since the run began", "--allow-environment")
    assert resumed.out == whole.out


@pytest.mark.parametrize("during", ["", "1"])
@pytest.mark.parametrize("at", ["2:1", "3:2", "behind"])
def test_what_the_run_has_written_itself_is_as_it_was(during: str, at: str, server: Server, tmp_path: Path) -> None:
    for folder in (tmp_path / "whole", tmp_path / "killed"):
        folder.mkdir()
        (folder / "program.py").write_text(PROGRAM.replace("DURING", during))
        (folder / "past.json").write_text("[1.5]")
    whole = server.detrain("run", "--bare", "program.py", cwd=tmp_path / "whole").ok()
    server.detrain("run", "program.py", cwd=tmp_path / "killed", DIE_AT=at).died()
    resumed = server.detrain("run", "program.py", cwd=tmp_path / "killed").ok()

    assert resumed.out == whole.out
    assert (tmp_path / "killed" / "past.json").read_bytes() == (tmp_path / "whole" / "past.json").read_bytes()


def test_a_file_that_code_before_the_loop_reads_and_writes_is_no_settings(server: Server, tmp_path: Path) -> None:
    begins = 'count = json.load(open("starts.json"))\njson.dump(count + 1, open("starts.json", "w"))\n'
    (tmp_path / "program.py").write_text(PROGRAM.replace("held = settings()\n", f"held = settings()\n{begins}"))
    (tmp_path / "starts.json").write_text("1")
    whole = server.detrain("run", "--bare", "program.py", cwd=tmp_path).ok()
    (tmp_path / "past.json").unlink()
    (tmp_path / "starts.json").write_text("1")
    server.detrain("run", "program.py", cwd=tmp_path, DIE_AT="2:1").died()

    assert server.detrain("run", "program.py", cwd=tmp_path).ok().out == whole.out
