"""Programs that train through `Model.fit`: each is killed at two cuts, run again, and compared bit for bit with the
whole run.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from detrain.base import errors
from tests.e2e.forkserver import Server
from tests.e2e.programs import DIE
from tests.e2e.runs import after_deaths, bare, compared, detrain, ran

PRELUDE = DIE("""\
import hashlib, random
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
import numpy as np
import tensorflow as tf

class Die(keras.callbacks.Callback):
    turns = 0
    def on_train_batch_end(self, batch, logs=None):
        Die.turns += 1
        die(str(Die.turns))

def net(*layers, **compiled):
    model = keras.Sequential([*layers, keras.layers.Dense(12, activation="relu"), keras.layers.Dropout(0.3),
                              keras.layers.BatchNormalization(), keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], **compiled)
    return model

def show(model, *more):
    print("weights", hashlib.sha256(b"".join(np.asarray(v).tobytes() for v in model.variables)).hexdigest(), *more)

def events(name):
    found = set()  # those that a killed run had written behind its cut are written again
    for file in [file for file in os.listdir(f"logs/{name}") if "events" in file]:
        for row in tf.data.TFRecordDataset(f"logs/{name}/{file}"):
            event = tf.compat.v1.Event.FromString(row.numpy())
            found |= {(value.tag, event.step, value.tensor.SerializeToString()) for value in event.summary.value}
    found = sorted(each for each in found if not each[0].startswith("keras"))
    return len(found), hashlib.sha256(repr(found).encode()).hexdigest()

x = np.random.default_rng(0).normal(size=(96, 8)).astype("float32")
y = (x.sum(1) > 0).astype("int32")
""")

PROGRAMS = {
    "arrays, callbacks of Keras, a log": """
log = keras.callbacks.CSVLogger("log.csv")
first = net()
history = first.fit(x, y, batch_size=16, epochs=4, validation_split=0.25, verbose=0, class_weight={0: 1.0, 1: 2.0}, callbacks=[
    log, keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True), Die(),
    keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1),
    keras.callbacks.ModelCheckpoint("best.keras", save_best_only=True)])
show(first, history.history, open("log.csv").read())
""",
    "a generator across two fits, random numbers in callbacks": """
def batches():
    while True:
        chosen = np.random.randint(0, len(x), 16)
        yield x[chosen] + np.random.normal(size=(16, 8)).astype("float32") * 0.1, y[chosen]

class Draws(keras.callbacks.Callback):
    seen = []
    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(np.random.rand())
    def on_train_batch_begin(self, batch, logs=None):
        self.seen.append(np.random.rand())
    def on_train_batch_end(self, batch, logs=None):
        if batch % 3 == 0:
            self.seen.append(np.random.rand())

model, data = net(), batches()
one = model.fit(data, steps_per_epoch=5, epochs=3, verbose=0, callbacks=[Draws(), Die()])
two = model.fit(data, steps_per_epoch=4, epochs=3, initial_epoch=1, verbose=0, callbacks=[Draws(), Die()])
show(model, one.history, two.history, Draws.seen)
""",
    "a set that Python fills, random numbers before each batch": """
def rows():
    for number in np.random.permutation(96):
        yield x[number] + np.random.normal(), y[number]

