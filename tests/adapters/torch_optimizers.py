"""Trainings that differ in optimizer, scheduler and other settings of learning rates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler as schedulers
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

from tests.adapters.cut_world import Training
from tests.adapters.torch_resume import CASES, Case, case


def batch(turn: int, *shape: int) -> torch.Tensor:
    """Return the numbers of a turn."""
    return torch.randn(*shape or (4, 3), generator=torch.Generator().manual_seed(1000 + turn))


def network() -> nn.Module:
    """Return a model with buffers, dropout and a few weights."""
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.2), nn.Linear(4, 1))


def loss_of(model: Any, turn: int) -> torch.Tensor:
    """Return the loss of a turn."""
    return model(batch(turn)).square().mean()


def descend(w: Any, turn: int) -> None:
    """Take one step of `w.optimizer` for `w.model`."""
    w.optimizer.zero_grad()
    loss_of(w.model, turn).backward()
    w.optimizer.step()


def repeated(step: Callable[[int], None]) -> Training:
    """Take this step in each turn."""
    while True:
        step((yield))


def descending(w: Any) -> Training:
    """Descend in each turn."""
    return repeated(partial(descend, w))


def _optimized(make: Callable[[Iterator[Any]], Any]) -> Callable[[Any], Training]:
    def training(w: Any) -> Training:
        w.model = network()
        w.optimizer = make(w.model.parameters())
        return descending(w)

    return training


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "sgd_fused": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p, 0.1),
    "adam_amsgrad": lambda p: torch.optim.Adam(p, 0.1, amsgrad=True),
    "adam_lr_is_a_tensor": lambda p: torch.optim.Adam(p, torch.tensor(0.1)),
    "adam_capturable_betas": lambda p: torch.optim.Adam(p, torch.tensor(0.1), betas=(torch.tensor(0.9), torch.tensor(0.99))),
    "adamw_foreach": lambda p: torch.optim.AdamW(p, 0.1, foreach=True),
    "adamw_fused": lambda p: torch.optim.AdamW(p, 0.1, fused=True),
    "adamax": lambda p: torch.optim.Adamax(p, 0.1),
    "nadam": lambda p: torch.optim.NAdam(p, 0.1),
    "radam": lambda p: torch.optim.RAdam(p, 0.1, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, centered=True, momentum=0.5),
    "rprop": lambda p: torch.optim.Rprop(p, 0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.1),
    "adagrad_fused": lambda p: torch.optim.Adagrad(p, 0.1, fused=True),
    "adadelta": lambda p: torch.optim.Adadelta(p, 0.1),
    "adafactor": lambda p: torch.optim.Adafactor(p, 0.1),
    "asgd": lambda p: torch.optim.ASGD(p, 0.1),
}
CASES.update({name: Case(_optimized(make)) for name, make in OPTIMIZERS.items()})


@case()
def lbfgs(w: Any) -> Training:
    w.model = nn.Linear(3, 1)
    w.optimizer = torch.optim.LBFGS(w.model.parameters(), max_iter=3, line_search_fn="strong_wolfe")
    while True:
        turn = yield

        def closure(turn: int = turn) -> torch.Tensor:
            w.optimizer.zero_grad()
            loss = loss_of(w.model, turn)
            loss.backward()
            return loss

        w.optimizer.step(closure)


@case()
def sparse_adam(w: Any) -> Training:
    w.model = nn.Embedding(6, 2, sparse=True)
    w.optimizer = torch.optim.SparseAdam(w.model.parameters(), 0.1)
    while True:
        turn = yield
        w.optimizer.zero_grad()
        w.model(torch.tensor([turn % 3, 4])).square().sum().backward()
        w.optimizer.step()


def _scheduled(make: Callable[[Any], Any]) -> Callable[[Any], Training]:
    def training(w: Any) -> Training:
        w.model = network()
        w.optimizer = torch.optim.SGD(w.model.parameters(), 0.1, momentum=0.9)
        w.scheduler = make(w.optimizer)
        while True:
            turn = yield
            descend(w, turn)
            w.scheduler.step(*([1.0] if isinstance(w.scheduler, schedulers.ReduceLROnPlateau) else []))
            w.rates = [group["lr"] for group in w.optimizer.param_groups]

    return training


def _sequential(o: Any) -> Any:
    return schedulers.SequentialLR(o, [schedulers.LinearLR(o, 0.1, total_iters=2), schedulers.ExponentialLR(o, 0.5)], [2])


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "step_lr": lambda o: schedulers.StepLR(o, 2, 0.5),
    "multi_step_lr": lambda o: schedulers.MultiStepLR(o, [1, 2, 4], 0.5),
    "cosine": lambda o: schedulers.CosineAnnealingLR(o, 5),
    "warm_restarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 2, 2),
    "lambda_lr": lambda o: schedulers.LambdaLR(o, lambda epoch: 0.9**epoch),
    "cyclic_lr": lambda o: schedulers.CyclicLR(o, 0.01, 0.1, 2, scale_fn=lambda x: 0.9**x, scale_mode="iterations"),
    "triangular2": lambda o: schedulers.CyclicLR(o, 0.01, 0.1, 2, mode="triangular2"),
    "one_cycle": lambda o: schedulers.OneCycleLR(o, 0.5, total_steps=8),
    "plateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=1, factor=0.5),
    "sequential_lr": _sequential,
    "chained": lambda o: schedulers.ChainedScheduler([schedulers.ConstantLR(o, 0.1, 2), schedulers.ExponentialLR(o, 0.9)]),
    "swa_lr": lambda o: SWALR(o, 0.05, anneal_epochs=4),
    "polynomial": lambda o: schedulers.PolynomialLR(o, 8),
}
CASES.update({name: Case(_scheduled(make)) for name, make in SCHEDULERS.items()})


@case()
def a_rate_of_two_groups_that_is_a_tensor(w: Any) -> Training:
    w.model = network()
    w.optimizer = torch.optim.Adam(
        [{"params": w.model[0].parameters()}, {"params": w.model[4].parameters(), "lr": 0.5}], torch.tensor(0.1)
    )
    w.scheduler = schedulers.ExponentialLR(w.optimizer, 0.5)
    while True:
        turn = yield
        descend(w, turn)
        w.scheduler.step()


@case()
def a_scheduler_that_the_loop_makes(w: Any) -> Training:
    w.model, w.scheduler = network(), None
    w.optimizer = torch.optim.Adam(w.model.parameters(), 0.1)
    while True:
        turn = yield
        if turn == 1:
            w.scheduler = schedulers.ExponentialLR(w.optimizer, 0.5)
        descend(w, turn)
        if turn >= 1:
            w.scheduler.step()


@case()
def a_scheduler_and_an_optimizer_of_its_own_class_that_the_loop_makes(w: Any) -> Training:
    class Doubling(torch.optim.Optimizer):
        """An optimizer of a program's, whose `step` PyTorch wraps as the first one is made."""

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.data.sub_(parameter.grad, alpha=2 * group["lr"])

    w.model, w.kind = network(), Doubling

    def step(turn: int) -> None:  # files of format 3 name its inner functions by its name
        if turn == 1:
            w.optimizer = w.kind(w.model.parameters(), {"lr": 0.1})
            w.scheduler = schedulers.LambdaLR(w.optimizer, lambda epoch: 0.9**epoch)
        if turn >= 1:
            descend(w, turn)
            w.scheduler.step()

    return repeated(step)


