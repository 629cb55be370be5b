"""The main job: an example that is killed and run again, as often as it takes, ends with the bits of one that never
was. It takes long: what the fast lane kills are smaller programs.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import tensorflow as tf

from tests.e2e.forkserver import Server
from tests.e2e.runs import EXAMPLES, Result, bare, detrain, killed

DIGITS = EXAMPLES / "digits" / "train.py"
MUSIC = EXAMPLES / "music_transformer" / "train.py"
DIGITS_EPOCHS, DIGITS_BATCHES = 3, 45
MUSIC_EPOCHS, MUSIC_BATCHES = 5, 6


@pytest.fixture(scope="module")
def digits() -> Result:
    return bare(DIGITS, "--epochs", DIGITS_EPOCHS)


@pytest.fixture(scope="module")
def music(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    logs = tmp_path_factory.mktemp("music") / "logs"
    return bare(MUSIC, "--epochs", MUSIC_EPOCHS, "--log_dir", logs), logs


def assert_continues(resumed: Result, whole: Result) -> None:
    """The last run printed exactly the end of what the uninterrupted run prints, down to the digest of all weights."""
    assert resumed.status == 0, resumed.err
    progress = resumed.matching(r"[Ll]oss|held out|weights")
    assert progress == whole.matching(r"[Ll]oss|held out|weights")[-len(progress) :]
    assert "weights" in whole.last_line()
    assert resumed.last_line() == whole.last_line()


@pytest.mark.slow
def test_an_uninterrupted_run_prints_what_the_bare_program_prints(digits: Result, tmp_path: Path) -> None:
    run = detrain("run", "--ckpt", tmp_path, "--every", "7b", DIGITS, "--epochs", DIGITS_EPOCHS).ok()

    assert run.out == digits.out


@pytest.mark.slow
def test_the_music_example_prints_what_the_bare_program_prints(music: tuple[Result, Path], tmp_path: Path) -> None:
    run = detrain("run", "--ckpt", tmp_path, MUSIC, "--epochs", MUSIC_EPOCHS, "--log_dir", tmp_path / "logs").ok()

    assert run.out == music[0].out


LAST_OF_EPOCH = DIGITS_BATCHES * 2
RNG = random.Random(2026)
KILLS = [
    ("1", [1]),
    ("1", [DIGITS_BATCHES + 1]),
    ("1", [LAST_OF_EPOCH]),
    ("5b", [RNG.randrange(DIGITS_BATCHES, LAST_OF_EPOCH)]),
    ("5b", [RNG.randrange(6, DIGITS_BATCHES), RNG.randrange(5, LAST_OF_EPOCH)]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("every", "batches"), KILLS)
def test_digits_killed_at_a_batch_resumes_to_the_bit(
    every: str, batches: list[int], digits: Result, tmp_path: Path, server: Server
) -> None:
    for batch in batches:
        killed(tmp_path, "--every", every, DIGITS, "--epochs", DIGITS_EPOCHS, at_batch=batch)

    resumed = server.detrain("run", "--ckpt", tmp_path, "--every", every, DIGITS, "--epochs", DIGITS_EPOCHS)

    assert_continues(resumed, digits)


@pytest.mark.slow
@pytest.mark.parametrize("save", [1, 2])
def test_digits_killed_during_a_save_resumes_to_the_bit(save: int, digits: Result, tmp_path: Path, server: Server) -> None:
    assert killed(tmp_path, "--every", "9b", DIGITS, "--epochs", DIGITS_EPOCHS, in_save=save)

    resumed = server.detrain("run", "--ckpt", tmp_path, "--every", "9b", DIGITS, "--epochs", DIGITS_EPOCHS)

    assert_continues(resumed, digits)
    assert not list(tmp_path.glob(".*.tmp"))


MUSIC_KILLS = [
    ("1", [9]),
    ("2b", [RNG.randrange(4, 8), RNG.randrange(2, 6)]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("every", "batches"), MUSIC_KILLS)
def test_music_killed_at_a_batch_resumes_to_the_bit(
    every: str, batches: list[int], music: tuple[Result, Path], tmp_path: Path
) -> None:
    command = ["--every", every, MUSIC, "--epochs", MUSIC_EPOCHS, "--log_dir", tmp_path / "logs"]
    for batch in batches:
        assert killed(tmp_path, *command, at_batch=batch)

    resumed = detrain("run", "--ckpt", tmp_path, *command)

    assert_continues(resumed, music[0])
    assert summaries(tmp_path / "logs") == summaries(music[1])


def summaries(folder: Path) -> set[tuple[str, str, int, bytes]]:
    """Every (writer, tag, step, value) in the event files of a folder; the torn last record of a killed process is
    passed over.
    """
    found = set()
    for file in sorted(folder.rglob("events.out.*")):
        try:
            for record in tf.data.TFRecordDataset(str(file)):
                event = tf.compat.v1.Event.FromString(record.numpy())
                for value in event.summary.value:
                    found.add((file.parent.name, value.tag, event.step, value.tensor.SerializeToString()))
        except tf.errors.DataLossError:
            continue
    assert found
    return found


@pytest.mark.slow
def test_a_finished_run_resumes_behind_its_last_epoch(digits: Result, tmp_path: Path, server: Server) -> None:
    first = detrain("run", "--ckpt", tmp_path, DIGITS, "--epochs", DIGITS_EPOCHS)

    again = server.detrain("run", "--ckpt", tmp_path, DIGITS, "--epochs", DIGITS_EPOCHS)

    assert first.out == digits.out
    assert again.out.splitlines() == digits.out.splitlines()[-2:]
    assert f"resuming train at {DIGITS_EPOCHS}:0" in again.err


@pytest.mark.slow
@pytest.mark.parametrize(("every", "at_batch"), [("1", 130), ("20b", 75)])
def test_the_fit_example_killed_resumes_to_the_bit(every: str, at_batch: int, tmp_path: Path, server: Server) -> None:
    command = ("--every", every, EXAMPLES / "digits" / "fit.py", "--epochs", 4)
    whole = bare(EXAMPLES / "digits" / "fit.py", "--epochs", 4)
    assert killed(tmp_path, *command, at_batch=at_batch)

    assert_continues(server.detrain("run", "--ckpt", tmp_path, *command), whole)
