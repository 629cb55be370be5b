"""Small arrays come out of their packs as they went in; what is no pack is refused."""

from __future__ import annotations

from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from detrain.base.digest import Array
from detrain.base.errors import CheckpointDamaged
from detrain.store import read, write
from detrain.store.array_packs import packed, unpacked
from tests.store.homes import epoch, state, with_small_arrays

KINDS = st.sampled_from(
    [
        (np.dtype(np.float32), (4,)),
        (np.dtype(np.int64), ()),
        (np.dtype(np.float32), ()),
        (np.dtype("S5"), (2,)),
        (np.dtype("<U3"), ()),
        (np.dtype(">f8"), (1, 2)),
        (np.dtype(bool), (0, 3)),
        (np.dtype(ml_dtypes.bfloat16), (3,)),
        (np.dtype(np.uint8), (5000,)),
    ]
)


@st.composite
def numbered(draw: st.DrawFn) -> dict[str, Array]:
    numbers = draw(st.lists(st.integers(0, 200_000), unique=True, max_size=30))
    found: dict[str, Array] = {"loader00000": np.arange(3, dtype=np.uint8)}
    for number in numbers:
        dtype, shape = draw(KINDS)
        size = int(np.prod(shape)) * dtype.itemsize
        data = draw(st.binary(min_size=size, max_size=size)) if size < 100 else bytes(size)
        if dtype.kind in "Ub":  # not each pattern is a character, or a truth value
            found[f"{number:05d}"] = np.full(shape, number % 2, dtype)
        else:
            found[f"{number:05d}"] = np.frombuffer(data, dtype).reshape(shape) if size else np.zeros(shape, dtype)
    return found


def bits(arrays: dict[str, Array]) -> dict[str, tuple[object, ...]]:
    return {name: (array.dtype, array.shape, array.tobytes()) for name, array in arrays.items()}


@given(numbered())
def test_all_arrays_come_back_with_every_bit(arrays: dict[str, Array]) -> None:
    apart, packs = packed(arrays)
    out = dict(unpacked(dict(packs)))

    assert not apart.keys() & out.keys()
    assert bits(apart | out) == bits(arrays)
    assert len(apart) + len(packs) <= len(arrays) + 8


@given(hnp.arrays(np.float32, st.tuples(st.integers(4, 40), st.integers(1, 6)), elements=st.floats(width=32)))
def test_rows_are_one_pack(rows: Array) -> None:
    apart, packs = packed({f"{number:05d}": row for number, row in enumerate(rows)})

    assert apart == {}
    assert [array.tobytes() for _name, array in packs] == [rows.tobytes(), np.arange(len(rows), dtype=np.uint32).tobytes()]


def test_any_reader_of_hdf5_finds_the_rows(tmp_path: Path) -> None:
    write(tmp_path / "one.h5", with_small_arrays(state(epoch(1))))
    with h5py.File(tmp_path / "one.h5") as file:
        shapes = {name: (each.shape, each.dtype) for name, each in file["python/packs"].items()}

    assert shapes["00000"] == ((5, 2), np.float32)
    assert shapes["00000 numbers"] == ((5,), np.uint32)


NUMBERS = np.arange(4, dtype=np.uint32)


@pytest.mark.parametrize(
    "numbers", [None, NUMBERS[:3], NUMBERS.astype(np.int32), NUMBERS.reshape(2, 2), NUMBERS.astype(">u4")], ids=repr
)
def test_a_pack_without_its_numbers_is_damaged(numbers: Array | None) -> None:
    values: dict[str, Array] = {"python/packs/00000": np.zeros((4, 2))}
    if numbers is not None:
        values["python/packs/00000 numbers"] = numbers

    with pytest.raises(CheckpointDamaged, match="without a number"):
        dict(unpacked(values))


def test_an_array_that_is_there_twice_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def doubled(arrays: dict[str, Array]) -> tuple[dict[str, Array], list[tuple[str, Array]]]:
        return dict(arrays), packed(arrays)[1]

    monkeypatch.setattr("detrain.store.hdf5_writer.packed", doubled)
    write(tmp_path / "one.h5", with_small_arrays(state(epoch(1))))

    with pytest.raises(CheckpointDamaged, match="twice"):
        read(tmp_path / "one.h5")
