"""Faults that are put into training programs, once: with the guard the run ends with the bits of the bare run without
them.

A program strikes itself: at the batch whose number stands in `$FAULTS` (`8:gradient,15:weight`, over all its loops), if
the file `struck-8` is not there yet, it passes a huge or no number into its compiled step.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from detrain import guard_run
from detrain.base.errors import FaultPersists, UsageError
from tests.e2e.forkserver import Server
from tests.e2e.programs import DIE
from tests.e2e.runs import detrain, ran

PRELUDE = """\
import hashlib, os, random, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
import numpy as np
import tensorflow as tf


if "DEVICES" in os.environ:
    devices = [tf.config.LogicalDeviceConfiguration()] * int(os.environ["DEVICES"])
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)

VALUES = {"gradient": 3e15, "nan": float("nan"), "slot": 1e20, "weight": 1e15}
turn = 0

def strike():
    # What is added to gradients, slots and weights in the next step: zeros, but once.
    global turn
    faults = dict(fault.split(":") for fault in os.environ.get("FAULTS", "").split(",") if fault)
    kind, mark = faults.get(str(turn), ""), f"struck-{turn}"
    is_due = kind and ("again" in os.environ or not os.path.exists(mark))
    if is_due:
        os.close(os.open(mark, os.O_CREAT))
    turn += 1
    value = VALUES.get(kind, 0.0) if is_due else 0.0
    values = [value if kind in ("gradient", "nan") else 0.0, value if kind == "slot" else 0.0, value if kind == "weight" else 0.0]
    return tf.constant(values, tf.float32)

def net():
    return keras.Sequential([keras.Input((5,)), keras.layers.Dense(8, activation="relu"), keras.layers.BatchNormalization(),
                             keras.layers.Dropout(0.3), keras.layers.Dense(3)])

def step_of(model, optimizer, **options):
    optimizer.build(model.trainable_variables)
    slots = [v for v in optimizer.variables if len(v.shape) == 2]
    @tf.function(**options)
    def step(a, b, struck):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(a, training=True) - b) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients[2] = gradients[2] + struck[0]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        if slots:
            slots[0].assign_add(tf.ones(slots[0].shape) * struck[1])
        model.trainable_variables[0].assign_add(tf.ones((5, 8)) * struck[2])
        return loss
    return step

def show(*variables):
    print("weights", hashlib.sha256(b"".join(np.asarray(v).tobytes() for v in variables)).hexdigest(), np.random.rand().hex())

