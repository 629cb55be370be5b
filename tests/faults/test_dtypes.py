"""A fault changes the bits that it is said to in tensors of other dtypes than float32, too; what is computed of them
NumPy says.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.e2e.runs import said_by

pytestmark = pytest.mark.slow
"""The fast lane has others of their kind."""

pytest.importorskip("tensorflow")

DTYPES = {
    "float64": np.float64,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "int64": np.int64,
    "int32": np.int32,
    "int8": np.int8,
    "uint8": np.uint8,
    "bool": np.bool_,
}
COUNTS = {"int8": 4, "uint8": 4, "bool": 2}
"""How many models fit, where not all do: sums have no weight, and a bool has one bit."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    file = tmp_path_factory.mktemp("in_dtypes") / "results.npz"
    said_by("faults.in_dtypes", file)
    return dict(np.load(file))


@pytest.mark.parametrize("how", ["graph", "xla", "eager"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_of_each_dtype_become_what_the_plan_says(dtype: str, how: str, results: dict[str, np.ndarray]) -> None:
    cases = {key.rpartition("/")[0] for key in results if key.startswith(f"{dtype} {how} ")}
    assert len(cases) == COUNTS.get(dtype, 6)
    for case in cases:
        of = {key.rpartition("/")[2]: value for key, value in results.items() if key.startswith(f"{case}/")}
        target = of["target"].copy()
        bits = target.reshape(-1)
        before = bits[of["positions"]]
        after = (bits[of["sources"]] & of["keep"]) ^ of["flip"]
        bits[of["positions"]] = after

        assert np.array_equal(of["golden"], before), case
        assert np.array_equal(of["injected"], after), case
        assert np.array_equal(of["after"], of["unarmed"]), case
        if of["operand"] == "output":
            assert np.array_equal(of["faulty"], target), case
            continue
        x, w = results[f"{dtype}/x"], results[f"{dtype}/w"]
        x, w = (target, w) if of["operand"] == "input" else (x, target)
        kind = DTYPES[dtype]
        wide = np.int64 if dtype in ("int32", "int64") else np.float64
        with np.errstate(all="ignore"):
            expected = (x.view(kind).astype(wide) @ w.view(kind).astype(wide)).astype(kind)
        np.testing.assert_allclose(
            of["faulty"].view(kind).astype(np.float64),
            expected.astype(np.float64),
            rtol=1e-2 if kind is ml_dtypes.bfloat16 else 1e-3,
        )
