"""What FSDP2 keeps beside the shards: told, set again in a process that has come to the loop, and refused where it
cannot be. One process with a group of its own: what several ranks do, jobs try (tests/e2e/test_sharded_ranks.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402
from torch.utils.hooks import RemovableHandle  # noqa: E402

from detrain.adapters.torch.distributed.fully_sharded import STALE, FullySharded  # noqa: E402
from detrain.base.errors import Diverged  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def model() -> Any:
    torch.manual_seed(1)
    made = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    fully_shard(made[0])
    return fully_shard(made)


def validate(made: Any) -> Any:
    with torch.no_grad():
        return made(torch.ones(2, 3))


def entered() -> FullySharded:
    """A loop is entered."""
    made = FullySharded()
    made.begin_phase()
    return made


def through_bytes(state: Any) -> Any:
    return json.loads(json.dumps(state))


def test_names_lead_to_shards_while_the_state_is_read_and_no_longer() -> None:
    made, known = model(), entered()
    validate(made)
    whole = made[1].weight
    assert not isinstance(whole, DTensor)  # the root's: they stay whole behind a forward without a backward

    with known.at_rest():
        shard = made[1].weight
        assert isinstance(shard, DTensor)
        assert list(made[1]._parameters) == ["weight", "bias"]

    assert made[1].weight is whole
    assert torch.equal(shard.full_tensor(), whole)


def test_a_new_process_has_weights_in_the_form_that_they_had() -> None:
    made, known = model(), entered()
    validate(made)
    made.set_requires_gradient_sync(False)
    state, output = through_bytes(known.state()), validate(made)
    del made

    again, here = model(), entered()
    here.restore(state)
    with torch.no_grad():
        for parameter in again.parameters():
            assert isinstance(parameter, DTensor)
            parameter.mul_(3)
    here.build_made()

    assert through_bytes(here.state()) == state
    with torch.no_grad():
        inner = torch.nn.functional.linear(torch.ones(2, 3), again[0].weight.full_tensor(), again[0].bias.full_tensor())
        by_hand = torch.nn.functional.linear(inner, again[1].weight, again[1].bias)
    assert torch.equal(validate(again), by_hand)
    assert not torch.equal(by_hand, output)


def test_gradients_that_are_not_reduced_belong_to_their_weight() -> None:
    made, known = model(), entered()
    made.set_requires_gradient_sync(False)
    made(torch.ones(2, 3)).sum().backward()
    state = through_bytes(known.state())
    with known.at_rest():
        held = [known.unreduced(parameter) for parameter in made.parameters()]
        assert [each.grad for each in made.parameters()] == [None] * 4
    assert all(each is not None and each[0] is not None for each in held)
    del made

    again, here = model(), entered()
    here.restore(state)
    for parameter, each in zip(again.parameters(), held, strict=True):
        assert here.set_unreduced(parameter, each)
    here.build_made()
    again.set_requires_gradient_sync(True)
    again(torch.ones(2, 3)).sum().backward()

    twice = model()
    for _ in range(2):
        twice(torch.ones(2, 3)).sum().backward()
    for one, other in zip(again.parameters(), twice.parameters(), strict=True):
        assert torch.equal(one.grad.full_tensor(), other.grad.full_tensor())


def test_whole_weights_whose_shards_have_moved_are_named() -> None:
    made, known = model(), entered()
    validate(made)
    assert known.uncaptured() == []

    with known.at_rest(), torch.no_grad():
        made[1].weight.add_(1)

    assert known.uncaptured() == [STALE]


def test_hooks_have_the_numbers_of_the_order_of_weights() -> None:
    found = []
    keep = []
    for turn in range(4):  # the order of a set of modules is that of where they lie
        keep.append([torch.nn.Linear(2, 2) for _ in range(5 * turn)])
        before, RemovableHandle.next_id = RemovableHandle.next_id, 0
        made = torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(6)])
        fully_shard(made)
        entered()
        found.append([(list(each._state_dict_pre_hooks), list(each._load_state_dict_pre_hooks)) for each in made])
        RemovableHandle.next_id = max(before, RemovableHandle.next_id)

    assert found == [found[0]] * 4


def test_other_modules_or_weights_made_anew_end_the_resume() -> None:
    made, known = model(), entered()
    state = through_bytes(known.state())
    assert known.uncaptured() == []
    other = fully_shard(torch.nn.Linear(2, 2))
    assert known.uncaptured() != []
    with pytest.raises(Diverged, match="for 3 modules, where the first run had 2"):
        entered().restore(state)
    del made, other

    again, here = model(), entered()
    here.restore(through_bytes(here.state()))
    again[1]._parameters["weight"] = torch.nn.Parameter(again[1].weight.detach().clone())
    with pytest.raises(Diverged, match="cannot be put back in place"):
        here.build_made()
