"""Of ops with several outputs each is a site: what is put into one is seen by all who take it, the gradient too, by
none else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.e2e.runs import said_by

pytestmark = pytest.mark.slow
"""The fast lane has others of their kind."""

pytest.importorskip("tensorflow")

X = np.random.default_rng(0).permutation(24).astype(np.float32).reshape(4, 6)
Results = dict[str, Any]


@pytest.fixture(scope="module", params=["compiled", "eager", "xla"])
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    file = tmp_path_factory.mktemp("in_outputs") / "results.npz"
    said_by("faults.in_outputs", file, request.param)
    return {**np.load(file), "how": request.param}


def given(results: Results, case: str, label: str) -> list[np.ndarray]:
    """Return what a step has given."""
    prefix = f"{case}/{label}/"
    return [results[key] for key in sorted(results) if key.startswith(prefix)]


def hit(results: Results, case: str, tensor: np.ndarray) -> np.ndarray:
    """Return a tensor with the case's fault in it."""
    faulty = tensor.copy()
    faulty.reshape(-1)[results[f"{case}/position"]] = results[f"{case}/injected"]
    assert not np.array_equal(faulty, tensor)
    return faulty


CASES = ("split", "second half", "highest", "mean", "kept for the gradient", "first output")


@pytest.mark.parametrize("case", CASES)
def test_it_fires_once_and_nothing_of_it_stays(results: Results, case: str) -> None:
    before, after = given(results, case, "unarmed"), given(results, case, "after")
    assert results[f"{case}/count"] == 1
    assert before
    assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_the_digest_of_an_op_is_of_all_its_outputs(results: Results, case: str) -> None:
    unarmed, faulty, after = (results[f"{case}/digest/{label}"] for label in ("unarmed", "faulty", "after"))
    assert unarmed == after
    assert (unarmed != faulty) == (results["how"] != "eager")  # of eager ops none are taken


@pytest.mark.parametrize(("case", "number"), [("split", 1), ("first output", 0)])
def test_a_half_that_is_hit_is_what_its_gradient_sees(results: Results, case: str, number: int) -> None:
    halves = np.split(X, 2, axis=1)
    halves[number] = hit(results, case, halves[number])

    *found, grads = given(results, case, "faulty")

    assert all(np.array_equal(one, other) for one, other in zip(found, halves, strict=True))
    assert np.array_equal(grads, [half.sum(axis=0) for half in halves])


def test_an_output_may_be_dead_where_another_is_alive(results: Results) -> None:
    alive = list(results["second half/alive"])
    assert "forward/Split:1" in alive
    assert ("forward/Split" in alive) == (results["how"] == "eager")  # of eager ops it is not known


def test_shapes_that_tracing_leaves_open_are_seen_in_the_run(results: Results) -> None:
    assert results["shape"].tolist() == [4, 3]


def test_places_that_are_hit_are_where_the_gradient_goes(results: Results) -> None:
    order = np.argsort(-X, axis=1)[:, :2].astype(np.int32)
    places = hit(results, "highest", order)
    expected = np.zeros_like(X)
    np.add.at(expected, (np.arange(4)[:, None], places), 1.0)

    values, found, grad = given(results, "highest", "faulty")

    assert np.array_equal(values, np.take_along_axis(X, order, 1))
    assert np.array_equal(found, places)
    assert np.array_equal(grad, expected)


def test_a_mean_that_is_hit_is_seen_by_who_takes_it_alone(results: Results) -> None:
    y, mean, variance, grad = given(results, "mean", "unarmed")
    faulty = given(results, "mean", "faulty")
    assert np.array_equal(faulty[1], hit(results, "mean", mean))
    assert all(np.array_equal(one, other) for one, other in zip((faulty[0], *faulty[2:]), (y, variance, grad), strict=True))


def test_what_is_kept_for_the_gradient_is_seen_by_the_gradient_alone(results: Results) -> None:
    """The gradient of the channel that is hit is that of a batch with this mean: dx of the formula of batch
    normalisation.
    """
    case = "kept for the gradient"
    *before, grad = given(results, case, "unarmed")
    *after, faulty = given(results, case, "faulty")
    assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))
    assert np.array_equal(faulty[..., 1:], grad[..., 1:])
    x = X.reshape(2, 2, 2, 3)[..., 0].astype(float)
    dy, mean, rate = 2 * before[0][..., 0].astype(float), 1024.0, (x.var() + 0.001) ** -0.5
    centred = x - mean
    expected = rate * (dy - dy.mean() - centred * rate**2 * (dy * centred).mean())
    np.testing.assert_allclose(faulty[..., 0], expected, rtol=1e-4)
