"""Values that a JAX program may have under its names at a cut."""

from __future__ import annotations

import collections
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.example_libraries import optimizers

from tests.adapters.cut_world import Training
from tests.adapters.jax_resume import case

LARGE = 40_000
"""Elements of an array that a checkpoint keeps by its digest if it is unchanged."""


@case()
def dtypes_and_what_computations_go_by(names: Any) -> Training:
    names.values = []
    while True:
        turn = yield
        kinds = ("int4", "uint4", "int8", "uint64", "bool", "float16", "bfloat16", "float32", "float8_e4m3fn", "complex64")
        odd = np.array([0x7FC00001, 0xFF800000, 0x80000000, 1], np.uint32).view(np.float32)
        names.values = [(jnp.arange(6).reshape(2, 3) + turn).astype(kind) for kind in kinds]
        names.values += [jnp.array(odd), jnp.zeros((0, 3)), jnp.full((3,), 1.0), jnp.array(turn), jnp.full((), 3)]
        names.values += [jax.device_put(jnp.ones(3) * turn, jax.devices()[0]), jnp.ones((4, 3)).T[::2]]


@case()
def keys_of_all_kinds(names: Any) -> Training:
    names.key, names.raw, names.rbg = jax.random.key(3), jax.random.PRNGKey(4), jax.random.key(5, impl="rbg")
    names.many, names.drawn = jax.random.split(names.key, 4), []
    while True:
        turn = yield
        names.key, sub = jax.random.split(names.key)
        names.raw = jax.random.fold_in(names.raw, turn)
        names.rbg, other = jax.random.split(names.rbg)
        names.many = names.many.at[turn % 4].set(sub)
        names.drawn.append((jax.random.normal(names.many[0], (2,)), jax.random.uniform(names.raw), jax.random.bits(other, (2,))))


@case()
def a_step_that_takes_the_memory_of_its_arguments(names: Any) -> Training:
    names.params = {"w": jnp.arange(8.0), "large": jnp.zeros(LARGE)}
    names.before = None

    @functools.partial(jax.jit, donate_argnums=0)
    def train(params: Any) -> Any:
        return jax.tree.map(lambda each: each * 1.5 + 1, params)

    while True:
        turn = yield
        names.before = None if turn == 1 else names.params  # at the cut, and behind it, deleted
        names.params = train(names.params)


@case()
def arrays_that_are_equal_and_arrays_that_are_one(names: Any) -> Training:
    names.mean, names.square, names.params = jnp.zeros(LARGE), jnp.zeros(LARGE), jnp.ones(LARGE)
    names.target, names.swapped = names.params, [names.mean, names.square]
    while True:
        turn = yield
        names.params = names.params + 1
        if turn == 1:
            names.target = names.params
        if turn == 2:
            names.mean = jnp.zeros(LARGE)
            names.swapped.reverse()


@case()
def weak_types_of_large_arrays(names: Any) -> Training:
    names.weak, names.strong = jnp.full((LARGE,), 1.0), jnp.ones(LARGE)
    names.out = None
    while True:
        turn = yield
        if turn == 1:
            names.weak, names.strong = names.strong, names.weak
        names.out = (names.weak * jnp.bfloat16(1), names.strong * jnp.bfloat16(1))


@case()
def a_replay_buffer(names: Any) -> Training:
    names.buffer, names.recent, names.at = jnp.zeros((8, 3)), collections.deque(maxlen=4), 0
    while True:
        turn = yield
        row = jnp.arange(3.0) * turn
        names.buffer = names.buffer.at[names.at].set(row)
        names.recent.append(row)
        names.at = (names.at + 1) % 8


@case()
def forms_of_trees_devices_and_shapes(names: Any) -> Training:
    names.found = {}
    while True:
        turn = yield
        leaves, names.found["tree"] = jax.tree.flatten({"a": (jnp.ones(2), None), "b": [turn]})
        names.found |= {"leaves": leaves, "shape": jax.ShapeDtypeStruct((2, turn), jnp.bfloat16), "device": jax.devices()[0]}
        names.found["sharding"] = leaves[0].sharding
        names.found["again"] = jax.tree.unflatten(names.found["tree"], leaves)


@jax.tree_util.register_pytree_node_class
class OfLibrary:
    """A stand-in for a class of an unknown library."""

    def __init__(self, weights: Any) -> None:
        self.weights = weights

    def tree_flatten(self) -> tuple[Any, None]:
        return (self.weights,), None

    @classmethod
    def tree_unflatten(cls, _nothing: None, children: Any) -> Any:
        return cls(*children)


OfLibrary.__module__ = "json"


def scaled(rate: float, value: Any) -> Any:
    return value * rate


@case()
def functions_compiled_in_the_loop(names: Any) -> Training:
    names.value, names.scale, names.slope = jnp.arange(3.0), None, None
    while True:
        turn = yield
        if turn == 1:
            names.scale = jax.jit(functools.partial(scaled, 2.0), static_argnums=())
            names.slope = jax.value_and_grad(squared, argnums=0)
        if names.scale is not None:
            names.value = names.scale(names.value)
            names.value = names.value - 0.1 * names.slope(names.value)[1]


def squared(value: Any) -> Any:
    return (value**2).sum()


@case()
def a_state_of_example_libraries(names: Any) -> Training:
    init, update, params_of = optimizers.adam(0.1)
    names.state = init({"a": jnp.ones(3), "b": [jnp.zeros(2)]})

    @jax.jit
    def train(turn: Any, state: Any) -> Any:
        return update(turn, jax.tree.map(lambda each: each + 1, params_of(state)), state)

    while True:
        turn = yield
        names.state = train(turn, names.state)


@case()
def a_view_by_numpy(names: Any) -> Training:
    names.params, names.view, names.own = jnp.arange(4.0), None, None
    while True:
        turn = yield
        names.params = names.params + 1
        names.view = np.asarray(names.params)
        names.own = np.array(names.params)
        names.own[0] = turn
