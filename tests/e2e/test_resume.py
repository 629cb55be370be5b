"""Programs without a framework, killed at a cut and run again, end as if they had never been."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.e2e.programs import ALL
from tests.e2e.runs import Result, bare_python, detrain

PLACES = {
    "for_loops": ["0:0", "1:0", "1:7", "3:7", "2:3"],
    "while_loops": ["0:0", "1:0", "1:5", "3:2"],
    "try_continue": ["0:0", "1:2", "2:4", "3:5", "1:5", "2:1"],
    "phases": ["fold0:1:0", "fold1:2:4", "fold2:0:0", "fold2:3:4"],
    "one_loop": ["0:7", "0:18", "0:29"],
    "methods": ["0:3", "1:0", "2:5", "3:3"],
}
CASES = [
    (name, every, place)
    for name, places in PLACES.items()
    for place in places
    for every in ("1", "3b")
    if not (name == "one_loop" and every == "1")
]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Result]]:
    folder = tmp_path_factory.mktemp("programs")
    found = {}
    for name, text in ALL.items():
        path = folder / f"{name}.py"
        path.write_text(text)
        found[name] = (path, bare_python(path))
        assert found[name][1].status == 0, found[name][1].err
    return found


@pytest.mark.parametrize(("name", "every", "place"), CASES)
def test_killed_at_a_cut_resumes_to_the_bit(
    name: str, every: str, place: str, programs: dict[str, tuple[Path, Result]], tmp_path: Path
) -> None:
    path, whole = programs[name]
    first = detrain("run", "--ckpt", tmp_path, "--every", every, path, DIE_AT=place)
    again = detrain("run", "--ckpt", tmp_path, "--every", every, path)

    assert first.status in (-9, 0)
    assert again.status == 0, again.err
    lines, expected = again.out.splitlines(), whole.out.splitlines()
    if name == "phases":  # code between phases runs again, from the exact state, and prints again what it printed
        expected = [line for line in expected if line in lines]
    assert lines == expected[-len(lines) :]
    assert lines[-1].startswith("weights")
    assert "not captured" not in first.err + again.err


@pytest.mark.parametrize("name", sorted(ALL))
def test_an_uninterrupted_run_prints_what_plain_python_prints(
    name: str, programs: dict[str, tuple[Path, Result]], tmp_path: Path
) -> None:
    path, whole = programs[name]

    assert detrain("run", "--ckpt", tmp_path, "--every", "2b", path).out == whole.out


@pytest.mark.parametrize("seed", range(3))
def test_killed_again_and_again_ends_the_same(seed: int, programs: dict[str, tuple[Path, Result]], tmp_path: Path) -> None:
    path, whole = programs["for_loops"]
    draw = random.Random(seed)
    places = sorted((draw.randrange(4), draw.randrange(8)) for _ in range(3))

    for epoch, step in places:
        detrain("run", "--ckpt", tmp_path, "--every", "2b", path, DIE_AT=f"{epoch}:{step}")
    last = detrain("run", "--ckpt", tmp_path, "--every", "2b", path)

    assert last.status == 0, last.err
    assert last.out.splitlines()[-1] == whole.out.splitlines()[-1]
