"""Ordinary JAX programs: the common ways to load, to train, to keep keys and to use two devices, in pairs.

Their data have 46 rows in batches of 10, so 4 batches, or 5 with the rest; they train for 4 epochs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.e2e import choices
from tests.e2e.choices import DIE, indented, pairs

PRELUDE: Final = (
    """\
import functools, hashlib, itertools, os, random, signal, sys
import numpy as np
import jax
import jax.numpy as jnp
import optax

"""
    + DIE
    + """\
rng = np.random.default_rng(1)
x = rng.normal(size=(46, 6)).astype(np.float32)
y = (x.sum(1) > 0).astype(np.int32)

def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

def show(*trees):
    parts = [part for tree in trees for part in jax.tree.leaves(tree)]
    parts = [jax.random.key_data(part) if jnp.issubdtype(part.dtype, jax.dtypes.prng_key) else part for part in parts]
    print("starts", starts)
    print("weights", hashlib.sha256(b"".join(np.asarray(part).tobytes() for part in parts)).hexdigest())

"""
)

TABLE: Final[dict[str, list[object]]] = {
    "library": ["optax", "linen", "nnx", "equinox", "hand"],
    "step": ["jit", "plain", "donate", "scan"],
    "data": ["permutation", "generator", "memory", "keys", "tf.data", "torch"],
    "loop": ["epochs", "steps", "enumerate"],
    "key": ["split", "fold_in", "raw"],
    "optimizer": ["adam", "schedule", "multi_steps", "ema"],
    "after": [None, "validate", "best", "draw"],
    "devices": [None, "whole", "parts"],
    "every": ["1", "2b", "3b"],
}
_DEVICES: Final = """\
from jax.sharding import AxisType, NamedSharding, PartitionSpec
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("both",), axis_types=(AxisType.Auto,))
def placed(tree, axis=0, is_whole=False):
    def put(leaf):
        spec = [None] * axis + ["both"]
        is_split = not is_whole and jnp.ndim(leaf) > axis and jnp.shape(leaf)[axis] % 2 == 0
        return jax.device_put(leaf, NamedSharding(mesh, PartitionSpec(*spec if is_split else ())))
    return jax.tree.map(lambda leaf: put(leaf) if hasattr(leaf, "dtype") else leaf, tree)

"""
"""The batches are split over two devices; parameters and moments are whole on each, or split, too."""
_OPTIMIZERS: Final = {
    "adam": "optax.adam(0.01)",
    "schedule": "optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(0.02, 30)))",
    "multi_steps": "optax.MultiSteps(optax.adam(0.02), every_k_schedule=3)",
    "ema": "optax.chain(optax.sgd(0.1, momentum=0.9), optax.ema(0.9))",
}
_MODELS: Final = {
    "optax": """\
def init(key):
    first, last = jax.random.split(key)
    return {"first": jax.random.normal(first, (6, 8)) * 0.4, "last": jax.random.normal(last, (8, 2)) * 0.4}
def forward(params, rows, key):
    hidden = jnp.tanh(rows @ params["first"])
    return (hidden * jax.random.bernoulli(key, 0.8, hidden.shape)) @ params["last"]
""",
    "linen": """\
from flax import linen as nn
class Net(nn.Module):
    @nn.compact
    def __call__(self, rows, train):
        return nn.Dense(2)(nn.Dropout(0.2, deterministic=not train)(nn.relu(nn.Dense(8)(rows))))
net = Net()
def init(key):
    return net.init(key, x[:1], train=False)["params"]
def forward(params, rows, key):
    return net.apply({"params": params}, rows, train=True, rngs={"dropout": key})
""",
    "equinox": """\
import equinox as eqx
class Net(eqx.Module):
    first: eqx.nn.Linear
    last: eqx.nn.Linear
    drop: eqx.nn.Dropout
    def __init__(self, key):
        first, last = jax.random.split(key)
        self.first, self.last = eqx.nn.Linear(6, 8, key=first), eqx.nn.Linear(8, 2, key=last)
        self.drop = eqx.nn.Dropout(0.2)
    def __call__(self, row, key):
        return self.last(self.drop(jax.nn.relu(self.first(row)), key=key))
def init(key):
    return Net(key)
def forward(params, rows, key):
    return jax.vmap(params)(rows, jax.random.split(key, len(rows)))
""",
}
_MODELS["hand"] = _MODELS["optax"]
_STEP: Final = """\
def train_step(params, state, key, rows, labels):
    def loss_of(params):
        return cross_entropy(forward(params, rows, key), labels)
    loss, grads = jax.value_and_grad(loss_of)(params)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, loss
"""
_HAND: Final = """\
def train_step(params, state, key, rows, labels):
    loss, grads = jax.value_and_grad(lambda params: cross_entropy(forward(params, rows, key), labels))(params)
    state = jax.tree.map(lambda velocity, grad: 0.9 * velocity + grad, state, grads)
    return jax.tree.map(lambda weight, velocity: weight - 0.05 * velocity, params, state), state, loss
