"""Trainings whose models PyTorch has compiled, scripted or traced."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.adapters.cut_world import Step
from tests.adapters.torch_optimizers import batch, descend, network
from tests.adapters.torch_resume import case


@case()
def a_compiled_model(w: Any) -> Step:
    w.plain = network()
    w.model = torch.compile(w.plain, backend="eager")
    w.optimizer = torch.optim.Adam(w.model.parameters(), 0.05)
    return descend


@case()
def a_compiled_function(w: Any) -> Step:
    w.weight = torch.ones(3, requires_grad=True)

    @torch.compile(backend="eager")
    def loss(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (x * weight).square().mean()

    w.loss = loss

    def step(w: Any, turn: int) -> None:
        w.loss(w.weight, batch(turn)).backward()
        w.weight.data -= 0.1 * w.weight.grad
        w.weight.grad = None

    return step


@case()
def a_compiled_model_that_alone_is_held(w: Any) -> Step:
    w.model = torch.compile(network(), backend="eager")
    w.optimizer = torch.optim.Adam(w.model.parameters(), 0.05)

    def step(w: Any, turn: int) -> None:
        w.model.train(turn % 3 == 0)
        descend(w, turn)

    return step


@case()
def a_scripted_model(w: Any) -> Step:
    w.model = torch.jit.script(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Sequential(nn.Dropout(0.1), nn.Linear(4, 1))))
    w.optimizer = torch.optim.Adam(w.model.parameters(), 0.05)

    def step(w: Any, turn: int) -> None:
        if turn == 1:
            getattr(w.model, "2").eval()
        descend(w, turn)

    return step


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
def a_scripted_model_with_attributes(w: Any) -> Step:
    w.outer = nn.Sequential(torch.jit.script(Scripted()), nn.Linear(3, 1))
    w.model = w.outer
    w.optimizer = torch.optim.Adam(w.model.parameters(), 0.05)
    return descend


@case()
def a_traced_model(w: Any) -> Step:
    w.model = torch.jit.trace(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), batch(0))
    w.optimizer = torch.optim.Adam(w.model.parameters(), 0.05)
    return descend


@case(lost=("model",), is_refused=True)
def a_scripted_model_that_the_loop_makes(w: Any) -> Step:
    w.model = nn.Linear(3, 2)

    def step(w: Any, turn: int) -> None:
        if turn == 1:
            w.model = torch.jit.script(w.model)

    return step


@case()
def a_graph_module(w: Any) -> Step:
    w.model = torch.fx.symbolic_trace(network())
    w.optimizer = torch.optim.Adam(w.model.parameters(), 0.05)

    def step(w: Any, turn: int) -> None:
        descend(w, turn)
        w.model.seen = turn

    return step
