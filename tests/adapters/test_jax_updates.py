"""Where JAX updates weights is seen, each time and no more often, and the program sees of it nothing: what `jax.jit`
returns is used as JAX's own.
"""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import json
import pickle
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

jax = pytest.importorskip("jax")

import equinox as eqx  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from flax import nnx  # noqa: E402

from detrain.adapters.api import Settings  # noqa: E402
from detrain.adapters.jax.adapter import Jax  # noqa: E402
from detrain.base.errors import Diverged  # noqa: E402
from detrain.python.process.random_streams import Streams  # noqa: E402
from tests.adapters.jax_resume import jax_put_back  # noqa: E402


@pytest.fixture
def seen() -> Iterator[list[int]]:
    """An adapter that has just been made: the updates that it has told of."""
    updates: list[int] = []
    with jax_put_back():
        Jax(Settings(seed=0, threads=1, on_update=updates.append), Streams())
        yield updates


ROWS = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)


def loss(weights: Any, rows: Any) -> Any:
    return ((rows @ weights) ** 2).mean()


def by_hand(weights: Any, rows: Any) -> Any:
    return weights - 0.1 * jax.grad(loss)(weights, rows)


def by_optimizer(weights: Any, rows: Any) -> Any:
    updates, _state = optax.sgd(0.1).update(jax.grad(loss)(weights, rows), optax.sgd(0.1).init(weights))
    return optax.apply_updates(weights, updates)


def repeated(step: Callable[..., Any]) -> None:
    weights = jnp.ones(4)
    for _ in range(4):
        weights = step(weights, ROWS)


