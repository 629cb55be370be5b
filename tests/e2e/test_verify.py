"""`detrain verify` and `detrain diff`: they tell what is exact from what is not, and where two runs part."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from detrain.runtime.digest import Array
from detrain.store import read, write
from detrain.store.compare import compare, compare_arrays
from tests.e2e.programs import ALL, FOR_LOOPS, PRELUDE
from tests.e2e.runs import detrain

OUTSIDE = (
    PRELUDE
    + """
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
"""
)

CHANCE = (
    PRELUDE
    + """
optimizer = Optimizer(np.ones(3))
for epoch in range(3):
    for step in range(4):
        x = np.frombuffer(os.urandom(3), np.uint8) / 255
        optimizer.apply_gradients(x)
show(optimizer.weights)
"""
)


def verified(folder: Path, text: str, *options: object) -> tuple[int, dict[str, object]]:
    (folder / "program.py").write_text(text)
    run = detrain("verify", "--json", *options, "program.py", cwd=folder)
    return run.status, json.loads(run.out) if run.out else {"error": run.err}


@pytest.mark.parametrize("every", ["1", "2b"])
def test_a_program_that_looks_at_clock_and_entropy_before_its_loop_is_exact(every: str, tmp_path: Path) -> None:
    status, said = verified(
        tmp_path, OUTSIDE.replace('os.makedirs("made here")', 'os.makedirs("made here", exist_ok=True)'), "--every", every
    )

    assert (status, said["exact"]) == (0, True), said


def test_a_folder_that_the_first_run_made_is_made_again_without_complaint(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        OUTSIDE.replace("optimizer.apply_gradients(x", 'die(f"{epoch}:{step}"); optimizer.apply_gradients(x')
    )
    killed = detrain("run", "program.py", cwd=tmp_path, DIE_AT="2:1")
    resumed = detrain("run", "program.py", cwd=tmp_path)

    assert killed.status == -9
    assert resumed.status == 0, resumed.err
    assert resumed.out.splitlines()[0] == "['a.txt', 'b.txt', 'c.txt', 'd.txt', 'e.txt']"
    assert "FileExistsError" in detrain("run", "--fresh", "program.py", cwd=tmp_path).err


def test_a_program_that_draws_from_the_system_in_its_loop_is_told_apart(tmp_path: Path) -> None:
    status, said = verified(tmp_path, CHANCE)

    assert (status, said["exact"]) == (78, False)
    assert "NOT DETERMINISTIC" in str(said["verdict"])


@pytest.mark.parametrize("name", ALL)
def test_programs_are_exact(name: str, tmp_path: Path) -> None:
    status, said = verified(tmp_path, ALL[name], "--kills", 3)

    assert (status, said["exact"]) == (0, True), said
    assert len(said["runs"][2]["kills"]) == 3  # type: ignore[index]


def test_diff_shows_where_two_runs_part(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(FOR_LOOPS)
    for home, seed in (("a", 0), ("b", 0), ("c", 1)):
        assert detrain("run", "--ckpt", tmp_path / home, "--seed", seed, program).status == 0

    same = detrain("diff", tmp_path / "a", tmp_path / "b")
    other = detrain("diff", tmp_path / "a", tmp_path / "c")
    as_json = detrain("diff", "--json", tmp_path / "a", tmp_path / "c")

    assert same.status == 0
    assert "all equal" in same.out
    assert "equal to the bit" in same.out
    assert other.status == 1
    assert "they part at 0:0" in other.out
    assert "stream numpy" in other.out
    assert json.loads(as_json.out)["first_batch"] == "0:0"
    assert detrain("diff", tmp_path / "a", tmp_path / "nothing").status == 73


def test_one_bit_of_a_tensor_is_one_ulp(tmp_path: Path) -> None:
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


def test_a_value_of_a_clock_is_no_difference(tmp_path: Path) -> None:
    text = FOR_LOOPS.replace("import os,", "import time, os,").replace(
        "        total = 0.0\n", "        total, began = 0.0, time.perf_counter()\n"
    )
    status, said = verified(tmp_path, text.replace("{best!r} steps", "{best!r} {time.perf_counter() - began:.0f} steps"))

    assert (status, said["exact"]) == (0, True), said
