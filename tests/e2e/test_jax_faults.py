"""Faults in whole JAX programs: the injected run is the program with the value put in by hand, and replays; what cannot
be is refused.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.runs import EXAMPLES, detrain, environment, injected, weights

pytest.importorskip("jax")
pytest.importorskip("optax")

pytestmark = pytest.mark.slow  # each command starts several processes, as a user's does

PROGRAM = """
import hashlib, sys
import jax, jax.numpy as jnp, numpy as np, optax

rng = np.random.default_rng(0)
rows = rng.normal(size=(160, 12)).astype(np.float32)
labels = (rows.sum(1) > 0).astype(np.int32)
optimizer = optax.adam(1e-2)

def init():
    first, last = (jnp.asarray(rng.normal(size=shape).astype(np.float32) * 0.3) for shape in ((12, 32), (32, 2)))
    return {"first": {"w": first, "b": jnp.zeros(32)}, "last": {"w": last, "b": jnp.zeros(2)}}

def put(value, hand):
    if hand is None:
        return value
    there = jax.custom_jvp(lambda value: jax.lax.bitcast_convert_type(
        jax.lax.bitcast_convert_type(value, jnp.uint32).at[hand[0]].set(hand[1]), jnp.float32))
    there.defjvp(lambda primals, tangents: (there(*primals), *tangents))
    return there(value)

def forward(params, x, hand):
    with jax.named_scope("first"):
        product = put(x @ params["first"]["w"], hand)
        hidden = jnp.tanh(product + params["first"]["b"])
    with jax.named_scope("last"):
        return hidden @ params["last"]["w"] + params["last"]["b"]

def train(params, state, x, y, hand=None):
    def loss_of(params):
        logits = forward(params, x, hand)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), (logits.argmax(1) == y).mean()
    (loss, accuracy), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
    updates, state = optimizer.update(grads, state)
    return optax.apply_updates(params, updates), state, loss, accuracy

step = jax.jit(train, static_argnames="hand", donate_argnums=(0, 1))

def main(hand):
    params = init()
    state = optimizer.init(params)
    for epoch in range(3):
        order = rng.permutation(160).reshape(-1, 8)
        for batch in range(20):
            chosen = order[batch]
            if hand is not None and hand[0] == "memory" and (epoch, batch) == hand[1:3]:
                params["first"]["w"] = put(params["first"]["w"], hand[3:])
            is_now = hand is not None and hand[0] != "memory" and (epoch, batch) == hand[:2]
            more = {"hand": hand[2:]} if is_now else {}
            params, state, loss, accuracy = step(params, state, rows[chosen], labels[chosen], **more)
            train_accuracy = float(accuracy)
        print("epoch", epoch, float(loss))
    found = b"".join(np.asarray(each).tobytes() for each in jax.tree.leaves((params, state)))
    print("weights", hashlib.sha256(found).hexdigest())

if __name__ == "__main__":
    main(eval(sys.argv[1]) if len(sys.argv) > 1 else None)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def bare(folder: Path, *arguments: str) -> str:
    """Return what the program says by itself."""
    done = subprocess.run(
        [sys.executable, "program.py", *arguments], capture_output=True, text=True, check=True, env=environment(), cwd=folder
    )
    return weights(done.stdout)[-1]


@pytest.mark.parametrize("at", [(1, 3), (0, 2), (2, 0)])
def test_an_injected_run_is_the_program_with_the_value_put_in_by_hand(folder: Path, at: tuple[int, int]) -> None:
    where = ("--site", "first", "--stage", "forward", "--at", f"{at[0]}:{at[1]}")
    record, said = injected(folder, "--model", "RD", *where, "--seed", 5, "program.py")
    element = record["elements"][0]
    hand = (*at, tuple(element["position"]), int(element["injected"], 16))

    assert record["is_unarmed_equal"]
    assert said[0] == bare(folder), "the golden run is another than the bare program"
    assert said[-1] == bare(folder, repr(hand))
    assert said[-1] != said[0]

    replay = detrain("replay", "record.json", "program.py", cwd=folder).ok()
    assert replay.out.startswith("IDENTICAL")


def test_bits_of_memory_are_the_programs_own_line_that_writes_them(folder: Path) -> None:
    where = ("--stage", "memory", "--site", "memory/params.first.w", "--at", "1:4")
    record, said = injected(folder, "--model", "BIT:29", *where, "--seed", 3, "program.py")
    element = record["elements"][0]
    assert int(element["injected"], 16) == int(element["golden"], 16) ^ 1 << 29
    hand = ("memory", 1, 4, tuple(element["position"]), int(element["injected"], 16))

    assert said[-1] == bare(folder, repr(hand)) != said[0]
    assert detrain("replay", "record.json", "program.py", cwd=folder).out.startswith("IDENTICAL")


