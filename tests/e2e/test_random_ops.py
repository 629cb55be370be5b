"""The lifted random ops of traced functions draw from the distributions that TensorFlow's own draw from.

Seeds are fixed, so that a test either always passes or never; at a significance of 1e-4, over some thirty tests, a
right implementation would fail once in three hundred choices of the seed.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from detrain.base.errors import CheckpointDamaged
from tests.e2e.forkserver import Server
from tests.e2e.programs import DIE
from tests.e2e.runs import bare, detrain

pytestmark = pytest.mark.slow
"""The fast lane has others of their kind."""

PROGRAM = """
import sys
import numpy as np
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)

@tf.function
def draw():
    image = tf.ones([64, 64, 3]) * 0.5
    gray = tf.stack([tf.zeros([40, 3]), tf.ones([40, 3])])
    ramp = tf.reshape(tf.range(48.0), [4, 4, 3])
    return {
        "uniform": tf.random.uniform([2000], -1.0, 3.0),
        "integers": tf.random.uniform([2000], 0, 7, tf.int32),
        "normal": tf.random.normal([2000], 1.0, 2.0),
        "half": tf.random.normal([2000], dtype=tf.float16),
        "truncated": tf.random.truncated_normal([2000]),
        "categorical": tf.random.categorical(tf.math.log([[0.1, 0.2, 0.7]]), 2000)[0],
        "gamma": tf.random.gamma([2000], 2.0, 3.0),
        "gammas": tf.random.gamma([1000], [0.5, 5.0]),
        "poisson": tf.random.poisson([2000], 4.0),
        "poissons": tf.random.poisson([1000], [1.0, 9.0]),
        "shuffle": tf.random.shuffle(tf.range(6)),
        "dropout": tf.nn.dropout(tf.ones([2000]), 0.3),
        "flip": tf.reduce_sum(tf.image.random_flip_left_right(ramp) * ramp),
        "brightness": tf.image.random_brightness(image, 0.25)[0, 0, 0],
        "contrast": tf.image.random_contrast(gray, 0.5, 1.5)[1, 0, 0],
        "crop": tf.image.random_crop(ramp, [2, 2, 3])[0, 0, 0],
    }

turns = [draw() for _ in range(400)]
found = {name: np.stack([turn[name].numpy() for turn in turns[: 10 if turns[0][name].shape.rank and name != "shuffle" else 400]])
         for name in turns[0]}
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"])

@tf.function
def in_replicas():
    return strategy.run(lambda: tf.random.normal([2000]))

pairs = [strategy.experimental_local_results(in_replicas()) for _ in range(3)]
found["replicas"] = np.array([[part.numpy() for part in pair] for pair in pairs])
np.savez(sys.argv[1], **found)
"""
P = 1e-4


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the lifted ops draw, and TensorFlow's own."""
    folder = tmp_path_factory.mktemp("drawn")
    program = folder / "program.py"
    program.write_text(PROGRAM)
    detrain("run", "--bare", program, folder / "lifted.npz").ok()
    bare(program, folder / "stock.npz").ok()
    return _read(folder / "lifted.npz"), _read(folder / "stock.npz")


def _read(path: Path) -> dict[str, Any]:
    with np.load(path) as file:
        return dict(file)


