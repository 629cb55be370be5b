"""Faults that a JAX program puts into its training itself, once: with the guard the run ends with the bits of the bare
run without them, also where steps take the memory of what they are given.

`$FAULTS` says at which batches (`8:weight,15:slot`); a file tells that one has been done.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from detrain.base.errors import FaultPersists, FrameworkUnsupported
from tests.e2e.forkserver import Server
from tests.e2e.programs import STRIKE
from tests.e2e.runs import actions

pytest.importorskip("jax")
pytest.importorskip("optax")

PROGRAM = STRIKE("""\
import hashlib
import jax, jax.numpy as jnp, numpy as np, optax

rng = np.random.default_rng(0)
rows, labels = rng.normal(size=(60, 6)).astype("f4"), rng.integers(0, 3, 60)
optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))

def loss_of(params, key, rows, labels):
    hidden = jnp.tanh(rows @ params["first"]["w"] + params["first"]["b"])
    hidden = hidden * jax.random.bernoulli(key, 0.8, hidden.shape)
    return optax.softmax_cross_entropy_with_integer_labels(hidden @ params["last"], labels).mean()

def train_step(params, state, key, rows, labels, by):
    loss, grads = jax.value_and_grad(loss_of)(params, key, rows, labels)
    updates, state = optimizer.update(grads, state, params)
    params = optax.apply_updates(params, updates)
    params["last"] = params["last"] + by
    return params, state, loss

train_step = jax.jit(train_step, donate_argnums=(0, 1))
first, last = (jnp.asarray(rng.normal(size=shape).astype("f4")) for shape in ((6, 8), (8, 3)))
params = {"first": {"w": first, "b": jnp.zeros(8)}, "last": last}
state, key = optimizer.init(params), jax.random.key(1)
best, losses = None, []
for epoch in range(2):
    for i in range(12):
        kind = strike()
        key, sub = jax.random.split(key)
        by = float("nan") if kind == "nan" else 1e15 if kind == "weight" else 0.0
        params, state, loss = train_step(params, state, sub, rows[5 * i : 5 * i + 5], labels[5 * i : 5 * i + 5], by)
        if kind == "slot":
            state = jax.tree.map(lambda each: each + 1e20 if each.ndim else each, state)
        losses.append(float(loss))
        if losses[-1] <= min(losses):
            best = jax.tree.map(jnp.copy, params)
    print(epoch, sum(losses).hex(), len(losses))
found = b"".join(np.asarray(each).tobytes() for each in jax.tree.leaves((params, state, best)))
print("weights", hashlib.sha256(found).hexdigest())
""")
EVERYWHERE = "2:weight,9:nan,12:weight,17:slot,23:weight"
"""In the first steps, near the window's end, at the first step of an epoch, inside of it, and at its last step."""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path / "program.py"


def test_faults_everywhere_are_undone_in_memory(jax_server: Server, program: Path) -> None:
    folder = program.parent
    bare = jax_server.bare(program, cwd=folder)
    done = jax_server.detrain("run", "--guard", "recover", program, cwd=folder, FAULTS=EVERYWHERE)

    assert (done.status, done.out) == (0, bare.out), done.err
    assert actions(folder / "ckpt") == ["went back", "recovered"] * 5


@pytest.mark.slow
def test_an_alarm_that_comes_again_ends_the_run(jax_server: Server, program: Path) -> None:
    done = jax_server.detrain("run", "--guard", "recover", program, cwd=program.parent, FAULTS="5:weight", again="1")

    assert done.status == FaultPersists.exit_code, done.err
    assert actions(program.parent / "ckpt") == ["went back", "stopped"]


@pytest.mark.slow
def test_detect_changes_nothing(jax_server: Server, program: Path) -> None:
    bare = jax_server.bare(program, cwd=program.parent)
    done = jax_server.detrain("run", "--guard", "detect", program, cwd=program.parent)

    assert (done.status, done.out) == (0, bare.out), done.err
    assert "alarm" not in done.err


def test_gradients_are_not_looked_at(jax_server: Server, program: Path) -> None:
    done = jax_server.detrain("run", "--guard", "detect", "--guard-gradients", program, cwd=program.parent)

    assert done.status == FrameworkUnsupported.exit_code
    assert "JAX takes gradients inside of compiled functions" in done.err