@case()
def an_optimizer_of_its_own_class_with_a_scheduler(w: Any) -> Training:
    w.model = network()
    w.optimizer = Halving(w.model.parameters(), {"lr": 0.1})
    w.scheduler = schedulers.StepLR(w.optimizer, 2)
    while True:
        turn = yield
        descend(w, turn)
        w.scheduler.step()


class Halving(torch.optim.Optimizer):
    """An optimizer of a program's."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["calls"] = state.get("calls", 0) + 1
                state.setdefault("mean", torch.zeros_like(parameter)).lerp_(parameter.grad, 0.5)
                parameter.sub_(state["mean"], alpha=group["lr"] / state["calls"])


@case()
def optimizer_before_the_model_among_the_names(w: Any) -> Training:
    model = network()
    w.optimizer = torch.optim.Adam(model.parameters(), 0.1)
    w.model = model
    return descending(w)


@case()
def an_optimizer_that_the_loop_makes(w: Any) -> Training:
    w.model, w.optimizer = network(), None
    while True:
        turn = yield
        if turn == 1:
            w.optimizer = torch.optim.Adam(w.model.parameters(), 0.1)
        if turn >= 1:
            descend(w, turn)


@case()
def an_optimizer_that_the_loop_makes_anew(w: Any) -> Training:
    w.model = network()
    w.optimizer = torch.optim.SGD(w.model.parameters(), 0.1, momentum=0.9)
    while True:
        turn = yield
        if turn == 2:
            w.optimizer = torch.optim.Adam(w.model.parameters(), 0.01)
        descend(w, turn)


@case()
def a_parameter_group_that_the_loop_adds(w: Any) -> Training:
    w.model, w.head = network(), nn.Linear(1, 1)
    w.optimizer = torch.optim.Adam(w.model.parameters(), 0.1)
    while True:
        turn = yield
        if turn == 1:
            w.optimizer.add_param_group({"params": list(w.head.parameters()), "lr": 0.01})
        w.optimizer.zero_grad()
        w.head(w.model(batch(turn))).square().mean().backward()
        w.optimizer.step()


@case()
def gradients_accumulated_across_the_cut(w: Any) -> Training:
    """transformers#22143."""
    w.model = network()
    w.optimizer = torch.optim.AdamW(w.model.parameters(), 0.1)
    while True:
        turn = yield
        (loss_of(w.model, turn) / 2).backward()
        if turn % 2:
            w.optimizer.step()
            w.optimizer.zero_grad()


