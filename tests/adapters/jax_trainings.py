"""Trainings with optax, flax and equinox."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx
from flax.training import dynamic_scale, train_state

from tests.adapters.cut_world import Training
from tests.adapters.jax_resume import CASES, Case, case

_RANDOM = np.random.default_rng(0)
ROWS = _RANDOM.normal(size=(6, 5, 4)).astype(np.float32)
LABELS = _RANDOM.integers(0, 3, (6, 5))


def _loss(params: Any, rows: Any, labels: Any) -> Any:
    hidden = jnp.tanh(rows @ params["a"]["kernel"] + params["a"]["bias"])
    return optax.softmax_cross_entropy_with_integer_labels(hidden @ params["b"]["kernel"] + params["b"]["bias"], labels).mean()


def _params() -> Any:
    keys = jax.random.split(jax.random.key(1))
    return {
        "a": {"kernel": jax.random.normal(keys[0], (4, 8)) * 0.5, "bias": jnp.zeros(8)},
        "b": {"kernel": jax.random.normal(keys[1], (8, 3)) * 0.5, "bias": jnp.zeros(3)},
    }


_SCHEDULE = optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, 8)
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: optax.adam(_SCHEDULE),
    "adamw": lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(0.01)),
    "adamw_bf16": lambda: optax.adamw(0.01, mu_dtype=jnp.bfloat16),
    "amsgrad": lambda: optax.amsgrad(0.01),
    "rmsprop": lambda: optax.rmsprop(0.01, centered=True, momentum=0.9),
    "adagrad": lambda: optax.adagrad(0.1),
    "adadelta": lambda: optax.adadelta(0.1),
    "adafactor": lambda: optax.adafactor(0.01, min_dim_size_to_factor=2),
    "lamb": lambda: optax.lamb(0.01),
    "lion": lambda: optax.lion(0.01),
    "yogi": lambda: optax.yogi(0.01),
    "novograd": lambda: optax.novograd(0.01),
    "radam": lambda: optax.radam(0.01),
    "noisy_sgd": lambda: optax.noisy_sgd(0.1, seed=3),
    "sm3": lambda: optax.sm3(0.1),
    "schedule_free": lambda: optax.contrib.schedule_free_adamw(0.01),
    "prodigy": lambda: optax.contrib.prodigy(1.0),
    "multi_steps": lambda: optax.MultiSteps(optax.adam(0.05), every_k_schedule=2),
    "inject": lambda: optax.inject_hyperparams(optax.adam)(learning_rate=_SCHEDULE),
    "if_finite": lambda: optax.apply_if_finite(optax.adam(0.05), 3),
    "partition": lambda: optax.partition({"x": optax.adam(0.05), "y": optax.sgd(0.1)}, {"a": "x", "b": "y"}),
    "masked": lambda: optax.masked(optax.adam(0.05), {"a": True, "b": {"kernel": True, "bias": False}}),
    "ema": lambda: optax.chain(optax.ema(0.9), optax.scale(-0.1)),
}


def _training_with(make: Callable[[], Any]) -> Callable[[Any], Training]:
    def made(names: Any) -> Training:
        names.optimizer = make()
        names.params = _params()
        names.state = names.optimizer.init(names.params)

        @jax.jit
        def train(params: Any, state: Any, rows: Any, labels: Any) -> Any:
            loss, grads = jax.value_and_grad(_loss)(params, rows, labels)
            updates, state = names.optimizer.update(grads, state, params)
            return optax.apply_updates(params, updates), state, loss

        while True:
            turn = yield
            names.params, names.state, names.loss = train(names.params, names.state, ROWS[turn], LABELS[turn])

    return made


CASES.update({f"optax {name}": Case(_training_with(make)) for name, make in OPTIMIZERS.items()})


@case()
def lbfgs_with_its_line_search(names: Any) -> Training:
    names.optimizer, names.params = optax.lbfgs(), _params()
    names.state = names.optimizer.init(names.params)

    def loss(params: Any) -> Any:
        return _loss(params, ROWS[0], LABELS[0])

    @jax.jit
    def train(params: Any, state: Any) -> Any:
        value, grads = optax.value_and_grad_from_state(loss)(params, state=state)
        updates, state = names.optimizer.update(grads, state, params, value=value, grad=grads, value_fn=loss)
        return optax.apply_updates(params, updates), state

    while True:
        yield
        names.params, names.state = train(names.params, names.state)


@case()
def an_optimizer_made_in_the_loop(names: Any) -> Training:
    names.params, names.optimizer, names.state = _params(), None, None
    while True:
        turn = yield
        if turn == 2:
            names.params = _params()
        optimizer = optax.adam(0.01)
        names.state = optimizer.init(names.params) if names.state is None else names.state
        grads = jax.grad(_loss)(names.params, ROWS[turn], LABELS[turn])
        updates, names.state = optimizer.update(grads, names.state)
        names.params = optax.apply_updates(names.params, updates)


@case()
def moving_averages_and_the_best(names: Any) -> Training:
    names.params = names.average = names.best = _params()
    names.history, names.least = [], float("inf")
    while True:
        turn = yield
        loss, grads = jax.value_and_grad(_loss)(names.params, ROWS[turn], LABELS[turn])
        names.params = jax.tree.map(lambda p, g: p - 0.1 * g, names.params, grads)
        names.average = optax.incremental_update(names.params, names.average, 0.1)
        names.history.append(float(loss))
        if loss < names.least:
            names.least, names.best = float(loss), names.params


class LinenNet(linen.Module):
    width: int = 8

    @linen.compact
    def __call__(self, rows: Any, *, train: bool) -> Any:
        rows = linen.relu(linen.BatchNorm(use_running_average=not train)(linen.Dense(self.width)(rows)))
        return linen.Dense(3)(linen.Dropout(0.3, deterministic=not train)(rows))


class State(train_state.TrainState):
    batch_stats: Any
    key: Any


def _linen(names: Any) -> None:
    names.net = LinenNet()
    variables = names.net.init(jax.random.key(0), ROWS[0], train=False)
    names.state = State.create(
        apply_fn=names.net.apply,
        params=variables["params"],
        tx=optax.adam(0.01),
        batch_stats=flax.core.freeze(variables["batch_stats"]),
        key=jax.random.key(2),
    )


def _linen_step(state: Any, rows: Any, labels: Any) -> Any:
    key = jax.random.fold_in(state.key, state.step)

    def loss(params: Any) -> Any:
        given = {"params": params, "batch_stats": state.batch_stats}
        logits, new = state.apply_fn(given, rows, train=True, mutable=["batch_stats"], rngs={"dropout": key})
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), new

    (value, new), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, batch_stats=flax.core.freeze(new["batch_stats"])), value


@case()
def linen_with_a_train_state(names: Any) -> Training:
    _linen(names)
    train = jax.jit(_linen_step, donate_argnums=0)
    while True:
        turn = yield
        names.state, names.loss = train(names.state, ROWS[turn], LABELS[turn])


@case()
def linen_outside_of_jit(names: Any) -> Training:
    _linen(names)
    while True:
        turn = yield
        names.state, names.loss = _linen_step(names.state, ROWS[turn], LABELS[turn])


@case()
def linen_with_a_scale_and_a_cell(names: Any) -> Training:
    names.cell = linen.GRUCell(6)
    names.carry = names.cell.initialize_carry(jax.random.key(0), (5, 4))
    names.params = names.cell.init(jax.random.key(1), names.carry, ROWS[0])
    names.scale = dynamic_scale.DynamicScale(scale=16.0, growth_interval=2)
    while True:
        turn = yield

        def loss(params: Any, turn: int = turn) -> Any:
            carry, out = names.cell.apply(params, names.carry, ROWS[turn])
            return (out**2).mean(), carry

        names.scale, names.finite, (_value, names.carry), grads = names.scale.value_and_grad(loss, has_aux=True)(names.params)
        names.params = jax.tree.map(lambda p, g: p - 0.1 * g, names.params, grads)


class NnxNet(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.first, self.norm = nnx.Linear(4, 8, rngs=rngs), nnx.BatchNorm(8, rngs=rngs)
        self.drop, self.last = nnx.Dropout(0.3, rngs=rngs), nnx.Linear(8, 3, rngs=rngs)
        self.calls = 0

    def __call__(self, rows: Any) -> Any:
        return self.last(self.drop(nnx.relu(self.norm(self.first(rows)))))


def _nnx_loss(model: Any, rows: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(model(rows), labels).mean()


@case()
def nnx_with_its_optimizer_and_metrics(names: Any) -> Training:
    names.model = NnxNet(nnx.Rngs(0, dropout=1))
    names.optimizer = nnx.Optimizer(names.model, optax.adamw(0.01), wrt=nnx.Param)
    names.metrics = nnx.MultiMetric(loss=nnx.metrics.Average("loss"))

    @nnx.jit
    def train(model: Any, optimizer: Any, metrics: Any, rows: Any, labels: Any) -> None:
        loss, grads = nnx.value_and_grad(_nnx_loss)(model, rows, labels)
        metrics.update(loss=loss)
        optimizer.update(model, grads)

    while True:
        turn = yield
        train(names.model, names.optimizer, names.metrics, ROWS[turn], LABELS[turn])
        names.model.calls += 1


@case()
def nnx_outside_of_jit(names: Any) -> Training:
    names.model = NnxNet(nnx.Rngs(0))
    names.optimizer = nnx.Optimizer(names.model, optax.sgd(0.1, 0.9), wrt=nnx.Param)
    names.best = None
    while True:
        turn = yield
        names.loss, grads = nnx.value_and_grad(_nnx_loss)(names.model, ROWS[turn], LABELS[turn])
        names.optimizer.update(names.model, grads)
        if turn == 1:
            names.best = copy.deepcopy(nnx.state(names.model))


@case()
def nnx_split_and_merged(names: Any) -> Training:
    names.graph, names.params, names.rest = nnx.split(NnxNet(nnx.Rngs(0)), nnx.Param, ...)
    names.optimizer = optax.adam(0.01)
    names.state = names.optimizer.init(names.params)

    @jax.jit
    def train(graph: Any, params: Any, rest: Any, state: Any, rows: Any, labels: Any) -> Any:
        def loss(params: Any) -> Any:
            model = nnx.merge(graph, params, jax.tree.map(lambda each: each, rest))
            value = _nnx_loss(model, rows, labels)
            return value, nnx.split(model, nnx.Param, ...)[2]

        (_value, rest), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, state = names.optimizer.update(grads, state)
        return optax.apply_updates(params, updates), rest, state

    while True:
        turn = yield
        names.params, names.rest, names.state = train(names.graph, names.params, names.rest, names.state, ROWS[turn], LABELS[turn])
        names.model = nnx.merge(names.graph, names.params, names.rest)


@case()
def an_nnx_layer_made_in_the_loop(names: Any) -> Training:
    names.layers = [nnx.Linear(4, 4, rngs=nnx.Rngs(0))]
    while True:
        turn = yield
        if turn == 1:
            names.layers.append(nnx.Linear(4, 4, rngs=nnx.Rngs(turn)))
        rows = ROWS[turn]
        for layer in names.layers:
            rows = layer(rows)
            layer.bias[...] = layer.bias[...] + rows.mean(0)


class EqxNet(eqx.Module):
    layers: list[Any]
    drop: eqx.nn.Dropout
    scale: float = eqx.field(static=True)

    def __init__(self, key: Any) -> None:
        first, last = jax.random.split(key)
        self.layers = [eqx.nn.Linear(4, 8, key=first), jax.nn.relu, eqx.nn.Linear(8, 3, key=last)]
        self.drop, self.scale = eqx.nn.Dropout(0.3), 1.5

    def __call__(self, row: Any, key: Any) -> Any:
        return self.layers[2](self.drop(self.layers[1](self.layers[0](row)), key=key)) * self.scale


@case()
def equinox_with_filters(names: Any) -> Training:
    names.model, names.key = EqxNet(jax.random.key(0)), jax.random.key(1)
    names.optimizer = optax.adam(0.01)
    names.state = names.optimizer.init(eqx.filter(names.model, eqx.is_inexact_array))

    @eqx.filter_jit(donate="all-except-first")
    def train(batch: Any, model: Any, state: Any, key: Any) -> Any:
        @eqx.filter_value_and_grad
        def loss(model: Any) -> Any:
            logits = jax.vmap(model)(batch[0], jax.random.split(key, 5))
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()

        value, grads = loss(model)
        updates, state = names.optimizer.update(grads, state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), state, value

    while True:
        turn = yield
        names.key, sub = jax.random.split(names.key)
        names.model, names.state, names.loss = train((ROWS[turn], LABELS[turn]), names.model, names.state, sub)


class Normed(eqx.Module):
    norm: eqx.nn.BatchNorm
    last: eqx.nn.Linear

    def __init__(self, key: Any) -> None:
        self.norm = eqx.nn.BatchNorm(4, axis_name="batch", mode="ema")
        self.last = eqx.nn.Linear(4, 3, key=key)

    def __call__(self, row: Any, state: Any) -> Any:
        row, state = self.norm(row, state)
        return self.last(row), state


@case()
def equinox_with_a_state(names: Any) -> Training:
    names.model, names.state = eqx.nn.make_with_state(Normed)(jax.random.key(0))

    @eqx.filter_jit
    def train(model: Any, state: Any, rows: Any) -> Any:
        def loss(model: Any) -> Any:
            logits, new = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(rows, state)
            return (logits**2).mean(), new

        (_value, state), grads = eqx.filter_value_and_grad(loss, has_aux=True)(model)
        return eqx.apply_updates(model, jax.tree.map(lambda grad: -0.1 * grad, grads)), state

    while True:
        turn = yield
        names.model, names.state = train(names.model, names.state, ROWS[turn])


@case()
def flags_that_the_loop_sets(names: Any) -> Training:
    jax.config.update("jax_enable_x64", False)
    jax.config.update("jax_default_matmul_precision", None)
    names.value = jnp.ones(3)
    while True:
        turn = yield
        if turn == 2:
            jax.config.update("jax_enable_x64", True)
            jax.config.update("jax_default_matmul_precision", "highest")
        names.value = jnp.asarray(np.arange(3.0)) @ jnp.ones((3, 3)) + turn
        names.precision = str(jax.config.jax_default_matmul_precision)
        if turn == 5:
            jax.config.update("jax_enable_x64", False)
            jax.config.update("jax_default_matmul_precision", None)
