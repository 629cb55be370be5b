"""Faults in a step do what NumPy says: of a dense layer and of convolutions, forward and backward, compiled, by XLA,
and eager.
"""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest

from tests.e2e.runs import said_by

pytest.importorskip("tensorflow")

STAGES = ("forward", "grad_in", "grad_wt")
MODELS = (
    *("BIT:31", "SET:3", "STUCK0:31", "STUCK1:23", "RD", "RD_CORRECT", "ZERO", "N16_RD_CORRECT", "RD_CORRECT_GLB", "RBFLIP"),
    *("WT", "INPUT", "N64_INPUT", "N64_WT", "INPUT_16", "WT_16", "N64_INPUT_16", "N64_WT_16"),
)

OPS = {"forward": ("y", "x", "w"), "grad_in": ("x", "c", "w"), "grad_wt": ("w", "x", "c")}
"""Of each stage: its output among the step's results, and its input and weight among what the step was given."""


def _cases() -> list[tuple[str, str, int, str, str, str, int, str]]:
    found = []
    for number, ((op, stride), stage, model) in enumerate(product((("dense", 1), ("conv", 1), ("conv", 2)), STAGES, MODELS)):
        name = f"{op}{stride} {stage} {model}"
        type_of = {"dense": "MatMul*", "conv": "Conv2D*"}[op]
        found.append((name, op, stride, f"step*{type_of}", stage, model, number, "graph" if number % 5 else "xla"))
        if (op, stride) != ("conv", 1):
            found.append((f"{name} eager", op, stride, f"eager*{type_of}", stage, model, number, "eager"))
    return found


CASES = {case[0]: case for case in _cases()}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, np.ndarray]:
    mine = (item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path)
    names = {item.callspec.params["name"] for item in mine if hasattr(item, "callspec") and "name" in item.callspec.params}
    cases = [case for name, case in CASES.items() if name in names]
    file = tmp_path_factory.mktemp("in_step") / "results.npz"
    said_by("faults.in_step", file, json.dumps(cases))
    return dict(np.load(file))


def dense(x: np.ndarray, w: np.ndarray, c: np.ndarray, stage: str) -> np.ndarray:
    return {"forward": lambda: x @ w, "grad_in": lambda: c @ w.T, "grad_wt": lambda: x.T @ c}[stage]()


def convolution(x: np.ndarray, w: np.ndarray, c: np.ndarray, stage: str, stride: int) -> np.ndarray:
    """Return Y, dX or dW of a convolution with padding SAME, term by term."""
    rows, window = x.shape[1], w.shape[0]
    places = -(-rows // stride)
    pad = max((places - 1) * stride + window - rows, 0) // 2
    y, dx, dw = np.zeros((len(x), places, places, w.shape[3])), np.zeros(x.shape), np.zeros(w.shape)
    for place_y, place_x, tap_y, tap_x in product(range(places), range(places), range(window), range(window)):
        row, column = place_y * stride + tap_y - pad, place_x * stride + tap_x - pad
        if not (0 <= row < rows and 0 <= column < rows):
            continue
        if stage == "forward":
            y[:, place_y, place_x] += x[:, row, column] @ w[tap_y, tap_x]
        elif stage == "grad_in":
            dx[:, row, column] += c[:, place_y, place_x] @ w[tap_y, tap_x].T
        else:
            dw[tap_y, tap_x] += x[:, row, column].T @ c[:, place_y, place_x]
    return {"forward": y, "grad_in": dx, "grad_wt": dw}[stage]


def _same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


@pytest.mark.parametrize("name", CASES)
def test_a_fault_in_a_step_does_what_numpy_says(name: str, results: dict[str, np.ndarray]) -> None:
    _, op, stride, _, stage, model, _, _ = CASES[name]
    out, first, second = OPS[stage]
    of = {key.removeprefix(f"{name}/"): value for key, value in results.items() if key.startswith(f"{name}/")}
    given = {which: of[f"given/{which}"] for which in "xwc"}

    def compute(values: dict[str, np.ndarray]) -> np.ndarray:
        wide = {which: value.astype(np.float64) for which, value in values.items()}
        with np.errstate(over="ignore", invalid="ignore"):
            found = dense(**wide, stage=stage) if op == "dense" else convolution(**wide, stage=stage, stride=stride)
            return found.astype(np.float32)

    golden = compute(given)
    operand = "output" if model in MODELS[:10] else "input" if "INPUT" in model else "weight"
    target = {"output": golden, "input": given[first], "weight": given[second]}[operand].copy()
    bits = target.view(np.uint32).reshape(-1)
    before = bits[of["positions"]]
    after = (bits[of["sources"]] & of["keep"].view(np.uint32)) ^ of["flip"].view(np.uint32)
    bits[of["positions"]] = after

    # Unarmed, and when it is over, the step is as without a fault; other results are not touched by it.
    for which in "yxw":
        assert _same_bits(of[f"unarmed/{which}"], of[f"after/{which}"])
        if which != out:
            assert _same_bits(of[f"faulty/{which}"], of[f"unarmed/{which}"])
    assert np.array_equal(of[f"unarmed/{out}"], golden)
    assert of["count"] == 1
    assert np.array_equal(of["golden"], before)
    assert np.array_equal(of["injected"], after)
    faulty = of[f"faulty/{out}"]
    if operand == "output":
        assert _same_bits(faulty, target)
        return
    expected = compute({**given, first if operand == "input" else second: target})
    if len(of["limited"]):
        assert 0 < len(of["limited"]) <= 16
        limited = golden.copy().reshape(-1)
        limited[of["limited"]] = expected.reshape(-1)[of["limited"]]
        expected = limited.reshape(golden.shape)
    np.testing.assert_allclose(faulty, expected, rtol=1e-5, atol=1e-5)
    untouched = expected == golden
    assert np.array_equal(faulty[untouched], golden[untouched]) or model in ("WT", "INPUT", "INPUT_16", "WT_16")
