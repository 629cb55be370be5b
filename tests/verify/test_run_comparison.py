"""What two runs have left is compared: batches by their digests, checkpoints by what they hold."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from detrain.base.errors import StoreError
from detrain.store import Catalogue
from detrain.store.journal import Journal
from detrain.verify.state_diff import Difference, compare_arrays
from detrain.verify.verified_run import ComparedRun, Comparison, compare_runs, described
from tests.store.homes import PROGRAM, epoch, state

NOTHING = b"\x82\xa5nodes\x90\xa5roots\x80"


def home(folder: Path, digests: list[int], kernel: float = 0.0) -> Path:
    """A run of two batches an epoch, and a checkpoint behind each epoch."""
    folder.mkdir()
    catalogue = Catalogue(folder)
    journal = Journal(catalogue.journal(PROGRAM, 1), 0)
    for number, digest in enumerate(digests):
        journal.add_batch((0, number // 2, number % 2), bytes([digest] * 16))
        if number % 2:
            journal.flush()
            cursor = epoch(number // 2 + 1)
            snapshot = dataclasses.replace(state(cursor, journal_bytes=journal.size), python=NOTHING)
            snapshot.tensors["dense/kernel"] = np.full(3, kernel, np.float32)
            journal.sync()
            catalogue.save(PROGRAM, 1, cursor, snapshot)
    return folder


def test_equal_runs_are_equal_and_their_common_batches_are_counted(tmp_path: Path) -> None:
    one, other = home(tmp_path / "one", [1, 2, 3, 4]), home(tmp_path / "other", [1, 2, 3, 4, 5, 6])

    found = compare_runs(ComparedRun.at(one), ComparedRun.at(other))

    assert found.is_equal
    assert (found.batches, list(found.checkpoints)) == (4, ["1:0", "2:0"])


def test_the_first_batch_and_the_tensor_that_differ_are_named(tmp_path: Path) -> None:
    one, other = home(tmp_path / "one", [1, 2, 3, 4]), home(tmp_path / "other", [1, 2, 7, 8], kernel=1.0)

    found = compare_runs(ComparedRun.at(one), ComparedRun.at(other))

    assert (found.first_batch, found.is_equal) == ("1:0", False)
    assert [each.name for each in found.checkpoints["1:0"]] == ["dense/kernel"]
    assert described(found)[0].endswith("4 in common, they part at 1:0")


def test_long_lists_of_checkpoints_are_folded_and_only_the_first_that_differs_is_told(tmp_path: Path) -> None:
    difference = Difference("tensor", "w", "differs")
    checkpoints = {**{f"0:{k}": [] for k in range(5)}, "1:0": [difference] * 10, "1:1": [], "1:2": [difference]}

    lines = described(Comparison(40, None, checkpoints))

    assert lines[1:3] == ["checkpoints 0:0 to 0:4: 5, all equal to the bit", "checkpoint  1:0: 10 values differ"]
    assert lines[-2:] == ["  and 2 more: --json lists them", "and 1 of the 2 later checkpoints in common, up to 1:2"]
    assert len(lines) == 13
    few = described(Comparison(40, None, {"0:1": [], "0:2": []}))[1:]
    assert few == ["checkpoint  0:1: equal to the bit", "checkpoint  0:2: equal to the bit"]


def test_a_checkpoint_alone_and_the_journal_are_runs_too(tmp_path: Path) -> None:
    folder = home(tmp_path / "one", [1, 2])
    [entry] = Catalogue(folder).entries()

    alone, journal = ComparedRun.at(entry.path), ComparedRun.at(Catalogue(folder).journal(PROGRAM, 1))

    assert (alone.batches, list(alone.checkpoints)) == ({}, ["1:0"])
    assert (len(journal.batches), journal.checkpoints) == (2, alone.checkpoints)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds checkpoints of 0 programs"):
        ComparedRun.at(tmp_path)
    with pytest.raises(StoreError, match="no run at"):
        ComparedRun.at(tmp_path / "gone")


def test_a_value_that_is_no_number_in_one_run_only_has_no_distance() -> None:
    one = np.array([1.0, 1.5, np.nan], np.float32)
    other = one.copy()
    other.view(np.int32)[1] ^= 1 << 30  # 1.5 becomes no number

    difference = compare_arrays("w", one, other)

    assert str(difference) == f"w: 1 of 3 elements differ, at most {1 << 30} ULP (no number in one of them) apart"
