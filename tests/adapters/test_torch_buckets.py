"""The buckets of DistributedDataParallel, in a job of one process: in threads of this one there can be no other."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from detrain.adapters.torch.distributed.buckets import Buckets  # noqa: E402


@pytest.fixture
def buckets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Buckets]:
    for name in ("_ddp_init_helper", "_pre_forward"):
        monkeypatch.setattr(DistributedDataParallel, name, getattr(DistributedDataParallel, name))
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield Buckets()
    torch.distributed.destroy_process_group()


def model(**options: bool) -> Any:
    torch.manual_seed(0)
    return DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)), **options)


def train(net: Any) -> None:
    net(torch.ones(2, 4)).sum().backward()


def test_gradients_that_have_come_in_this_process_do_not_come_once_more(buckets: Buckets) -> None:
    """Else DDP makes its buckets as they are repeated, and says so in a name that the state then overwrites."""
    net = model()
    train(net)
    state = buckets.state()
    assert not net._has_rebuilt_buckets

    buckets.restore(state)

    net._has_rebuilt_buckets = False
    train(net)
    assert net._has_rebuilt_buckets


def test_in_a_process_that_begins_gradients_come_as_they_came(buckets: Buckets) -> None:
    first = model()
    train(first)
    state = buckets.state()
    other = model()
    gradient = other.module[0].weight.grad

    buckets.restore([(0, []), *state])

    assert buckets.state() == [*state, *state]
    assert other.module[0].weight.grad is gradient
    train(other)
    assert other._has_rebuilt_buckets


@pytest.mark.parametrize("batches", [0, 1, 2])
def test_the_parameters_of_a_model_that_is_gone_go(batches: int, buckets: Buckets) -> None:
    net = model()
    for _ in range(batches):
        train(net)
    gone = weakref.ref(net.module[0].weight)
    del net
    gc.collect()
    assert gone() is None
    assert buckets.addresses() == {}


@pytest.mark.parametrize("options", [{}, {"static_graph": True}, {"find_unused_parameters": True}])
@pytest.mark.parametrize("cut", range(4))
def test_a_run_that_resumes_at_any_batch_says_later_what_one_that_was_not_interrupted_says(
    options: dict[str, bool], cut: int, buckets: Buckets
) -> None:
    """With a static graph buckets are made by the second iteration: a resume behind the first must note that one."""
    whole = model(**options)
    states = []
    for _ in range(4):
        states.append(buckets.state()[0])
        train(whole)
    states.append(buckets.state()[0])
    part = model(**options)
    buckets.restore([(0, []), states[cut]])

    for expected in states[cut:-1]:
        assert buckets.state()[1] == expected
        train(part)

    assert buckets.state()[1] == states[-1]
    assert part._has_rebuilt_buckets == whole._has_rebuilt_buckets
