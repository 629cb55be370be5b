"""A weights file made from a checkpoint is the one that Keras itself writes at that moment, and its `load_weights`
reads it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import pytest

from detrain.base.errors import CannotExport
from tests.e2e.programs import DIE
from tests.e2e.runs import detrain, plain, ran

MODELS = """
import hashlib
import keras
import numpy as np
from keras import layers

class Block(layers.Layer):
    def __init__(self, width):
        super().__init__()
        self.norm = layers.LayerNormalization()
        self.steps = [layers.Dense(width, activation="relu"), layers.Dense(width)]
        self.deep = {"b": [(layers.Dense(width), layers.Dropout(0.1))], "a": layers.Dense(width)}
        self.scale = self.add_weight(shape=(width,), name="scale", initializer="ones")

    def call(self, x, training=None):
        hidden = self.deep["a"](x)
        for step in [*self.steps, *self.deep["b"][0]]:
            hidden = step(hidden)
        return self.norm(x + hidden) * self.scale

class Tower(keras.Model):
    def __init__(self):
        super().__init__()
        self.zeta = layers.Dense(8)
        self.attention = layers.MultiHeadAttention(2, 4)
        self.blocks = [Block(8), Block(8)]
        self.head = keras.Sequential([layers.Dense(8), layers.Dense(1)], name=f"head{len(made)}")
        made.append(self)

    def call(self, x, training=None):
        x = self.zeta(x)
        x = self.attention(x, x)
        for block in self.blocks:
            x = block(x, training=training)
        return self.head(x)

made = []
left, right = Tower(), Tower()
conv = keras.Sequential([layers.Conv2D(2, 3), layers.BatchNormalization(), layers.Flatten(), layers.Dense(3)], name="conv")
conv.compile(keras.optimizers.Adam(), "mse", metrics=["mae"])
entry = keras.Input((6,))
shared = layers.Dense(6, dtype="bfloat16")
hidden = shared(shared(entry))
inner = keras.Model(entry, hidden, name="inner")
outer = keras.Model(entry, layers.Add()([inner(entry), keras.ops.relu(layers.Dense(6, dtype="float16")(entry))]), name="outer")

def alias():
    left.aaa = left.zeta

def show():
    for model in (left, right, conv, inner, outer):
        print(model.name, hashlib.sha256(b"".join(np.asarray(weight).tobytes() for weight in model.weights)).hexdigest())
"""
PROGRAM = DIE("""
import numpy as np
import tensorflow as tf
from models import *

data = np.random.default_rng(0)
x, images = data.random((32, 4, 5), np.float32), data.random((32, 6, 6, 1), np.float32)
optimizer = keras.optimizers.SGD(0.1)
batches = tf.data.Dataset.from_tensor_slices((x, images)).batch(8)
for epoch in range(3):
    for number, (rows, pictures) in enumerate(batches):
        with tf.GradientTape() as tape:
            found = left(rows, training=True) - right(rows, training=True)
            other = tf.cast(outer(tf.repeat(rows[:, 0, :1], 6, 1)), "float32")
            loss = tf.reduce_mean((found - 1) ** 2) + tf.reduce_mean(other**2)
        variables = left.trainable_variables + right.trainable_variables + outer.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        conv.train_on_batch(pictures, np.ones((8, 3)))
        die(f"{epoch}:{number}")
    if epoch == 1 and os.environ.get("ALIAS"):
        alias()
show()
for model in (left, right, conv, inner, outer):
    model.save_weights(f"own-{model.name}.weights.h5")
""")
LOADS = """
import sys
from models import *

left(np.zeros((1, 4, 5))), right(np.zeros((1, 4, 5))), conv(np.zeros((1, 6, 6, 1)))
for model in (left, right, conv, inner, outer):
    model.load_weights(f"out-{model.name}.weights.h5")
show()
"""
OTHERS = """
import keras
import numpy as np
import tensorflow as tf

class Own(keras.layers.Dense):
    def save_own_variables(self, store):
        raise SystemExit("was run")

class Asked(keras.Model):
    def __init__(self):
        super().__init__(name="asked")
        self.inside = keras.layers.Dense(1)
    @property
    def aaa(self):
        raise SystemExit("was run")
    @tf.function
    def helper(self, x):
        return self.inside(x)
    def call(self, x):
        return self.helper(x)


def net(name, *layers):
    model = keras.Sequential(layers, name=name)
    model(np.zeros((2, 3)))
    return model

models = [net("own", Own(1)), net("lora", keras.layers.Dense(4)), net("fine", keras.layers.Dense(1)), Asked()]
models[1].layers[0].enable_lora(2)
models[3](np.zeros((2, 3)))
later = keras.Sequential([keras.layers.Dense(1)], name="later")
optimizer = keras.optimizers.SGD()
for epoch in range(1):
    for number in range(2):
        x = np.ones((2, 3)) * number
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(models[2](x))
        variables = models[2].trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