class Draws(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        np.random.rand()
        if batch % 2 == 0:
            random.seed(3)
    def on_train_batch_end(self, batch, logs=None):
        random.random()

data = tf.data.Dataset.from_generator(rows, output_signature=(tf.TensorSpec([8]), tf.TensorSpec([], tf.int32))).batch(16)
model = net()
history = model.fit(data, epochs=4, verbose=0, callbacks=[Draws(), Die()])
show(model, history.history, random.random())
""",
    "two fits, a callback that predicts": """
class Predicts(keras.callbacks.Callback):
    seen = []
    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(float(self.model.predict(x[:4], verbose=0).sum()))

model = net()
model.fit(x, y, epochs=2, verbose=0, callbacks=[Predicts(), Die()])
model.fit(x, y, epochs=4, initial_epoch=2, verbose=0, callbacks=[Predicts(), Die()])
show(model, Predicts.seen)
""",
    "a PyDataset that shuffles itself, workers, a counter on the model": """
class Data(keras.utils.PyDataset):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.order = np.arange(len(x))
    def __len__(self):
        return len(x) // 16
    def __getitem__(self, index):
        chosen = self.order[index * 16 : (index + 1) * 16]
        return x[chosen], y[chosen]
    def on_epoch_end(self):
        np.random.shuffle(self.order)

class Counts(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.counter += 1

model = net()
model.counter = 5
history = model.fit(Data(workers=2), validation_data=Data(), epochs=4, verbose=0, callbacks=[Counts(), Die()])
show(model, history.history, model.counter)
""",
    "a training function that is made anew, and reads what callbacks set": """
class Scaled(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.last, self.scale = keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1), 1.0
    def call(self, x):
        return self.last(self.hidden(x))
    def train_step(self, batch):
        a, b = batch
        with tf.GradientTape() as tape:
            loss = self.scale * tf.reduce_mean((self(a) - 1.0) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}

class Phases(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.scale = 0.5**epoch
        if epoch == 2:
            self.model.hidden.trainable = False
            self.model.make_train_function(force=True)
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 3:  # the next epoch is the first to call it
            self.model.make_train_function(force=True)

model = Scaled()
model.compile(keras.optimizers.SGD(0.1))
model.fit(x, y, batch_size=48, epochs=6, verbose=0, callbacks=[Phases(), Die()])
show(model)
""",
    "a GAN on a filtered set of unknown length": """
class Gan(keras.Model):
    def __init__(self):
        super().__init__()
        self.maker = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(8)])
        self.judge = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
        self.loss_of_maker = keras.metrics.Mean("maker")
        self.steps = 0
    def compile(self, maker, judge):
        super().compile()
        self.of_maker, self.of_judge = maker, judge
    @property
    def metrics(self):
        return [self.loss_of_maker]
    def train_step(self, real):
        judged = keras.losses.BinaryCrossentropy(from_logits=True)
        size = tf.shape(real)[0]
        with tf.GradientTape() as tape:
            good, bad = self.judge(real, training=True), self.judge(self.maker(tf.random.normal((size, 4))), training=True)
            loss = judged(tf.ones_like(good), good) + judged(tf.zeros_like(bad), bad)
        self.of_judge.apply(tape.gradient(loss, self.judge.trainable_variables), self.judge.trainable_variables)
        with tf.GradientTape() as tape:
            bad = self.judge(self.maker(tf.random.normal((size, 4)), training=True))
            loss = judged(tf.ones_like(bad), bad)
        self.of_maker.apply(tape.gradient(loss, self.maker.trainable_variables), self.maker.trainable_variables)
        self.loss_of_maker.update_state(loss)
        return {"maker": self.loss_of_maker.result()}

class Samples(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("sample", float(tf.reduce_sum(self.model.maker(tf.random.normal((3, 4))))))

model = Gan()
model.compile(keras.optimizers.Adam(1e-3), keras.optimizers.RMSprop(1e-3))
data = tf.data.Dataset.from_tensor_slices(x).shuffle(96).map(lambda row: row + tf.random.normal([8]) * 0.1)
data = data.filter(lambda row: row[0] > -1.0).batch(16).prefetch(2)
history = model.fit(data, epochs=4, verbose=0, callbacks=[Samples(), Die()])
show(model, history.history)
""",
    "a backup of Keras's, a validation set that draws, closures": """
class Noisy(keras.utils.PyDataset):
    def __init__(self):
        super().__init__()
        self.rng = np.random.default_rng(7)
    def __len__(self):
        return 2
    def __getitem__(self, index):
        noise = self.rng.normal(size=(16, 8)) + np.random.normal()
        return x[index * 16 : (index + 1) * 16] + noise.astype("float32"), y[index * 16 : (index + 1) * 16]

class Mixed(keras.callbacks.Callback):
    lr = 1e-3
    def __init__(self, model):
        super().__init__()
        self.state = {"reduce": np.mean, "of": model, "seen": 0}
    def on_train_batch_end(self, batch, logs=None):
        self.state["seen"] += 1
        type(self).lr *= 0.97
        setattr(self, "kept", getattr(self, "kept", 0) + 1)
        self.model.optimizer.learning_rate = type(self).lr

def counter():
    seen = 0
    def count(batch, logs):
        nonlocal seen
        seen += 1
        counts.append(seen)
    return count

counts = []
model = net()
model.build((None, 8))
model.parts = {"reduce": tf.reduce_mean, "turn": 0}
mixed = Mixed(model)
history = model.fit(x, y, batch_size=16, epochs=4, verbose=0, validation_data=Noisy(), callbacks=[
    keras.callbacks.BackupAndRestore("backup"), keras.callbacks.LambdaCallback(on_train_batch_end=counter()), mixed, Die()])
show(model, history.history, mixed.state["seen"], mixed.kept, Mixed.lr, counts)
""",
    "steps of a repeated set, several a call": """
data = tf.data.Dataset.from_tensor_slices((x, y))
model = net(steps_per_execution=2)
history = model.fit(data.shuffle(50).repeat().batch(16), steps_per_epoch=5, epochs=5, verbose=0, callbacks=[Die()],
                    validation_data=data.batch(16), validation_freq=2)
show(model, history.history)
""",
    "a filtered set of unknown length, whose position is set": """
data = tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda row, _: row[0] > -1.0).shuffle(96).batch(16)
model = net()
history = model.fit(data, epochs=4, verbose=0, validation_data=(x, y), callbacks=[Die()])
again = model.fit(data, steps_per_epoch=9, epochs=2, verbose=0, callbacks=[Die()])  # more than there are
show(model, history.history, again.history)
""",
    "folds, eager, then fine-tuning": """
scores = []
for fold in range(2):
    model, inside = net(run_eagerly=fold == 1), np.arange(96) % 3 != fold
    model.fit(x[inside], y[inside], batch_size=16, epochs=2, verbose=0, shuffle="batch", callbacks=[Die()])
    scores.append(model.evaluate(x[~inside], y[~inside], verbose=0))
model.trainable = False
whole = net(model)
history = whole.fit(x, y, batch_size=32, epochs=3, verbose=0, callbacks=[Die()])
show(whole, scores, history.history)
""",
    "eager, not built, layers that draw, one in a function of its own": """
class Noise(keras.layers.Layer):
    @tf.function
    def traced(self, rows):
        return tf.random.normal(tf.shape(rows))
    def call(self, rows):
        return rows + self.traced(rows) * tf.random.normal(tf.shape(rows))

class Noisy(keras.Model):
    def __init__(self):
        super().__init__()
        self.parts = [Noise(), keras.layers.Dense(12), Noise(), keras.layers.Dense(2)]
    def call(self, rows):
        for part in self.parts:
            rows = part(rows)
        return rows

model = Noisy()
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
history = model.fit(x, y, batch_size=16, epochs=4, verbose=0, callbacks=[Die()])
show(model, history.history)
""",
    "two replicas": """
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    model = net()
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96).batch(16)
history = model.fit(data, epochs=4, verbose=0, callbacks=[Die()])
show(model, history.history)
""",
    "mixed precision, a fit as a step of a loop": """
