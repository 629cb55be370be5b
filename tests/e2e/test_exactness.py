"""The adversarial programs of `tests/programs`: killed at random cuts, run again, and compared bit for bit with the
whole run.

Compared are what a program prints from the last resume on, the files that it writes, and every variable at the end of
each training; the whole run is compared with the bare program, which knows nothing of detrain.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from detrain.base import errors
from detrain.store.journal import read_batches
from detrain.verify.verification import outside_of_run
from tests.e2e import random_kills
from tests.e2e.forkserver import Server
from tests.e2e.runs import Result, goes_through
from tests.programs_marks import PROGRAMS, command, programs

PLAIN = [
    "body_augmentation",
    "csv_log",
    "eval_from_loader_stream",
    "files_listed",
    "nonlocal_counters",
    "numba_noise",
    "pool_without_replacement",
    "replay_buffer",
    "set_iterated",
    "time_seed",
    "tqdm_bars",
    "try_continue",
    "while_counter",
]
"""Programs without a framework."""
FRAMEWORK = [
    "curriculum_batch_size",
    "dropout_layers",
    "eight_replicas",
    "keras_2",
    "keras_2_layers",
    "keras_2_legacy",
    "lazy_model",
    "lookup_tables",
    "mixed_precision",
    "moving_averages",
    "own_checkpoints",
    "pydataset_workers",
    "random_in_graph",
    "pipeline_generators",
    "random_maps",
    "reused_iterators",
    "running_mean",
    "several_fits",
    "strategy_batches",
    "xla_step",
    "dqn_replay",
    "early_stopping",
    "gan_two_optimizers",
    "generator_loader",
    "generator_shared",
    "grad_accumulation",
    "seq2seq_slide",
    "trainer_class",
    "trainer_objects",
    "validation_twin",
    "warmup_lr",
    "zip_two",
]
SLOW = ("numba_noise",)
"""Programs whose libraries take long to start, and have tests of their own."""
KILLS = 3
DRAW_IN_GRAPHS = ("keras_2", "keras_2_layers", "random_in_graph", "eight_replicas", "xla_step")
"""Programs with stateful random ops in traced functions: they draw other numbers than stock TensorFlow, as they
must."""
OWN_INPUTS = ("time_seed", "files_listed", "pydataset_workers", "numba_noise")
"""Programs that read a clock, or the order of files, or draw where plain Python seeds nothing: bare, they end as chance
has it."""
TIMED_FILES = ("board/", "own/")
"""Files that hold times; the program itself says what else is in them."""
STOPWATCH = re.compile(r"[\d.]+ ?m?s$")
"""What a program prints of a stopwatch, at the end of a line: it measures each run anew."""


@dataclass(frozen=True)
class Run:
    """What a run has left, over all its processes."""

    last: Result
    """Its last process."""
    files: dict[str, bytes]
    states: dict[str, dict[str, str]]
    """Digest of each variable, by its key, at the end of each training loop."""
    batches: int


def run(server: Server, path: Path, folder: Path, every: str, kills: list[int], outside: object = None) -> Run:
    last = random_kills.run(server, command(path), folder, every, kills, outside, PYTHONPATH=str(PROGRAMS))
    files = {
        name: found.read_bytes()
        for found in sorted(folder.rglob("*"))
        if found.is_file() and not (name := found.relative_to(folder).as_posix()).startswith(TIMED_FILES)
    }
    [journal] = Path(f"{folder}.home").glob("*.journal")
    notes = dict(json.loads(line) for line in Path(f"{folder}.states").read_text().splitlines())
    digests = {of: what for of, what in notes.items() if isinstance(what, dict)}
    return Run(last, files, digests, len(read_batches(journal)))


def check(server: Server, path: Path, tmp_path: Path, every: str, seed: int, kills: int = KILLS) -> None:
    whole = run(server, path, tmp_path / "whole", every, [])
    outside = outside_of_run(tmp_path / "whole.home")  # as the runs that are compared with it are given it
    draw = random.Random(f"{path.name} {seed}")
    if not whole.batches:  # it trains nothing
        return
    half = whole.batches // 2
    places = sorted([*draw.sample(range(1, half), min(kills, half) - 1), draw.randrange(half, whole.batches)])
    killed = run(server, path, tmp_path / "killed", every, places, outside)

    lines, expected = ([STOPWATCH.sub("", line) for line in each.last.out.splitlines()] for each in (killed, whole))
    trainings = max(len(whole.states) - 1, 1)  # the end of a loop that no probe sees is not among them
    assert goes_through(lines, expected, trainings), places
    # One may have variables of which Python has not freed the last holder yet.
    for of, digests in killed.states.items():
        common = digests.keys() & whole.states[of].keys()
        assert len(common) >= 0.5 * len(digests)
        assert {key: digests[key] for key in common} == {key: whole.states[of][key] for key in common}, of
    assert "the program" in killed.states
    # Without epochs, "1" means a checkpoint each ten minutes; and a run may be killed before its third batch.
    has_checkpoint = "no loop over epochs" not in whole.last.err if every == "1" else places[-1] > int(every[0])
    if has_checkpoint:
        assert "resuming" in killed.last.err
    assert killed.files == whole.files, places
    assert killed.batches == whole.batches
    assert "not captured" not in killed.last.err + whole.last.err
    if path.stem not in (*DRAW_IN_GRAPHS, *OWN_INPUTS) and seed == 0:
        (tmp_path / "bare").mkdir()
        assert server.bare(*command(path), cwd=tmp_path / "bare").out == whole.last.out


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in [*PLAIN, *FRAMEWORK]]
)
def test_killed_at_random_cuts_it_ends_as_if_never_killed(name: str, server: Server, tmp_path: Path) -> None:
    every = "1" if len(name) % 3 == 0 else "2b"
    check(server, PROGRAMS / f"{name}.py", tmp_path, every, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "every"), [(1, "1"), (2, "2b"), (3, "3b")])
@pytest.mark.parametrize("path", programs(), ids=lambda path: path.stem)
def test_killed_at_many_random_cuts(path: Path, seed: int, every: str, server: Server, tmp_path: Path) -> None:
    check(server, path, tmp_path, every, seed, 5)


KERAS = """
import keras
import numpy as np
import tensorflow as tf
x = np.random.normal(size=(24, 4)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).shuffle(24).batch(6)
layers = [keras.layers.Dense(5, activation="tanh"), keras.layers.Dropout(0.1), keras.layers.Dense(1)]
model = keras.Sequential([keras.Input((4,)), *layers])
optimizer = keras.optimizers.Adam(1e-2)
{before}