models[2].save_weights("own-fine.weights.h5")
"""

REPLICAS = """
import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
[cpu] = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    model = keras.Sequential([keras.layers.Dense(2), keras.layers.BatchNormalization(), keras.layers.Dropout(0.2)])
    model.compile("adam", "mse")
model.fit(np.random.rand(8, 3), np.ones((8, 2)), epochs=2, verbose=0)
model.save_weights("own.weights.h5")
"""


def content(path: Path) -> dict[str, Any]:
    """All that an HDF5 file holds: groups, attributes, types, bytes."""
    found: dict[str, Any] = {}

    def visit(name: str, item: Any) -> None:
        data = (item.dtype, item.shape, item[()].tobytes()) if isinstance(item, h5py.Dataset) else None
        found[name] = (dict(item.attrs), data)

    with h5py.File(path) as file:
        file.visititems(visit)
    return found


def last(folder: Path) -> Path:
    return max((folder / "ckpt").glob("*-z*.h5"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder with an exported run, and the digests of weights that the run printed."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "models.py").write_text(MODELS)
    run = ran(detrain, folder, PROGRAM).ok()
    detrain("ckpt", "export", "--to", "keras", "-o", "out.weights.h5", last(folder), cwd=folder).ok()
    return folder, run.out.splitlines()


@pytest.mark.slow
def test_a_fresh_process_loads_the_weights_that_the_program_had(trained: tuple[Path, list[str]]) -> None:
    folder, printed = trained
    (folder / "loads.py").write_text(LOADS)

    loaded = plain("loads.py", cwd=folder).ok()

    assert loaded.out.splitlines() == printed
    assert len(printed) == 5


@pytest.mark.slow
def test_the_files_are_those_that_keras_writes(trained: tuple[Path, list[str]]) -> None:
    folder, _printed = trained
    for path in folder.glob("own-*.h5"):
        assert content(path.with_name(path.name.replace("own-", "out-"))) == content(path)
    written = {path.name.removesuffix(".weights.h5") for path in folder.glob("out-*.h5")}
    assert written == {f"out-{name}" for name in ("tower", "tower_1", "conv", "inner", "outer", "head0", "head1")}


@pytest.mark.slow
def test_one_model_has_the_given_name(trained: tuple[Path, list[str]]) -> None:
    folder, _printed = trained
    done = detrain("ckpt", "export", "--to", "keras", "--match", "conv", "-o", "only.weights.h5", last(folder), cwd=folder)

    assert done.out.startswith("conv: ")
    assert content(folder / "only.weights.h5") == content(folder / "own-conv.weights.h5")


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_places_are_those_of_the_moment(is_killed: bool, trained: tuple[Path, list[str]], tmp_path: Path) -> None:
    """In a resumed run; and where a model comes to have a second name for a layer, with no variable made."""
    for name in ("models.py", "program.py"):
        (tmp_path / name).write_text((trained[0] / name).read_text())
    if is_killed:
        assert detrain("run", "program.py", cwd=tmp_path, DIE_AT="1:2").status == -9
    run = detrain("run", "program.py", cwd=tmp_path, ALIAS="" if is_killed else "1").ok()
    detrain("ckpt", "export", "--to", "keras", "-o", "out.weights.h5", last(tmp_path), cwd=tmp_path).ok()

    for path in tmp_path.glob("own-*.h5"):
        assert content(path.with_name(path.name.replace("own-", "out-"))) == content(path)
    if is_killed:
        assert "resuming" in run.err
        for path in trained[0].glob("out-*.h5"):
            assert (tmp_path / path.name).read_bytes() == path.read_bytes()
    else:
        assert "aaa/vars/0" in content(tmp_path / "out-tower.weights.h5")


@pytest.mark.slow
def test_what_only_code_of_the_program_could_save_is_refused_by_name(tmp_path: Path) -> None:
    ran(detrain, tmp_path, OTHERS).ok()

    def export(match: str) -> tuple[int, str]:
        done = detrain("ckpt", "export", "--to", "keras", "--match", match, "-o", "x.weights.h5", last(tmp_path), cwd=tmp_path)
        return done.status, done.err + done.out

    code = CannotExport.exit_code
    for match, reason in {
        "own": "Own 'own' has its own 'save_own_variables'",
        "lora": "Dense 'dense' stores what is not a variable",
        "asked": "Asked 'asked' has a property 'aaa'",
        "later": "holds no Keras model with 'later' in its name among",
        "": "cannot be written",
    }.items():
        status, said = export(match)
        assert (status, reason in said) == (code, True), said
    assert not list(tmp_path.glob("x*"))
    assert export("fine")[0] == 0
    assert content(tmp_path / "x.weights.h5") == content(tmp_path / "own-fine.weights.h5")


@pytest.mark.slow
def test_of_replicas_the_first_is_written(tmp_path: Path) -> None:
    ran(detrain, tmp_path, REPLICAS).ok()
    detrain("ckpt", "export", "--to", "keras", "-o", "out.weights.h5", last(tmp_path), cwd=tmp_path).ok()

    assert content(tmp_path / "out.weights.h5") == content(tmp_path / "own.weights.h5")
