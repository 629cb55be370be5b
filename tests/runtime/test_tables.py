"""Tables of pandas and sparse matrices of scipy: restored, they hold what was described, in the objects that were
there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from detrain.python.inspect.tables import content, table_parts
from tests.runtime.state_values import World, baseline_of, encode, restore

pd = pytest.importorskip("pandas", minversion="3")
sparse = pytest.importorskip("scipy.sparse")


def _rows(frame: Any, count: int) -> None:
    for number in range(count):
        frame.loc[len(frame)] = [number / 3, number]


TABLES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "rows added": (lambda: pd.DataFrame(columns=["loss", "step"]), lambda frame: _rows(frame, 3)),
    "a cell set": (lambda: pd.DataFrame(np.ones((4, 3))), lambda frame: frame.__setitem__(1, frame[1] * 0.1)),
    "a column added": (lambda: pd.DataFrame({"a": [1.5, 2.5]}), lambda frame: frame.__setitem__("who", ["x", None])),
    "dates": (lambda: pd.DataFrame({"a": pd.to_datetime(["2020", "2021"])}), lambda frame: frame.__setitem__("b", frame.a.dt.year)),
    "emptied": (lambda: pd.DataFrame({"a": [1, 2]}), lambda frame: frame.drop(frame.index, inplace=True)),
    "series": (lambda: pd.Series([1.0, 2.0], name="loss"), lambda series: series.__setitem__(0, 0.3)),
    "lists in cells": (lambda: pd.Series([[1], [2]]), lambda series: series.iloc[0].append(5)),
    "attributes": (lambda: pd.Series([1.0]), lambda series: series.attrs.update(best=0.5)),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_brought_back_in_place(name: str) -> None:
    make, change = TABLES[name]
    after: World = {"table": make()}
    before: World = {"table": make()}
    baseline, live = baseline_of(after), before["table"]
    change(after["table"])

    encoded = encode(after, baseline)
    assert encoded.not_captured == []
    assert restore(encoded, before, baseline_of(before)) == []

    assert before["table"] is live
    assert live.equals(after["table"])
    assert live.attrs == after["table"].attrs
    assert [(type(axis), axis.dtype) for axis in live.axes] == [(type(axis), axis.dtype) for axis in after["table"].axes]


def test_a_table_made_by_the_loop_is_made_again_with_the_same_blocks() -> None:
    after: World = {"table": None}
    baseline = baseline_of(after)
    after["table"] = pd.concat([pd.DataFrame({"a": [0.1, 0.2], "b": [0.3, 0.4]}), pd.DataFrame({"a": [0.5], "b": [0.6]})])
    before: World = {"table": None}
    encoded = encode(after, baseline)
    assert restore(encoded, before, baseline_of(before)) == []
    blocks = [[(each.values.strides, each.values.tolist()) for each in world["table"]._mgr.blocks] for world in (before, after)]
    assert blocks[0] == blocks[1]


SPARSE = [f"{form}_{kind}" for form in ("bsr", "coo", "csc", "csr", "dia", "dok", "lil") for kind in ("array", "matrix")]


def _sparse(name: str, seed: int) -> Any:
    return getattr(sparse, name)(sparse.random(4, 6, 0.4, random_state=seed))


@pytest.mark.parametrize("name", SPARSE)
def test_a_sparse_matrix_is_brought_back_in_place_or_made_again(name: str) -> None:
    after: World = {"there": _sparse(name, 1), "new": None, "again": None}
    before: World = {"there": _sparse(name, 1), "new": None, "again": None}
    baseline, live = baseline_of(after), before["there"]
    if name.startswith(("csr", "csc", "lil", "dok")):
        after["there"][2, 3] = 7.5
    else:
        after["there"] *= 1.5
    after["new"] = after["again"] = _sparse(name, 2)

    encoded = encode(after, baseline)
    assert encoded.not_captured == []
    assert restore(encoded, before, baseline_of(before)) == []

    assert before["there"] is live
    assert before["new"] is before["again"]
    for key in ("there", "new"):
        assert type(before[key]) is type(after[key])
        assert before[key].dtype == after[key].dtype
        assert before[key].toarray().tobytes() == after[key].toarray().tobytes()
        assert vars(before[key]).keys() == vars(after[key]).keys()


def test_a_large_sparse_matrix_stays_as_it_is_while_it_has_not_changed() -> None:
    world: World = {"matrix": sparse.random(3000, 3000, 0.01, format="csr", random_state=0)}
    baseline = baseline_of(world)
    assert encode(world, baseline).arrays == {}
    world["matrix"].data[0] = -1.0
    before: World = {"matrix": sparse.random(3000, 3000, 0.01, format="csr", random_state=0)}
    encoded = encode(world, baseline)
    assert restore(encoded, before, baseline_of(before)) == []
    assert before["matrix"].data[0] == -1.0


def test_a_large_table_stays_as_it_is_while_it_has_not_changed() -> None:
    world: World = {"table": pd.DataFrame(np.arange(40_000.0).reshape(-1, 4))}
    baseline = baseline_of(world)
    assert encode(world, baseline).arrays == {}
    world["table"].iloc[0, 0] = -1.0
    encoded = encode(world, baseline)
    before: World = {"table": pd.DataFrame(np.arange(40_000.0).reshape(-1, 4))}
    assert restore(encoded, before, baseline_of(before)) == []
    assert before["table"].iloc[0, 0] == -1.0


def test_two_names_of_one_table_are_one_table_again() -> None:
    table = pd.Series([1.0])
    after: World = {"a": table, "b": table}
    baseline = baseline_of(after)
    table[0] = 2.0
    one, other = pd.Series([1.0]), pd.Series([1.0])
    before: World = {"a": one, "b": other}
    assert restore(encode(after, baseline), before, baseline_of(before)) == []
    assert before["a"] is before["b"]
    assert before["a"][0] == 2.0


def test_a_table_that_cannot_be_made_again_is_named_when_it_has_changed() -> None:
    columns = pd.MultiIndex.from_tuples([("a", "b"), ("a", "c")])
    world: World = {"table": pd.DataFrame([[1, 2]], columns=columns)}
    assert table_parts(world["table"]) is None
    baseline = baseline_of(world)
    world["table"].iloc[0, 0] = 7
    [named] = encode(world, baseline).not_captured
    assert "table (" in named


def test_what_is_in_cells_counts_for_whether_a_table_has_changed() -> None:
    one, other = pd.Series(["1", "2"], dtype=object), pd.Series([1, "2"], dtype=object)
    assert content(one) != content(other)
    assert content(one) == content(one.copy())
    assert content(pd.Series([0.0])) != content(pd.Series([-0.0]))


def test_points_in_time_and_durations_come_back() -> None:
    day = pd.Timestamp("2020-10-25 00:30", tz="Europe/Berlin")
    made = [day + pd.Timedelta(hours=2), day.tz_localize(None).as_unit("s"), pd.Timedelta(3, "ns"), pd.NaT, pd.Timestamp.max]
    encoded = encode({"value": made}, baseline_of({"value": []}))
    before: World = {"value": []}

    assert encoded.not_captured == []
    assert restore(encoded, before, baseline_of(before)) == []
    assert list(map(repr, before["value"])) == list(map(repr, made))
    assert [each.asm8.dtype for each in before["value"]] == [each.asm8.dtype for each in made]
    assert before["value"][3] is pd.NaT
