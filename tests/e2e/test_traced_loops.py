"""Loops inside of functions that a framework traces or compiles: no cut is in them, and they are not the training's
loop. Programs are killed, run again, and compared with the bare program.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.forkserver import Server
from tests.e2e.programs import DIE, TENSORFLOW

OF_JAX = DIE("""\
from functools import partial
import jax, jax.numpy as jnp, numpy as np, optax

def loss(params, rows):
    return ((rows @ params["w"] + params["b"] - rows.sum(-1, keepdims=True)) ** 2).mean()

def inner(params, state, rows):
    for turn in range(3):
        updates, state = optimizer.update(jax.grad(loss)(params, rows[turn]), state)
        params = optax.apply_updates(params, updates)
    return params, state

def turning(params, state, rows):
    turn = 0
    while turn < 3:
        updates, state = optimizer.update(jax.grad(loss)(params, rows[turn]), state)
        params = optax.apply_updates(params, updates)
        turn += 1
    return params, state

def made(turns):
    def unrolled(params, state, rows):
        for turn in range(turns):
            updates, state = optimizer.update(jax.grad(loss)(params, rows[turn]), state)
            params = optax.apply_updates(params, updates)
        return params, state
    return unrolled

def last_loss(params, state, rows):
    for row in rows:
        updates, state = optimizer.update(jax.grad(loss)(params, row), state)
        params = optax.apply_updates(params, updates)
    return loss(params, rows[0]), state

def through_the_turns(params, state, rows):
    gradient, state = jax.grad(last_loss, has_aux=True)(params, state, rows)
    return optax.apply_updates(params, jax.tree.map(lambda each: -0.1 * each, gradient)), state

def over_rows(params, state, rows):
    def body(carry, rows):
        return inner(*carry, rows), 0.0
    return jax.lax.scan(body, (params, state), jnp.stack([rows, rows * 0.5]))[0]

def of_two(params, state, rows):
    both = jax.vmap(inner, in_axes=(None, None, 0))(params, state, jnp.stack([rows, rows * 0.5]))
    return jax.tree.map(lambda each: each[0], both)

class Trainer:
    def __init__(self):
        self.run = jax.jit(self.of_trainer)
    def of_trainer(self, params, state, rows):
        for turn in range(3):
            updates, state = optimizer.update(jax.grad(loss)(params, rows[turn]), state)
            params = optax.apply_updates(params, updates)
        return params, state

def chunks(rows):
    for turn in range(3):
        yield rows[turn]

def over_chunks(params, state, rows):
    for row in chunks(rows):
        updates, state = optimizer.update(jax.grad(loss)(params, row), state)
        params = optax.apply_updates(params, updates)
    return params, state

optimizer = optax.adam(0.05)
params = {"w": jnp.ones((4, 1)), "b": jnp.zeros(1)}
state = optimizer.init(params)
rng = np.random.default_rng(0)
""")
STEPS_OF_JAX = {
    "a function is compiled by a call": "step = jax.jit(inner)",
    "a while loop": "step = jax.jit(turning)",
    "ahead of its calls": "step = jax.jit(inner).lower(params, state, np.ones((3, 5, 4), np.float32)).compile()",
    "a function that a function makes": "step = jax.jit(made(3))",
    "a partial decorator": "step = partial(jax.jit, static_argnums=())(inner)",
    "a method": "step = Trainer().run",
    "a loop of JAX's": "step = over_rows",
    "two at once": "step = of_two",
    "a gradient through the loop": "step = through_the_turns",
    "a generator of the program": "step = jax.jit(over_chunks)",
    "a decorator with a name of its own": """
compiled = partial(jax.jit, static_argnums=())
@compiled
def step(params, state, rows):
    for turn in range(3):
        updates, state = optimizer.update(jax.grad(loss)(params, rows[turn]), state)
        params = optax.apply_updates(params, updates)
    return params, state
""",
}
LOOP_OF_JAX = """
for batch in range(12):
    die(str(batch))
    params, state = step(params, state, rng.normal(size=(3, 5, 4)).astype("float32"))
    print(batch, np.asarray(params["w"]).tobytes().hex())
