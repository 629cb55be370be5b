"""`detrain verify` and `detrain diff`: they tell what is exact from what is not, and where two runs part."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

from detrain.base.digest import Array
from detrain.store import read, write
from detrain.verify.printed_lines import first_difference, timed_fields
from detrain.verify.state_diff import Difference, compare, compare_arrays
from detrain.verify.verified_run import Comparison, VerifiedRun
from detrain.verify.work_folder import copy_folder, written
from tests.e2e.forkserver import Server
from tests.e2e.programs import ALL, FOR_LOOPS, PRELUDE
from tests.e2e.runs import Run, after_deaths, detrain, library
from tests.programs_marks import TORCH

OUTSIDE = PRELUDE("""
import glob, secrets, time, uuid
os.makedirs("made here")
for name in "dbcae":
    open(f"made here/{name}.txt", "w").write(name)
seeds = [time.time(), time.time_ns(), secrets.randbits(60), uuid.uuid4().int, int.from_bytes(os.urandom(4), "little")]
rng = np.random.default_rng()
names = [*os.listdir("made here"), *glob.glob("made here/*"), *(entry.name for entry in os.scandir("made here"))]
print(names[:5])
scale = float(sum(seed % 1000 for seed in seeds)) * 1e-3 + rng.normal()

class Loader:
    def __len__(self):
        return 6
    def __iter__(self):
        return (np.random.default_rng(seeds[2]).normal(size=3) * scale for _ in range(6))

optimizer = Optimizer(np.ones(3))
for epoch in range(4):
    for step, x in enumerate(Loader()):
        optimizer.apply_gradients(x + np.random.default_rng(int(abs(scale))).normal())
        assert time.time() > 1e9
show(optimizer.weights)
""")

CHANCE = PRELUDE("""
import time
optimizer = Optimizer(np.ones(3))
for epoch in range(3):
    for step in range(4):
        x = np.array([time.perf_counter_ns() % 251, 1, 2]) / 255
        optimizer.apply_gradients(x)
show(optimizer.weights)
""")


def verified(folder: Path, text: str, *options: object) -> tuple[int, dict[str, object]]:
    (folder / "program.py").write_text(text)
    run = detrain("verify", "--json", *options, "program.py", cwd=folder)
    return run.status, json.loads(run.out) if run.out else {"error": run.err}


SEES = PRELUDE("""
optimizer = Optimizer(np.ones(3))
for epoch in range(2):
    for step in range(2):
        optimizer.apply_gradients(np.ones(3))
print(type(os.urandom).__name__, np.random.default_rng().normal() if "chance" in sys.argv else "")
""")


@pytest.mark.parametrize("by", ["", pytest.param("chance", marks=pytest.mark.slow)])
def test_a_program_that_does_something_else_without_detrain_is_not_exact(by: str, tmp_path: Path) -> None:
    """This one looks at what detrain replaces. Where two runs without detrain differ, nothing is said of that."""
    (tmp_path / "program.py").write_text(SEES)
    done = detrain("verify", "--kills", "1", "program.py", by, cwd=tmp_path)

    assert done.status == (0 if by else 78), done.err
    assert ("line 1 without detrain is 'builtin_function_or_method '" in done.out) == (not by), done.out
    assert done.last_line().startswith("EXACT" if by else "NOT EXACT: without detrain")


@pytest.mark.slow
@pytest.mark.parametrize("every", ["1", "2b"])
def test_a_program_that_looks_at_clock_and_entropy_before_its_loop_is_exact(every: str, tmp_path: Path) -> None:
    status, said = verified(
        tmp_path, OUTSIDE.replace('os.makedirs("made here")', 'os.makedirs("made here", exist_ok=True)'), "--every", every
    )

    assert (status, said["exact"]) == (0, True), said


def test_a_folder_that_the_first_run_made_is_made_again_without_complaint(tmp_path: Path, detrain: Run) -> None:
    text = OUTSIDE.replace("optimizer.apply_gradients(x", 'die(f"{epoch}:{step}"); optimizer.apply_gradients(x')
    _, resumed = after_deaths(detrain, tmp_path, text, at="2:1")

    assert resumed.status == 0, resumed.err
    assert resumed.out.splitlines()[0] == "['a.txt', 'b.txt', 'c.txt', 'd.txt', 'e.txt']"
    assert "FileExistsError" in detrain("run", "--fresh", "program.py", cwd=tmp_path).err


UNSEEDED = PRELUDE("""
import random, secrets, uuid
import someenv
env, late = someenv.Env(), someenv.Env()
first = env.reset()
optimizer = Optimizer(np.ones(3))
for epoch in range(4):
    x = env.reset()
    for step in range(5):
        if (epoch, step) == (1, 2):
            late.reset()
        rng = np.random.default_rng()
        drawn = rng.random() + random.Random().random() + uuid.uuid4().int % 7 + secrets.randbelow(5)
        optimizer.apply_gradients(x * drawn + first + late.state)
        x = env.step()
    print(epoch, optimizer.weights.tolist(), late.state.tolist(), flush=True)
