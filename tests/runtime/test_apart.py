"""Objects of libraries that detrain has rules of its own for: a change is named."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

from tests.runtime.state_values import baseline_of, encode


def flags() -> Any:
    flags = pytest.importorskip("absl.flags")
    values = flags.FlagValues()
    flags.DEFINE_float("rate", 0.1, "", flag_values=values)
    values(["program"])
    return values


def proxy() -> Any:
    return pytest.importorskip("wrapt").ObjectProxy([1])


def message() -> Any:
    return pytest.importorskip("google.protobuf.struct_pb2").Struct()


def file_in_memory() -> Any:
    return pytest.importorskip("h5py").File(io.BytesIO(), "w")


CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "flags": (flags, lambda value: setattr(value, "rate", 0.5)),
    "proxy": (proxy, lambda value: value.append(2)),
    "message": (message, lambda value: value.update({"a": 1})),
}


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_named_and_nothing_else(name: str) -> None:
    """A resumed run went on with it as it is at the start, in silence."""
    make, change = CASES[name]
    world = {"value": make()}
    baseline = baseline_of(world)

    assert encode(world, baseline).not_captured == []
    change(world["value"])
    assert [said.partition(" (")[0] for said in encode(world, baseline).not_captured] == ["value"]


def test_a_file_of_hdf5_that_lies_in_memory_is_named() -> None:
    world = {"value": file_in_memory()}

    assert encode(world, baseline_of(world)).not_captured != []