keras.mixed_precision.set_global_policy("mixed_float16")
model, memory, rate = net(), [], 1.0
for episode in range(4):
    for turn in range(5):
        memory.append(random.randrange(96))
        if len(memory) > 3:
            chosen = random.sample(memory, 4)
            model.fit(x[chosen], y[chosen], epochs=1, verbose=0, callbacks=[Die()])
            rate *= 0.99
show(model, rate, memory)
""",
    "stages that are compiled anew, their weights saved by a callback": """
model, losses = net(), []
for stage in range(3):
    model.layers[0].trainable = stage > 0
    model.compile(keras.optimizers.Adam(0.01 / (stage + 1)), model.loss, metrics=["accuracy"])
    saver = keras.callbacks.ModelCheckpoint("{epoch}.weights.h5", save_weights_only=True)
    losses += model.fit(x, y, batch_size=16, epochs=2, verbose=0, callbacks=[saver, Die()]).history["loss"]
show(model, losses)
""",
    "TensorBoard at batches, and summaries of a step's and a callback's own": """
class Own(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        tf.summary.scalar("epoch", epoch)
    def on_train_batch_begin(self, batch, logs=None):
        tf.summary.scalar("batch", batch)

class Logged(keras.Sequential):
    def train_step(self, data):
        logs = super().train_step(data)
        tf.summary.scalar("trained", logs["loss"])
        return logs
    def test_step(self, data):
        logs = super().test_step(data)
        tf.summary.scalar("tested", logs["loss"])
        return logs

model = Logged(net().layers)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(x, y, batch_size=16, epochs=4, verbose=0, validation_split=0.25, callbacks=[
    Own(), keras.callbacks.TensorBoard("logs", update_freq=2), Die()])
show(model, events("train"), events("validation"))
""",
    "a loop whose compiled functions write summaries, under conditions": """
model, optimizer = net(), keras.optimizers.Adam()
train, test = (tf.summary.create_file_writer(f"logs/{name}") for name in ("train", "test"))
turn = tf.Variable(0, dtype=tf.int64)

@tf.function
def step(a, b):
    turn.assign_add(1)
    with tf.GradientTape() as tape:
        loss = model.loss(b, model(a, training=True))
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    tf.summary.scalar("loss", loss)
    return loss

@tf.function
def check():
    loss = model.loss(y, model(x))
    tf.summary.scalar("loss", loss)
    return loss

for epoch in range(4):
    with train.as_default(step=turn), tf.summary.record_if(lambda: epoch % 2 == 0):
        for a, b in tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96).batch(16):
            loss = step(a, b)
            Die().on_train_batch_end(0)
    with test.as_default(step=epoch), tf.summary.record_if(epoch > 0):
        print(epoch, float(loss), float(check()), flush=True)