@case()
def gradients_set_to_zero_and_not_to_none(w: Any) -> Training:
    w.model = network()
    w.optimizer = torch.optim.SGD(w.model.parameters(), 0.1)
    while True:
        turn = yield
        loss_of(w.model, turn).backward()
        w.norm = nn.utils.clip_grad_norm_(w.model.parameters(), 0.1)
        w.optimizer.step()
        w.optimizer.zero_grad(set_to_none=False)


@case()
def a_scaler_with_autocast(w: Any) -> Training:
    """transformers#34053: the scale is state."""
    w.model, w.scaler = network(), torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
    w.optimizer = torch.optim.SGD(w.model.parameters(), 0.1)
    while True:
        turn = yield
        w.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(w.model, turn)
        w.scaler.scale(loss * (float("inf") if turn == 1 else 1.0)).backward()
        w.scaler.step(w.optimizer)
        w.scaler.update()


@case()
def a_scaler_whose_update_is_still_to_come(w: Any) -> Training:
    w.model, w.scaler = network(), torch.amp.GradScaler("cpu", init_scale=4.0)
    w.optimizer = torch.optim.SGD(w.model.parameters(), 0.1)
    while True:
        turn = yield
        if turn:
            w.scaler.update()
        w.optimizer.zero_grad()
        w.scaler.scale(loss_of(w.model, turn)).backward()
        w.scaler.step(w.optimizer)


@case()
def averaged_models(w: Any) -> Training:
    w.model = network()
    w.mean, w.ema = AveragedModel(w.model), AveragedModel(w.model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    w.optimizer = torch.optim.SGD(w.model.parameters(), 0.1)
    while True:
        turn = yield
        descend(w, turn)
        w.mean.update_parameters(w.model)
        w.ema.update_parameters(w.model)


@case()
def moments_of_bfloat16(w: Any) -> Training:
    """torchtitan#4615: the dtype of the moments is kept."""
    w.model = network().to(torch.bfloat16)
    w.optimizer = torch.optim.AdamW(w.model.parameters(), 0.1, foreach=True)
    while True:
        turn = yield
        w.optimizer.zero_grad()
        w.model(batch(turn).bfloat16()).square().mean().backward()
        w.optimizer.step()


@case()
def a_sequence_of_schedulers_sets_no_rate_as_it_is_made(w: Any) -> Training:
    """pytorch#119168: making one overwrites the rate, which comes back from the cut."""
    w.model = network()
    w.optimizer = torch.optim.AdamW(w.model.parameters(), 0.1)
    w.scheduler = schedulers.SequentialLR(
        w.optimizer, [schedulers.LinearLR(w.optimizer, 0.01), schedulers.CosineAnnealingLR(w.optimizer, 4)], [2]
    )
    while True:
        turn = yield
        w.rate = w.scheduler.get_last_lr()[0]
        descend(w, turn)
        w.scheduler.step()


@case()
def an_optimizer_for_each_parameter_in_backward(w: Any) -> Training:
    w.model = network()
    w.optimizers = {p: torch.optim.Adam([p], 0.1) for p in w.model.parameters()}
    optimizers = w.optimizers

    def hook(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in w.model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)
    while True:
        loss_of(w.model, (yield)).backward()


@case()
def a_hook_of_an_optimizer(w: Any) -> Training:
    w.model, w.log = network(), []
    w.optimizer = torch.optim.SGD(w.model.parameters(), 0.1)
    log = w.log
    w.handle = w.optimizer.register_step_post_hook(lambda *_: log.append(len(log)))

    def step(turn: int) -> None:  # files of format 3 name its inner functions by its name
        descend(w, turn)
        if turn == 1:
            w.optimizer.register_step_pre_hook(lambda *_: log.append(-len(log)))

    return repeated(step)


@case()
def a_loss_that_is_mean_of_functional(w: Any) -> Training:
    w.model, w.loss, w.function = nn.Linear(3, 2), nn.CrossEntropyLoss(torch.tensor([1.0, 2.0])), F.cross_entropy
    w.optimizer = torch.optim.SGD(w.model.parameters(), 0.1)
    while True:
        turn = yield
        target = torch.tensor([0, 1, 1, 0])
        w.optimizer.zero_grad()
        (w.loss(w.model(batch(turn)), target) + w.function(w.model(batch(turn)), target)).backward()
        w.optimizer.step()
