"""Large arrays of a checkpoint are read once, to where they belong, and are checked on the way."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from detrain.base.errors import CheckpointDamaged
from detrain.store import Catalogue, Snapshot, opened, read, write
from detrain.store.read_ahead import read_ahead
from detrain.store.snapshot import LargeArrays
from tests.store.homes import PROGRAM, epoch, state

LARGE = np.arange(5 << 20, dtype=np.float64).view(np.uint8)


def _snapshot() -> Snapshot:
    small = state(epoch(1))
    return dataclasses.replace(small, arrays={**small.arrays, "00001": LARGE, "00002": np.ones(7)})


def _flip(path: Path, at: int) -> None:
    with h5py.File(path) as file:
        offset = file["python/arrays/00001"].id.get_offset()
    data = bytearray(path.read_bytes())
    data[offset + at] ^= 1
    path.write_bytes(data)


@pytest.fixture(name="count")
def _count(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes are read from files."""
    found, real = [0], os.preadv

    def preadv(descriptor: int, buffers: Any, offset: int) -> int:
        done = real(descriptor, buffers, offset)
        found[0] += done
        return done

    monkeypatch.setattr(os, "preadv", preadv)
    return found


def test_the_large_array_is_read_once_and_only_when_it_is_asked_for(tmp_path: Path, count: list[int]) -> None:
    catalogue = Catalogue(tmp_path)
    catalogue.save(PROGRAM, 1, epoch(1), _snapshot())
    (choice,) = catalogue.good(PROGRAM, reads_all=False)
    with opened(choice.entry.path) as snapshot:
        before = count[0]
        arrays = snapshot.arrays
        assert isinstance(arrays, LargeArrays)
        assert "00001" in arrays
        assert arrays.size_bytes("00001") == LARGE.nbytes
        assert count[0] == before < LARGE.nbytes / 20
        memory = np.empty(LARGE.nbytes, np.uint8)
        arrays.read_into("00001", memory)

    assert memory.tobytes() == LARGE.tobytes()
    assert count[0] - before == LARGE.nbytes


def test_with_all_read_beforehand_each_byte_is(tmp_path: Path, count: list[int]) -> None:
    catalogue = Catalogue(tmp_path)
    catalogue.save(PROGRAM, 1, epoch(1), _snapshot())
    before = count[0]
    next(catalogue.good(PROGRAM))

    assert count[0] - before > LARGE.nbytes


def test_what_is_read_whole_is_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "one.h5"
    write(path, _snapshot())
    found = read(path).arrays

    assert found.keys() == _snapshot().arrays.keys()
    assert all(np.array_equal(found[name], array) for name, array in _snapshot().arrays.items())


@pytest.mark.parametrize("at", [0, LARGE.nbytes // 2, LARGE.nbytes - 1])
def test_a_damage_shows_as_it_is_read_or_beforehand(at: int, tmp_path: Path) -> None:
    catalogue = Catalogue(tmp_path)
    catalogue.save(PROGRAM, 1, epoch(1), _snapshot())
    path = catalogue.entries()[0].path
    _flip(path, at)

    with pytest.raises(CheckpointDamaged, match="can be gone on from"):
        next(catalogue.good(PROGRAM))
    (choice,) = catalogue.good(PROGRAM, reads_all=False)
    with opened(choice.entry.path) as snapshot:
        with pytest.raises(CheckpointDamaged, match="python/arrays/00001"):
            snapshot.arrays["00001"]
        with pytest.raises(CheckpointDamaged, match="python/arrays/00001"):
            snapshot.arrays.read_into("00001", np.empty(LARGE.nbytes, np.uint8))  # type: ignore[attr-defined]
        with pytest.raises(CheckpointDamaged, match="bytes where 3 belong"):
            snapshot.arrays.read_into("00001", np.empty(3, np.uint8))  # type: ignore[attr-defined]
    with pytest.raises(CheckpointDamaged):
        read(path)


def test_a_small_checkpoint_is_read_beforehand_in_any_case(tmp_path: Path) -> None:
    catalogue = Catalogue(tmp_path)
    catalogue.save(PROGRAM, 1, epoch(1), dataclasses.replace(state(epoch(1)), arrays={"00001": LARGE[: 2 << 20]}))
    _flip(catalogue.entries()[0].path, 1 << 20)

    with pytest.raises(CheckpointDamaged):
        next(catalogue.good(PROGRAM, reads_all=False))


def test_what_brings_files_in_is_no_child_of_the_process(tmp_path: Path) -> None:
    large, small = tmp_path / "large", tmp_path / "small"
    large.write_bytes(bytes(40 << 20))
    small.write_bytes(b"1")
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before = children.read_text()
    for paths in ([large, small], [small], [tmp_path / "none"]):
        read_ahead(paths)

    assert children.read_text() == before
    assert large.read_bytes() == bytes(40 << 20)


def test_nothing_is_brought_in_for_which_there_is_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(1 << 43)
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("a process was started"))
    read_ahead([large])