show(model, events("train"), events("test"))
""",
}


SLOW = {
    "steps of a repeated set, several a call",
    "a GAN on a filtered set of unknown length",
    "mixed precision, a fit as a step of a loop",
    "folds, eager, then fine-tuning",
}
"""What `tests/programs` or others here have a like of, or what takes longest."""


DEATHS = {"2b": ("9", "18"), "1": ("9", "17")}
"""Batches of the whole run after which it is killed, by how often it saves: each resumed run counts on."""


@pytest.mark.parametrize(
    ("name", "every"),
    [
        pytest.param(name, every, marks=[pytest.mark.slow] if name in SLOW or (number + turn) % 2 else [], id=f"{name}, {every}")
        for number, name in enumerate(PROGRAMS)
        for turn, every in enumerate(DEATHS)
    ],
)
def test_killed_at_a_cut_resumes_to_the_bit(name: str, every: str, server: Server, tmp_path: Path) -> None:
    text = PRELUDE + PROGRAMS[name]
    _, _, last = compared(server, tmp_path, text, every=every, at=DEATHS[every], is_tail=True, is_apart=True)

    assert "not captured" not in last.err


@pytest.mark.slow
def test_an_uninterrupted_run_is_that_of_plain_keras(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    text = PRELUDE + PROGRAMS["arrays, callbacks of Keras, a log"]
    for written in ("log.csv", "best.keras"):
        text = text.replace(written, str(tmp_path / written))
    program.write_text(text)
    run = detrain("run", program, cwd=tmp_path).ok()

    assert run.out == bare(program).out


CHANGED = """
if os.environ.get("CHANGED"):
    x[50:] += 1
