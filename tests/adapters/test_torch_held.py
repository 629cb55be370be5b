"""Memory that is held while training goes on: whoever writes, and however, what is held stays."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from detrain.adapters.torch.devices import TorchDevices  # noqa: E402
from detrain.adapters.torch.tensors import TorchTensors  # noqa: E402
from detrain.base.array_memory import writing  # noqa: E402

SIZE = 50_000
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def tensors() -> Iterator[TorchTensors]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield TorchTensors(TorchDevices())
    torch.set_num_threads(threads)


def numbers() -> Any:
    """Return a tensor that is the state of an optimizer."""
    optimizer = torch.optim.SGD([torch.zeros(2, requires_grad=True)], 0.1)
    tensor = optimizer.state["x"]["held"] = torch.arange(float(SIZE))
    optimizer.step()
    kept.append(optimizer)
    return tensor


kept: list[Any] = []
"""Optimizers: only what one has is copied on write."""


@pytest.fixture(autouse=True)
def _none_before() -> None:
    kept.clear()


def stored_to(array: Any) -> None:
    array[:7] = -1.0


def moved_to(tensor: Any) -> None:
    ctypes.memset(tensor.data_ptr(), 1, 64)


WRITES: dict[str, Callable[[Any], object]] = {
    "add": lambda t: t.add_(1),
    "operator": lambda t: t.__imul__(2),
    "item": lambda t: t.__setitem__(slice(3, 9), 0.5),
    "copy": lambda t: t.copy_(torch.ones(SIZE)),
    "fill": lambda t: t.fill_(1),
    "zero": lambda t: t.zero_(),
    "random": lambda t: t.normal_(),
    "view": lambda t: t.view(100, -1)[3].mul_(2),
    "detached": lambda t: t.detach().add_(1),
    "data": lambda t: t.data.sub_(1),
    "out": lambda t: torch.add(torch.ones(SIZE), 1, out=t),
    "sorted out": lambda t: torch.sort(torch.rand(SIZE), out=(t, torch.empty(SIZE, dtype=torch.long))),
    "index": lambda t: t.index_put_((torch.tensor([1, 2]),), torch.tensor(9.0), accumulate=True),
    "index_add": lambda t: t.index_add_(0, torch.tensor([1, 2]), torch.ones(2)),
    "scatter": lambda t: t.scatter_(0, torch.tensor([4]), 3.0),
    "masked": lambda t: t.masked_fill_(t > 5, 0.0),
    "foreach": lambda t: torch._foreach_add_([t], 1.0),
    "foreach copy": lambda t: torch._foreach_copy_([t], [torch.ones(SIZE)]),
    "lerp": lambda t: t.lerp_(torch.ones(SIZE), 0.5),
    "addcmul": lambda t: t.addcmul_(torch.ones(SIZE), torch.ones(SIZE)),
    "storage": lambda t: t.untyped_storage().fill_(1),
    "byte of a storage": lambda t: t.untyped_storage().__setitem__(2, 77),
    "copy of a storage": lambda t: t.untyped_storage().copy_(torch.ones(SIZE).untyped_storage()),
    "typed storage": lambda t: t.storage().__setitem__(1, 4.5),
    "array that was made then": lambda t: stored_to(t.numpy()),
    "dlpack then": lambda t: stored_to(np.from_dlpack(t)),
    "address then": moved_to,
    "resized": lambda t: t.resize_(5).fill_(1),
    "storage that grew": lambda t: (t.untyped_storage().resize_(9 * SIZE), t.fill_(1)),
    "storage that shrank and grew": lambda t: [t.untyped_storage().resize_(size) for size in (0, 4 * SIZE)] and t.fill_(1),
    "reinterpreted": lambda t: t.view(torch.int32).add_(1),
    "compiled": lambda t: torch.jit.script(_scripted)(t),  # noqa: PLW0108 - compiled when it is tried
}


def _scripted(t: torch.Tensor) -> torch.Tensor:
    return t.add_(2).mul_(3)


@pytest.mark.parametrize("name", WRITES)
def test_what_is_held_stays_whoever_writes(tensors: TorchTensors, name: str) -> None:
    tensor = numbers()
    held = tensors.read(tensor.untyped_storage(), holds=True)
    before = held.copy()

    WRITES[name](tensor)

    assert tensors.read(tensor.untyped_storage(), holds=False).tobytes() != before.tobytes(), "nothing is written"
    assert held.tobytes() == before.tobytes()
    assert before.view(np.float32)[5] == 5.0


@pytest.mark.parametrize(
    "alias",
    [
        lambda t: t.numpy(),
        lambda t: t[5:].numpy(),
        np.asarray,
        np.from_dlpack,
        lambda t: np.from_dlpack(t.view(10, -1)),
        lambda t: torch.from_dlpack(torch.utils.dlpack.to_dlpack(t)).numpy(),
    ],
)
def test_what_is_held_stays_where_an_array_was_there_before(tensors: TorchTensors, alias: Callable[[Any], Any]) -> None:
    tensor = numbers()
    array = alias(tensor)
    held = tensors.read(tensor.untyped_storage(), holds=True)
    before = held.copy()

    array[...] += 1

    assert tensor[9].item() == 10.0, "the array is no alias"
    assert held.tobytes() == before.tobytes()


MEMORY_OF_OTHERS = [
    lambda: torch.from_numpy(np.arange(SIZE)),
    lambda: torch.frombuffer(bytearray(SIZE), dtype=torch.uint8),
]


@pytest.mark.parametrize("make", MEMORY_OF_OTHERS)
def test_what_is_held_of_memory_that_is_not_pytorchs_stays(tensors: TorchTensors, make: Callable[[], Any]) -> None:
    tensor = make()
    held = tensors.read(tensor.untyped_storage(), holds=True)
    before = held.copy()
    tensor.add_(1)
    assert held.tobytes() == before.tobytes()


OPTIMIZERS = {
    "fused adam": lambda p: torch.optim.Adam(p, 0.1, fused=True),
    "fused adamw": lambda p: torch.optim.AdamW(p, 0.1, fused=True, amsgrad=True),
    "fused sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, fused=True),
    "fused adagrad": lambda p: torch.optim.Adagrad(p, 0.1, fused=True),
    "foreach adam": lambda p: torch.optim.Adam(p, 0.1, foreach=True),
    "loop of adam": lambda p: torch.optim.Adam(p, 0.1, foreach=False),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.1, foreach=True),
    "lbfgs": lambda p: torch.optim.LBFGS(p, max_iter=2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_is_held_of_a_training_stays_over_its_steps(tensors: TorchTensors, name: str) -> None:
    """Weights, gradients and moments, held at each step; the training is the one that nobody held."""

    def trained(*, holds: bool) -> tuple[Any, list[tuple[Any, bytes]]]:
        model = torch.nn.Sequential(torch.nn.Linear(100, 200), torch.nn.BatchNorm1d(200), torch.nn.Linear(200, 10))
        with torch.no_grad():
            for number, parameter in enumerate(model.parameters()):
                parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter) / (number + 10))
        optimizer, found = OPTIMIZERS[name](model.parameters()), []

        def loss() -> Any:
            value = model(torch.linspace(-1, 1, 1600).view(16, 100)).square().mean()
            value.backward()
            return value

        for _ in range(4):
            optimizer.step(loss) if name == "lbfgs" else (loss(), optimizer.step())
            state = [value for each in optimizer.state.values() for value in each.values()]
            every = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters()), *state]
            for tensor in every if holds else ():
                if isinstance(tensor, torch.Tensor):
                    held = tensors.read(tensor.untyped_storage(), holds=True)
                    found.append((held, held.tobytes()))
            optimizer.zero_grad(set_to_none=False)
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()]), found

    bare, _nothing = trained(holds=False)
    weights, found = trained(holds=True)

    assert torch.equal(weights, bare)
    assert all(held.tobytes() == before for held, before in found)
    assert len(found) > 20


def test_a_tensor_that_no_optimizer_has_may_grow_after_it_was_held(tensors: TorchTensors) -> None:
    """PyTorch 2.13 fails where a storage that is copied on write is made larger."""
    tensor = torch.arange(float(SIZE))
    held = tensors.read(tensor.untyped_storage(), holds=True)
    before = held.tobytes()
    torch.add(torch.ones(SIZE + 9), 1, out=tensor)
    tensor.resize_(SIZE + 999).fill_(1)
    assert held.tobytes() == before


def test_holding_does_not_move_what_the_program_sees(tensors: TorchTensors) -> None:
    tensor = numbers().requires_grad_()
    version, address = tensor._version, torch._C._data_address(tensor)
    held = tensors.read(tensor.untyped_storage(), holds=True)
    assert (tensor._version, torch._C._data_address(tensor)) == (version, address)
    assert held.__array_interface__["data"][0] == address, "it was copied"
    with pytest.raises(ValueError, match="read-only"):
        held[0] = 1


def test_what_is_held_lives_on_without_its_tensor(tensors: TorchTensors) -> None:
    tensor = numbers()
    held = tensors.read(tensor.untyped_storage(), holds=True)
    before = held.tobytes()
    del tensor
    gc.collect()
    filler = [torch.full((SIZE,), 7.0) for _ in range(5)]
    assert held.tobytes() == before
    assert len(filler) == 5


def test_what_is_put_back_goes_into_the_memory_that_is_held_no_more_than_read(tensors: TorchTensors) -> None:
    tensor = numbers()
    storage = tensor.untyped_storage()
    held = tensors.read(storage, holds=True)
    before = held.tobytes()
    tensor.add_(1)
    again = tensors.read(storage, holds=True)
    assert tensors.fill(storage, *writing(held))
    assert tensor[5].item() == 5.0
    assert (held.tobytes(), again.view(np.float32)[5]) == (before, 6.0)