def step(model, optimizer, a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(a, training=True) - b) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss

for epoch in range(4):
    {inside}
    for a, b in data:
        loss = step(model, optimizer, a, b)
    print(epoch, float(loss), {shown}, flush=True)
print(b"".join(v.numpy().tobytes() for v in model.variables).hex()[-300:])
"""
SET_IN_LOOP = {
    "layers are unfrozen": (
        "optimizer.build(model.variables); model.layers[0].trainable = False",
        "model.layers[0].trainable = epoch > 1",
        "0",
    ),
    "dropout grows": ("", "model.layers[1].rate += 0.1 * (epoch > 0)", "model.layers[1].rate"),
    "the optimizer's clipping": ("", "optimizer.clipnorm = 0.5 ** epoch if epoch else None", "optimizer.clipnorm"),
    "settings of Keras and TensorFlow": (
        "summary = tf.summary.experimental; summary.set_step(0); get_uid = keras.backend.get_uid",
        "keras.config.set_epsilon(keras.config.epsilon() / 2); summary.set_step(3 + summary.get_step()); "
        "tf.config.set_soft_device_placement(epoch == 0)",
        "keras.config.epsilon(), summary.get_step(), get_uid('turn'), tf.config.get_soft_device_placement()",
    ),
    "attributes by functions that are no methods": (
        "grow = lambda layer: setattr(layer, 'size', getattr(layer, 'size', 0) + 1)\n"
        "def count(self):\n    self.turns = getattr(self, 'turns', 0) + 1",
        "grow(model.layers[0]); count(optimizer)",
        "model.layers[0].size, optimizer.turns",
    ),
    "functions of libraries and of the program": (
        "def own(x):\n    return x / 2\n"
        "chosen, stop, name = {'now': None}, keras.callbacks.EarlyStopping('loss'), 'activ' + 'ation'",
        "if epoch == 0: setattr(model.layers[0], name, tf.nn.relu); setattr(model.layers[2], name, own); "
        "chosen['now'] = np.less; stop.monitor_op = keras.ops.less",
        "[f.__name__ for f in (model.layers[0].activation, model.layers[2].activation, chosen['now'], stop.monitor_op)]",
    ),
    "losses and schedules, in ways that the source does not show": (
        "rates = keras.optimizers.schedules.PiecewiseConstantDecay([4, 8], [0.1, 0.05, 0.01]); optimizer.learning_rate = rates\n"
        "judge, l2, name = keras.losses.Huber(1.0), keras.regularizers.L2(0.01), 'l' + '2'\n"
        "def own(a, b, delta=1.0):\n    return delta * tf.abs(a - b)",
        "judge._fn_kwargs['delta'] /= 2; rates.values[1] /= 2; setattr(l2, name, np.float32(0.1) * epoch); "
        "vars(judge)['fn'] = own if epoch == 1 else judge.fn",
        "judge._fn_kwargs, rates.values, l2.l2, float(judge(tf.ones([1]), tf.zeros([1]))), float(l2(model.weights[0]))",
    ),
    "words counted": (
        "from keras.src.legacy.preprocessing.text import Tokenizer; bar = Tokenizer()",
        "bar.fit_on_texts([f'w{epoch} x'])",
        "bar.document_count, bar.word_index",
    ),
    "models that are built as they are called": (
        "models = []",
        "models.append(keras.Sequential([keras.layers.Dense(2), keras.layers.Dropout(0.5)])); models[-1](x)",
        "[float(tf.reduce_sum(each(x, training=True))) for each in models]",
    ),
    "a progress bar of Keras's": ("bar = keras.utils.Progbar(99, verbose=0)", "bar.add(1, [('x', epoch)])", "bar._values"),
}
MADE_IN_LOOP = {
    "a model": (
        "models = []",
        "models.append(keras.Sequential([keras.layers.Dense(2), keras.layers.Lambda(abs)])); models[-1](x)",
        "lacks models[0] (",
    ),
    "a model around the old one": (
        "",
        "model = keras.Sequential([*model.layers, keras.layers.Dense(1)]); optimizer = keras.optimizers.Adam(1e-2)",
        " lacks ",
    ),
    "an optimizer, by compiling": (
        "model.compile('adam', 'mse')",
        "model.compile('rmsprop' if epoch == 1 else model.optimizer, 'mse')",
        "the optimizer of 'Sequential' was",
    ),
}


@pytest.mark.parametrize("name", SET_IN_LOOP)
def test_what_the_loop_sets_on_objects_of_keras_comes_back(name: str, server: Server, tmp_path: Path) -> None:
    before, inside, shown = SET_IN_LOOP[name]
    path = tmp_path / "program.py"
    path.write_text(KERAS.format(before=before, inside=inside, shown=shown))
    check(server, path, tmp_path, "2b", 0, 2)


@pytest.mark.parametrize("name", MADE_IN_LOOP)
def test_what_the_loop_makes_with_variables_is_named_and_refused(name: str, server: Server, tmp_path: Path) -> None:
    before, inside, said = MADE_IN_LOOP[name]
    path = tmp_path / "program.py"
    path.write_text(KERAS.format(before=before, inside=inside, shown="0"))
    killed = server.detrain("run", path, cwd=tmp_path, DETRAIN_TRIAL='{"states": "states", "kill_at": 9}').died()
    again = server.detrain("run", path, cwd=tmp_path)

    assert "not captured" in killed.err
    assert again.status in (errors.NotCapturable.exit_code, errors.Diverged.exit_code)
    assert said in again.err


def test_a_function_without_a_name_that_the_loop_puts_on_a_layer_is_named(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    inside = "model.layers[0].activation = (lambda x: x / 3) if epoch == 1 else model.layers[0].activation"
    path.write_text(KERAS.format(before="", inside=inside, shown="0"))

    run = server.detrain("run", path, cwd=tmp_path).ok()

    assert "not captured" in run.err
    assert "activation of Dense (function: set in the loop)" in run.err
