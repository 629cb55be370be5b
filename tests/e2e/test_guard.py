"""Faults that are put into training programs, once: with the guard the run ends with the bits of the bare run without
them.

A program strikes itself: at the batch whose number stands in `$FAULTS` (`8:gradient,15:weight`, over all its loops), if
the file `struck-8` is not there yet, it passes a huge or no number into its compiled step.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from detrain import guard_run
from detrain.base.errors import FaultPersists, UsageError
from tests.e2e.forkserver import Server
from tests.e2e.programs import DIE
from tests.e2e.runs import Result, actions, alarms, detrain, ran, weights

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


RECOVER = ("--guard", "recover")
IN_MEMORY, BY_CHECKPOINT = ["went back", "recovered"], ["restarted", "recovered"]
"""What a guard does against a fault."""


def _run(server: Server, tmp_path: Path, source: str, *options: str, **changes: str) -> Result:
    """Run a program with the guard."""
    return ran(server, tmp_path, PRELUDE + source, *options, **changes)


def _bare(server: Server, tmp_path: Path, source: str, **changes: str) -> list[str]:
    """Run a program without detrain and without faults, and return its lines."""
    folder = tmp_path / "bare"
    folder.mkdir()
    (folder / "program.py").write_text(PRELUDE + source)
    return server.bare("program.py", cwd=folder, **changes).ok().out.splitlines()


def _put_right(
    server: Server,
    tmp_path: Path,
    source: str,
    faults: str,
    *,
    by: list[str],
    options: Sequence[str] = RECOVER,
    last: int = 0,
    **changes: str,
) -> Result:
    """Run a program with faults and the guard, which does this and no more about them: it ends with the lines of a bare
    run without faults, or, where it may print some again, with as many of the last.
    """
    expected = _bare(server, tmp_path, source, **changes)
    run = _run(server, tmp_path, source, *options, FAULTS=faults, **changes).ok()
    assert run.out.splitlines()[-last:] == expected[-last:], run.err
    assert actions(tmp_path / "ckpt") == by, run.err
    return run


@pytest.mark.slow
def test_faults_at_all_places_of_an_epoch_are_undone_to_the_bit_whatever_the_optimizer(server: Server, tmp_path: Path) -> None:
    _put_right(server, tmp_path, OPTIMIZERS, EVERYWHERE, by=IN_MEMORY * 25)

    back = [line for line in alarms(tmp_path / "ckpt") if line["action"] == "went back"]
    assert all(line["steps"] == 2 for line in back if not str(line["at"]).endswith(":1"))


def test_a_loader_of_python_and_a_log_are_as_if_nothing_had_been(server: Server, tmp_path: Path) -> None:
    _put_right(server, tmp_path, PYTHON_LOADER, "9:gradient,12:slot,23:nan", by=IN_MEMORY * 3)


@pytest.mark.slow
@pytest.mark.parametrize("keras", ["keras", "tf_keras"])
def test_eager_random_ops_draw_the_same_again_and_layers_are_what_they_were(keras: str, server: Server, tmp_path: Path) -> None:
    source = EAGER if keras == "keras" else f"import {keras} as keras\n{EAGER}"
    _put_right(server, tmp_path, source, "9:gradient,16:nan", by=IN_MEMORY * 2)


@pytest.mark.slow
@pytest.mark.parametrize("ring", ["device", "host"])
def test_fit_is_put_right_in_memory(server: Server, tmp_path: Path, ring: str) -> None:
    faults = "9:gradient,12:slot,23:nan,36:gradient,47:slot"
    _put_right(server, tmp_path, FIT, faults, by=IN_MEMORY * 5, options=(*RECOVER, "--guard-ring", ring))


@pytest.mark.slow
def test_fit_that_runs_eagerly_is_put_right_in_memory(server: Server, tmp_path: Path) -> None:
    source = FIT.replace('metrics=["mae"]', 'metrics=["mae"], run_eagerly=True')
    _put_right(server, tmp_path, source, "9:gradient,36:nan", by=IN_MEMORY * 2)


@pytest.mark.slow
def test_where_no_way_leads_back_in_memory_the_run_begins_again_at_a_checkpoint(server: Server, tmp_path: Path) -> None:
    _put_right(server, tmp_path, WHILE, "20:gradient", by=BY_CHECKPOINT, options=(*RECOVER, "--every", "2b"), last=2)

    assert list((tmp_path / "ckpt").glob("*.suspect"))


def test_an_alarm_that_comes_again_is_no_transient_fault(server: Server, tmp_path: Path) -> None:
    run = _run(server, tmp_path, PYTHON_LOADER, *RECOVER, FAULTS="16:gradient", again="1")

    assert run.status == FaultPersists.exit_code, run.err
    assert "no transient fault" in run.err
    assert actions(tmp_path / "ckpt")[:2] == ["went back", "stopped"]
    assert weights(run.out) == []


@pytest.mark.slow
def test_an_alarm_that_comes_again_in_the_first_step_of_an_epoch_is_looked_for_in_the_epoch_before(
    server: Server, tmp_path: Path
) -> None:
    run = _run(server, tmp_path, PYTHON_LOADER, *RECOVER, FAULTS="12:gradient", again="1")

    assert run.status == FaultPersists.exit_code, run.err
    assert actions(tmp_path / "ckpt")[:3] == ["went back", "restarted", "stopped"]


def test_detect_names_the_variable_and_changes_nothing(server: Server, tmp_path: Path) -> None:
    expected = _bare(server, tmp_path, PYTHON_LOADER)

    run = _run(server, tmp_path, PYTHON_LOADER, "--guard", "detect", FAULTS="23:slot").ok()

    lines = run.out.splitlines()
    assert (lines[:26], lines[26:] == expected[26:]) == (expected[:26], False), run.err
    assert [(line["action"], line["at"]) for line in alarms(tmp_path / "ckpt")] == [("detected", "1:12")]
    assert "Adam/sequential_dense_kernel_momentum has norm" in run.err


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
    _put_right(server, tmp_path, source, "1:gradient,13:nan", by=BY_CHECKPOINT * 2, last=1)


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
    _put_right(server, tmp_path, CHOICES, "6:gradient,9:nan,19:gradient", by=IN_MEMORY * 3)


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
    _put_right(server, tmp_path, source, "14:gradient", by=IN_MEMORY)


@pytest.mark.slow
def test_an_iterator_that_a_compiled_function_advances_leads_back_to_a_checkpoint(server: Server, tmp_path: Path) -> None:
    source = BY_ITERATOR.replace("DRAWN", "step_from(rows, strike())")
    run = _put_right(server, tmp_path, source, "14:gradient", by=BY_CHECKPOINT, last=1)

    assert "no exact way back in memory: iterator (a tf.data iterator that a tf.function advances)" in run.err


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
    _put_right(server, tmp_path, IN_GRAPH, "10:gradient,11:nan", by=IN_MEMORY * 2)


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
    options = (*RECOVER, "--every", "5b")

    _run(server, tmp_path, RESUMED, *options, DIE_AT="18").died()
    assert alarms(tmp_path / "ckpt") == []
    resumed = _run(server, tmp_path, RESUMED, *options, FAULTS="16:slot").ok()

    assert resumed.out.splitlines() == expected[1:], resumed.err
    assert "resuming program at 1:3" in resumed.err
    assert actions(tmp_path / "ckpt") == IN_MEMORY


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
    _put_right(server, tmp_path, REPLICAS, "8:nan,10:gradient", by=IN_MEMORY * 2, DEVICES="8")


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
    _put_right(server, tmp_path, BY_HAND, "14:weight", by=IN_MEMORY, options=())


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
    options = (*RECOVER, "--every", "4b")
    said = _put_right(server, tmp_path, DRAWN_TOGETHER, "13:gradient", by=BY_CHECKPOINT, options=options, last=1).err

    assert "no exact way back in memory: iterator (a tf.data iterator that the body advances, whose pipeline runs Python)" in said


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
    options = (*RECOVER, "--every", "4b")
    _put_right(server, tmp_path, HEADER.format(draw=draw), "13:gradient", by=IN_MEMORY, options=options, last=1)


def test_files_that_undone_steps_have_written_whole_are_named(server: Server, tmp_path: Path) -> None:
    source = EAGER.replace(
        "        optimizer.apply", "        np.save('best.npy', gradients[2]) if turn == 7 else None\n        optimizer.apply"
    )

    run = _run(server, tmp_path, source, *RECOVER, FAULTS="6:gradient").ok()

    assert actions(tmp_path / "ckpt") == IN_MEMORY, run.err
    assert "what these steps have written as a whole stays so until it is written again: best.npy" in run.err