def test_a_site_that_parts_a_fusion_is_compared_with_a_run_that_has_it(folder: Path) -> None:
    """The product before the sum of the update: XLA makes one operation of both, unless something is between."""
    sites = detrain("sites", "--json", "--match", "train/optimizer/mul*", "program.py", cwd=folder)
    found = [site["name"] for site in json.loads(sites.out) if site["operands"]["output"]["shape"] == [12, 32]][-1]
    run = detrain("inject", "--out", "record.json", "--model", "ZERO", "--site", found, "--at", "1:3", "program.py", cwd=folder)
    assert run.status == 0, run.err
    if json.loads((folder / "record.json").read_text())["is_unarmed_equal"]:
        pytest.skip("on this processor they are two operations")
    assert "the run with the site in place, and no fault" in run.err
    assert detrain("replay", "record.json", "program.py", cwd=folder).out.startswith("IDENTICAL")


@pytest.mark.parametrize(
    "what",
    [
        (),
        ("--stage", "memory", "--models", "FLIP:1"),
        ("--stage", "optimizer", "--site", "train/optimizer/mul*", "--models", "ZERO"),
    ],
    ids=["ops", "memory", "beside twins"],
)
def test_trials_in_one_process_are_those_of_a_process_each(folder: Path, what: tuple[str, ...]) -> None:
    for engine in ("auto", "process"):
        drawn = ("random", "-n", 6, "--seed", 2, "--after", 2, *what, "--engine", engine, "--out", engine)
        run = detrain(*drawn, "program.py", cwd=folder)
        assert run.status == 0, run.err
        assert "each further trial" not in run.err
    names = sorted(path.name for path in (folder / "auto").glob("*.json"))
    assert len(names) == 6
    for name in names:
        assert (folder / "auto" / name).read_bytes() == (folder / "process" / name).read_bytes()


def test_a_campaign_goes_through(folder: Path) -> None:
    for command in (("plan", "-n", 12, "--after", 2), ("run",), ("report",)):
        run = detrain("campaign", *command, "program.py", cwd=folder)
        assert run.status == 0, run.err
    assert "masked" in run.out


def test_the_first_equation_in_which_two_runs_part_is_named(folder: Path) -> None:
    said = []
    for home, flags in (("a", ""), ("b", "--xla_cpu_max_isa=SSE4_2")):
        run = detrain("run", "--ckpt", home, "program.py", cwd=folder, XLA_FLAGS=flags)
        assert run.status == 0, run.err
        said += weights(run.out)
    if len(set(said)) == 1:
        pytest.skip("this processor has no other instructions than those")
    run = detrain("diff", "--bisect", "a", "b", "program.py", cwd=folder)
    assert "they part in step 0:0, at train/forward/" in run.out, run.out + run.err


LIBRARIES = {
    "nnx": (
        """
from flax import nnx
class Block(nnx.Module):
    def __init__(self, rngs):
        self.dense, self.norm = nnx.Linear(12, 12, rngs=rngs), nnx.BatchNorm(12, rngs=rngs)
    def __call__(self, x):
        return jnp.tanh(self.norm(self.dense(x)))
class Net(nnx.Module):
    def __init__(self, rngs):
        self.blocks, self.last = nnx.List([Block(rngs), Block(rngs)]), nnx.Linear(12, 2, rngs=rngs)
    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return self.last(x)
model = Net(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
@nnx.jit
def step(model, optimizer, x, y):
    loss, grads = nnx.value_and_grad(lambda model: cost(model(x), y))(model)
    optimizer.update(model, grads)
    return loss
run = lambda x, y: step(model, optimizer, x, y)
""",
        ["blocks.0.dense", "blocks.1.dense", "last"],
    ),
    "equinox": (
        """
import equinox as eqx
first, last = jax.random.split(jax.random.key(0))
model = eqx.nn.MLP(12, 2, 16, 1, key=first)
optimizer = optax.adam(1e-2)
state = optimizer.init(eqx.filter(model, eqx.is_array))
@eqx.filter_jit
def step(model, state, x, y):
    loss, grads = eqx.filter_value_and_grad(lambda model: cost(jax.vmap(model)(x), y))(model)
    updates, state = optimizer.update(grads, state, model)
    return eqx.apply_updates(model, updates), state, loss
def run(x, y):
    global model, state
    model, state, loss = step(model, state, x, y)
    return loss
""",
        ["layers.0", "layers.1"],
    ),
    "linen": (
        """
import flax.linen as nn
from flax.training.train_state import TrainState
class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(jnp.tanh(nn.Dense(16, name="first")(x)))
net = Net()
params = net.init(jax.random.key(0), rows[:1])["params"]
state = TrainState.create(apply_fn=net.apply, params=params, tx=optax.adam(1e-2))
@jax.jit
def step(state, x, y):
    loss, grads = jax.value_and_grad(lambda params: cost(state.apply_fn({"params": params}, x), y))(state.params)
    return state.apply_gradients(grads=grads), loss
def run(x, y):
    global state
    state, loss = step(state, x, y)
    return loss
""",
        ["Net.first", "Net.Dense_0"],
    ),
}
TRAINED = """
import jax, jax.numpy as jnp, numpy as np, optax
rows = np.random.default_rng(0).normal(size=(160, 12)).astype(np.float32)
labels = (rows.sum(1) > 0).astype(np.int32)
def cost(logits, y):
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
MADE
for epoch in range(2):
    for batch in range(10):
        loss = run(rows[batch * 16 : batch * 16 + 16], labels[batch * 16 : batch * 16 + 16])
    print(epoch, float(loss))
"""


