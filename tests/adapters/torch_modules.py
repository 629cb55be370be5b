"""Trainings that differ in the parts of their models."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from detrain.base.losses import OF_GRAPH
from tests.adapters.cut_world import Training
from tests.adapters.torch_optimizers import batch, descend, descending, loss_of, network
from tests.adapters.torch_resume import case


def trained(w: Any, model: nn.Module) -> Any:
    """Bind a model and its optimizer."""
    w.model = model
    w.optimizer = torch.optim.Adam(model.parameters(), 0.05)
    return model


@case()
def weights_that_are_tied_with_views(w: Any) -> Training:
    model = trained(w, nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
    model[1].weight = model[0].weight
    w.view, w.row = model[0].weight.detach(), model[0].weight.data[1]
    while True:
        turn = yield
        descend(w, turn)
        w.row.mul_(0.9)
        w.column = w.view[:, 1]


@case()
def weights_that_the_loop_ties_and_unties(w: Any) -> Training:
    model = trained(w, nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)))
    model[2].weight.data = model[1].weight.data
    while True:
        turn = yield
        if turn == 1:
            w.model[1].weight = w.model[0].weight
            w.model[2].weight.data = w.model[2].weight.data.clone()
        descend(w, turn)


@case()
def a_closure_over_a_name_that_is_not_bound_yet(w: Any) -> Training:
    model = trained(w, network())

    w.deferred = lambda: later
    if model is None:
        later = 1
    return descending(w)


@case()
def a_model_that_only_a_closure_holds(w: Any) -> Training:
    model, losses = network(), []
    optimizer = torch.optim.Adam(model.parameters(), 0.05)

    def train(turn: int) -> None:
        optimizer.zero_grad()
        loss = loss_of(model, turn)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    w.train = train
    while True:
        w.train((yield))


@case(of_graphs=False)
def weight_norm_by_hooks(w: Any) -> Training:
    trained(w, nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 4)), nn.Linear(4, 1)))
    return descending(w)


@case()
def weight_norm_and_spectral_norm_as_parametrizations(w: Any) -> Training:
    trained(
        w,
        nn.Sequential(
            parametrizations.weight_norm(nn.Linear(3, 4)),
            parametrizations.spectral_norm(nn.Linear(4, 3)),
            parametrizations.orthogonal(nn.Linear(3, 3)),
        ),
    )
    return descending(w)


class Symmetric(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.triu() + x.triu(1).T


@case()
def a_parametrization_of_its_own(w: Any) -> Training:
    model = trained(w, nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
    parametrize.register_parametrization(model[0], "weight", Symmetric())
    return descending(w)


@case(lost=("model",), is_refused=True)
def a_parametrization_that_the_loop_registers(w: Any) -> Training:
    trained(w, nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
    while True:
        turn = yield
        if turn == 1:
            parametrize.register_parametrization(w.model[0], "weight", Symmetric())
        descend(w, turn)


@case()
def a_parametrization_that_the_loop_removes(w: Any) -> Training:
    model = trained(w, nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
    parametrize.register_parametrization(model[0], "weight", Symmetric())
    while True:
        turn = yield
        descend(w, turn)
        if turn == 1:
            parametrize.remove_parametrizations(w.model[0], "weight")


@case(of_graphs=False)
def spectral_norm_by_hooks(w: Any) -> Training:
    trained(w, nn.Sequential(nn.utils.spectral_norm(nn.Linear(3, 4)), nn.Linear(4, 1)))
    return descending(w)


@case(of_graphs=False)
def pruning_in_the_loop(w: Any) -> Training:
    trained(w, nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)))
    while True:
        turn = yield
        if turn in (1, 4):
            prune.random_unstructured(w.model[0], "weight", amount=0.3)
        descend(w, turn)


@case()
def pruning_that_is_made_permanent(w: Any) -> Training:
    trained(w, nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)))
    while True:
        turn = yield
        prune.l1_unstructured(w.model[0], "weight", amount=0.2)
        prune.remove(w.model[0], "weight")
        descend(w, turn)


@case()
def hooks_of_modules_and_tensors(w: Any) -> Training:
    model, log = trained(w, network()), []
    w.log = log
    w.handles = [
        model[0].register_forward_hook(lambda _m, _i, output: output * 2),
        model[4].register_full_backward_hook(lambda _m, _i, grads: log.append(grads[0].sum().item())),
        model[0].weight.register_hook(lambda grad: grad * 3),
        model[4].weight.register_post_accumulate_grad_hook(lambda p: log.append(p.grad.sum().item())),
    ]
    while True:
        turn = yield
        descend(w, turn)
        if turn == 4:
            w.handles.pop(0).remove()


@case()
def hooks_that_the_loop_adds_and_removes(w: Any) -> Training:
    trained(w, network())
    w.log, w.handles = [], []
    log = w.log

    def note(_module: Any, _input: Any, output: Any) -> None:
        log.append(output.sum().item())

    w.note = note
    while True:
        turn = yield
        w.handles.append(w.model[0].register_forward_hook(w.note))
        w.handles.append(w.model[0].weight.register_hook(lambda grad: grad * 0.5))
        if len(w.handles) > 2:
            w.handles.pop(0).remove()
        descend(w, turn)


@case()
def lazy_modules_that_the_loop_fills(w: Any) -> Training:
    w.model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.Linear(4, 1))
    w.optimizer = None
    while True:
        turn = yield
        if turn == 1:
            w.model(batch(0))
            w.optimizer = torch.optim.Adam(w.model.parameters(), 0.05)
        if turn >= 1:
            descend(w, turn)


@case()
def lazy_modules_that_are_still_to_be_filled(w: Any) -> Training:
    w.model, w.head = nn.Linear(3, 3), nn.LazyLinear(2)
    w.optimizer = torch.optim.SGD(w.model.parameters(), 0.1)
    while True:
        turn = yield
        descend(w, turn)
        if turn >= 3:
            w.out = w.head(w.model(batch(turn))).detach()


@case()
def aliases_by_state_dict_and_the_best_copy(w: Any) -> Training:
    """pytorch-lightning#17543 and the usual early stopping."""
    trained(w, network())
    w.alias, w.best, w.lowest = w.model.state_dict(), None, float("inf")
    while True:
        turn = yield
        descend(w, turn)
        loss = loss_of(w.model, 99).item()
        if turn in (0, 2, 4):
            w.lowest, w.best, w.twin = loss, copy.deepcopy(w.model.state_dict()), copy.deepcopy(w.model)
        if turn == 5:
            w.model.load_state_dict(w.best)