""")
"""A library's object that nobody seeds, and a loop that draws from the system."""

ENV = """
import numpy as np
class Env:
    def __init__(self):
        self.rng, self.state = None, np.zeros(3)
    def reset(self):
        self.rng = np.random.default_rng() if self.rng is None else self.rng
        self.state = self.rng.normal(size=3)
        return self.state
    def step(self):
        self.state = self.state * 0.9 + self.rng.normal(size=3)
        return self.state
"""


@pytest.mark.slow
@pytest.mark.parametrize("every", ["1", "3b"])
def test_what_a_loop_and_a_library_draw_from_the_system_is_the_same_again(
    every: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", library(tmp_path, {"someenv.py": ENV})["PYTHONPATH"])
    status, said = verified(tmp_path, UNSEEDED, "--every", every, "--kills", 3)

    assert (status, said["exact"]) == (0, True), said
    assert said["runs"][2]["lines_of_output"], said  # type: ignore[index]
    assert not any(run["comparison"] and any(run["comparison"]["checkpoints"].values()) for run in said["runs"])  # type: ignore[attr-defined]


def test_runs_draw_other_numbers_from_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", library(tmp_path, {"someenv.py": ENV})["PYTHONPATH"])
    (tmp_path / "program.py").write_text(UNSEEDED)
    one, other = (detrain("run", "--fresh", "program.py", cwd=tmp_path) for _ in range(2))

    assert (one.status, other.status) == (0, 0), one.err
    assert one.out != other.out


@pytest.mark.slow
def test_a_program_that_asks_the_clock_in_its_loop_is_told_apart(tmp_path: Path) -> None:
    status, said = verified(tmp_path, CHANCE)

    assert (status, said["exact"]) == (78, False)
    assert "NOT DETERMINISTIC" in str(said["verdict"])


QUICK = ("for_loops",)
"""What is verified in each run; test_resume kills all of them."""


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ALL])
def test_programs_are_exact(name: str, tmp_path: Path) -> None:
    status, said = verified(tmp_path, ALL[name], "--kills", 3)

    assert (status, said["exact"]) == (0, True), said
    assert len(said["runs"][2]["kills"]) == 3  # type: ignore[index]


WITH_WORKER = PRELUDE("""
import subprocess, time
worker = subprocess.Popen(["sleep", "40"])
time.sleep(0.5)  # it has begun to wait
optimizer = Optimizer(np.ones(3))
for epoch in range(3):
    for step in range(4):
        optimizer.apply_gradients(np.random.normal(size=3))
worker.kill()
show(optimizer.weights)
""")


@pytest.mark.slow
def test_a_worker_that_outlives_a_killed_run_is_not_waited_for(tmp_path: Path) -> None:
    began = time.monotonic()
    status, said = verified(tmp_path, WITH_WORKER, "--kills", 1)

    assert (status, said["exact"]) == (0, True), said
    assert time.monotonic() - began < 38


def test_diff_shows_where_two_runs_part(tmp_path: Path, detrain: Run) -> None:
    program = tmp_path / "program.py"
    program.write_text(FOR_LOOPS)
    for home, seed in (("a", 0), ("b", 0), ("c", 1)):
        assert detrain("run", "--ckpt", tmp_path / home, "--seed", seed, program).status == 0

    same = detrain("diff", tmp_path / "a", tmp_path / "b").ok()
    other = detrain("diff", tmp_path / "a", tmp_path / "c")
    as_json = detrain("diff", "--json", tmp_path / "a", tmp_path / "c")

    assert "all equal" in same.out
    assert "equal to the bit" in same.out
    assert other.status == 1
    assert "they part at 0:0" in other.out
    assert "stream numpy" in other.out
    assert json.loads(as_json.out)["first_batch"] == "0:0"
    assert detrain("diff", tmp_path / "a", tmp_path / "nothing").status == 73


