"""Trainings with tensors of unusual layout, tensors made of other tensors, or of classes of the program."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.adapters.cut_world import Training
from tests.adapters.torch_optimizers import batch
from tests.adapters.torch_resume import case


@case()
def sparse_tensors(w: Any) -> Training:
    indices = torch.tensor([[0, 1, 1], [2, 0, 2]])
    w.coo = torch.sparse_coo_tensor(indices, torch.ones(3), (2, 3))
    w.csr, w.bsr = w.coo.to_dense().to_sparse_csr(), torch.eye(4).to_sparse_bsr((2, 2))
    w.hybrid, w.held = torch.sparse_coo_tensor(torch.tensor([[0, 0]]), torch.ones(2, 3), (2, 3)), w.coo
    while True:
        turn = yield
        w.coo._values().add_(turn)
        w.csr.values().mul_(2)
        w.bsr = w.bsr * 2
        w.hybrid = w.hybrid * 3
        if turn == 2:
            w.values = w.coo._values()
            w.again = w.coo


@case()
def a_sparse_parameter_with_a_gradient(w: Any) -> Training:
    w.weight = torch.eye(3).to_sparse().requires_grad_()
    w.weight.note = [1]
    while True:
        turn = yield
        torch.sparse.mm(w.weight, batch(turn, 3, 2)).square().sum().backward()
        w.weight.note.append(turn)
        if turn % 2:
            with torch.no_grad():
                w.weight = (w.weight - 0.1 * w.weight.grad).coalesce().requires_grad_()
                w.weight.note = [turn]


@case()
def quantised_tensors(w: Any) -> Training:
    w.a = torch.quantize_per_tensor(batch(0), 0.1, 3, torch.qint8)
    w.b = torch.quantize_per_channel(
        batch(1), torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.zeros(4, dtype=torch.long), 0, torch.quint8
    )
    while True:
        turn = yield
        w.a = torch.quantize_per_tensor(w.a.dequantize() + batch(turn), 0.1 + turn, turn, torch.qint8)
        w.b = torch.quantize_per_channel(
            w.b.dequantize() * 2, torch.full((4,), 0.5), torch.ones(4, dtype=torch.long), 0, torch.quint8
        )


@case()
def tensors_laid_out_otherwise(w: Any) -> Training:
    w.image = batch(0, 2, 3, 4, 4).to(memory_format=torch.channels_last)
    w.model = nn.Conv2d(3, 2, 3).to(memory_format=torch.channels_last)
    w.optimizer = torch.optim.SGD(w.model.parameters(), 0.1, momentum=0.9)
    w.wide, w.part, w.empty = torch.ones(3).expand(4, 3), torch.arange(24.0)[3:20:2], torch.empty(0, 3)
    w.meta = torch.empty(3, 4, device="meta").T
    w.scalar, w.strange = torch.tensor(1.0), torch.as_strided(torch.arange(9.0), (2, 2), (4, 1), 1)
    while True:
        turn = yield
        w.optimizer.zero_grad()
        w.model(w.image).square().mean().backward()
        w.optimizer.step()
        w.image = w.image * 1.1
        w.wide = (w.wide[0] + 1).expand(5, 3)
        w.part += 1
        w.scalar = w.scalar + 1
        w.strange[0] += w.part[:2]
        w.high = torch.empty(turn, device="meta")


@case()
def nested_tensors(w: Any) -> Training:
    w.strided = torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(1, 3)])
    w.jagged = torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(1, 3)], layout=torch.jagged)
    while True:
        yield
        w.strided = w.strided * 2 + w.strided
        w.jagged = w.jagged + 1


class Noted(torch.Tensor):
    """A subclass with attributes."""


class Weight(nn.Parameter):
    """A parameter of a class of its own."""


class Pair(torch.Tensor):
    """A tensor that wraps two others."""

    @staticmethod
    def __new__(cls, one: torch.Tensor, other: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, one.shape, dtype=one.dtype)

    def __init__(self, one: torch.Tensor, other: torch.Tensor) -> None:
        self.one, self.other = one, other

    def __tensor_flatten__(self) -> Any:
        return ["one", "other"], None

    @staticmethod
    def __tensor_unflatten__(held: Any, _context: Any, _size: Any, _stride: Any) -> Any:
        return Pair(held["one"], held["other"])

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        lists = [[getattr(each, name) if isinstance(each, Pair) else each for each in args] for name in ("one", "other")]
        return Pair(*(function(*each, **(kwargs or {})) for each in lists))


class Closed(torch.Tensor):
    """A tensor that wraps another, and does not say how."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return cls(function(*(each.inner if isinstance(each, Closed) else each for each in args), **(kwargs or {})))


@case()
def tensors_of_its_own_classes(w: Any) -> Training:
    w.noted, w.weight = torch.ones(3).as_subclass(Noted), Weight(torch.ones(3))
    w.noted.note, w.weight.log = ["a"], [w.weight]
    w.pair = Pair(torch.ones(2), torch.zeros(2))
    w.optimizer = torch.optim.SGD([w.weight], 0.1)
    while True:
        turn = yield
        w.noted.add_(1)
        w.noted.note.append(turn)
        w.weight.square().sum().backward()
        w.optimizer.step()
        w.pair = w.pair + w.pair
        w.late = (torch.ones(2) * turn).as_subclass(Noted)
        w.late.note = w.noted.note


@case(lost=("closed",), is_refused=True)
def a_tensor_that_does_not_say_what_it_wraps(w: Any) -> Training:
    w.closed = Closed(torch.ones(2))
    while True:
        yield
        w.closed = w.closed + 1
