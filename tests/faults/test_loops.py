"""Faults in loops, branches and functions of a step, and in their gradients: each does what a recurrent cell in NumPy
says.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.e2e.runs import said_by

pytestmark = pytest.mark.slow
"""The fast lane has others of their kind."""

pytest.importorskip("tensorflow")

Array = NDArray[np.float64]
HOWS = ("loop", "xla", "function", "branch")
PLACES = {
    ("MatMul", "forward", (2, 3)): "z of x",
    ("MatMul", "forward", (2, 4)): "z of h",
    ("Tanh", "forward", ()): "h",
    ("TanhGrad", "backward", ()): "dz",
    ("MatMul", "backward", (2, 3)): "dx",
    ("MatMul", "backward", (2, 4)): "dh",
    ("MatMul", "backward", (3, 4)): "dw",
    ("MatMul", "backward", (4, 4)): "du",
}
"""What a site computes, by its op and stage, and its input's shape (forward) or its output's."""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, list[dict[str, Any]]], dict[str, np.ndarray]]:
    file = tmp_path_factory.mktemp("in_loops") / "results.npz"
    said_by("faults.in_loops", file)
    return json.loads(file.with_suffix(".json").read_text()), dict(np.load(file))


def _place(case: dict[str, Any]) -> str:
    shapes = {name: tuple(shape) for name, shape in case["shapes"].items()}
    told_by = shapes["input" if case["stage"] == "forward" else "output"] if case["op"] == "MatMul" else ()
    return PLACES[case["op"], case["stage"], told_by]


class Cell:
    """The step in NumPy, with a 2 at one element of one operand of one of its computations in one of its turns."""

    def __init__(self, fault: dict[str, Any] | None, steps: int) -> None:
        self.fault, self.steps = fault, steps
        self.golden = np.nan

    def _struck(self, place: str, operand: str, turn: int, value: Array) -> Array:
        fault = self.fault
        if fault is None or (place, operand, turn) != (_place(fault), fault["operand"], fault["occurrence"]):
            return value
        value = value.copy()
        self.golden = value.reshape(-1)[fault["position"]]
        value.reshape(-1)[fault["position"]] = 2
        return value

    def run(self, x: Array, h: Array, w: Array, u: Array, c: Array) -> dict[str, Array]:
        hs = [h]
        for t in range(self.steps):
            z = self._computed("z of x", t, x[t], w, np.matmul) + self._computed("z of h", t, hs[-1], u, np.matmul)
            hs.append(self._struck("h", "output", t, np.tanh(z)))
        dx, dw, du, dh = np.zeros_like(x), np.zeros_like(w), np.zeros_like(u), c
        for turn, t in enumerate(reversed(range(self.steps))):
            dz = self._struck("dz", "output", turn, dh * (1 - hs[t + 1] ** 2))
            dx[t] = self._computed("dx", turn, dz, w, lambda dz, w: dz @ w.T)
            dw += self._computed("dw", turn, x[t], dz, lambda x, dz: x.T @ dz)
            du += self._computed("du", turn, hs[t], dz, lambda h, dz: h.T @ dz)
            dh = self._computed("dh", turn, dz, u, lambda dz, u: dz @ u.T)
        return {"h": hs[-1], "dx": dx, "dw": dw, "du": du}

    def _computed(self, place: str, turn: int, one: Array, other: Array, product: Any) -> Array:
        one, other = self._struck(place, "input", turn, one), self._struck(place, "weight", turn, other)
        return self._struck(place, "output", turn, product(one, other))


@pytest.mark.parametrize("how", HOWS)
def test_a_fault_in_a_part_of_a_step_does_what_numpy_says(
    how: str, done: tuple[dict[str, list[dict[str, Any]]], dict[str, np.ndarray]]
) -> None:
    cases, results = done[0]["cases"], done[1]
    given = {name: results[f"given/{name}"].astype(np.float64) for name in "xhwuc"}
    steps = 1 if how == "branch" else len(given["x"])
    golden = Cell(None, steps).run(**given)
    seen = set()
    for number, case in enumerate(cases):
        if case["how"] != how:
            continue
        cell = Cell(case, steps)
        expected = cell.run(**given)

        assert case["fired"] == 1, case
        assert case["executions"] == steps, case
        np.testing.assert_allclose(case["golden"], cell.golden, rtol=1e-4, atol=1e-5, err_msg=str(case))
        for name in expected:
            found = {label: results[f"{number}/{label}/{name}"] for label in ("bare", "unarmed", "faulty")}
            assert found["unarmed"].tobytes() == found["bare"].tobytes(), case
            for label, values in (("unarmed", golden), ("faulty", expected)):
                np.testing.assert_allclose(found[label], values[name], rtol=1e-4, atol=1e-5, err_msg=f"{case} {label} {name}")
        if case["operand"] == "output":
            assert any(np.abs(expected[name] - golden[name]).max() > 1e-3 for name in golden), case
        seen.add(_place(case))

    # The gradient behind the first step's h is of no use, as no one has asked for that of the h before it.
    assert seen == set(PLACES.values()) - ({"dh"} if how == "branch" else set())


IN_DATA = {
    "epoch:scan_body/forward/MatMul/MatMul": "product",
    "epoch:scan_body/backward/MatMul/MatMul": "gradient",
    "epoch:scan_body/forward/MatMul/MatMul#1": "second loop's product",
}


def test_a_loop_over_a_set_in_a_function_has_sites_and_the_set_none(
    done: tuple[dict[str, list[dict[str, Any]]], dict[str, np.ndarray]],
) -> None:
    cases, results = done[0]["data"], done[1]
    x, initial = 2 * results["given/x"].astype(np.float64), results["given/w"].astype(np.float64)

    def struck(value: Array, place: str, turn: int, case: dict[str, Any]) -> Array:
        value = value.copy()
        if turn == 1 and place == IN_DATA[case["site"]]:
            value.reshape(-1)[case["position"]] = 2
        return value

    assert [case["site"] for case in cases] == list(IN_DATA)
    for number, case in enumerate(cases):
        w = initial
        for turn, row in enumerate(x):
            product = struck(row @ w, "product", turn, case)
            w = w - 0.01 * struck(row.T @ (2 * product), "gradient", turn, case)
        total = sum(struck(row @ w, "second loop's product", turn, case) for turn, row in enumerate(x))
        assert case["fired"] == 1
        np.testing.assert_allclose(results[f"data/{number}/w"], w, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(results[f"data/{number}/total"], total, rtol=1e-4, atol=1e-5)
