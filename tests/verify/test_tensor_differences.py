"""Where two checkpoints have a tensor with other bits, `compare` says of which one, and how far they are apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from detrain.store import Snapshot  # noqa: E402
from detrain.verify.state_diff import compare  # noqa: E402
from tests.adapters.torch_resume import World, as_a_process  # noqa: E402
from tests.store.test_compare import META  # noqa: E402


def snapshot(*, has_gradient: bool, flips: bool, of: str = "data") -> Snapshot:
    """A layer that a loop has trained, one bit of one weight (or of its gradient) of which may have flipped since."""
    with as_a_process():
        world = World()
        names: dict[str, Any] = {"layer": torch.nn.Linear(3, 2)}
        baseline = world.baseline(names)
        loss = names["layer"](torch.ones(3)).sum()
        loss.backward()
        with torch.no_grad():
            names["layer"].weight += 1.0
        if not has_gradient:
            names["layer"].weight.grad = None
        if flips:
            getattr(names["layer"].weight, of).numpy().view(np.int32)[1, 2] ^= 1 << 22
        encoded = world.encode(names, baseline)
    return Snapshot(META, {}, {}, encoded.graph, encoded.arrays)


@pytest.mark.parametrize("has_gradient", [True, False])
def test_a_flipped_bit_is_named_with_its_tensor(has_gradient: bool) -> None:
    """With a gradient beside it, it was named as a value, without a distance."""
    one, other = (snapshot(has_gradient=has_gradient, flips=flips) for flips in (False, True))

    assert compare(one, one) == []
    [difference] = compare(one, other)
    assert (difference.what, difference.name) == ("tensor", "layer._parameters['weight']")
    assert (difference.elements, difference.size, difference.ulp) == (1, 6, 1 << 22)


def test_a_flipped_bit_of_a_gradient_is_named_as_that() -> None:
    one, other = (snapshot(has_gradient=True, flips=flips, of="grad") for flips in (False, True))

    assert [difference.name for difference in compare(one, other)] == ["layer._parameters['weight'].grad"]


def moments(*changed: str, names_layer_first: bool) -> Snapshot:
    """A trained layer and its optimizer's state, with other bits in the moments of the parameters `changed`."""
    with as_a_process():
        world = World()
        layer = torch.nn.Linear(3, 2)
        optimizer = torch.optim.Adam(layer.parameters())
        held: dict[str, Any] = {"layer": layer, "optimizer": optimizer}
        names = held if names_layer_first else dict(reversed(held.items()))
        baseline = world.baseline(names)
        layer(torch.ones(3)).sum().backward()
        optimizer.step()
        for name in changed:
            optimizer.state[getattr(layer, name)]["exp_avg"].add_(1.0)
        encoded = world.encode(names, baseline)
    return Snapshot(META, {}, {}, encoded.graph, encoded.arrays)


@pytest.mark.parametrize("names_layer_first", [True, False])
def test_each_parameters_state_in_an_optimizer_is_told_apart(names_layer_first: bool) -> None:
    """Only that of the last parameter was told and counted, under a name that was the same for all."""
    plain, both = (moments(*changed, names_layer_first=names_layer_first) for changed in ((), ("weight", "bias")))

    found = compare(plain, both)

    assert [difference.size for difference in found] == [6, 2]
    assert len({difference.name for difference in found}) == 2
    if names_layer_first:
        assert found[0].name == "optimizer.state[layer._parameters['weight']]['exp_avg']"