x = np.random.default_rng(0).normal(size=(60, 5)).astype("float32")
y = np.random.default_rng(1).normal(size=(60, 3)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(24).batch(5)
"""

OPTIMIZERS = """
def train(name, optimizer, **options):
    model, losses, seen = net(), [], {"best": 1e9}
    step = step_of(model, optimizer, **options)
    for epoch in range(2):
        for i, (a, b) in enumerate(data):
            loss = step(a, b, strike())
            losses.append(float(loss) * random.random())
            if losses[-1] < seen["best"]:
                seen["best"], seen["at"] = losses[-1], (epoch, i)
        print(name, epoch, sum(losses).hex(), len(losses), seen, np.random.rand().hex())
    show(*model.variables, *optimizer.variables)

train("adam", keras.optimizers.Adam(1e-2))
train("momentum", keras.optimizers.SGD(1e-2, momentum=0.9))
train("rmsprop", keras.optimizers.RMSprop(1e-3))
train("lamb", keras.optimizers.Lamb(1e-3))
train("adamw, compiled by XLA", keras.optimizers.AdamW(1e-2, weight_decay=1e-2, global_clipnorm=1.0), jit_compile=True)
"""
"""Five phases of 24 batches: 12 an epoch."""

FIT = """
class Strike(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        struck.assign(strike())
    def on_train_batch_end(self, batch, logs=None):
        losses.append(float(logs["loss"]) * np.random.rand())

class Struck(keras.optimizers.Adam):
    def apply(self, gradients, variables=None):
        gradients = list(gradients)
        gradients[0] = gradients[0] + struck[0]
        super().apply(gradients, variables)
        self.variables[3].assign_add(struck[1] * tf.ones(self.variables[3].shape))

losses = []
struck = tf.Variable(tf.zeros(3), trainable=False)
model = net()
model.compile(Struck(1e-2), "mse", metrics=["mae"])
log = keras.callbacks.CSVLogger("log.csv", append=True)
history = model.fit(x, y, batch_size=5, epochs=2, verbose=0, callbacks=[Strike(), log])
print(sum(losses).hex(), len(losses), history.history)
model.fit(data, epochs=2, verbose=0, callbacks=[Strike()], validation_data=data)
print(open("log.csv").read())
show(*model.variables, *model.optimizer.variables)
"""

EVERYWHERE = ",".join(
    f"{24 * phase + step}:{kind}"
    for phase, kinds in enumerate(
        (
            ("gradient", "gradient", "nan", "slot", "weight"),
            ("gradient", "slot", "gradient", "weight", "nan"),
            ("gradient", "gradient", "slot", "weight", "nan"),
            ("gradient", "gradient", "nan", "slot", "weight"),
            ("slot", "slot", "weight", "nan", "slot"),
        )
    )
    for step, kind in zip((2, 9, 12, 17, 23), kinds, strict=True)
)
"""Faults in the first steps, near the window's end, at the first step of an epoch, inside of it, and at its last
step."""

PYTHON_LOADER = """
class Loader:
    '''Draws from the stream that the bodies draw from, counts, and reuses its buffer.'''
    def __init__(self):
        self.served, self.buffer = 0, np.zeros((5, 5), "float32")
    def __iter__(self):
        for _ in range(12):
            chosen = np.random.randint(0, len(x), 5)
            self.served += 1
            self.buffer[...] = x[chosen]
            yield self.buffer, y[chosen]

model, optimizer, loader, history = net(), keras.optimizers.Adam(1e-2), Loader(), []
step = step_of(model, optimizer)
stream = np.random.default_rng(3)
log = open("log.txt", "a")
for epoch in range(2):
    for i, (a, b) in enumerate(loader):
        a += np.float32(0.1 * stream.normal())
        history.append(float(step(tf.constant(a), tf.constant(b), strike())))
        log.write(f"{epoch} {i} {history[-1].hex()}\\n")
    print(epoch, loader.served, sum(history).hex(), loader.buffer.sum())
log.close()
print(open("log.txt").read())
show(*model.variables, *optimizer.variables)
"""

EAGER = """
model, optimizer, shapes = net(), keras.optimizers.Adam(1e-2), [keras.activations.relu, keras.activations.tanh, tf.nn.elu]
weights = model.trainable_variables
optimizer.build(weights)
for epoch in range(2):
    for a, b in data:
        struck = strike()
        model.layers[1].trainable = not model.layers[1].trainable  # statistics of the batch, or the moving ones
        model.layers[2].rate *= 0.9
        model.layers[0].activation = shapes[(shapes.index(model.layers[0].activation) + 1) % 3]
        a = tf.nn.dropout(a, 0.2) + 0.1 * tf.random.normal([1, 5], seed=3)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(a, training=True) - b) ** 2)
        gradients = tape.gradient(loss, weights)
        gradients[2] = gradients[2] + struck[0]
        optimizer.apply_gradients(zip(gradients, weights))
show(*model.variables, *optimizer.variables)
"""

WHILE = """
model, optimizer, history = net(), keras.optimizers.Adam(1e-2), []
step = step_of(model, optimizer)
epoch = 0
while epoch < 2:
    order, i = np.random.permutation(len(x)), 0
    while i < len(x):
        a, b = x[order[i:i + 5]], y[order[i:i + 5]]
        history.append(float(step(tf.constant(a), tf.constant(b), strike())))
        i += 5
    epoch += 1
    print(epoch, sum(history).hex())
show(*model.variables, *optimizer.variables)
"""


def _run(
    server: Server, tmp_path: Path, source: str, *options: str, **changes: str
) -> tuple[list[str], list[dict[str, object]], str, int]:
    """Run a program with the guard; return its lines, the alarms' log, what detrain said, and the status."""
    program = tmp_path / "program.py"
    program.write_text(PRELUDE + source)
    home = tmp_path / "home"
    run = server.detrain("run", "--ckpt", home, *options, program, cwd=tmp_path, **changes)
    logs = list(home.glob("*.alarms.jsonl"))
    log = [json.loads(line) for line in logs[0].read_text().splitlines()] if logs else []
    return run.out.splitlines(), log, run.err, run.status