@case()
def unfreezing(w: Any) -> Training:
    trained(w, network())
    for parameter in w.model[0].parameters():
        parameter.requires_grad_(False)
    while True:
        turn = yield
        for parameter in w.model[0].parameters():
            parameter.requires_grad_(turn in (1, 2, 4))
        descend(w, turn)


@case()
def a_layer_that_the_loop_adds(w: Any) -> Training:
    trained(w, network())
    while True:
        turn = yield
        if turn == 1:
            layer = nn.Linear(1, 2)
            w.model.append(layer)
            w.optimizer.add_param_group({"params": list(layer.parameters())})
        descend(w, turn)


@case()
def a_layer_that_the_loop_replaces(w: Any) -> Training:
    trained(w, network())
    w.held = w.model[4]
    while True:
        turn = yield
        if turn == 1:
            w.model[4] = nn.Linear(4, 2)
            w.optimizer = torch.optim.Adam(w.model.parameters(), 0.05)
        descend(w, turn)


@case()
def models_that_the_loop_swaps(w: Any) -> Training:
    w.one, w.other = nn.Linear(3, 2), nn.Linear(3, 2)
    w.optimizer = torch.optim.SGD([*w.one.parameters(), *w.other.parameters()], 0.1)
    while True:
        turn = yield
        w.one, w.other = w.other, w.one
        w.optimizer.zero_grad()
        (loss_of(w.one, turn) + 2 * loss_of(w.other, turn)).backward()
        w.optimizer.step()


class Counting(nn.Module):
    """A model with all kinds of attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(3)), torch.zeros(3)])
        self.table = nn.ParameterDict({"x": nn.Parameter(torch.ones(3))})
        self.register_buffer("hidden", torch.zeros(3), persistent=False)
        self.register_buffer("nothing", None)
        self.calls, self.past = 0, [torch.zeros(3)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.hidden += x.detach().mean(0)
        self.past = [*self.past[-2:], x.detach()[0]]
        x = self.inner["a"](x) if self.calls % 2 else self.inner["b"](x)
        return x * self.weights[0] * self.table["x"] + self.hidden + self.past[0] * self.calls


@case()
def attributes_buffers_lists_of_a_model(w: Any) -> Training:
    trained(w, Counting())
    while True:
        turn = yield
        w.model.train(turn % 2 == 0)
        descend(w, turn)
        if turn == 1:
            w.model.nothing = torch.ones(2)
            w.model.weights.append(nn.Parameter(torch.full((3,), 2.0)))


@case()
def hidden_states_of_an_rnn(w: Any) -> Training:
    w.model, w.state = nn.LSTM(3, 4, num_layers=2, dropout=0.1), None
    w.optimizer = torch.optim.SGD(w.model.parameters(), 0.1)
    while True:
        turn = yield
        w.optimizer.zero_grad()
        out, state = w.model(batch(turn, 5, 2, 3), w.state)
        w.state = tuple(each.detach() for each in state)
        out.square().mean().backward()
        w.optimizer.step()


@case(of_graphs=False)
def losses_that_are_kept_with_their_graphs(w: Any) -> Training:
    trained(w, network())
    w.losses, w.total = [], 0.0
    while True:
        turn = yield
        w.optimizer.zero_grad()
        loss = loss_of(w.model, turn)
        loss.backward()
        w.optimizer.step()
        w.losses.append(loss)
        w.total = sum(each.item() for each in w.losses)


@case(of_graphs=False)
def a_sum_of_losses_that_are_tensors(w: Any) -> Training:
    trained(w, network())
    w.total = torch.zeros(())
    while True:
        turn = yield
        w.optimizer.zero_grad()
        loss = loss_of(w.model, turn)
        loss.backward()
        w.optimizer.step()
        w.total += loss


@case(lost=(f"ahead (torch.Tensor: {OF_GRAPH}",), of_graphs=False)
def a_loss_that_is_still_to_go_backward(w: Any) -> Training:
    trained(w, network())
    w.ahead = None
    while True:
        turn = yield
        descend(w, turn)
        w.ahead = loss_of(w.model, turn)


@case()
def functions_of_torch_func(w: Any) -> Training:
    w.model = nn.Linear(3, 2)
    w.weights = {name: p.detach() for name, p in w.model.named_parameters()}

    def loss(weights: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(w.model, weights, x).square().mean()

    while True:
        turn = yield
        grads = torch.func.grad(loss)(w.weights, batch(turn))
        w.weights = {name: weight - 0.1 * grads[name] for name, weight in w.weights.items()}


@case()
def a_module_list_of_shared_layers_and_a_weak_reference(w: Any) -> Training:
    layer = nn.Linear(3, 3)
    trained(w, nn.Sequential(layer, nn.ReLU(), layer))
    w.again = nn.ModuleList([layer])
    return descending(w)
