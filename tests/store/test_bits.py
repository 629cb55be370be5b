"""Flipped bits and missing ends of a checkpoint of a size that is met: each is detected, or does no harm."""

from __future__ import annotations

import random
from pathlib import Path

import h5py
import numpy as np
import pytest

from detrain.base.errors import CheckpointDamaged, CheckpointTooNew
from detrain.store import Snapshot, read, write
from tests.store.homes import epoch, same, state


def large() -> Snapshot:
    """Forty tensors of all sizes between nothing and 40 kB, 200 kB in all; as many Python arrays."""
    draw = np.random.default_rng(3)
    one = state(epoch(3))
    tensors = {f"layer_{n}/{'kernel' if n % 2 else 'bias'}": draw.normal(size=(n * n * 3 + n,)).astype("f4") for n in range(40)}
    return Snapshot(
        one.meta, tensors, {"python": bytes(2513)}, bytes(range(256)) * 40, {f"{n:05d}": np.arange(n) for n in range(40)}
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bits") / "train-r1-p0-e00003-e000000.h5"
    write(path, large())
    return path


def outcome(path: Path) -> str:
    """What reading gives. Any exception but the store's own passes, and so does a wrong value."""
    try:
        snapshot = read(path)
    except (CheckpointDamaged, CheckpointTooNew):
        return "detected"
    assert same(snapshot, large())
    return "harmless"


@pytest.mark.parametrize("flips", [400, pytest.param(10_000, marks=pytest.mark.slow)])
def test_no_flipped_bit_gives_a_wrong_value(whole: Path, tmp_path: Path, flips: int) -> None:
    draw, data = random.Random(7), whole.read_bytes()
    counts = {"detected": 0, "harmless": 0}
    damaged = tmp_path / "damaged.h5"
    damaged.write_bytes(data)
    with damaged.open("r+b", buffering=0) as file:
        for _ in range(flips):
            bit = draw.randrange(8 * len(data))
            file.seek(bit // 8)
            file.write(bytes([data[bit // 8] ^ 1 << bit % 8]))
            counts[outcome(damaged)] += 1
            file.seek(bit // 8)
            file.write(data[bit // 8 : bit // 8 + 1])
    print(f"{flips} flips in {len(data)} bytes: {counts}")
    assert counts["detected"] > 0.9 * flips


def boundaries(path: Path) -> set[int]:
    """Every 4 kB, and where each array begins and ends."""
    found = set(range(0, path.stat().st_size, 4096))
    with h5py.File(path) as file:

        def add(_name: str, item: object) -> None:
            if isinstance(item, h5py.Dataset) and item.size:
                start = item.id.get_offset()
                found.update({start, start + item.nbytes})

        file.visititems(add)
    return found


def test_a_file_that_ends_at_any_boundary_is_detected(whole: Path, tmp_path: Path) -> None:
    data, torn = whole.read_bytes(), tmp_path / "torn.h5"
    lengths = sorted({at + shift for at in boundaries(whole) for shift in (-1, 0, 1) if 0 <= at + shift < len(data)})
    for length in lengths:
        for filler in (b"", bytes(len(data) - length)):  # cut off, or never written
            torn.write_bytes(data[:length] + filler)
            if torn.read_bytes() != data:
                assert outcome(torn) == "detected", length
    assert len(lengths) > 300