"""
EPOCHS_OF_JAX = """
for epoch in range(3):
    for batch in range(4):
        die(str(4 * epoch + batch))
        params, state = step(params, state, rng.normal(size=(3, 5, 4)).astype("float32"))
        print(batch, np.asarray(params["w"]).tobytes().hex())
"""


@pytest.mark.parametrize("loop", [LOOP_OF_JAX, EPOCHS_OF_JAX], ids=["a loop", "two loops"])
@pytest.mark.parametrize("step", STEPS_OF_JAX.values(), ids=STEPS_OF_JAX)
def test_a_loop_that_jax_traces_has_no_cut_and_the_loop_around_it_has(
    step: str, loop: str, jax_server: Server, tmp_path: Path
) -> None:
    assert_exact(jax_server, tmp_path, OF_JAX + step + loop)


OF_TENSORFLOW = TENSORFLOW("""\
from functools import partial

def inner(rows):
    for turn in range(3):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((net(rows[turn]) - 1.0) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))

net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam(0.05)
""")
STEPS_OF_TENSORFLOW = {
    "without AutoGraph": "step = partial(tf.function, autograph=False)(inner)",
    "a decorator with a name of its own": "graph = tf.function\nstep = graph(inner)",
}
LOOP = """
for batch in range(12):
    die(str(batch))
    step(np.random.normal(size=(3, 5, 4)).astype("float32"))
    print(batch, shown())
"""


@pytest.mark.parametrize("step", STEPS_OF_TENSORFLOW.values(), ids=STEPS_OF_TENSORFLOW)
def test_a_loop_that_tensorflow_traces_has_no_cut(step: str, server: Server, tmp_path: Path) -> None:
    shown = "\nshown = lambda: [each.numpy().tobytes().hex() for each in net.trainable_variables]"

    assert_exact(server, tmp_path, OF_TENSORFLOW + step + shown + LOOP)


OF_TORCH = DIE("""\
from functools import partial
import numpy as np, torch

net = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(net.parameters(), 0.05)
weight = torch.ones(4, 1, requires_grad=True)

def inner(rows):
    for turn in range(3):
        optimizer.zero_grad()
        ((net(rows[turn]) - 1.0) ** 2).mean().backward()
        optimizer.step()

def by_hand(rows):
    global weight
    for turn in range(3):
        loss = ((rows[turn] @ weight - 1.0) ** 2).mean()
        with torch.no_grad():
            weight = (weight - 0.1 * torch.autograd.grad(loss, [weight])[0]).requires_grad_()

def step(rows):
    run(torch.from_numpy(rows))

shown = lambda: [each.detach().numpy().tobytes().hex() for each in (net.weight, net.bias, weight)]
""")
STEPS_OF_TORCH = {
    "a loop that breaks the graph": "run = torch.compile(inner, backend='aot_eager')",
    "a partial decorator": "run = partial(torch.compile, backend='aot_eager')(inner)",
    "weights set by hand": "run = torch.compile(by_hand, backend='aot_eager')",
}


@pytest.mark.parametrize("step", STEPS_OF_TORCH.values(), ids=STEPS_OF_TORCH)
def test_a_loop_that_dynamo_goes_through_is_as_in_the_bare_program(step: str, torch_server: Server, tmp_path: Path) -> None:
    assert_exact(torch_server, tmp_path, OF_TORCH + step + LOOP)


def assert_exact(server: Server, folder: Path, text: str) -> None:
    """Kill a program at two batches, and compare what its runs print with the bare program's output."""
    (folder / "program.py").write_text(text)
    expected = server.bare("program.py", cwd=folder).ok().out.splitlines()
    command = ("run", "--every", "2b", "program.py")

    first = server.detrain(*command, cwd=folder, DIE_AT="5").died()
    second = server.detrain(*command, cwd=folder, DIE_AT="9").died()
    last = server.detrain(*command, cwd=folder).ok()

    for done in (first, second, last):
        assert "detrain itself failed" not in done.err, done.err
        assert set(done.out.splitlines()) <= set(expected)
    for done, cut in ((second, 3), (last, 7)):
        assert "resuming" in done.err, done.err
        lines = done.out.splitlines()
        assert len(lines) <= len(expected) - cut, done.err
        assert lines == expected[expected.index(lines[0]) :][: len(lines)]
    assert last.last_line() == expected[-1]