def test_each_call_of_a_compiled_step_is_an_update(seen: list[int]) -> None:
    repeated(jax.jit(by_optimizer))
    assert len(seen) == 4
    assert len(set(seen)) == 1
    repeated(eqx.filter_jit(by_optimizer))
    repeated(jax.jit(jax.jit(by_optimizer)))
    for _ in range(4):
        jax.jit(by_optimizer)(jnp.ones(4), ROWS)
    repeated(by_optimizer)
    repeated(jax.jit(by_optimizer, donate_argnums=0))
    assert len(seen) == 6 * 4
    model = nnx.Linear(4, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    step = nnx.jit(lambda m, o, rows: o.update(m, nnx.grad(lambda m: (m(rows) ** 2).mean())(m)))
    for _ in range(3):
        step(model, optimizer, ROWS)
    assert len(seen) == 6 * 4 + 3


def test_each_call_of_a_step_that_was_compiled_ahead_is_an_update(seen: list[int]) -> None:
    step = jax.jit(functools.partial(by_optimizer))
    ahead = [step.lower(jnp.ones(4), ROWS).compile(), step.trace(jnp.ones(4), ROWS).lower().compile()]
    ahead.append(eqx.filter_jit(by_optimizer).lower(jnp.ones(4), ROWS).compile())
    assert not seen
    for each in ahead:
        repeated(each)
    assert len(seen) == 12
    assert len(set(seen)) == 2
    jax.jit(lambda rows: rows + 1).lower(ROWS).compile()(ROWS)
    assert len(seen) == 12


def test_weights_that_are_moved_by_hand_are_seen_from_the_second_time_on(seen: list[int]) -> None:
    repeated(jax.jit(by_hand))
    assert len(seen) == 3
    repeated(by_hand)
    assert len(seen) == 6


def test_gradients_that_move_nothing_are_no_updates(seen: list[int]) -> None:
    weights = jnp.ones(4)
    for row in ROWS:
        jax.grad(loss)(weights, row[None])
        jax.jit(jax.value_and_grad(loss))(weights, row[None])
    assert seen == []
    repeated(by_optimizer)
    seen.clear()
    repeated(jax.jit(by_hand))  # a program with an optimizer
    assert seen == []


def test_loops_of_jax_hand_on_what_their_body_does(seen: list[int]) -> None:
    def body(weights: Any, row: Any) -> Any:
        return by_optimizer(weights, row[None]), None

    def moved(weights: Any, row: Any) -> Any:
        return by_hand(weights, row[None]), None

    weights = jnp.ones(4)
    for _ in range(4):
        weights, _nothing = jax.lax.scan(moved, weights, ROWS)
    assert len(seen) == 3
    seen.clear()
    for _ in range(3):
        weights, _nothing = jax.lax.scan(body, weights, ROWS)
    assert len(seen) == 3
    epoch = jax.jit(lambda weights, rows: jax.lax.scan(body, weights, rows)[0])
    repeated(epoch)
    assert len(seen) == 7


def test_an_update_in_a_map_outside_of_compiled_functions_is_one(seen: list[int]) -> None:
    mesh = jax.make_mesh((8,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.shard_map(by_optimizer, mesh=mesh, in_specs=(jax.P(), jax.P("i")), out_specs=jax.P(), check_vma=False)
    weights = jax.device_put(jnp.ones(4), jax.NamedSharding(mesh, jax.P()))
    for _ in range(3):
        weights = spread(weights, ROWS)
    assert len(seen) == 3
    for _ in range(3):
        jax.vmap(by_optimizer, in_axes=(0, None))(jnp.ones((2, 4)), ROWS)
    assert len(seen) == 6
    jax.eval_shape(by_optimizer, jnp.ones(4), ROWS)
    assert len(seen) == 6


def test_each_call_of_a_function_of_pmap_is_an_update_and_its_trace_is_known(seen: list[int]) -> None:
    rate = [0.5]

    def trained() -> tuple[Jax, Callable[..., Any]]:
        def step(weights: Any, rows: Any, is_twice: bool) -> Any:
            weights = by_optimizer(weights, rows)
            return rate[0] * weights * (2 if is_twice else 1)

        return Jax(Settings(seed=0, threads=1, on_update=seen.append), Streams()), jax.pmap(step, static_broadcasted_argnums=2)

    first, compiled = trained()
    weights = jnp.ones((8, 4))
    assert compiled.lower(weights, ROWS[:, None], False).compile() is not None
    for turn in range(4):
        weights = compiled(weights, ROWS[:, None], turn % 2 == 0)
    assert len(seen) == 4
    state = first.state()
    for value in (0.5, 0.25):
        rate[0] = value
        again, compiled = trained()
        again.set_state(state, {}, "auto")
        with pytest.raises(Diverged, match="is not what the first run had traced") if value == 0.25 else nullcontext():
            compiled(weights, ROWS[:, None], True)


def test_a_mesh_that_the_loop_has_set_is_set_again(seen: list[int]) -> None:
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    with jax.set_mesh(mesh):
        adapter = Jax(Settings(seed=0, threads=1), Streams())
        state = adapter.state()
    plain = adapter.state()
    assert jax.sharding.get_mesh().empty
    adapter.set_state(state, {}, "auto")
    assert jax.sharding.get_mesh() is mesh
    adapter.set_state(plain, {}, "auto")
    assert jax.sharding.get_mesh().empty
    with pytest.warns(DeprecationWarning, match="set_mesh"), mesh:
        entered = adapter.state()
    with pytest.raises(Diverged, match="inside of 0 `with mesh:`, where the first run was inside of 1"):
        adapter.set_state(entered, {}, "auto")
    assert seen == []


def test_a_compiled_function_is_used_as_jaxs_own(seen: list[int]) -> None:
    @functools.partial(jax.jit, static_argnames="times")
    def scaled(value: Any, times: int = 2) -> Any:
        """Scale."""
        return value * times

    class Model:
        @jax.jit
        def apply(self: Any) -> Any:
            return jnp.ones(2)

        @functools.partial(jax.jit, static_argnums=0)
        def twice(self, value: Any) -> Any:
            return value * 2

    assert scaled.__name__ == "scaled"
    assert scaled.__doc__ == "Scale."
    assert list(inspect.signature(scaled).parameters) == ["value", "times"]
    assert type(scaled.__wrapped__(2.0)) is float
    assert scaled.lower(jnp.ones(2)).compile()(jnp.ones(2)).tolist() == [2.0, 2.0]
    assert scaled.trace(jnp.ones(2)).out_info.shape == (2,)
    assert scaled.eval_shape(jnp.ones(2)).shape == (2,)
    assert scaled(jnp.ones(2), times=3).tolist() == [3.0, 3.0]
    assert scaled._cache_size() >= 1
    scaled.clear_cache()
    assert scaled._cache_size() == 0
    assert isinstance(scaled, jax.stages.Wrapped)
    assert Model().twice(jnp.ones(2)).tolist() == [2.0, 2.0]
    assert jax.jit(static_argnums=1)(lambda a, b: a * b)(jnp.ones(2), 3).tolist() == [3.0, 3.0]
    assert jax.vmap(scaled)(jnp.ones((2, 2))).tolist() == [[2.0, 2.0]] * 2
    assert copy.deepcopy(jax.jit(loss))(jnp.ones(4), ROWS) == pickle.loads(pickle.dumps(jax.jit(loss)))(jnp.ones(4), ROWS)
    with jax.disable_jit():
        assert scaled(jnp.ones(2)).tolist() == [2.0, 2.0]
    with pytest.raises(TypeError, match=r"missing a required argument|missing 1 required"):
        scaled()
    assert seen == []


def test_a_function_that_reads_another_python_value_than_in_the_first_run_is_refused(seen: list[int]) -> None:
    rate = [0.5]

    def trained() -> tuple[Jax, Callable[..., Any]]:
        adapter = Jax(Settings(seed=0, threads=1), Streams())
        return adapter, jax.jit(lambda weights: weights * rate[0] + jnp.asarray(ROWS[0]))

    first, step = trained()
    step(jnp.ones(4))
    rate[0] = 0.25
    step(jnp.ones(4))  # JAX does not see it
    state = json.loads(first.state())

    again, step = trained()
    again.set_state(json.dumps(state).encode(), {}, "auto")
    with pytest.raises(Diverged, match="is not what the first run had traced"):
        step(jnp.ones(4))
    assert seen == []
    rate[0] = 0.5
    again, step = trained()
    again.set_state(json.dumps(state).encode(), {}, "auto")
    assert step(jnp.ones(4)).tolist() == (0.5 + ROWS[0]).tolist()
    ROWS[0, 0] += 1  # a constant of the trace
    again, step = trained()
    again.set_state(json.dumps(state).encode(), {}, "auto")
    with pytest.raises(Diverged, match="is not what the first run had traced"):
        step(jnp.ones(4))


EAGER: dict[str, Callable[[Callable[..., Any], Any], Any]] = {
    "scan": lambda body, w: jax.lax.scan(lambda_of_two(body), w, jnp.ones((3, 4)))[0],
    "scan, a gradient": lambda body, w: jax.grad(lambda w: jax.lax.scan(lambda_of_two(body), w, jnp.ones((3, 4)))[0].sum())(w),
    "fori_loop": lambda body, w: jax.lax.fori_loop(0, 3, lambda_of_index(body), w),
    "while_loop": lambda body, w: jax.lax.while_loop(lambda w: w.sum() < 9, body, w),
    "cond": lambda body, w: jax.lax.cond(True, body, body, w),
    "checkpoint": lambda body, w: jax.checkpoint(body)(w),
}
"""Calls outside of `jax.jit` whose body JAX traces once, and a way to have the body that each takes."""


@functools.cache
def lambda_of_two(body: Callable[..., Any]) -> Callable[..., Any]:
    return lambda carry, row: (body(carry) + row, None)


@functools.cache
def lambda_of_index(body: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _index, carry: body(carry)


@pytest.mark.fast
@pytest.mark.parametrize("call", EAGER.values(), ids=EAGER)
def test_a_body_outside_of_jit_that_reads_another_python_value_is_refused(seen: list[int], call: Callable[..., Any]) -> None:
    """JAX keeps the trace as long as the function lives: the first run goes on with the old value."""
    rate = [1.5]
    weights = jnp.ones(4)

    def run(was: bytes = b"") -> tuple[Jax, Callable[..., Any], list[float]]:
        adapter = Jax(Settings(seed=0, threads=1), Streams())
        if was:
            adapter.set_state(was, {}, "auto")

        def body(w: Any) -> Any:
            return w * rate[0]

        return adapter, body, call(body, weights).tolist()

    first, body, old = run()
    rate[0] = 2.5
    assert call(body, weights).tolist() == old, "JAX sees it: there is nothing to be refused"
    state = first.state()
    with pytest.raises(Diverged, match=r"'.*' \(.*test_jax_updates.py:\d+\) is not what the first run had traced"):
        run(state)
    rate[0] = 1.5
    assert run(state)[2] == old
    assert seen == []


def test_a_function_of_gradients_that_is_made_anew_for_each_step_tells_of_updates(seen: list[int]) -> None:
    kept = []  # so that no function gets the address of another

    def step(weights: Any) -> Any:
        kept.append(lambda weights: loss(weights, ROWS))
        return weights - 0.1 * jax.grad(kept[-1])(weights)

    weights = jnp.ones(4)
    for _ in range(4):
        weights = step(weights)
    assert len(seen) == 3, "the first step has nothing before it"


def test_an_object_that_holds_the_gradient_of_its_method_goes_as_it_would(seen: list[int]) -> None:
    class Trainer:
        def __init__(self) -> None:
            self.gradient = jax.value_and_grad(self.loss)
            self.step = jax.jit(lambda weights: weights - self.gradient(weights, ROWS)[1])

        def loss(self, weights: Any, rows: Any) -> Any:
            return loss(weights, rows)

    trainer = Trainer()
    trainer.step(jnp.ones(4))
    gone = weakref.ref(trainer)
    del trainer
    gc.collect()
    assert gone() is None


def test_a_body_that_is_made_anew_for_each_call_may_read_what_it_likes(seen: list[int]) -> None:
    adapter = Jax(Settings(seed=0, threads=1), Streams())

    def step(rate: float) -> Any:
        return jax.lax.scan(lambda carry, row: (carry * rate + row, None), jnp.ones(4), jnp.ones((3, 4)))[0]

    for turn in range(3):
        step(turn)
    again = Jax(Settings(seed=0, threads=1), Streams())
    again.set_state(adapter.state(), {}, "auto")
    assert step(7.0).tolist() == [400.0] * 4
    assert seen == []
