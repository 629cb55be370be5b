"""Which checkpoints stay within a number of bytes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detrain.base.errors import UsageError
from detrain.base.options import Options, bytes_of
from detrain.cli import main
from detrain.store import Catalogue
from detrain.store.thinning import Held, thinned
from tests.store.homes import epoch, state


def run_of(count: int, room: int, newest: int) -> list[int]:
    """The steps of the checkpoints that are left of a run that takes one each step, with room for so many."""
    steps: list[int] = []
    for step in range(1, count + 1):
        steps.append(step)
        needed = range(len(steps) - newest, len(steps))
        steps = [steps[number] for number in thinned([Held(each, 10) for each in steps], needed, 10 * room + 9)]
    return steps


@given(st.integers(1, 300), st.integers(4, 40), st.integers(1, 3))
def test_a_long_run_is_spread_evenly(count: int, room: int, newest: int) -> None:
    left = run_of(count, room, newest)

    assert len(left) == min(count, room)
    assert left[-newest:] == list(range(1, count + 1))[-newest:]
    gaps = [after - before for before, after in itertools.pairwise([0, *left])]
    assert max(gaps) <= 4 * count / (room - newest + 1) + 2, (left, gaps)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 50), st.booleans()), max_size=30), st.data())
def test_what_is_needed_and_what_others_rest_on_stays(kinds: list[tuple[int, int, bool]], data: st.DataObject) -> None:
    held: list[Held] = []
    for distance, size, rests in kinds:
        step = distance + (held[-1].step if held else 0)
        held.append(Held(step, size, data.draw(st.integers(0, len(held) - 1)) if rests and held else None))
    needed = data.draw(st.sets(st.integers(0, len(held) - 1))) if held else set()
    most = data.draw(st.integers(0, 600))

    stay = thinned(held, needed, most)

    assert stay == sorted(stay)
    assert needed <= set(stay)
    assert {held[number].rests_on for number in stay} <= {None, *stay}
    if sum(held[number].size_bytes for number in stay) > most:  # then no other could go
        assert set(stay) - needed <= {held[number].rests_on for number in stay}


def test_a_home_stays_within_its_bytes(tmp_path) -> None:
    catalogue = Catalogue(tmp_path)
    for number in range(1, 21):
        catalogue.save("train", 1, epoch(number), state(epoch(number)))
        size = max(entry.path.stat().st_size for entry in catalogue.entries())
        catalogue.prune("train", 1, 2, keep_size=6 * size)
        assert sum(entry.path.stat().st_size for entry in catalogue.entries()) <= 6 * size
    left = [entry.cursor.epoch for entry in catalogue.entries()]
    assert (len(left), left[-2:]) == (6, [19, 20])
    assert max(after - before for before, after in itertools.pairwise([0, *left])) <= 10

    Catalogue(tmp_path).prune("train", 1, 2, keep_size=1)

    assert [entry.cursor.epoch for entry in catalogue.entries()][-2:] == [19, 20]


@pytest.mark.parametrize(("text", "size"), [("20GB", 20_000_000_000), ("1.5 tb", 1_500_000_000_000), ("500", 500), ("7kB", 7000)])
def test_a_size_is_a_number_and_a_unit(text: str, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0MB", "20 bytes", "1e9", "٢GB"])
@pytest.mark.parametrize("option", ["--keep-size", "--mirror-bandwidth"])
def test_what_is_no_size_is_refused(option: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", option, text, "train.py"]) == UsageError.exit_code
    assert f"{option} {text}: not a size" in capsys.readouterr().err


def test_a_bandwidth_without_a_mirror_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--mirror-bandwidth", "20MB", "train.py"]) == UsageError.exit_code
    assert "--mirror-bandwidth without --mirror" in capsys.readouterr().err


@pytest.mark.parametrize("pattern", ["/data/out/*", "../logs/*", "out/../../*", "out/a**", ""])
def test_files_that_no_mirror_could_bring_back_are_refused(pattern: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The process that sends ended with a traceback, or the mirror's states led out of the folder: none came back."""
    assert main(["run", "--mirror", "there", "--mirror-files", pattern, "train.py"]) == UsageError.exit_code
    assert f"--mirror-files {pattern!r} names no files below the folder" in capsys.readouterr().err


def test_ranks_would_keep_different_cuts() -> None:
    with pytest.raises(UsageError, match="--keep-size in a job"):
        Options(keep_size=1000).check(is_job=True)
