"""Faults in what a step reads of variables, stores in them, and decides by: each does what a step in NumPy says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.runs import said_by

pytestmark = pytest.mark.slow
"""TensorFlow in a process of its own, for an adapter changes it for good; the fast lane has others of its kind."""

pytest.importorskip("tensorflow")

X, ROWS = np.array([[1.0, 2.0], [3.0, -1.0]]), [1, 4, 1]
READS = {
    "forward/matmul/ReadVariableOp": "read w",
    "forward/ReadVariableOp": "read m",
    "forward/ReadVariableOp#1": "read m again",
    "forward/Gather/ResourceGather": "gather",
    "optimizer/AssignVariableOp": "store m",
    "forward/AssignSubVariableOp": "store w",
    "optimizer/ResourceScatterSub": "store table",
    "forward/AssignAddVariableOp": "store n",
    "forward/while/While": "goes on",
    "forward/cond/If": "branch",
}
EAGER = {
    "forward/ReadVariableOp": "read w",
    "forward/ReadVariableOp#1": "read m",
    "forward/ReadVariableOp#2": "read m again",
    "forward/ResourceGather": "gather",
    "optimizer/AssignVariableOp": "store m",
    "forward/AssignSubVariableOp": "store w",
    "optimizer/ResourceScatterSub": "store table",
    "forward/AssignAddVariableOp": "store n",
}
"""Loops and branches of eager code are Python's."""


def written_by(module: str, file: Path) -> Any:
    """Run a module in a process of its own, and return what it has written."""
    said_by(f"faults.{module}", file)
    return json.loads(file.read_text())


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return written_by("in_stores", tmp_path_factory.mktemp("in_stores") / "cases.json")


def step(place: str = "", position: int = 0) -> dict[str, Any]:
    """The step in NumPy, with a 2 (or another decision) at one place."""

    def struck(here: str, value: Any) -> Any:
        value = np.array(value)
        if here == place:
            value.reshape(-1)[position] = 2
        return value

    w, m, n = np.arange(1, 7).reshape(2, 3) / 7, np.full((2, 3), 0.25), 5
    table = np.arange(12).reshape(6, 2) / 5
    turns = 0 if place == "goes on" else 3
    factor = (3.0 if place == "branch" else 2.0) * 0.5**turns
    h = X @ struck("read w", w) * factor
    rows = struck("gather", table[struck("index", ROWS)])
    loss = (h**2).sum() + (rows**2).sum()
    m = struck("store m", 0.9 * struck("read m", m) + X.T @ (2 * h * factor))
    w = w - struck("store w", 0.1 * struck("read m again", m))
    np.subtract.at(table, ROWS, struck("store table", 0.5 * (2 * rows)))
    return {"loss": loss, "w": w, "m": m, "n": n + int(struck("store n", 1)), "table": table}


@pytest.mark.parametrize("how", ["graph", "xla", "eager"])
def test_a_fault_in_what_is_read_stored_or_decided_by_does_what_numpy_says(how: str, cases: list[dict[str, Any]]) -> None:
    places, seen = EAGER if how == "eager" else READS, set()
    for case in [case for case in cases if case["how"] == how]:
        place = "index" if case["operand"] == "index" else places[case["site"]]
        seen.add(place)
        assert (case["fired"], case["unarmed"]) == (1, case["bare"]), case
        assert case["executions"] == (4 if place == "goes on" else 1), case
        for golden, found in ((step(), case["bare"]), (step(place, case["position"]), case["faulty"])):
            for name, expected in golden.items():
                np.testing.assert_allclose(found[name], expected, rtol=1e-5, err_msg=f"{place}: {name}")
        assert case["faulty"] != case["bare"], case
    assert seen == {*places.values(), "index"} - ({"goes on"} if how == "xla" else set())


def test_what_a_step_does_first_with_each_variable_is_what_flipping_each_bit_says(tmp_path: Path) -> None:
    found = written_by("in_liveness", tmp_path / "liveness.json")
    assert found["said"] == found["brute"]
    kinds = [sum(counts[kind] > 0 for counts in found["brute"].values()) for kind in range(3)]
    assert kinds == [6, 5, 1]
