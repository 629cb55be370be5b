"""A state in two parts is the state: what is a rank's own, and what all hold alike."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detrain.base.errors import CheckpointDamaged
from detrain.runtime.state.split_snapshot import joined, read_shared, split
from detrain.store import Snapshot
from tests.store.homes import epoch, state


def snapshot_of(arrays: dict[str, np.ndarray]) -> Snapshot:
    plain = state(epoch(1))
    return Snapshot(plain.meta, plain.tensors, plain.rng, plain.python, arrays)


def held(data: bytes) -> np.ndarray:
    array = np.frombuffer(data, np.uint8)  # as what is copied when it is written: it may only be read
    assert not array.flags.writeable
    return array


@given(st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=5), st.data())
def test_taken_apart_and_joined_it_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, contents: list[bytes], data: st.DataObject
) -> None:
    arrays = {f"{number:05d}": held(content) for number, content in enumerate(contents)} | {"x": np.arange(6.0).reshape(2, 3)}
    alike = data.draw(st.sets(st.sampled_from(sorted(arrays))))
    places = {arrays[key].ctypes.data: f"weight {key}" for key in alike}
    whole = snapshot_of(arrays)

    parts = split(whole, places)
    path = tmp_path_factory.mktemp("big") / "cut-0"
    parts.write(path)
    again = joined(parts.own, read_shared(path))

    assert msgspec.json.encode(again.meta) == msgspec.json.encode(whole.meta)
    assert (again.python, dict(again.rng)) == (whole.python, dict(whole.rng))
    for key, array in arrays.items():
        assert (again.arrays[key].dtype, again.arrays[key].shape) == (array.dtype, array.shape)
        assert again.arrays[key].tobytes() == array.tobytes()


def test_only_what_cannot_change_any_more_is_left_to_others() -> None:
    writeable = np.zeros(8, np.uint8)

    assert split(snapshot_of({"a": writeable}), {writeable.ctypes.data: "weight"}).shared == {}


def test_parts_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    one, other = held(b"12345678"), held(b"1234")
    parts = split(snapshot_of({"a": one}), {one.ctypes.data: "weight"})

    for shared in ({}, {"weight": other}):
        with pytest.raises(CheckpointDamaged, match="do not belong together"):
            joined(parts.own, shared)
    with pytest.raises(CheckpointDamaged):
        joined(parts.own[:-3], {"weight": one})
    (tmp_path / "torn").write_bytes(b"\0" * 7 + b"\x20torn")
    with pytest.raises(CheckpointDamaged, match="cannot be read"):
        read_shared(tmp_path / "torn")


def test_what_all_hold_alike_has_one_digest() -> None:
    one, same, other = held(b"weights!"), held(bytes(bytearray(b"weights!"))), held(b"weights?")
    prints = [split(snapshot_of({"a": each}), {each.ctypes.data: "weight"}).fingerprint() for each in (one, same, other)]

    assert prints[0] == prints[1] != prints[2]