model = net()
data = tf.data.Dataset.from_tensor_slices((tf.constant(x), y)).shuffle(96).batch(16)
del x
model.fit(data, epochs=3, verbose=0, callbacks=[Die()])
show(model)
"""


REPLICAS = """
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
scope = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope()
scope.__enter__()
"""


@pytest.mark.slow
@pytest.mark.parametrize("before", ["", REPLICAS], ids=["one device", "two replicas"])
def test_other_data_are_noticed(before: str, server: Server, tmp_path: Path) -> None:
    ran(server, tmp_path, PRELUDE + before + CHANGED, DIE_AT="9").died()
    run = server.detrain("run", "program.py", cwd=tmp_path, CHANGED="1")

    assert run.status == 78
    assert "batch 1:0 has digest" in run.err


OTHERS = """
def rows():
    for number in range(96):
        yield x[number] + (32 <= number < 48 and bool(os.environ.get("CHANGED"))), y[number]

def trains(rows):
    Die().on_train_batch_end(0)
    return rows

class Net(keras.Sequential):
    def train_step(self, batch):
        rows = tf.numpy_function(trains, [batch[0]], tf.float32) if {is_inside} else batch[0]
        rows.set_shape([16, 8])
        return super().train_step((rows, batch[1]))

data = tf.data.Dataset.from_generator(rows, output_signature=(tf.TensorSpec([8]), tf.TensorSpec([], tf.int32))).batch(16)
model = Net([keras.layers.Dense(2)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(data, epochs=3, verbose=0, callbacks=[] if {is_inside} else [Die()])
show(model)
"""


@pytest.mark.parametrize("is_inside", [True, False], ids=["while it trained", "in a callback"])
def test_other_data_are_noticed_in_the_very_step_in_which_the_run_was_killed(
    is_inside: bool, server: Server, tmp_path: Path
) -> None:
    """Its batch was not on record before its callbacks were through."""
    ran(server, tmp_path, PRELUDE + OTHERS.format(is_inside=is_inside), "--every", "1b", DIE_AT="9").died()
    run = server.detrain("run", "--every", "1b", "program.py", cwd=tmp_path, CHANGED="1")

    assert run.status == 78
    assert "batch 1:2 has digest" in run.err


@pytest.mark.slow
@pytest.mark.parametrize("owner", ["Nested", "self"])
def test_a_model_that_a_callback_makes_in_the_loop_comes_back(owner: str, server: Server, tmp_path: Path) -> None:
    """On its class, it was neither captured nor named, and on the object the run went on with a new one: only a resume
    shows it.
    """
    made = f"""
class Nested(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if not hasattr({owner}, "net"):
            {owner}.net = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
        {owner}.net.set_weights([value * 0.9 for value in {owner}.net.get_weights()])

model, nested = net(), Nested()
model.fit(x, y, batch_size=16, epochs=3, verbose=0, callbacks=[nested, Die()])
show(model, [value.tobytes().hex() for value in nested.net.get_weights()])
"""
    _, died, _ = compared(server, tmp_path, PRELUDE + made, at="9")

    assert "captured" not in died.err


@pytest.mark.slow
@pytest.mark.parametrize("is_changed", [True, False], ids=["changed before it validates", "changed later"])
def test_what_fit_validates_on_is_what_it_copied(is_changed: bool, server: Server, tmp_path: Path) -> None:
    """Keras copies the arrays when it first validates; a resumed run does so ahead, of what was there before
    the loop.
    """
    event = "on_train_batch_end" if is_changed else "on_epoch_end"
    changes = f"""
class Changes(keras.callbacks.Callback):
    def {event}(self, _turn, logs=None):
        x[:32] *= 0.9

model = net()
history = model.fit(x + 0, y, batch_size=16, epochs=4, validation_data=(x, y), verbose=0, callbacks=[Changes(), Die()])
show(model, history.history)
"""
    whole = ran(server, tmp_path, PRELUDE + changes, "--bare")
    died, run = after_deaths(server, tmp_path, None, at="14")

    assert ("the arrays that fit() validates on (changed in place" in died.err) == is_changed
    if is_changed:
        assert run.status == errors.NotCapturable.exit_code
        assert "lacks the arrays that fit() validates on" in run.err
    else:
        assert run.last_line() == whole.last_line()