def test_one_bit_of_a_tensor_is_one_ulp(tmp_path: Path, detrain: Run) -> None:
    program = tmp_path / "program.py"
    program.write_text(FOR_LOOPS)
    detrain("run", "--ckpt", tmp_path / "a", program)
    [*_, path] = sorted((tmp_path / "a").glob("*.h5"))
    snapshot = read(path)
    state = next(name for name, array in snapshot.arrays.items() if array.dtype == np.float64 and array.size == 3)
    changed = snapshot.arrays[state].copy()
    changed.view(np.int64)[1] += 1
    (tmp_path / "b").mkdir()
    snapshot.arrays[state] = changed  # type: ignore[index]
    write(tmp_path / "b" / path.name, snapshot)

    run = detrain("ckpt", "diff", path, tmp_path / "b" / path.name)

    assert run.status == 1
    assert "value" in run.out
    assert compare(read(path), read(path)) == []


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_distance_of_neighbours_is_one(dtype: str) -> None:
    one: Array = np.array([1.0, -1.0, 0.0, 3.5], dtype)
    for place, toward in ((0, 9), (1, -9), (2, -9), (3, 0)):
        other = one.copy()
        other[place] = np.nextafter(one[place], np.array(toward, dtype))
        found = compare_arrays("x", one, other)
        assert found is not None
        assert (found.elements, found.size, found.ulp) == (1, 4, 1)


def test_a_negative_zero_is_no_zero() -> None:
    found = compare_arrays("x", np.zeros(2, np.float32), np.array([0.0, -0.0], np.float32))
    assert found is not None
    assert (found.elements, found.largest) == (1, 0.0)


@pytest.mark.slow
def test_a_value_of_a_clock_is_no_difference(tmp_path: Path) -> None:
    text = FOR_LOOPS.replace("import os,", "import time, os,").replace(
        "        total = 0.0\n", "        total, began = 0.0, time.perf_counter()\n"
    )
    status, said = verified(tmp_path, text.replace("{best!r} steps", "{best!r} {time.perf_counter() - began:.0f} steps"))

    assert (status, said["exact"]) == (0, True), said


ROOM = PRELUDE("""
optimizer, turns = Optimizer(np.ones(3)), {}
for epoch in range(3):
    for step in range(4):
        optimizer.apply_gradients(np.random.normal(size=3))
        if epoch == step == 0:
            turns.update(dict.fromkeys(range(100)))
        while len(turns) > 1:
            turns.popitem()
    print(epoch, sys.getsizeof(turns), flush=True)
open("room.txt", "w").write(str(sys.getsizeof(turns)))
""")
"""The room that Python keeps for what a dictionary has held is no part of its value."""


def test_the_width_of_a_bar_with_times_in_it_is_no_difference(tmp_path: Path) -> None:
    def run(*values: str) -> VerifiedRun:
        return VerifiedRun(
            "run", tmp_path, comparison=Comparison(3, None, {"1:0": [Difference(value, "value") for value in values]})
        )

    again, killed = run("callbacks[1].progbar._last_update"), run("callbacks[1].progbar._prev_total_width")

    assert killed.is_equal(but_for=again.values)
    assert not killed.is_equal(but_for=run("callbacks[1].best").values)


@pytest.mark.slow
def test_what_only_the_output_and_the_files_show_is_found(tmp_path: Path) -> None:
    status, said = verified(tmp_path, ROOM, "--every", "2b")

    assert (status, said["exact"]) == (78, False)
    found = said["runs"][2]["differing_output"]  # type: ignore[index]
    assert [line.partition(":")[0] for line in found] == ["output", "file room.txt"]
    assert not (tmp_path / "room.txt").exists()


OTHERS = PRELUDE("""
optimizer, who = Optimizer(np.ones(3)), {"pid": 0}
for epoch in range(3):
    for step in range(4):
        optimizer.apply_gradients(np.random.normal(size=3))
    who["pid"] = os.getpid()
    open("weights.txt", "w").write(repr(optimizer.weights))
    open("pid.txt", "w").write(str(who["pid"]))
""")