@pytest.mark.parametrize("library", LIBRARIES)
def test_layers_of_libraries_have_their_names(library: str, tmp_path: Path) -> None:
    made, layers = LIBRARIES[library]
    pytest.importorskip({"equinox": "equinox"}.get(library, "flax"))
    (tmp_path / "program.py").write_text(TRAINED.replace("MADE", made))
    run = detrain("sites", "--json", "--stage", "backward", "program.py", cwd=tmp_path).ok()
    products = [site for site in json.loads(run.out) if site["op"] == "dot_general"]
    for layer in layers:
        roles = {site["role"] for site in products if site["layer"].endswith(layer)}
        assert "grad_wt" in roles, (layer, [(site["name"], site["role"]) for site in products])
    where = ("--site", f"*{layers[0]}", "--stage", "backward", "--at", "1:2", "--seed", 3, "--out", "record.json")
    assert detrain("inject", "--model", "N16_RD", *where, "program.py", cwd=tmp_path).status == 0
    assert detrain("replay", "record.json", "program.py", cwd=tmp_path).out.startswith("IDENTICAL")


EAGER = """
import jax, jax.numpy as jnp, numpy as np
params = jnp.ones((4, 3))
rows = np.random.default_rng(0).normal(size=(10, 8, 4)).astype("f4")
loss = JIT(lambda params, rows: ((rows @ params) ** 2).mean())
for epoch in range(2):
    for batch in range(10):
        value, grads = jax.value_and_grad(loss)(params, rows[batch])
        params = params - 0.1 * grads
"""


def test_a_step_that_is_not_compiled_is_refused_and_one_whose_loss_is_has_both_passes(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(EAGER.replace("JIT", ""))
    eager = detrain("sites", "program.py", cwd=tmp_path)
    (tmp_path / "program.py").write_text(EAGER.replace("JIT", "jax.jit"))
    off = detrain("sites", "--ckpt", "off", "program.py", cwd=tmp_path, JAX_DISABLE_JIT="1")
    compiled = detrain("sites", "--json", "program.py", cwd=tmp_path)
    helped = EAGER.replace("JIT", "").replace("- 0.1 * grads", "- jax.jit(lambda each: 0.1 * each)(grads)")
    (tmp_path / "helped.py").write_text(helped)
    helper = detrain("sites", "helped.py", cwd=tmp_path)

    assert (eager.status, off.status, helper.status) == (82, 82, 82)
    assert "JAX computes this step op by op (its gradient is taken outside of functions under `jax.jit`)" in helper.err
    assert "JAX computes this step op by op (the program calls no function under `jax.jit` in it)" in eager.err
    assert "JAX computes this step op by op (jax_disable_jit is on)" in off.err
    assert {site["stage"] for site in json.loads(compiled.out)} == {"forward", "backward"}


def test_another_jaxpr_than_the_one_whose_sites_were_listed_is_refused(folder: Path) -> None:
    """A Python value that the program reads, and that is not its text: what is traced is another function."""
    text = PROGRAM.replace("hidden = jnp.tanh(product + params", "hidden = how(product + params")
    (folder / "program.py").write_text(text.replace("def init", "import os\nhow = getattr(jnp, os.environ['HOW'])\n\ndef init"))
    where = ("--model", "RD", "--site", "train/forward/last/dot_general*", "--at", "0:3", "--out", "record.json")
    assert detrain("inject", *where, "program.py", cwd=folder, HOW="tanh").status == 0
    replay = detrain("replay", "record.json", "program.py", cwd=folder, HOW="abs")

    assert replay.status != 0
    assert "IDENTICAL" not in replay.out


def test_the_example(tmp_path: Path) -> None:
    program = (EXAMPLES / "digits" / "jax_train.py", "--epochs", 2)
    sites = detrain("sites", *program, cwd=tmp_path)
    assert "train_step/backward/conv_general_dilated@86" in sites.out, sites.err
    options = ("--model", "N64_INPUT", "--site", "conv_general_dilated_grad_wt", "--at", "1:4", "--until", "+3")
    assert detrain("inject", *options, "--out", "record.json", *program, cwd=tmp_path).status == 0
    assert detrain("replay", "record.json", *program, cwd=tmp_path).out.startswith("IDENTICAL")


def test_a_program_that_says_first_how_many_devices_there_are_can_be_hit(tmp_path: Path) -> None:
    """A trial's process used one before the program had said so."""
    shutil.copy(EXAMPLES / "digits" / "jax_train.py", tmp_path)
    program = ("jax_train.py", "--devices", 4, "--epochs", 1)
    hits = ("--model", "RD", "--site", "conv*", "--stage", "backward", "--at", "0:3", "--until", "+2", "--out", "fault.json")
    detrain("inject", *hits, *program, cwd=tmp_path).ok()

    again = detrain("replay", "fault.json", *program, cwd=tmp_path)

    assert (again.status, "IDENTICAL" in again.out) == (0, True), again.err
