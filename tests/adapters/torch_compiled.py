"""Trainings whose models PyTorch has compiled, scripted or traced."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.adapters.cut_world import Training
from tests.adapters.torch_optimizers import batch, descend, descending, network
from tests.adapters.torch_resume import case


@case()
def a_compiled_model(w: Any) -> Training:
    w.plain = network()
    w.model = torch.compile(w.plain, backend="eager")
    w.optimizer = torch.optim.Adam(w.model.parameters(), 0.05)
    return descending(w)


@case()
def a_compiled_function(w: Any) -> Training:
    w.weight = torch.ones(3, requires_grad=True)

    @torch.compile(backend="eager")
    def loss(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (x * weight).square().mean()

    w.loss = loss
    while True:
        turn = yield
        w.loss(w.weight, batch(turn)).backward()
        w.weight.data -= 0.1 * w.weight.grad
        w.weight.grad = None


@case()
def a_compiled_model_that_alone_is_held(w: Any) -> Training:
    w.model = torch.compile(network(), backend="eager")
    w.optimizer = torch.optim.Adam(w.model.parameters(), 0.05)
    while True:
        turn = yield
        w.model.train(turn % 3 == 0)
        descend(w, turn)


@case()
def a_scripted_model(w: Any) -> Training:
    w.model = torch.jit.script(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Sequential(nn.Dropout(0.1), nn.Linear(4, 1))))
    w.optimizer = torch.optim.Adam(w.model.parameters(), 0.05)
    while True:
        turn = yield
        if turn == 1:
            getattr(w.model, "2").eval()
        descend(w, turn)


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.count, self.past, self.last = nn.Linear(3, 3), 0, [torch.zeros(3)], torch.zeros(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.past.append(x[0].detach())
        self.last = self.last + x[0].detach()
        return self.linear(x) * self.count + self.past[self.count // 2] + self.last


@case()
def a_scripted_model_with_attributes(w: Any) -> Training:
    w.outer = nn.Sequential(torch.jit.script(Scripted()), nn.Linear(3, 1))
    w.model = w.outer
    w.optimizer = torch.optim.Adam(w.model.parameters(), 0.05)
    return descending(w)


@case()
def a_traced_model(w: Any) -> Training:
    w.model = torch.jit.trace(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), batch(0))
    w.optimizer = torch.optim.Adam(w.model.parameters(), 0.05)
    return descending(w)


@case(lost=("model",), is_refused=True)
def a_scripted_model_that_the_loop_makes(w: Any) -> Training:
    w.model = nn.Linear(3, 2)
    while True:
        turn = yield
        if turn == 1:
            w.model = torch.jit.script(w.model)


@case()
def a_graph_module(w: Any) -> Training:
    w.model = torch.fx.symbolic_trace(network())
    w.optimizer = torch.optim.Adam(w.model.parameters(), 0.05)
    while True:
        turn = yield
        descend(w, turn)
        w.model.seen = turn