@pytest.mark.slow
def test_what_is_another_in_each_run_is_said_to_be_not_compared(tmp_path: Path) -> None:
    status, said = verified(tmp_path, OTHERS)

    assert (status, said["exact"]) == (0, True), said
    verdict = str(said["verdict"])
    assert ", 1 file; not compared: pid.txt (another file in each run), who['pid'] (other values in each run)" in verdict
    assert said["runs"][2]["files_not_compared"] == ["pid.txt"]  # type: ignore[index]


LOGS = PRELUDE("""
import time
optimizer, began = Optimizer(np.ones(3)), time.perf_counter()
with open("log.csv", "w") as log:
    for epoch in range(4):
        for step in range(5):
            optimizer.apply_gradients(np.random.normal(size=3))
            log.write(f"{epoch} {step} {optimizer.weights[0]!r}\\n")
            with open("lines.txt", "a") as lines:
                lines.write(f"{epoch}:{step}\\n")
        took = time.perf_counter() - began
        print(f"epoch {epoch} {3 + took:.1f}s after {took!r}: {optimizer.weights[0]!r}", flush=True)
show(optimizer.weights)
""")


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["0", "4"])
def test_output_and_files_are_compared_but_for_what_a_clock_says(seed: str, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("of the user\n")
    status, said = verified(tmp_path, LOGS, "--seed", seed, "--kills", 3)

    assert (status, said["exact"]) == (0, True), said
    assert said["runs"][2]["files"] == 2  # type: ignore[index]
    assert said["runs"][2]["lines_of_output"] >= 2  # type: ignore[index]
    assert (tmp_path / "lines.txt").read_text() == "of the user\n"


@pytest.mark.parametrize(("whole", "again", "resumed", "is_equal"), [
    ("loss 0.5 in 3s", "loss 0.5 in 3s", "loss 0.5 in 4s", True),
    ("loss 0.5 in 3s", "loss 0.5 in 3s", "loss 0.6 in 3s", False),
    ("took 1.25 loss 2", "took 1.5 loss 2", "took 9.0 loss 2", True),
    ("took 1.25 loss 2", "took 1.5 loss 2", "took 9.0 loss 3", False),
    ("bar 1\rbar 2\rdone 7", "bar 2\rdone 7", "done 7", True),
    ("a 1", "a 1", "b 1", False),
    ("a 1\nb 2", "a 1\nb 2", "a 1", False),
    ("x nan", "x nan", "x 1.0", False),
    ("9/9 - 1s - 89ms/step - loss: 0.5", "9/9 - 1s - 89ms/step - loss: 0.5", "9/9 - 40s - 3s/step - loss: 0.5", True),
    ("9/9 - 1s - 89ms/step - loss: 0.5", "9/9 - 2s - 1s/step - loss: 0.5", "9/9 - 40s - 3s/step - loss: 0.6", False),
    ("3/9 ETA: 1:05 loss 2", "3/9 ETA: 12s loss 2", "3/9 ETA: 1:00:05 loss 2", True),
    ("3/9 ETA: 1:05 loss 2", "3/9 ETA: 12s loss 2", "3/9 ETA: 1:00:05 loss 3", False),
    ("3/9 [01:05<02:00, 3it/s] 2", "3/9 [01:05<02:00, 3it/s] 2", "3/9 [1:01:05<00:01, 4it/s] 2", True),
    ("best at 3:17", "best at 3:17", "best at 3:18", False),
])  # fmt: skip
def test_numbers_of_a_clock_are_left_out_and_no_others(whole: str, again: str, resumed: str, is_equal: bool) -> None:
    timed = timed_fields(whole, again)

    assert timed is not None
    assert (first_difference(whole, resumed, timed) is None) == is_equal


def test_of_long_lines_the_difference_is_shown() -> None:
    one, other = (f"{'begin ' * 30}{word}{' end' * 30}\n" for word in ("here", "there"))
    said = first_difference(one, other, ())

    assert said is not None
    assert " here end" in said
    assert " there end" in said
    assert len(said) < 300


def test_output_with_other_lines_in_each_run_cannot_be_compared() -> None:
    assert timed_fields("a\nb", "a") is None
    assert timed_fields("a 1", "b 1") is None


def test_a_copied_folder_holds_what_the_folder_holds(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / ".git").mkdir(parents=True)
    (source / "sub").mkdir()
    (source / "sub" / "x.txt").write_text("x")
    assert copy_folder(source, tmp_path / "copy")
    before = written(tmp_path / "copy", {})
    (tmp_path / "copy" / "sub" / "x.txt").write_text("y")
    (tmp_path / "copy" / "new").write_text("z")

    assert (source / "sub" / "x.txt").read_text() == "x"
    assert (tmp_path / "copy" / ".git").is_symlink()
    assert written(tmp_path / "copy", before).keys() == {"sub/x.txt", "new"}


LEFT_OVER = """
def main():
    optimizer = Optimizer(np.ones(3))
    for epoch in range(3):
        for step in range(6):
            optimizer.apply_gradients(np.random.normal(size=3))
            die(f"{epoch}:{step}")
        scores = {"loss": float(optimizer.weights.sum())}
        print(scores)
main()
"""


def test_what_an_earlier_epoch_left_and_nothing_reads_is_no_state(tmp_path: Path, detrain: Run) -> None:
    """A run that resumes at the epoch's start never binds it: its later checkpoints were others than those of a whole
    run.
    """
    (tmp_path / "program.py").write_text(PRELUDE + LEFT_OVER)
    detrain("run", "--every", "4b", "--ckpt", "whole", "program.py", cwd=tmp_path)
    for death in ("2:1", ""):
        detrain("run", "--every", "4b", "--ckpt", "killed", "program.py", cwd=tmp_path, DIE_AT=death)

    name = "program-r1-p0-e00002-l000004.h5"
    detrain("ckpt", "diff", f"whole/{name}", f"killed/{name}", cwd=tmp_path).ok()


def test_steps_back_at_the_end_of_a_line_are_not_seen() -> None:
    """Keras goes back over its bar before it ends the line: as far as the durations in it were long."""
    one, other = ("1/6 1s 9ms/step" + "\b" * 15 + "\n", "1/6 12s 10ms/step" + "\b" * 17 + "\n")
    timed = timed_fields(one, "1/6 2s 8ms/step" + "\b" * 15 + "\n")

    assert timed is not None
    assert first_difference(one, other, timed) is None


@pytest.mark.slow
def test_tensors_of_pytorch_count_as_variables(tmp_path: Path) -> None:
    """They are leaves of Python objects, and are compared at the ends of loops."""
    pytest.importorskip("torch")
    status, said = verified(tmp_path, (TORCH / "manual_sgd.py").read_text(), "--every", "3b", "--kills", 1)

    assert (status, said["exact"]) == (0, True), said
    assert said["runs"][2]["variables"] > 0, said  # type: ignore[index]
    assert " 0 variables" not in str(said["verdict"])


LEFT_BY_BREAK = """
import os, torch
from torch import nn
torch.manual_seed(0)
def train():
    model = nn.Linear(3, 3)
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(40, 3)
    for epoch in range(3):
        for rows in torch.randperm(40).split(5):
            optimizer.zero_grad()
            ((model(x[rows]) - x[rows]) ** 2).mean().backward()
            {spoiled}
            optimizer.step()
        if epoch == 2:
            break
train()
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_spoiled", [False, True])
def test_weights_of_pytorch_are_compared_where_a_loop_in_a_function_is_left(
    is_spoiled: bool, torch_server: Server, tmp_path: Path
) -> None:
    """A process is what is killed. No checkpoint is taken behind such a loop, and no name leads to the weights then."""
    spoiled = "model.weight.grad += 1e-3 * (os.getpid() % 7)" if is_spoiled else "pass"
    (tmp_path / "program.py").write_text(LEFT_BY_BREAK.replace("{spoiled}", spoiled))
    done = torch_server.detrain("verify", "--kills", "1", "--every", "1", "program.py", cwd=tmp_path)

    assert (done.status == 0) is not is_spoiled, done.out + done.err
    assert ("8 of 8" in done.out) is not is_spoiled
    assert ("model.weight torch.float32[3, 3] at the end of phase 0" in done.out) is is_spoiled