"""
_EQUINOX: Final = """\
def train_step(params, state, key, rows, labels):
    loss, grads = eqx.filter_value_and_grad(lambda params: cross_entropy(forward(params, rows, key), labels))(params)
    updates, state = optimizer.update(grads, state, eqx.filter(params, eqx.is_inexact_array))
    return eqx.apply_updates(params, updates), state, loss
"""
_NNX: Final = """\
from flax import nnx
class Net(nnx.Module):
    def __init__(self, rngs):
        self.first, self.norm = nnx.Linear(6, 8, rngs=rngs), nnx.BatchNorm(8, rngs=rngs)
        self.drop, self.last = nnx.Dropout(0.2, rngs=rngs), nnx.Linear(8, 2, rngs=rngs)
    def __call__(self, rows):
        return self.last(self.drop(nnx.relu(self.norm(self.first(rows)))))
def train_step(model, optimizer, rows, labels):
    loss, grads = nnx.value_and_grad(lambda model: cross_entropy(model(rows), labels))(model)
    optimizer.update(model, grads)
    return loss
"""
_DATA: Final = {
    "permutation": (
        "",
        "order = rng.permutation(46)",
        "range(0, 40, 10)",
        "rows = order[{item} : {item} + 10]\na, b = x[rows], y[rows]",
    ),
    "generator": (
        "def loaded(rng):\n    order = rng.permutation(46)\n    for start in range(0, 40, 10):\n"
        "        rows = order[start : start + 10]\n"
        "        yield x[rows] + rng.normal(scale=0.1, size=(10, 6)).astype(np.float32), y[rows]\n",
        "",
        "loaded(rng)",
        "a, b = {item}",
    ),
    "memory": (
        "data = [(jnp.asarray(x[start : start + 10]), jnp.asarray(y[start : start + 10])) for start in range(0, 40, 10)]\n",
        "random.shuffle(data)",
        "data",
        "a, b = {item}",
    ),
    "keys": (
        "shuffles = jax.random.key(9)\n",
        "order = np.asarray(jax.random.permutation(jax.random.fold_in(shuffles, epoch), 46))[:40].reshape(4, 10)",
        "order",
        "a, b = x[{item}], y[{item}]",
    ),
    "tf.data": (
        "import tensorflow as tf\ntf.random.set_seed(0)\ndata = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(46, seed=3)\n"
        "data = data.batch(10, drop_remainder=True).prefetch(1)\n",
        "",
        "data.as_numpy_iterator()",
        "a, b = {item}",
    ),
    "torch": (
        "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\n"
        "data = DataLoader(TensorDataset(torch.from_numpy(x), torch.from_numpy(y)), 10, shuffle=True, drop_last=True)\n",
        "",
        "data",
        "a, b = {item}[0].numpy(), {item}[1].numpy()",
    ),
}
_AFTER: Final = {
    None: "",
    "validate": "print('right', int((predict(x).argmax(1) == y).sum()))",
    "best": "if total < best[0]:\n    best = total, jax.tree.map(jnp.copy, weights())",
    "draw": "print(random.random(), float(np.random.rand()), float(jax.random.uniform(jax.random.key(epoch))))",
}


def rows() -> list[dict[str, object]]:
    """Return programs in which each two values of different choices occur together, if they can."""
    return pairs(TABLE, _is_possible)


def _is_possible(row: Mapping[str, object]) -> bool:
    if row.get("step") == "scan" and (row["library"] == "nnx" or row.get("data", "permutation") != "permutation"):
        return False
    if row.get("step") == "scan" and row.get("loop", "epochs") != "epochs":
        return False
    if row["library"] == "hand" and row.get("optimizer", "adam") != "adam":
        return False
    return not (row["library"] == "nnx" and row.get("key", "split") != "split")


def text(row: Mapping[str, object]) -> str:
    """Return the program of a row."""
    library, step = str(row["library"]), str(row["step"])
    optimizer = f"optimizer = {_OPTIMIZERS[str(row['optimizer'])]}\n"
    is_nnx = library == "nnx"
    if is_nnx:
        model = _NNX
        jit = {"jit": "nnx.jit(train_step)", "plain": "train_step", "donate": "nnx.jit(train_step, donate_argnums=(0, 1))"}[step]
        made = f"step = {jit}\nmodel = Net(nnx.Rngs(0, dropout=1))\n"
        made += f"optimizer = nnx.Optimizer(model, {_OPTIMIZERS[str(row['optimizer'])]}, wrt=nnx.Param)\n"
        made += "predict = lambda rows: nnx.view(model, deterministic=True, use_running_average=True)(rows)\n"
        made += "weights = lambda: nnx.state((model, optimizer))\n"
        if row["devices"]:
            made += f"nnx.update((model, optimizer), placed(weights(), is_whole={row['devices'] == 'whole'}))\n"
        call = ["loss = step(model, optimizer, a, b)"]
    else:
        model = _MODELS[library] + {"hand": _HAND, "equinox": _EQUINOX}.get(library, _STEP)
        jit = {"jit": "jax.jit({})", "plain": "{}", "donate": "jax.jit({}, donate_argnums=(0, 1))", "scan": "{}"}[step]
        if library == "equinox":
            jit = {"jit": "eqx.filter_jit({})", "donate": "eqx.filter_jit({}, donate='all')"}.get(step, "{}")
        made = f"step = {jit.format('train_step')}\nparams = init(jax.random.key(0))\n"
        kept = "eqx.filter(params, eqx.is_inexact_array)" if library == "equinox" else "params"
        made += "state = jax.tree.map(jnp.zeros_like, params)\n" if library == "hand" else f"state = optimizer.init({kept})\n"
        key = "jax.random.PRNGKey(5)" if row["key"] == "raw" else "jax.random.key(5)"
        made += f"key = {key}\npredict = lambda rows: forward(params, rows, jax.random.key(0))\n"
        made += f"weights = lambda: ({kept}, state)\n"
        if row["devices"]:
            made += f"params, state = placed((params, state), is_whole={row['devices'] == 'whole'})\n"
        split = "sub = jax.random.fold_in(key, turns)" if row["key"] == "fold_in" else "key, sub = jax.random.split(key)"
        call = [split, "params, state, loss = step(params, state, sub, a, b)"]
    before, at_start, over, load = _DATA[str(row["data"])]
    load += "\na, b = placed((a, b))" if row["devices"] else ""
    if step == "scan":
        made += _scan(library)
        body = [
            *(["key, sub = jax.random.split(key)"] if row["key"] != "fold_in" else ["sub = jax.random.fold_in(key, epoch)"]),
            "order = rng.permutation(46)[:40].reshape(4, 10)",
            "starts.append(turns + 1)",
            "die()",
            "a, b = placed((x[order], y[order]), axis=1)" if row["devices"] else "a, b = x[order], y[order]",
            "params, state, losses = train_epoch(params, state, sub, a, b)",
            "total = float(losses.sum())",
        ]
        loop = ["for epoch in range(4):", *indented([*body, "print(epoch, total)", _AFTER[row["after"]]])]  # type: ignore[index]
    elif row["loop"] == "steps":
        source = f"def endless():\n    for epoch in itertools.count():\n        {at_start or 'pass'}\n"
        source += f"        for item in {over}:\n            "
        source += load.format(item="item").replace("\n", "\n            ") + "\n            yield a, b\n"
        before += source
        after = _AFTER[row["after"]].replace("epoch", "number").replace("total", "float(loss)")  # type: ignore[index]
        body = ["if number % 4 == 0:\n    starts.append(turns + 1)", "a, b = next(batches)", "die()", *call]
        body += [
            "if number % 4 == 3:\n    print(number, float(loss))",
            *([f"if number % 4 == 3:\n{chr(10).join(indented([after]))}"] if after else []),
        ]
        loop = ["batches = endless()", "for number in range(16):", *indented(body)]
    else:
        header = f"for number, item in enumerate({over}):" if row["loop"] == "enumerate" else f"for item in {over}:"
        body = [load.format(item="item"), "die()", *call, "total += float(loss)"]
        inner = ["total = 0.0", at_start, "starts.append(turns + 1)", header, *indented(body), "print(epoch, total)"]
        loop = ["for epoch in range(4):", *indented([*inner, _AFTER[row["after"]]])]  # type: ignore[index]
    first = "import torch\ntorch.manual_seed(0)\n" if row["data"] == "torch" else ""  # a framework before JAX, and one behind it
    made = made if is_nnx else optimizer + made
    devices = _DEVICES if row["devices"] else ""
    return first + PRELUDE + devices + model + made + before + "best = (9e9, None)\n" + "\n".join(loop) + "\nshow(weights())\n"


def _scan(library: str) -> str:
    split = "params, static = eqx.partition(params, eqx.is_array)" if library == "equinox" else "static = None"
    whole = "eqx.combine(carry[0], static)" if library == "equinox" else "carry[0]"
    part = "eqx.filter(params, eqx.is_array)" if library == "equinox" else "params"
    back = "eqx.combine(params, static)" if library == "equinox" else "params"
    return f"""\
{"@eqx.filter_jit" if library == "equinox" else "@jax.jit"}
def train_epoch(params, state, key, rows, labels):
    {split}
    def body(carry, batch):
        params, state, loss = train_step({whole}, carry[1], batch[2], batch[0], batch[1])
        return ({part}, state), loss
    (params, state), losses = jax.lax.scan(body, (params, state), (rows, labels, jax.random.split(key, len(rows))))
    return {back}, state, losses
"""


def name_of(row: dict[str, object]) -> str:
    """Return a row in words."""
    return choices.name_of(row, TABLE, "library")
