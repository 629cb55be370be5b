"""Arrays and tables where the table of samples does not say all: large ones, views, and data that differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from detrain.python.codec.coders import Decoder
from detrain.python.codec.graph_files import unpack
from detrain.python.codec.in_process import encode_value, restore_value
from detrain.python.inspect.object_graph import Encoded
from detrain.python.inspect.tables import content, table_parts
from tests.codec.sample import hold, into, places, put_back
from tests.runtime.state_compare import difference
from tests.runtime.state_values import NO_FRAMEWORK, World, baseline_of, encode, restore

LARGE = 40_000
"""Elements of an array that is kept by its digest while it is as it was."""


def decoder_of(encoded: Encoded, world: World) -> Decoder:
    """Return what puts a state back into a world, before it has begun."""
    return Decoder(unpack(encoded.graph, encoded.arrays), encoded.arrays, NO_FRAMEWORK, baseline_of(world))


def test_a_batch_of_data_that_nobody_else_holds_does_not_change_the_data_of_the_resumed_process() -> None:
    def make() -> World:
        data = np.arange(float(LARGE))
        return {"batch": data[:4], "rows": (row for row in [data])}

    after, before = make(), make()
    data, baseline = next(before["rows"]), baseline_of(after)
    after["batch"] = next(after["rows"])[8:12]
    into(encode(after, baseline), before)
    assert before["batch"].tolist() == [8, 9, 10, 11]
    assert data[:4].tolist() == [0, 1, 2, 3]


MAKERS: dict[str, Callable[[], Any]] = {
    "array": lambda: np.arange(float(LARGE)),
    "sparse matrix": lambda: sparse.random(3000, 3000, 0.01, format="csr", random_state=0),
    "table": lambda: pd.DataFrame(np.arange(float(LARGE)).reshape(-1, 4)),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_what_is_large_and_as_it_was_is_not_stored(make: Callable[[], Any]) -> None:
    world = {"data": make(), "state": np.zeros(3)}
    assert {len(array) for array in encode(world, baseline_of(world)).arrays.values()} == {3}


def test_large_data_that_differ_in_the_resumed_process_are_reported() -> None:
    after, before = {"data": np.zeros(LARGE)}, {"data": np.ones(LARGE)}
    (said,) = restore(encode(after, baseline_of(after)), before, baseline_of(before))
    assert said.startswith("data: the ")
    assert "is not the one that the first run had" in said


def test_small_data_that_differ_in_the_resumed_process_are_put_back_and_told() -> None:
    after, before = {"data": np.zeros(3)}, {"data": np.ones(3)}
    decoder = decoder_of(encode(after, baseline_of(after)), before)
    assert decoder.decode(decoder.roots["data"], before["data"], "data") is before["data"]
    assert decoder.finish() == []
    assert before["data"].tolist() == [0, 0, 0]
    (said,) = decoder.others
    assert said.startswith("data: the array is not the one that the first run had")


def test_a_large_array_of_before_the_loop_is_not_copied_within_the_process_and_a_change_in_it_is_named() -> None:
    world = {"data": np.zeros(300_000)}
    baseline = baseline_of(world)
    held = hold(world, baseline)
    assert sum(array.nbytes for array in held.arrays.values()) == 0
    assert put_back(held, baseline)[1] == []

    world["data"][7] = 1

    assert put_back(held, baseline)[1] == ["data: the large array has been changed in the loop"]


def test_a_large_array_of_the_loop_is_copied() -> None:
    data = np.zeros(300_000)
    held = hold({"data": data})
    data[7] = 1

    assert put_back(held)[1] == []
    assert data[7] == 0


@pytest.mark.parametrize("batch", [np.arange(6.0), {"x": [np.arange(3), "a"]}, (np.arange(2), {"n": np.zeros((2, 2))})])
def test_a_batch_that_a_body_changes_is_handed_out_as_it_was(batch: Any) -> None:
    import copy

    wanted, held = copy.deepcopy(batch), encode_value(batch, NO_FRAMEWORK)
    arrays = [batch] if isinstance(batch, np.ndarray) else [batch["x"][0]] if isinstance(batch, dict) else [batch[0], batch[1]["n"]]
    for array in arrays:
        array[...] = 9
    if isinstance(batch, dict):
        batch["x"].append(2)

    assert restore_value(held, NO_FRAMEWORK) == []
    assert difference(batch, wanted) is None


def test_a_table_that_cannot_be_made_again_is_named_when_it_has_changed() -> None:
    world: World = {"table": pd.DataFrame([[1, 2]], index=pd.period_range("2020-01", periods=1, freq="M"))}
    assert table_parts(world["table"]) is None
    baseline = baseline_of(world)
    world["table"].iloc[0, 0] = 7
    assert places(encode(world, baseline).not_captured) == ["table"]


def test_what_is_in_cells_counts_for_whether_a_table_has_changed() -> None:
    one, other = pd.Series(["1", "2"], dtype=object), pd.Series([1, "2"], dtype=object)
    assert content(one) != content(other)
    assert content(one) == content(one.copy())
    assert content(pd.Series([0.0])) != content(pd.Series([-0.0]))
