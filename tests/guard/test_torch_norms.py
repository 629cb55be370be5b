"""What the guard looks at in PyTorch: against NumPy, and against bounds that theory gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from detrain.adapters.torch.guard.norms import (  # noqa: E402
    Holders,
    TorchNorms,
    find_watched,
)

ADAMS: dict[str, Any] = {
    "Adam": lambda p: torch.optim.Adam(p, 1e-3),
    "Adam, amsgrad, decay": lambda p: torch.optim.Adam(p, 1e-3, amsgrad=True, weight_decay=0.1),
    "Adam, fused": lambda p: torch.optim.Adam(p, 1e-3, fused=True),
    "AdamW, foreach": lambda p: torch.optim.AdamW(p, 1e-3, foreach=True),
    "AdamW, betas": lambda p: torch.optim.AdamW([{"params": p, "betas": (0.5, 0.9)}], 1e-3, betas=(0.95, 0.99)),
    "NAdam": lambda p: torch.optim.NAdam(p, 1e-3),
    "RAdam": lambda p: torch.optim.RAdam(p, 1e-3, decoupled_weight_decay=True),
}


@pytest.mark.parametrize("name", ADAMS)
@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(st.integers(-18, 15), st.integers(0, 99)), min_size=1, max_size=30))
def test_the_derived_bound_holds_whatever_the_gradients(name: str, steps: list[tuple[int, int]]) -> None:
    """Magnitudes from 1e-18 to 1e15, signs and zeros drawn anew in each step."""
    weight = torch.nn.Parameter(torch.zeros(3, 5))
    optimizer = ADAMS[name]([weight])
    for power, seed in steps:
        draw = np.random.default_rng(seed)
        gradient = draw.normal(size=(3, 5)) * 10.0**power * draw.integers(0, 2, (3, 5))
        weight.grad = torch.tensor(gradient, dtype=torch.float32)
        optimizer.step()
        weight.data.zero_()  # decay must not take over
    holders = Holders()
    holders.find()
    state = optimizer.state[weight]
    watched = next(each for each, tensor in zip(*find_watched(holders), strict=True) if tensor is state["exp_avg"])
    first, second = (np.linalg.norm(state[name].double().numpy()) for name in ("exp_avg", "exp_avg_sq"))
    assert watched.partner
    assert first <= watched.factor * np.sqrt(second + watched.unseen)
    assert watched.factor < 100, "a bound that says nothing"


@pytest.mark.parametrize("scheduler", [torch.optim.lr_scheduler.OneCycleLR, torch.optim.lr_scheduler.LinearLR])
def test_a_scheduler_that_moves_the_decays_leaves_no_derived_bound(scheduler: Any) -> None:
    weight = torch.nn.Parameter(torch.zeros(7, 3))  # a shape that no optimizer of another test has
    optimizer = torch.optim.Adam([weight], 1e-3)
    moves = scheduler is torch.optim.lr_scheduler.OneCycleLR
    schedule = scheduler(optimizer, 1e-2, total_steps=60) if moves else scheduler(optimizer)
    norms, has_bound = TorchNorms(), []
    for step in range(40):
        weight.grad = torch.ones(7, 3) * (step > 12)  # a part of the loss that counts from then on
        optimizer.step()
        schedule.step()
        watched, found = norms.norms()
        of = {each.key: (each, norm) for each, norm in zip(watched, found, strict=True)}
        key = next(key for key in of if "exp_avg of" in key and norms.value(key).shape == (7, 3))
        first, norm = of[key]
        has_bound.append(bool(first.partner))
        if first.partner:
            assert norm <= first.factor * np.sqrt(of[first.partner][1] + first.unseen)
    assert has_bound == [True] + [not moves] * 39


def test_norms_are_numpys_for_each_dtype_and_layout() -> None:
    model = torch.nn.Module()
    values = {
        "halves": torch.randn(7).to(torch.bfloat16),
        "doubles": torch.randn(3, 4, dtype=torch.float64) * 1e30,
        "turned": torch.randn(4, 6).t(),
        "empty": torch.zeros(0, 3),
    }
    for name, value in values.items():
        model.register_parameter(name, torch.nn.Parameter(value))
    model.register_buffer("running_var", torch.rand(5))
    model.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    model.register_buffer("count", torch.tensor(3))

    norms = TorchNorms()
    watched, found = norms.norms()

    told = {each.key: norm for each, norm in zip(watched, found, strict=True) if each.key.startswith("model.")}
    expected = {f"model.{name}": value for name, value in (*values.items(), ("running_var", model.running_var))}
    assert told.keys() == expected.keys()  # an infinite mask is so by intent; counts are no numbers
    for key, value in expected.items():
        np.testing.assert_allclose(told[key], np.linalg.norm(value.double().numpy()), rtol=1e-3)
    assert {each.key: each.power for each in watched}["model.running_var"] == 2


def test_what_is_put_in_the_place_of_others_is_looked_at() -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], 0.1, momentum=0.9)
    weight.grad = torch.ones(4)
    optimizer.step()
    norms = TorchNorms()
    norms.norms()
    state = optimizer.state_dict()
    state["state"][0]["momentum_buffer"] = torch.full((4,), torch.nan)
    optimizer.load_state_dict(state)

    watched, found = norms.norms()

    assert np.isnan([norm for each, norm in zip(watched, found, strict=True) if "momentum_buffer" in each.key]).any()


def test_gradients_are_looked_at_where_an_optimizer_is_given_them() -> None:
    norms = TorchNorms()
    norms.watch_gradients()
    weights = [torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(2))]
    optimizer = torch.optim.SGD(weights, 0.1)
    weights[0].grad, weights[1].grad = torch.tensor([3.0, 0.0, 0.0]), torch.tensor([0.0, 4.0])
    optimizer.step()

    watched, found = norms.norms()

    assert (watched[-1].key, found[-1]) == ("gradients for SGD", 5.0)
    assert norms.norms()[0] is watched


def test_gradients_that_are_made_of_others_are_left_out() -> None:
    """As those of a DTensor, which have no norm of their own."""
    two_tensor = pytest.importorskip("torch.testing._internal.two_tensor").TwoTensor
    norms = TorchNorms()
    norms.watch_gradients()
    plain, made = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(two_tensor(torch.zeros(3), torch.zeros(3)))
    optimizer = torch.optim.RMSprop([plain, made], 0.1)
    plain.grad, made.grad = torch.tensor([0.0, 4.0]), two_tensor(torch.ones(3), torch.ones(3))
    optimizer.step()

    watched, found = norms.norms()

    assert (watched[-1].key, found[-1]) == ("gradients for RMSprop", 4.0)