CONTINUOUS = {
    "uniform": stats.uniform(-1, 4),
    "normal": stats.norm(1, 2),
    "truncated": stats.truncnorm(-2, 2),
    "gamma": stats.gamma(2, scale=1 / 3),
    "brightness": stats.uniform(0.25, 0.5),
}
COUNTED = {
    "integers": (list(range(7)), [1 / 7] * 7),
    "categorical": ([0, 1, 2], [0.1, 0.2, 0.7]),
    "poisson": (list(range(12)), stats.poisson(4).pmf(range(12)).tolist()),
    "dropout": ([0.0, 1.0], [0.3, 0.7]),
    "flip": (None, [0.5, 0.5]),
    "crop": (None, [1 / 9] * 9),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_draws_have_their_distribution(name: str, drawn: tuple[dict[str, Any], dict[str, Any]]) -> None:
    lifted, stock = (each[name].astype(np.float64).ravel() for each in drawn)

    assert stats.kstest(lifted, CONTINUOUS[name].cdf).pvalue > P
    assert stats.ks_2samp(lifted, stock).pvalue > P
    assert not np.array_equal(lifted, stock)
    assert len(np.unique(lifted)) > 0.9 * len(lifted)


@pytest.mark.parametrize("name", COUNTED)
def test_counted_draws_have_their_frequencies(name: str, drawn: tuple[dict[str, Any], dict[str, Any]]) -> None:
    kinds, shares = COUNTED[name]
    counts = []
    for each in drawn:
        values = (each[name].ravel() > 0).astype(float) if name == "dropout" else each[name].ravel()
        of = np.unique(values).tolist() if kinds is None else kinds
        counts.append(np.array([(values == kind).sum() for kind in of]))
    expected = np.array(shares) / sum(shares) * counts[0].sum()

    assert len(counts[0]) == len(shares)
    assert stats.chisquare(counts[0], expected).pvalue > P
    assert stats.chi2_contingency(np.array(counts) + 1).pvalue > P


def test_every_parameter_of_a_batch_is_used(drawn: tuple[dict[str, Any], dict[str, Any]]) -> None:
    gammas, poissons = drawn[0]["gammas"], drawn[0]["poissons"]

    assert gammas.shape == (10, 1000, 2)
    for place, shape in enumerate((0.5, 5.0)):
        assert stats.kstest(gammas[..., place].ravel(), stats.gamma(shape).cdf).pvalue > P
    for place, rate in enumerate((1.0, 9.0)):
        z = (poissons[..., place].mean() - rate) / np.sqrt(rate / poissons[..., place].size)
        assert abs(z) < 4


def test_halves_are_normal(drawn: tuple[dict[str, Any], dict[str, Any]]) -> None:
    values = drawn[0]["half"]

    assert values.dtype == np.float16
    assert stats.ks_2samp(values.astype(float).ravel(), drawn[1]["half"].astype(float).ravel()).pvalue > P


def test_permutations_are_all_as_likely(drawn: tuple[dict[str, Any], dict[str, Any]]) -> None:
    permutations = drawn[0]["shuffle"]

    assert (np.sort(permutations, axis=1) == np.arange(6)).all()
    table = np.array([[(permutations[:, place] == item).sum() for item in range(6)] for place in range(6)])
    assert stats.chisquare(table.ravel(), np.full(36, len(permutations) / 6), ddof=10).pvalue > P
    assert len(np.unique(permutations, axis=0)) > 250


def test_what_survives_a_dropout_is_scaled(drawn: tuple[dict[str, Any], dict[str, Any]]) -> None:
    assert set(np.unique(drawn[0]["dropout"]).tolist()) == {0.0, float(np.float32(1) / np.float32(0.7))}


def test_turns_and_replicas_are_independent(drawn: tuple[dict[str, Any], dict[str, Any]]) -> None:
    replicas = drawn[0]["replicas"].reshape(9, -1)

    for streams in (drawn[0]["normal"], replicas):  # ops of two functions may share a seed, as TensorFlow's own do
        correlations = np.corrcoef(streams) - np.eye(len(streams))
        assert np.abs(correlations).max() < 5 / np.sqrt(2000)
    assert stats.kstest(replicas.ravel(), stats.norm.cdf).pvalue > P


NORMAL = '["random_standard_normal", 1, 2, {"shape": {"value": %s, "dtype": "int32"}, "dtype": "float32"}]'


FORGED = [{"no JSON": 1}, {"[]": 1}, {'["nothing", 1, 2, {}]': 1}, *[{NORMAL % size: 1} for size in ("[-2]", "[99999, 99999]")]]


@pytest.mark.parametrize("counts", [*FORGED, {NORMAL % "[2]": "many"}])
def test_draws_that_cannot_have_been_are_refused(counts: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorflow.python.eager.context import Context
    from tensorflow.python.ops import gen_random_ops

    from detrain.adapters.tensorflow.random.eager_draws import EagerDraws

    for name in ("_internal_operation_seed", "_set_global_seed"):
        monkeypatch.setattr(Context, name, getattr(Context, name))  # which EagerDraws replaces
    normal = gen_random_ops.random_standard_normal

    @functools.wraps(normal)
    def small(*, shape: Any, **rest: Any) -> Any:
        assert np.prod(shape.numpy()) < 1000, "memory is asked for before the size is looked at"
        return normal(shape=shape, **rest)

    draws = EagerDraws()
    draws.watch("random_standard_normal", small)

    draws.restore({NORMAL % "[2, 3]": 4})
    with pytest.raises(CheckpointDamaged):
        draws.restore(counts)


SAVED = """
import tensorflow as tf

class Layer(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None, 4])])
    def drop(self, x):
        return tf.nn.dropout(x, 0.3, seed=1)

class Model(tf.Module):
    def __init__(self):
        self.weight, self.layer = tf.Variable(tf.ones([4, 1])), Layer()

    @tf.function(input_signature=[tf.TensorSpec([None, 4])])
    def noisy(self, x):
        return tf.reduce_mean((self.layer.drop(x) @ self.weight) ** 2)

    @tf.function(input_signature=[tf.TensorSpec([None, 4])])
    def calm(self, x):
        return tf.reduce_mean((x @ self.weight) ** 2)

tf.saved_model.save(Model(), "saved")
"""
LOADED = DIE("""
import tensorflow as tf
model = tf.saved_model.load("saved")
call = getattr(model, sys.argv[1])
step = tf.function(lambda x: call(x)) if "compiled" in sys.argv else call
optimizer = tf.keras.optimizers.SGD(0.01)
for epoch in range(2):
    for number, x in enumerate(tf.data.Dataset.from_tensor_slices(tf.ones([12, 4])).batch(4)):
        with tf.GradientTape() as tape:
            loss = step(x)
        optimizer.apply_gradients([(tape.gradient(loss, model.weight), model.weight)])
        die(f"{epoch}:{number}")
print(model.weight.numpy().tobytes().hex())
""")


def test_a_function_of_a_saved_model_that_draws_is_named(tmp_path: Path, server: Server) -> None:
    """Its kernel began anew in a resumed run, in silence.

    One that draws nothing, in the same SavedModel, is of no loss.
    """
    (tmp_path / "save.py").write_text(SAVED)
    (tmp_path / "program.py").write_text(LOADED)
    assert server.bare("save.py", cwd=tmp_path).status == 0

    noisy, compiled, calm = (
        server.detrain("run", "--fresh", "program.py", *kind.split(), cwd=tmp_path).err
        for kind in ("noisy", "noisy compiled", "calm")
    )

    assert "(a function of a SavedModel with random ops" in noisy
    assert "(a function of a SavedModel with random ops" in compiled
    assert "SavedModel" not in calm


IMPORTED = """
import sys
import tensorflow as tf
with tf.Graph().as_default() as graph:
    drawn = tf.identity(tf.compat.v1.random_uniform([], seed=3), name="drawn")
    session = tf.compat.v1.Session(graph=graph)
imported = tf.function(lambda: tf.graph_util.import_graph_def(graph.as_graph_def(), return_elements=["drawn:0"])[0])
weight = tf.Variable(1.0)
for epoch in range(2):
    for x in tf.ones([4]):
        with tf.GradientTape() as tape:
            loss = x * weight * (imported() if sys.argv[1] == "import" else session.run(drawn))
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
"""


@pytest.mark.parametrize(("kind", "named"), [("import", "(import_graph_def)"), ("session", "of a session of TensorFlow 1")])
def test_graphs_that_draw_are_named(kind: str, named: str, tmp_path: Path, server: Server) -> None:
    """They drew other numbers in a resumed run, in silence."""
    (tmp_path / "program.py").write_text(IMPORTED)

    run = server.detrain("run", "program.py", kind, cwd=tmp_path).ok()

    assert named in run.err


def test_a_lifted_function_can_be_saved_and_goes_on_exactly_when_loaded(tmp_path: Path, server: Server) -> None:
    """TensorFlow refused to save it: its counter was no part of the model.

    The functions need not have been called before.
    """
    (tmp_path / "save.py").write_text(SAVED)
    (tmp_path / "program.py").write_text(LOADED)
    server.detrain("run", "--ckpt", "other", "save.py", cwd=tmp_path).ok()

    whole = server.detrain("run", "--ckpt", "whole", "program.py", "noisy", cwd=tmp_path).ok()
    server.detrain("run", "--every", "2b", "program.py", "noisy", cwd=tmp_path, DIE_AT="1:1").died()
    again = server.detrain("run", "--every", "2b", "program.py", "noisy", cwd=tmp_path).ok()

    assert "SavedModel" not in whole.err
    assert "resuming" in again.err
    assert again.out == whole.out