def _bare(server: Server, tmp_path: Path, source: str, **changes: str) -> list[str]:
    folder = tmp_path / "bare"
    folder.mkdir()
    (folder / "program.py").write_text(PRELUDE + source)
    result = server.bare(folder / "program.py", cwd=folder, **changes).ok()
    return result.out.splitlines()


@pytest.mark.slow
def test_faults_at_all_places_of_an_epoch_are_undone_to_the_bit_whatever_the_optimizer(server: Server, tmp_path: Path) -> None:
    expected = _bare(server, tmp_path, OPTIMIZERS)

    lines, log, err, status = _run(server, tmp_path, OPTIMIZERS, "--guard", "recover", FAULTS=EVERYWHERE)

    assert (status, lines) == (0, expected), err
    assert [line["action"] for line in log if line["action"] != "detected"] == ["went back", "recovered"] * 25
    assert all(line["steps"] == 2 for line in log if line["action"] == "went back" and not str(line["at"]).endswith(":1"))


def test_a_loader_of_python_and_a_log_are_as_if_nothing_had_been(server: Server, tmp_path: Path) -> None:
    expected = _bare(server, tmp_path, PYTHON_LOADER)

    lines, log, err, status = _run(server, tmp_path, PYTHON_LOADER, "--guard", "recover", FAULTS="9:gradient,12:slot,23:nan")

    assert (status, lines) == (0, expected), err
    assert [line["action"] for line in log if line["action"] != "detected"] == ["went back", "recovered"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("keras", ["keras", "tf_keras"])
def test_eager_random_ops_draw_the_same_again_and_layers_are_what_they_were(keras: str, server: Server, tmp_path: Path) -> None:
    source = EAGER if keras == "keras" else f"import {keras} as keras\n{EAGER}"
    expected = _bare(server, tmp_path, source)

    lines, log, err, status = _run(server, tmp_path, source, "--guard", "recover", FAULTS="9:gradient,16:nan")

    assert (status, lines) == (0, expected), err
    assert [line["action"] for line in log if line["action"] != "detected"] == ["went back", "recovered"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("ring", ["device", "host"])
def test_fit_is_put_right_in_memory(server: Server, tmp_path: Path, ring: str) -> None:
    expected = _bare(server, tmp_path, FIT)
    faults = "9:gradient,12:slot,23:nan,36:gradient,47:slot"

    lines, log, err, status = _run(server, tmp_path, FIT, "--guard", "recover", "--guard-ring", ring, FAULTS=faults)

    assert (status, lines) == (0, expected), err
    assert [line["action"] for line in log if line["action"] != "detected"] == ["went back", "recovered"] * 5


@pytest.mark.slow
def test_fit_that_runs_eagerly_is_put_right_in_memory(server: Server, tmp_path: Path) -> None:
    source = FIT.replace('metrics=["mae"]', 'metrics=["mae"], run_eagerly=True')
    expected = _bare(server, tmp_path, source)

    lines, log, err, status = _run(server, tmp_path, source, "--guard", "recover", FAULTS="9:gradient,36:nan")

    assert (status, lines) == (0, expected), err
    assert [line["action"] for line in log if line["action"] != "detected"] == ["went back", "recovered"] * 2


@pytest.mark.slow
def test_where_no_way_leads_back_in_memory_the_run_begins_again_at_a_checkpoint(server: Server, tmp_path: Path) -> None:
    expected = _bare(server, tmp_path, WHILE)

    lines, log, err, status = _run(server, tmp_path, WHILE, "--guard", "recover", "--every", "2b", FAULTS="20:gradient")

    assert (status, lines[-2:]) == (0, expected[-2:]), err
    assert [line["action"] for line in log if line["action"] != "detected"] == ["restarted", "recovered"]
    assert list((tmp_path / "home").glob("*.suspect"))


def test_an_alarm_that_comes_again_is_no_transient_fault(server: Server, tmp_path: Path) -> None:
    lines, log, err, status = _run(server, tmp_path, PYTHON_LOADER, "--guard", "recover", FAULTS="16:gradient", again="1")

    assert status == FaultPersists.exit_code, err
    assert "no transient fault" in err
    assert [line["action"] for line in log if line["action"] != "detected"][:2] == ["went back", "stopped"]
    assert not any(line.startswith("weights") for line in lines)


@pytest.mark.slow
def test_an_alarm_that_comes_again_in_the_first_step_of_an_epoch_is_looked_for_in_the_epoch_before(
    server: Server, tmp_path: Path
) -> None:
    _lines, log, err, status = _run(server, tmp_path, PYTHON_LOADER, "--guard", "recover", FAULTS="12:gradient", again="1")

    assert status == FaultPersists.exit_code, err
    assert [line["action"] for line in log if line["action"] != "detected"][:3] == ["went back", "restarted", "stopped"]


def test_detect_names_the_variable_and_changes_nothing(server: Server, tmp_path: Path) -> None:
    expected = _bare(server, tmp_path, PYTHON_LOADER)

    lines, log, err, status = _run(server, tmp_path, PYTHON_LOADER, "--guard", "detect", FAULTS="23:slot")

    assert (status, lines[:26], lines[26:] == expected[26:]) == (0, expected[:26], False), err
    assert [(line["action"], line["at"]) for line in log] == [("detected", "1:12")]
    assert "Adam/sequential_dense_kernel_momentum has norm" in err


NORMALIZED = DIE("""
import keras, numpy as np, tensorflow as tf
layers = keras.layers
if "{model}" == "recurrent":
    model = keras.Sequential([keras.Input((8, 1)), layers.LSTM(12, recurrent_dropout=0.1), layers.Dense(1)])
else:
    model = keras.Sequential([keras.Input((8,)), layers.Dense(24, activation="relu"), layers.BatchNormalization(), layers.Dense(1)])
draw = np.random.default_rng(3)
x = draw.normal(size=(160, 8)).astype("float32")
y = x.sum(1, keepdims=True) / 8
model.compile({optimizer}, "mse")
class Dies(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        die(str(epoch))
class Tells(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print(epoch, b"".join(v.numpy().tobytes() for v in [*model.variables, *model.optimizer.variables]).hex()[-64:], flush=True)
model.fit(x, y, batch_size=16, epochs=4, verbose=0, callbacks=[Tells(), Dies()])
print(b"".join(v.numpy().tobytes() for v in model.variables).hex())
""")


@pytest.mark.parametrize(
    ("model", "optimizer"), [("dense", "keras.optimizers.SGD(1e-2, momentum=0.9)"), ("recurrent", "keras.optimizers.Lion(1e-3)")]
)
def test_a_run_with_the_guard_has_the_bits_of_one_without_also_where_it_is_killed(
    model: str, optimizer: str, server: Server, tmp_path: Path
) -> None:
    """TensorFlow sums in another order where it does not know the shapes of variables: not told, it had other bits, in
    silence.
    """
    (tmp_path / "program.py").write_text(NORMALIZED.format(model=model, optimizer=optimizer))
    whole = server.bare("program.py", cwd=tmp_path)

    guarded = server.detrain("run", "--ckpt", "whole", "--guard", "detect", "program.py", cwd=tmp_path)
    for place in ("0", "1"):
        assert server.detrain("run", "--guard", "detect", "program.py", cwd=tmp_path, DIE_AT=place).status == -9
    killed = server.detrain("run", "--guard", "detect", "program.py", cwd=tmp_path).ok()

    assert guarded.out == whole.out
    assert killed.out.splitlines() == whole.out.splitlines()[-len(killed.out.splitlines()) :]


@pytest.mark.slow
def test_masks_that_a_recurrent_cell_keeps_are_as_if_nothing_had_been(server: Server, tmp_path: Path) -> None:
    """Drawn in the first step of an epoch, which is among those that are run again; the generator's state tells how
    often.
    """
    call = "        a, _ = cell(a, [tf.zeros((5, 5))] * 2, training=True)\n"
    source = EAGER.replace("optimizer.build", "cell = keras.layers.LSTMCell(5, dropout=0.5)\noptimizer.build")
    source = source.replace("    for a, b", "    cell.reset_dropout_mask()\n    for a, b").replace(
        "        with tf", f"{call}        with tf"
    )
    source = source.replace("show(", "show(cell.seed_generator.state, ")
    expected = _bare(server, tmp_path, source)

    lines, log, err, status = _run(server, tmp_path, source, "--guard", "recover", FAULTS="1:gradient,13:nan")

    assert (status, lines[-1]) == (0, expected[-1]), err
    assert log[-1]["action"] == "recovered"


CHOICES = """
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner, self.optimizers = net(), [keras.optimizers.Adam(1e-2), keras.optimizers.SGD(1e-2, momentum=0.9)]
        self.chosen, self.turns = self.optimizers[0], self.optimizers[:]
    def call(self, x, training=None):
        return self.inner(x, training=training)
    def swap(self):
        self.turns.reverse()
        self.chosen = self.turns[0] if self.chosen is self.turns[1] else self.turns[1]

model = Net()
weights = model.inner.trainable_variables
for optimizer in model.optimizers:
    optimizer.build(weights)
for epoch in range(2):
    for i, (a, b) in enumerate(data):
        struck = strike()
        if i % 3 == 0:
            model.swap()
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(a, training=True) - b) ** 2)
        gradients = tape.gradient(loss, weights)
        gradients[2] = gradients[2] + struck[0]
        model.chosen.apply_gradients(zip(gradients, weights))
        model.turns[0].learning_rate = model.turns[0].learning_rate * 0.9
    print(model.optimizers.index(model.chosen), float(loss).hex(), [float(each.learning_rate).hex() for each in model.turns])
show(*model.variables, *[v for optimizer in model.optimizers for v in optimizer.variables])
"""


@pytest.mark.slow
def test_what_a_model_chooses_is_chosen_again(server: Server, tmp_path: Path) -> None:
    expected = _bare(server, tmp_path, CHOICES)

    lines, log, err, status = _run(server, tmp_path, CHOICES, "--guard", "recover", FAULTS="6:gradient,9:nan,19:gradient")

    assert (status, lines) == (0, expected), err
    assert [line["action"] for line in log if line["action"] != "detected"] == ["went back", "recovered"] * 3


OUT_OF_SIGHT = {
    "the generator of cv2.randn": ("import cv2\n", "cv2.randn(np.zeros((3, 1), np.float32), 0.0, 1.0)"),
    "what the child process cat holds": ("import subprocess\nchild = subprocess.Popen(['cat'], stdin=subprocess.PIPE)\n", "pass"),
}


@pytest.mark.slow
@pytest.mark.parametrize("obstacle", [pytest.param(name, marks=[pytest.mark.slow] * ("cv2" in name)) for name in OUT_OF_SIGHT])
def test_what_is_out_of_sight_stands_in_the_way_back(obstacle: str, server: Server, tmp_path: Path) -> None:
    head, body = OUT_OF_SIGHT[obstacle]
    source = head + EAGER.replace("        struck = strike()", f"        {body}\n        struck = strike()")
    expected = _bare(server, tmp_path, source)
    run = ran(detrain, tmp_path, PRELUDE + source, "--guard", "recover", FAULTS="5:gradient")

    assert (run.status, run.out.splitlines()[-1]) == (0, expected[-1]), run.err
    assert f"no exact way back in memory ({obstacle}" in run.err
    assert "it was a transient fault, and is undone" in run.err


BY_ITERATOR = """
model, optimizer, history = net(), keras.optimizers.Adam(1e-2), []
step, rows = step_of(model, optimizer), iter(data.repeat())
step_from = tf.function(lambda rows, struck: step(*next(rows), struck))
for epoch in range(2):
    for i in range(12):
        history.append(float(DRAWN))
    print(epoch, sum(history).hex())
show(*model.variables, *optimizer.variables)
"""


def test_what_a_body_draws_as_optionals_is_given_again(server: Server, tmp_path: Path) -> None:
    source = BY_ITERATOR.replace("DRAWN", "step(*rows.get_next_as_optional().get_value(), strike())")
    expected = _bare(server, tmp_path, source)

    lines, log, err, status = _run(server, tmp_path, source, "--guard", "recover", FAULTS="14:gradient")

    assert (status, lines) == (0, expected), err
    assert [line["action"] for line in log if line["action"] != "detected"] == ["went back", "recovered"]


@pytest.mark.slow
def test_an_iterator_that_a_compiled_function_advances_leads_back_to_a_checkpoint(server: Server, tmp_path: Path) -> None:
    source = BY_ITERATOR.replace("DRAWN", "step_from(rows, strike())")
    expected = _bare(server, tmp_path, source)

    lines, log, err, status = _run(server, tmp_path, source, "--guard", "recover", FAULTS="14:gradient")

    assert (status, lines[-1]) == (0, expected[-1]), err
    assert "no exact way back in memory: iterator (a tf.data iterator that a tf.function advances)" in err
    assert [line["action"] for line in log if line["action"] != "detected"] == ["restarted", "recovered"]


IN_GRAPH = """
model, optimizer, history = net(), keras.optimizers.Adam(1e-2), []
step = step_of(model, optimizer)
@tf.function
def steps(rows, struck):
    total = 0.0
    for a, b in rows:
        total += step(a, b, struck)
    return total
for epoch in range(14):
    history.append(float(steps(data, strike())))
print([loss.hex() for loss in history])
show(*model.variables, *optimizer.variables)
"""


@pytest.mark.slow
def test_a_shuffled_set_that_a_compiled_function_goes_over_is_shuffled_the_same_again(server: Server, tmp_path: Path) -> None:
    expected = _bare(server, tmp_path, IN_GRAPH)

    lines, log, err, status = _run(server, tmp_path, IN_GRAPH, "--guard", "recover", FAULTS="10:gradient,11:nan")

    assert (status, lines) == (0, expected), err
    assert [line["action"] for line in log if line["action"] != "detected"] == ["went back", "recovered"] * 2


RESUMED = DIE("""
model, optimizer, history = net(), keras.optimizers.Adam(1e-2), []
step = step_of(model, optimizer)
for epoch in range(3):
    for i, (a, b) in enumerate(data):
        history.append(float(step(a, b, strike())))
        die(str(turn))
    print(epoch, sum(history).hex())
show(*model.variables, *optimizer.variables)
""")


@pytest.mark.slow
def test_the_first_steps_after_a_resume_are_guarded_as_all_others(server: Server, tmp_path: Path) -> None:
    expected = _bare(server, tmp_path, RESUMED)
    options = ("--guard", "recover", "--every", "5b")

    _lines, log, _err, status = _run(server, tmp_path, RESUMED, *options, DIE_AT="18")
    assert (status, log) == (-9, [])
    lines, log, err, status = _run(server, tmp_path, RESUMED, *options, FAULTS="16:slot")

    assert (status, lines) == (0, expected[1:]), err
    assert "resuming program at 1:3" in err
    assert [line["action"] for line in log if line["action"] != "detected"] == ["went back", "recovered"]


REPLICAS = """
strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(8)])
with strategy.scope():
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(8, activation="relu"), keras.layers.BatchNormalization(),
                              keras.layers.Dropout(0.3), keras.layers.Dense(3)])
    optimizer = keras.optimizers.Adam(1e-2)
    optimizer.build(model.trainable_variables)

def replica_step(a, b, struck):
    me = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group == 3, tf.float32)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(a, training=True) - b) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    gradients[2] = gradients[2] + struck[0] * me
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss

@tf.function
def step(a, b, struck):
    return strategy.reduce("mean", strategy.run(replica_step, (a, b, struck)), None)

spread = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((x[:48], y[:48])).shuffle(48).batch(16))
losses = []
for epoch in range(4):
    for a, b in spread:
        losses.append(float(step(a, b, strike())))
    print(epoch, sum(losses).hex())
show(*model.variables, *optimizer.variables)
"""


@pytest.mark.slow
def test_a_fault_in_one_of_eight_replicas_is_undone_in_all(server: Server, tmp_path: Path) -> None:
    expected = _bare(server, tmp_path, REPLICAS, DEVICES="8")

    lines, log, err, status = _run(server, tmp_path, REPLICAS, "--guard", "recover", FAULTS="8:nan,10:gradient", DEVICES="8")

    assert (status, lines) == (0, expected), err
    assert [line["action"] for line in log if line["action"] != "detected"] == ["went back", "recovered"] * 2


BY_HAND = """
import detrain
detrain.guard_run(on_repeat="continue")
model, optimizer = net(), keras.optimizers.SGD(1e-2, momentum=0.9)
step = step_of(model, optimizer)
for epoch in detrain.epoch_loop(range(2)):
    detrain.record_epoch(epoch)
    for a, b in detrain.batch_loop(data):
        if detrain.record_batch():
            step(a, b, strike())
show(*model.variables, *optimizer.variables)
"""


def test_one_call_guards_a_program_with_probes_by_hand(server: Server, tmp_path: Path) -> None:
    expected = _bare(server, tmp_path, BY_HAND)

    lines, log, err, status = _run(server, tmp_path, BY_HAND, FAULTS="14:weight")

    assert (status, lines) == (0, expected), err
    assert [line["action"] for line in log if line["action"] != "detected"] == ["went back", "recovered"]


@pytest.mark.parametrize(("name", "value"), [("mode", "both"), ("on_repeat", "wait"), ("ring", "disk")])
def test_an_unknown_mode_is_refused(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"{name}='{value}'"):
        guard_run(**{name: value})


DRAWN_TOGETHER = """
def rows():
    while True:
        yield np.random.random(5).astype("float32")
drawn = iter(tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec([5])).batch(4))
model, optimizer = net(), keras.optimizers.Adam(1e-2)
step = step_of(model, optimizer)
for epoch in range(2):
    for turn_of_epoch in range(10):
        a = next(drawn) * np.random.uniform()
        step(a, a[:, :3], strike())
show(*model.variables, *optimizer.variables)
"""


@pytest.mark.slow
def test_elements_of_python_that_draws_with_the_bodies_are_not_handed_out_again(server: Server, tmp_path: Path) -> None:
    expected = _bare(server, tmp_path, DRAWN_TOGETHER)
    lines, log, err, status = _run(server, tmp_path, DRAWN_TOGETHER, "--guard", "recover", "--every", "4b", FAULTS="13:gradient")

    assert (status, lines[-1:]) == (0, expected[-1:]), err
    assert [line["action"] for line in log if line["action"] != "detected"] == ["restarted", "recovered"]
    assert "no exact way back in memory: iterator (a tf.data iterator that the body advances, whose pipeline runs Python)" in err


HEADER = """
own = np.random.default_rng(3)
def noisy(row):
    return (row * {draw}).astype("float32")
rows = tf.data.Dataset.from_tensor_slices(np.ones((40, 5), "float32"))
rows = rows.map(lambda row: tf.ensure_shape(tf.numpy_function(noisy, [row], tf.float32), [5])).batch(4)
model, optimizer = net(), keras.optimizers.Adam(1e-2)
step = step_of(model, optimizer)
for epoch in range(2):
    for a in rows:
        a = a * {draw}.mean()
        step(a, a[:, :3], strike())
show(*model.variables, *optimizer.variables)
"""


@pytest.mark.slow
@pytest.mark.parametrize("draw", ["np.random.random(5)", "own.random(5)"])
def test_what_a_loop_goes_over_may_draw_with_its_bodies(draw: str, server: Server, tmp_path: Path) -> None:
    source = HEADER.format(draw=draw)
    expected = _bare(server, tmp_path, source)

    lines, log, err, status = _run(server, tmp_path, source, "--guard", "recover", "--every", "4b", FAULTS="13:gradient")

    assert (status, lines[-1:]) == (0, expected[-1:]), err
    assert [line["action"] for line in log if line["action"] != "detected"] == ["went back", "recovered"], err


def test_files_that_undone_steps_have_written_whole_are_named(server: Server, tmp_path: Path) -> None:
    source = EAGER.replace(
        "        optimizer.apply", "        np.save('best.npy', gradients[2]) if turn == 7 else None\n        optimizer.apply"
    )

    _lines, log, err, status = _run(server, tmp_path, source, "--guard", "recover", FAULTS="6:gradient")

    assert (status, [line["action"] for line in log if line["action"] != "detected"]) == (0, ["went back", "recovered"]), err
    assert "what these steps have written as a whole stays so until it is written again: best.npy" in err
