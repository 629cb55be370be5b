"""The bound on the first moment of optax's Adam, by the gradients under which it is reached."""

from __future__ import annotations

import math
import types

import numpy as np
import pytest

pytest.importorskip("jax")
optax = pytest.importorskip("optax")

from detrain.adapters.jax.guard import AdamDecays  # noqa: E402


def reached(first: float, second: float) -> float:
    """Return |mu| / sqrt(nu) for the gradients that make it as large as it can be, with NumPy."""
    mu = nu = 0.0
    for gradient in (first / second) ** np.arange(4000.0)[::-1]:
        mu = first * mu + (1 - first) * gradient
        nu = second * nu + (1 - second) * gradient**2
    return float(mu / math.sqrt(nu))


def decays(*made: dict[str, object]) -> AdamDecays:
    found = AdamDecays()
    library = types.SimpleNamespace(
        scale_by_adam=optax.scale_by_adam, _src=types.SimpleNamespace(transform=types.SimpleNamespace())
    )
    found.watch(library)  # type: ignore[arg-type]
    for options in made:
        library._src.transform.scale_by_adam(**options)
    return found


@pytest.mark.parametrize(("first", "second"), [(0.9, 0.999), (0.8, 0.9), (0.0, 0.5), (0.95, 0.99)])
def test_the_bound_is_what_gradients_can_reach(first: float, second: float) -> None:
    factor = decays({"b1": first, "b2": second}).factor()
    assert factor is not None
    np.testing.assert_allclose(factor, reached(first, second), rtol=1e-9)


def test_of_several_optimizers_it_is_the_widest() -> None:
    assert decays({"b1": 0.8, "b2": 0.9}, {"b1": 0.9, "b2": 0.999}).factor() == decays({}).factor()


def test_where_a_decay_is_no_number_or_too_small_there_is_none() -> None:
    assert decays().factor() is None
    assert decays({"b1": 0.9, "b2": 0.8}).factor() is None
    assert decays({}, {"b1": np.asarray(0.9)}).factor() is None
