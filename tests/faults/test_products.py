"""Faults in products of matrices:

X, W and dY are what they are called, however TensorFlow arranges product and gradients.
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
OPERANDS = {
    "forward": {"input": "x", "weight": "w"},
    "grad_in": {"input": "c", "weight": "w"},
    "grad_wt": {"input": "x", "weight": "c"},
}
"""The operands of each computation: `c` is dY."""
RESULTS = {"forward": "y", "grad_in": "dx", "grad_wt": "dw"}
EINSUM = {"forward": "abc,hcd->abhd", "grad_in": "abhd,hcd->abc", "grad_wt": "abc,abhd->hcd"}


def _product(product: str, place: str, one: Array, other: Array) -> Array:
    """Return Y, dX or dW in the layout of the program, from the operands in theirs."""
    if product == "sum":
        return np.einsum(EINSUM[place], one, other)
    if product == "weight first":
        return other @ one if place == "forward" else other.T @ one if place == "grad_in" else other @ one.T
    turns_x, turns_w = product in ("input transposed", "both transposed"), product not in ("plain", "input transposed")

    def turned(value: Array, is_turned: bool) -> Array:
        return np.swapaxes(value, -1, -2) if is_turned else value

    if place == "forward":
        return turned(one, turns_x) @ turned(other, turns_w)
    if place == "grad_in":
        return turned(one @ np.swapaxes(turned(other, turns_w), -1, -2), turns_x)
    return turned(np.swapaxes(turned(one, turns_x), -1, -2) @ other, turns_w)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    file = tmp_path_factory.mktemp("in_products") / "results.npz"
    said_by("faults.in_products", file)
    return json.loads(file.with_suffix(".json").read_text()), dict(np.load(file))


def _expected(case: dict[str, Any], given: dict[str, Array]) -> Array:
    """Return the result with the fault in it, limits left aside."""
    place = case["role"] or "forward"
    operands = {
        name: given["x" if case["product"] == "itself" and which == "w" else which].copy()
        for name, which in OPERANDS[place].items()
    }
    if case["operand"] in operands:
        operands[case["operand"]].reshape(-1)[case["position"]] = case["injected"]
    found = np.ascontiguousarray(_product(case["product"], place, operands["input"], operands["weight"]))
    if case["operand"] == "output":
        found.reshape(-1)[case["position"]] = case["injected"]
    return found


PRODUCTS = ("plain", "weight transposed", "input transposed", "both transposed", "many", "sum", "itself", "weight first")


@pytest.mark.parametrize("product", PRODUCTS)
def test_operands_are_what_they_are_called_and_a_fault_in_one_is_in_no_other(
    product: str, done: tuple[list[dict[str, Any]], dict[str, np.ndarray]]
) -> None:
    cases, results = done
    seen = set()
    for number, case in enumerate(cases):
        if case["product"] != product:
            continue
        place = case["role"] or "forward"
        given = {name: results[f"{product}/{case['how']}/{name}"].astype(np.float64) for name in "xwc"}
        results_of = {
            label: {name: results[f"{number}/{label}/{name}"] for name in ("y", "dx", "dw")} for label in ("unarmed", "faulty")
        }
        result = RESULTS[place] if product != "itself" or place == "forward" else "dx"  # that of both, added
        golden, faulty = (results_of[label][result].astype(np.float64) for label in ("unarmed", "faulty"))
        expected = _expected(case, given)
        if product == "itself" and place != "forward":  # the sum of both: the other part has no fault
            expected = expected + golden - _expected({**case, "operand": "none"}, given)

        assert case["fired"] == 1, case
        for name in {"y", "dx", "dw"} - {result}:
            assert results_of["faulty"][name].tobytes() == results_of["unarmed"][name].tobytes(), case
        if case["limited"]:
            read = _expected(case, given) != _expected({**case, "operand": "none"}, given)
            assert 0 < len(case["limited"]) <= 16
            assert read.reshape(-1)[case["limited"]].all(), case
            limited = golden.copy()
            limited.reshape(-1)[case["limited"]] = expected.reshape(-1)[case["limited"]]
            expected = limited
        with np.errstate(over="ignore"):
            np.testing.assert_allclose(faulty, expected.astype(np.float32), rtol=1e-4, atol=1e-4, err_msg=str(case))
        if case["model"].startswith("SET"):
            assert np.abs(expected - golden).max() > 1e-3, case
        seen.add((case["how"], place, case["model"]))

    assert len(seen) == (1 if product == "weight first" else 2) * 3 * (3 if product == "sum" else 5)
