"""PyTorch's state: a training that is resumed goes on as the one that was never cut, bit for bit; or the checkpoint
names what it does not hold. The oracle is the training that was not cut, as PyTorch itself tells it.
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from detrain.adapters.torch.settings import GlobalHooks  # noqa: E402
from detrain.base.errors import NotCapturable  # noqa: E402
from detrain.python.codec.baseline import Baseline  # noqa: E402
from detrain.python.codec.coders import Encoder  # noqa: E402
from detrain.python.codec.graph_files import unpack  # noqa: E402
from tests.adapters import torch_compiled, torch_layouts, torch_modules, torch_optimizers, torch_values  # noqa: E402, F401
from tests.adapters.cut_world import assert_exact, made, packed  # noqa: E402
from tests.adapters.torch_resume import CASES, World  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch says of much that it may change


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield World()
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", CASES)
def test_a_training_that_is_resumed_goes_on_as_the_whole_one(world: World, name: str) -> None:
    assert_exact(world.run(CASES[name]), CASES[name])


def test_backward_through_a_graph_that_no_checkpoint_holds_fails_and_says_why(world: World) -> None:
    weight = torch.ones(2, requires_grad=True)
    names, resumed = {"loss": (weight * 2).sum()}, {"loss": None}

    world.restore(packed(world.encode(names, world.baseline({}))), resumed, world.baseline(resumed))

    loss: Any = resumed["loss"]
    assert loss.item() == 4.0
    loss += 1
    with pytest.raises(NotCapturable, match="a tensor that was computed before the checkpoint"):
        (loss * 2).backward()
    with pytest.raises(NotCapturable, match="a tensor that was computed before the checkpoint"):
        torch.autograd.grad(loss + weight.sum(), weight)


def test_a_resumed_state_with_a_lost_graph_is_the_same_state(world: World) -> None:
    """`verify` took a gradient with a graph behind it (`create_graph`, `vmap` of a gradient) for another one."""
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = (weight * 2).view(2)
    names, resumed = {"weight": weight}, {"weight": torch.nn.Parameter(torch.ones(2))}
    was = world.encode(names, world.baseline({}))

    world.restore(packed(was), resumed, world.baseline(resumed))

    again = world.encode(resumed, world.baseline({}))
    forms = [[node.data for node in unpack(each.graph).nodes if node.kind == "shared"] for each in (was, again)]
    assert forms[0] == forms[1]
    assert "ViewBackward0" in str(forms[0])


def test_a_tensor_of_the_programs_class_does_not_notice_that_it_is_read(world: World) -> None:
    calls: list[str] = []

    class Noticing(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(str(function))
            return super().__torch_function__(function, types, args, kwargs or {})

    names = {"tensor": torch.ones(3).as_subclass(Noticing), "mode": FlopCounterMode(display=False)}
    calls.clear()
    with names["mode"], torch.device("meta"):
        encoded = world.encode(names, world.baseline(names))
        assert world.restore(packed(encoded), names, world.baseline(names)) == []

    assert calls == []
    assert names["tensor"].sum().item() == 3.0


def test_large_data_that_the_loop_leaves_alone_are_not_stored_when_a_batch_takes_their_name(world: World) -> None:
    names, step = made(CASES["large_data_whose_name_a_batch_takes"])
    baseline = world.baseline(vars(names))

    step(0)

    assert max(array.nbytes for array in world.encode(vars(names), baseline).arrays.values()) < 1_000


def test_a_tensor_of_a_librarys_class_that_the_loop_has_made_comes_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As fastai's `TensorBase` and torchvision's images: no class of tensors of a library was found again."""
    kind = type("TensorBase", (torch.Tensor,), {"__module__": "library.core"})
    monkeypatch.setitem(sys.modules, "library.core", SimpleNamespace(TensorBase=kind))
    encoded = world.encode({"loss": torch.arange(3.0).as_subclass(kind)}, world.baseline({}))

    names: dict[str, Any] = {}
    assert world.restore(packed(encoded), names, world.baseline({})) == []
    assert type(names["loss"]) is kind
    assert names["loss"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("is_brought", [True, False])
def test_a_tensor_that_loads_put_into_a_librarys_object_must_be_there_again(world: World, is_brought: bool) -> None:
    def held() -> dict[str, Any]:
        found = type("Wrapper", (), {"__module__": "gymnasium.wrappers"})()
        vars(found).update(thread=threading.Thread(), last=torch.zeros(3))
        return {"value": found}

    names, resumed = held(), held()
    baseline, there = world.baseline(names), world.baseline(resumed)
    names["value"].last = torch.ones(3)
    encoder = Encoder(world.hooks(), baseline, are_loads_replayed=True)
    encoded = encoder.finish({"value": encoder.encode(names["value"], "value")})
    resumed["value"].last = torch.ones(3) if is_brought else torch.full((3,), 2.0)

    missing = world.restore(packed(encoded), resumed, there)

    assert any("loading the same batches has not brought it" in said for said in missing) != is_brought


def test_what_pytorch_keeps_for_the_process_is_named() -> None:
    counts = GlobalHooks()
    assert counts.uncaptured() == []
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    with torch.autocast("cpu"):
        assert len(counts.uncaptured()) == 2
    handle.remove()
    assert counts.uncaptured() == []


def test_a_baseline_keeps_no_graph_alive() -> None:
    """Behind the result of a forward pass before the loop there may be all activations."""
    weight = torch.ones(2, requires_grad=True)
    value = weight.exp()
    kept = torch.nn.Identity()
    value.grad_fn.metadata["kept"], saved = kept, weakref.ref(kept)
    baseline = Baseline()
    baseline.add(value, "value")
    baseline.add_graph(value, value.grad_fn)

    assert baseline.has_graph(value, value.grad_fn)
    assert not baseline.has_graph(value, (weight * 2).grad_fn)
    del value, kept
    gc.collect()
    assert saved() is None
