"""TensorFlow programs whose state hides: each is killed at two cuts, run again, and compared bit for bit with the whole
run.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from detrain.base.errors import Diverged, NotCapturable
from tests.e2e.forkserver import Server
from tests.e2e.programs import DIE, TENSORFLOW
from tests.e2e.runs import after_deaths, compared, detrain, ran

PRELUDE = TENSORFLOW("""\
x = np.random.default_rng(0).normal(size=(24, 5)).astype("float32")
y = np.random.default_rng(1).normal(size=(24, 3)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(24).batch(5)
""")

PROGRAMS = {
    "lazy subclass model in an eager loop": """
class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.drop, self.out = keras.layers.Dense(8), keras.layers.Dropout(0.5), keras.layers.Dense(3)
        self.calls = 0
    def call(self, x, training=False):
        return self.out(self.drop(self.hidden(x), training=training))

model, optimizer = Model(), keras.optimizers.Adam(1e-2)
for epoch in range(4):
    losses = keras.metrics.Mean()
    for step, (a, b) in enumerate(data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(a, training=True) - b) ** 2)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        losses.update_state(loss)
        noise = float(keras.random.uniform([]))  # the first one makes a generator, whose seed comes from Python's stream
        die(f"{epoch}:{step}")
    print(f"epoch {epoch} loss {float(losses.result())!r}, {noise!r}, {random.random()!r}", flush=True)
show(*model.variables, *optimizer.variables)
""",
    "a compiled module around another one, with an eager tape and batches of two sizes": """
class Net(tf.Module):
    def __init__(self):
        super().__init__()
        self.parts, self.forward = {}, tf.function(self.__call__)
    def part(self, name, shape):
        if name not in self.parts:
            self.parts[name] = tf.Variable(tf.initializers.glorot_normal()(shape), name=name)
        return self.parts[name]
    @tf.function
    def __call__(self, x, verbose=False):
        return tf.nn.relu(x @ self.part("first", (5, 8))) @ self.part("second", (8, 3))

net, optimizer = Net(), keras.optimizers.Adam(1e-2)
net.forward(tf.zeros((1, 5)), verbose=True)
for epoch in range(4):
    for step, (a, b) in enumerate(data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((net.forward(a, verbose=False) - b) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
        die(f"{epoch}:{step}")
    print(epoch, float(loss).hex(), flush=True)
show(*net.variables, *optimizer.variables)
""",
    "compiled loops and conditions with an eager tape and batches of two sizes": """
weights, optimizer, recurrent = tf.Variable(tf.ones([5, 5]) / 5), keras.optimizers.Adam(1e-2), keras.layers.LSTM(3)
@tf.function
def forward(x, training):
    for _ in tf.range(3):
        x = tf.tanh(x @ weights)
    if tf.reduce_mean(x) > 0:
        x = x * 2
    return recurrent(x[:, None])
for epoch in range(4):
    for step, (a, b) in enumerate(data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((forward(a, True) - b) ** 2)
        variables = [weights, *recurrent.trainable_variables]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        die(f"{epoch}:{step}")
    print(epoch, float(loss).hex(), float(tf.reduce_sum(forward(x, False))).hex(), flush=True)
show(weights, *recurrent.variables, *optimizer.variables)
""",
    "scalars of bfloat16 and float16": """
scale, count = tf.Variable(1.0, dtype=tf.bfloat16), tf.Variable(2.0, dtype=tf.float16)
weights, last = tf.Variable(tf.ones([5, 3], tf.bfloat16)), tf.constant(0.0, tf.bfloat16)
optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
for epoch in range(4):
    for step, (a, b) in enumerate(data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.cast(a, tf.bfloat16) @ weights * scale - 1) ** 2) + last / 64
        optimizer.apply_gradients(zip(tape.gradient(loss, [weights, scale]), [weights, scale]))
        last = loss
        count.assign_add(0.25)
        die(f"{epoch}:{step}")
    print(epoch, float(loss), float(count), flush=True)
show(weights, scale.numpy(), count, *optimizer.variables)
""",
    "a model and a function that are given no data, and whose building counts": """
class Noisy(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.calls, self.rng, self.bias = 0, np.random.RandomState(3), None
    def build(self, shape):
        self.weight, self.bias = self.add_weight(shape=(shape[-1], 3)), self.add_weight(shape=(3,))
        self.named, self.free = {"now": self.add_weight(shape=(3,))}, [tf.Variable(tf.constant_initializer(1.0)((3,)))]
    def call(self, x):
        self.calls += 1
        return self.free[0] * (x @ self.weight) + self.bias * self.named["now"] + self.rng.normal(size=3) / self.calls

class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.noisy, self.seen = keras.layers.Dense(4), Noisy(), []
    def call(self, x, rng=None):
        self.seen.append(len(self.seen))
        return self.noisy(self.hidden(x) * rng.random())

class Kind:
    traced = 0

@tf.function
def loss_of(out, b, kind):
    kind.traced += 1
    return tf.reduce_mean((out - b) ** 2)

model, optimizer, rng, kind = Model(), keras.optimizers.Adam(1e-2), np.random.default_rng(5), Kind()
for epoch in range(4):
    for step, (a, b) in enumerate(data):
        with tf.GradientTape() as tape:
            loss = loss_of(model(a, rng=rng), b, kind) * kind.traced
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        die(f"{epoch}:{step}")
    print(f"epoch {epoch} loss {float(loss)!r}", model.noisy.calls, len(model.seen), kind.traced, flush=True)
show(*model.variables, *optimizer.variables)
""",
    "layers that make TensorFlow's variables when they are built": """
class Linear(keras.layers.Layer):
    def __init__(self, units):
        super().__init__()
        self.units = units
    def build(self, shape):
        self.gain, self.drop = self.add_weight(shape=(self.units,), initializer="ones"), keras.layers.Dropout(0.3)
        self.w = tf.Variable(tf.random_normal_initializer()((shape[-1], self.units)))
    def call(self, x):
        return self.drop(x @ self.w, training=True) * self.gain

class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.parts = [Linear(4), Linear(3)]
    def call(self, x):
        return self.parts[1](tf.nn.relu(self.parts[0](x)))

model, optimizer = Model(), keras.optimizers.Adam(1e-2)
for epoch in range(4):
    for step, (a, b) in enumerate(data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(a) - b) ** 2)
        variables = [*model.trainable_variables, *(part.w for part in model.parts)]
        optimizer.apply_gradients([(g, v) for g, v in zip(tape.gradient(loss, variables), variables) if g is not None])
        die(f"{epoch}:{step}")
    print(f"epoch {epoch} loss {float(loss)!r}", float(tf.random.uniform([])), flush=True)
show(*model.variables, *optimizer.variables)
""",
    "a model whose methods make things again and again": """
class Trainer(keras.Model):
    def __init__(self):
        super().__init__()
        self.net, self.optimizer_ = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)]), keras.optimizers.Adam(1e-2)
        self.worst, self.scale, self.sums = None, None, []
    def one(self, a, b):
        self.sums.append(tf.Variable(float(len(self.sums))))
        if self.scale is None:
            self.scale = tf.Variable(tf.ones(5), name="scale")
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.net(keras.layers.Dropout(0.3)(a, training=True) * self.scale) - b) ** 2)
        variables = [*self.net.trainable_variables, self.scale]
        self.optimizer_.apply_gradients(zip(tape.gradient(loss, variables), variables))
        self.worst.assign(tf.maximum(self.worst, loss))
        self.sums[0].assign_add(loss)
        return loss
    def new_epoch(self):
        self.worst = tf.Variable(0.0)
    def run(self):
        for epoch in range(4):
            mean = keras.metrics.Mean()
            self.new_epoch()
            for step, (a, b) in enumerate(data):
                loss = self.one(a, b)
                mean.update_state(loss)
                die(f"{epoch}:{step}")
            print(f"epoch {epoch} loss {float(loss)!r}", float(mean.result()), float(self.worst), float(sum(self.sums)), flush=True)
        show(*self.net.variables, *self.optimizer_.variables, *self.sums)

Trainer().run()
""",
    "recurrent cells that are called by hand keep their masks": """
early, late = keras.layers.LSTMCell(8, dropout=0.5), keras.layers.GRUCell(8, dropout=0.3, recurrent_dropout=0.3, implementation=1)
early.build((None, 5))
optimizer = keras.optimizers.Adam(1e-2)
for epoch in range(4):
    for step, (a, b) in enumerate(data):
        with tf.GradientTape() as tape:
            out, _ = early(a[:4], [tf.zeros((4, 8)), tf.zeros((4, 8))], training=True)
            out, _ = late(out, [tf.zeros((4, 8))], training=True)
            loss = tf.reduce_mean((out[:, :3] - b[:4]) ** 2)
        variables = early.trainable_variables + late.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        die(f"{epoch}:{step}")
    print(f"epoch {epoch} loss {float(loss)!r}", flush=True)
show(*early.variables, *late.variables)
""",
    "recurrent cells of Keras 2 that are called by hand keep their masks, and a dropout counts its seed up": """
import tf_keras

cell, drop = tf_keras.layers.LSTMCell(8, dropout=0.5, recurrent_dropout=0.3), tf_keras.layers.Dropout(0.5, seed=7)
cell.build((None, 5))
optimizer = tf_keras.optimizers.Adam(1e-2)
for epoch in range(4):
    for step, (a, b) in enumerate(data):
        with tf.GradientTape() as tape:
            out, _ = cell(drop(a[:4], training=True), [tf.zeros((4, 8)), tf.zeros((4, 8))], training=True)
            loss = tf.reduce_mean((out[:, :3] - b[:4]) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, cell.trainable_variables), cell.trainable_variables))
        die(f"{epoch}:{step}")
    print(f"epoch {epoch} loss {float(loss)!r}", flush=True)
show(*cell.variables)
""",
    "a model that is marked as built before its layers are": """
class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = keras.layers.Dense(8), keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(3)])
    def call(self, x):
        return self.out(self.hidden(x))

model, optimizer = Model(), keras.optimizers.Adam(1e-2)
model.build(input_shape=(5, 5))  # it has no `build` of its own: the layers are built when the first batch comes
for epoch in range(4):
    for step, (a, b) in enumerate(data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(a) - b) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        die(f"{epoch}:{step}")
    print(f"epoch {epoch} loss {float(loss)!r}", flush=True)
print([variable.path for variable in [*model.variables, *optimizer.variables]])
show(*model.variables, *optimizer.variables)
""",
    "the clock asked in a traced function, epochs of a tensor": """
@tf.function
def log(epoch, loss):
    now = tf.timestamp()
    tf.debugging.assert_greater(now, tf.constant(1e9, tf.float64))
    tf.print("epoch", epoch, "loss", loss, output_stream=sys.stdout)

weight, optimizer = tf.Variable(tf.zeros([5, 3])), keras.optimizers.Adam(1e-2)
assert float(tf.timestamp()) > 1e9
for epoch in tf.range(4):
    for step, (a, b) in enumerate(data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((a @ weight - b) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        die(f"{int(epoch)}:{step}")
    log(epoch, loss)
show(weight, *optimizer.variables)
""",
    "a large state, whose memory is read from the file and taken over": """
table = tf.Variable(tf.random.stateless_uniform([40_000, 50], [1, 2]), name="table")
before = table.read_value()
optimizer = keras.optimizers.Adam(1e-2)
optimizer.build([table])

@tf.function(jit_compile=True)
def step_on(a, rows):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, rows)[:, :5] * a) + 1e-3 * tf.reduce_sum(table ** 2)
    optimizer.apply_gradients([(tape.gradient(loss, table), table)])
    table.scatter_nd_add([[0, 0]], [0.5])
    return loss

for epoch in range(4):
    for step, (a, b) in enumerate(data):
        loss = step_on(a, tf.constant(np.random.randint(0, 40_000, len(a))))
        die(f"{epoch}:{step}")
    print(f"epoch {epoch} loss {float(loss)!r}", flush=True)
assert np.array_equal(before, tf.random.stateless_uniform([40_000, 50], [1, 2])), "memory of another tensor was written"
show(table, *optimizer.variables)
""",
    "random ops of eager code with seeds of their own": """
table = tf.Variable(tf.ones([5, 3]) * 0.1)
optimizer = keras.optimizers.SGD(1e-2)
first = tf.random.normal([2], seed=5)
for epoch in range(4):
    if epoch == 2:
        tf.random.set_seed(epoch)  # their kernels begin anew
    for step, (a, b) in enumerate(data):
        rows = len(a)
        a += tf.random.normal([1, 5], seed=5) + tf.random.truncated_normal([rows, 5], seed=5) * tf.random.uniform([], seed=9)
        a = tf.random.shuffle(a, seed=3) + 0.01 * tf.cast(tf.random.uniform([5], 0, 9, tf.int64, seed=2), tf.float32)
        a += 0.01 * tf.random.gamma([1], [1.0, 2.0, 0.3, 1.0, 4.0], seed=4) + 0.01 * tf.random.poisson([1], [0.5] * 5, seed=6)
        a += tf.cast(tf.reduce_sum(tf.random.categorical(tf.math.log([[0.1, 0.5, 0.4]]), 3 + step, seed=8)), tf.float32) / 99
        a += tf.cast(tf.reduce_sum(tf.random.log_uniform_candidate_sampler([[1, 2]], 2, 5, True, 100, seed=7)[0]), tf.float32) / 999
        a += tf.raw_ops.RandomStandardNormal(shape=tf.constant([5]), dtype=tf.float32, seed=3, seed2=4)
        a += tf.compat.v2.raw_ops.RandomStandardNormal(shape=tf.constant([5]), dtype=tf.float32, seed=7, seed2=4)
        if step % 2:
            a = tf.nn.dropout(a, 0.1) + tf.random.normal([1])
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((a @ table - b) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        die(f"{epoch}:{step}")
    print(f"epoch {epoch} loss {float(loss)!r}", flush=True)
show(table)
""",
    "stateful random ops in a traced function": """
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(8), keras.layers.Dense(3)])
optimizer = keras.optimizers.SGD(1e-2, momentum=0.9)

@tf.function
def step_on(a, b):
    a = tf.nn.dropout(a, 0.3) + tf.random.normal(tf.shape(a)) * 0.01
    order = tf.random.shuffle(tf.range(tf.shape(a)[0]))
    a += tf.compat.v1.raw_ops.RandomUniform(shape=[5], dtype=tf.float32, seed=7, seed2=4)
    a += tf.compat.v2.raw_ops.RandomUniform(shape=[5], dtype=tf.float32, seed=7, seed2=4)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(tf.gather(a, order)) - tf.gather(b, order)) ** 2) * tf.random.uniform([])
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss

for epoch in range(4):
    for step, (a, b) in enumerate(data):
        loss = step_on(a, b)
        die(f"{epoch}:{step}")
    noise = tf.random.normal([2])
    print(f"epoch {epoch} loss {float(loss)!r} noise {noise.numpy().tobytes().hex()}", flush=True)
show(*model.variables)
""",
    "stateful random ops in a traced function that another calls": """
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(8), keras.layers.Dense(3)])
optimizer = keras.optimizers.SGD(1e-2)

class Lazy:
    def __getattr__(self, name):
        raise ImportError(name) if name.startswith("_") else AttributeError(name)  # as lazy modules may

lazy = Lazy()

@tf.function
def step_on(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(a + tf.random.normal(tf.shape(a))) - b) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss

@tf.function
def steps_on(a, b):
    return step_on(a, b) + step_on(a, b)

for epoch in range(4):
    for step, (a, b) in enumerate(data):
        loss = steps_on(a, b)
        die(f"{epoch}:{step}")
    print(f"epoch {epoch} loss {float(loss)!r} {type(lazy).__name__}", flush=True)
show(*model.variables)
""",
    "a step that is a method": """
class Trainer:
    def __init__(self):
        self.model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.2), keras.layers.Dense(3)])
        self.optimizer = keras.optimizers.RMSprop(1e-2)
        self.seen = 0
        self.scale = None

    @tf.function
    def step(self, a, b):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.model(a, training=True) - b) ** 2)
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))
        return loss

    def train(self, epochs):
        for epoch in range(epochs):
            for number, (a, b) in enumerate(data):
                if self.scale is None:
                    self.scale = tf.Variable(1.0)
                loss = self.step(a * self.scale, b)
                self.scale.assign(self.scale * 0.99)
                self.seen += int(a.shape[0])
                die(f"{epoch}:{number}")
            print(f"epoch {epoch} loss {float(loss)!r} seen {self.seen} scale {float(self.scale)!r}", flush=True)

trainer = Trainer()
trainer.train(4)
show(*trainer.model.variables, *trainer.optimizer.variables, trainer.scale)
""",
    "a scaled loss, whose scale is the first one until the optimizer is built": """
import tf_keras

model = keras.Sequential([keras.layers.Dense(3)])
optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(1e-2), 8.0, 3)
scale, old = tf.Variable(1.0), tf_keras.mixed_precision.LossScaleOptimizer(tf_keras.optimizers.Adam(1e-2), True, 8.0, 3)
for epoch in range(4):
    for step, (a, b) in enumerate(data):
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean((model(a, training=True) * scale - b) ** 2)
            scaled, old_scaled = optimizer.scale_loss(loss), old.get_scaled_loss(loss)
        optimizer.apply(tape.gradient(scaled, model.trainable_variables), model.trainable_variables)
        old.apply_gradients([(old.get_unscaled_gradients([tape.gradient(old_scaled, scale)])[0], scale)])
        die(f"{epoch}:{step}")
    print(f"epoch {epoch} loss {float(loss)!r}", float(optimizer.dynamic_scale), float(old.loss_scale), flush=True)
show(*model.variables, *optimizer.variables, scale, *old.variables)
""",
    "a linear adversary and a moving average": """
generator = keras.Sequential([keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dense(5)])
critic = keras.Sequential([keras.layers.Dense(8), keras.layers.Dropout(0.3), keras.layers.Dense(1)])
optimizers = [keras.optimizers.Adam(1e-3), keras.optimizers.Adam(2e-3)]
average = tf.Variable(0.0)

@tf.function
def train_step(real):
    noise = tf.random.normal([tf.shape(real)[0], 4])
    with tf.GradientTape() as g_tape, tf.GradientTape() as c_tape:
        real_score, fake_score = critic(real, training=True), critic(generator(noise, training=True), training=True)
        g_loss, c_loss = -tf.reduce_mean(fake_score), tf.reduce_mean(fake_score) - tf.reduce_mean(real_score)
    for loss, tape, net, optimizer in ((g_loss, g_tape, generator, optimizers[0]), (c_loss, c_tape, critic, optimizers[1])):
        optimizer.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
    average.assign(average * 0.9 + c_loss * 0.1)
    return c_loss

for epoch in range(4):
    for step, (real, _) in enumerate(data):
        loss = train_step(real)
        die(f"{epoch}:{step}")
    print(f"epoch {epoch} loss {float(loss)!r}", flush=True)
show(*generator.variables, *critic.variables, average)
""",
    "a set iterated twice an epoch": """
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
model.compile("sgd", "mse", metrics=["mae"])
for epoch in range(4):
    for step, (a, b) in enumerate(data):
        loss = model.train_on_batch(a, b)
        die(f"{epoch}:{step}")
    order = [float(a[0, 0]) for a, _ in data]
    print(f"epoch {epoch} loss {float(loss[0])!r} order {order}", flush=True)
show(*model.variables)
""",
    "a model without an input shape, called with arrays": """
model, optimizer = keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(3)]), keras.optimizers.Adagrad(1e-1)
for epoch in range(4):
    order = np.random.permutation(24)
    for step in range(4):
        a, b = x[order[step * 6 : step * 6 + 6]], y[order[step * 6 : step * 6 + 6]]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(a, training=True) - b) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        die(f"{epoch}:{step}")
    print(f"epoch {epoch} loss {float(loss)!r}", flush=True)
show(*model.variables, *optimizer.variables)
""",
    "state in classes that derive from Keras's": """
class Data(keras.utils.PyDataset):
    def __init__(self):
        super().__init__()
        self.order, self.rng = np.arange(24), np.random.default_rng(5)
    def __len__(self):
        return 4
    def __getitem__(self, index):
        chosen = self.order[index * 6 : index * 6 + 6]
        return x[chosen] + self.rng.normal(size=5).astype("float32"), y[chosen]
    def on_epoch_end(self):
        self.rng.shuffle(self.order)

class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.out = keras.layers.Dense(3)
        self.calls, self.seen, self.best = 0, [], {"loss": 9.0}
    def call(self, x):
        return self.out(x)
    def note(self, loss):
        self.calls += 1
        self.seen.append(loss)
        self.best["loss"] = min(self.best["loss"], loss)

class Module(tf.Module):
    def __init__(self):
        super().__init__()
        self.turns, self.log = 0, []
    def turn(self):
        self.turns += 1
        self.log.append(self.turns)

class History(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.losses = []
    def on_epoch_end(self, epoch, logs=None):
        self.losses.append(logs["loss"])

loader, model, module, history = Data(), Model(), Module(), History()
model.compile(keras.optimizers.Adam(5e-2), "mse")
plateau = keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1, min_delta=0.5)
callbacks = keras.callbacks.CallbackList([history, plateau, keras.callbacks.EarlyStopping("loss", patience=3)], model=model)
callbacks.on_train_begin()
for epoch in range(6):
    for step in range(len(loader)):
        a, b = loader[step]
        loss = float(model.train_on_batch(a, b))
        model.note(loss)
        module.turn()
        die(f"{epoch}:{step}")
    loader.on_epoch_end()
    callbacks.on_epoch_end(epoch, {"loss": loss})
    rate = float(model.optimizer.learning_rate)
    print(f"epoch {epoch} loss {loss!r} rate {rate!r} wait {plateau.wait} best {plateau.best!r} {history.losses}", flush=True)
    print("of model and module", model.calls, sum(model.seen), dict(model.best), module.turns, list(module.log), flush=True)
    if model.stop_training:
        break
show(*model.variables)
""",
    "two trainings, an optimizer made in each": """
def train(model, epochs, phase):
    optimizer = keras.optimizers.Adam(1e-2)
    for epoch in range(epochs):
        for step, (a, b) in enumerate(data):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(a) - b) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            die(f"{epoch + phase}:{step}")
        print(f"epoch {epoch} loss {float(loss)!r}", flush=True)

first, second = (keras.Sequential([keras.Input((5,)), keras.layers.Dense(width), keras.layers.Dense(3)]) for width in (6, 4))
train(first, 1, 0)
train(second, 3, 1)
show(*first.variables, *second.variables)
""",
    "tensors of several parts, and of text": """
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
optimizer = keras.optimizers.SGD(1e-2)
model.rows = tf.ragged.constant([[1.0], [2.0, 3.0]])
even = tf.RaggedTensor.from_uniform_row_length(model.rows, 2)
sparse, slices, text, seen = tf.sparse.from_dense([0.0, 1.0]), [], tf.constant(b"a"), {}
kept = tf.TensorArray(tf.float32, 1, dynamic_size=True, clear_after_read=False)
for epoch in range(4):
    for step, (a, b) in enumerate(data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(a) - b) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        model.rows, even, sparse, text = model.rows * 1.5, even * 0.5, sparse * 2.0, text + b"\\0"
        slices.append(tf.IndexedSlices(loss, tf.constant([step]), tf.constant([8])))
        kept = kept.write(kept.size(), loss)
        seen |= {each.value.ref(): 0.5 * seen.get(each.value.ref(), 0.0) + step for each in model.variables}
        die(f"{epoch}:{step}")
    words = tf.constant([["ab", ""], ["c", "d"]]) + text
    print(model.rows, even, even.shape, tf.sparse.to_dense(sparse), kept.stack())
    print(slices[-1].values, slices[0], text, words, [seen[each.value.ref()] for each in model.variables], flush=True)
show(*model.variables)
""",
    "a stateful dropout of Keras 2, whose model meets another size of batch in its evaluation": """
import tf_keras

net = tf_keras.Sequential([tf_keras.layers.Dense(8), tf_keras.layers.Dropout(0.3), tf_keras.layers.Dense(3)])
optimizer = tf_keras.optimizers.Adam(1e-2)

@tf.function  # by a name that Keras gives a graph which never runs
def build_graph(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((net(a, training=True) - b) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
    return loss

for epoch in range(4):
    for step, (a, b) in enumerate(data.take(5 if epoch else 4)):  # the fifth is of four
        loss = build_graph(a, b)
        die(f"{epoch}:{step}")
    print(f"epoch {epoch} loss {float(loss)!r} {float(tf.reduce_sum(net(x[:12])))!r}", flush=True)
show(*net.variables)
""",
    "Keras's pictures by index, whose seed counts up": """
from keras.src.legacy.preprocessing.image import ImageDataGenerator

flow = ImageDataGenerator(horizontal_flip=True).flow(np.tile(x, 5).reshape(24, 5, 5, 1), y, batch_size=5, seed=5)
weights, optimizer = tf.Variable(tf.ones([25, 3])), keras.optimizers.SGD(1e-2)
for epoch in range(4):
    for step in range(len(flow)):
        a, b = flow[step]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((a.reshape(-1, 25) @ weights - b) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
        die(f"{epoch}:{step}")
    flow.on_epoch_end()
    print(f"epoch {epoch} loss {float(loss)!r}", flush=True)
show(weights)
""",
    "metrics that a trainer makes for each epoch": """
class Trainer:
    def __init__(self):
        self.weights, self.optimizer = tf.Variable(tf.ones([5, 3])), keras.optimizers.SGD(1e-2)
    def train(self):
        for epoch in range(4):
            self.mean = keras.metrics.Mean()
            self.others = {"auc": keras.metrics.AUC(num_thresholds=9), "rest": [keras.metrics.F1Score(threshold=0.5)]}
            for step, (a, b) in enumerate(data):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((a @ self.weights - b) ** 2)
                self.optimizer.apply_gradients([(tape.gradient(loss, self.weights), self.weights)])
                self.mean.update_state(loss)
                for metric in self.others["auc"], *self.others["rest"]:
                    metric.update_state(b > 0, tf.sigmoid(a @ self.weights))
                die(f"{epoch}:{step}")
            print(epoch, float(self.mean.result()), float(self.others["auc"].result()), self.others["rest"][0].result(), flush=True)
        print(self.mean.name, [each.path for each in self.others["rest"][0].variables])

trainer = Trainer()
trainer.train()
show(trainer.weights)
""",
    "a stateful op of a traced function, and the global seed set in batches": """
table = tf.Variable(tf.ones([5, 3]) * 0.1)
optimizer = keras.optimizers.SGD(1e-2)

@tf.function
def noise():
    return tf.random.normal([5])

for epoch in range(4):
    for step, (a, b) in enumerate(data):
        if step == 0:
            tf.random.set_seed(100 + epoch)
        a += 0.1 * tf.random.normal([5]) + (0.1 * noise() if step % 2 else 0)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((a @ table - b) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        die(f"{epoch}:{step}")
    print(f"epoch {epoch} loss {float(loss)!r} {float(tf.random.uniform([]))!r}", flush=True)
show(table)
""",
    "named tuples, ragged tensors, members of enumerations, NumPy's scalars and functions given to a step that makes slots": """
import collections, enum
from tensorflow.python.util._pywrap_util_port import IsMklEnabled as has_mkl  # a function that pybind11 has made

class Memory:
    Pair = collections.namedtuple("Pair", "x y")
    def __init__(self):
        self.pairs = collections.deque(maxlen=3)
    def add(self, x, y):
        self.pairs.append(self.Pair(x, y))
        return random.choice(self.pairs)

Batch = collections.namedtuple("Batch", "x y words")
Mode, Power = enum.Enum("Mode", "MEAN SUM"), enum.IntEnum("Power", "ONE TWO")
reductions = {Mode.MEAN: tf.reduce_mean, Mode.SUM: tf.reduce_sum}

class Momentum:
    def __init__(self):
        self.slots, self.by_name = [], {}
    def apply(self, gradients, weights):
        if not self.slots:
            self.slots.extend(tf.Variable(tf.zeros_like(weight), trainable=False) for weight in weights)
        for index, (gradient, weight, slot) in enumerate(zip(gradients, weights, self.slots)):
            if index not in self.by_name:
                self.by_name[index] = tf.Variable(1.0, trainable=False)
            self.by_name[index].assign(0.99 * self.by_name[index])
            slot.assign(0.9 * slot + gradient)
            weight.assign_sub(0.01 * self.by_name[index] * slot)

class Lazy(tf.Module):
    is_built = False
    def __call__(self, x):
        if not self.is_built:
            self.w, self.is_built = tf.Variable(tf.ones([5, 3]) * 0.1), True
        return x @ self.w

net, optimizer, memory = Lazy(), Momentum(), Memory()

def squared(one, two):
    return (one - two) ** 2

@tf.function
def step_on(batch, mode, distance, power, *scales):
    assert isinstance(power, Power) and all(map(tf.is_tensor, scales))
    with tf.GradientTape() as tape:
        loss = reductions[mode](distance(net(batch.x), batch.y)) + 0.01 * tf.reduce_mean(batch.words.to_tensor())
        loss = loss ** int(power) * tf.cast(scales[0], tf.float32) + tf.cast(scales[1], tf.float32)
    optimizer.apply(tape.gradient(loss, net.trainable_variables), net.trainable_variables)
    return loss

for epoch in range(4):
    for step, (a, b) in enumerate(data):
        pair = memory.add(a, b)
        words = tf.ragged.constant([[1.0], [2.0, float(step + has_mkl())]])
        mode, scales = Mode.SUM if step == 2 else Mode.MEAN, (np.float64(1 / (step + 1)), np.int64(step))
        loss = step_on(Batch(pair.x, pair.y, words), mode, squared, Power.ONE, *scales)
        die(f"{epoch}:{step}")
    print(f"epoch {epoch} loss {float(loss)!r}", flush=True)
show(net.w, *optimizer.slots)
""",
    "tensors with attributes": """
net = keras.Sequential([keras.Input((4, 2)), keras.layers.LSTM(3)])
masking = keras.layers.Masking()
optimizer = keras.optimizers.SGD(1e-2)
template = tf.constant([[0.25]])
template.info = ("template", [0])  # TensorLayer finds the outputs of its models so
large = [tf.zeros([1 << 19]), tf.zeros([1 << 19])]
large[0].number, large[1].number = 0, 1
last, masked = tf.constant(0.0), None
for epoch in range(4):
    for step, (a, b) in enumerate(data):
        template.info[1][0] += 1
        before = len(getattr(last, "origin", ())) + getattr(last, "step", 0)
        with tf.GradientTape() as tape:  # the masked batch of the step before, too
            fed = masking(tf.reshape(tf.concat([a, tf.zeros([len(a), 3])], 1), [-1, 4, 2]))
            loss = tf.reduce_sum(net(fed) ** 2) * template[0, 0] + (0.0 if masked is None else tf.reduce_sum(net(masked)))
        optimizer.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
        last, masked = tf.identity(loss), fed
        last.step, last.origin = step, [last, template]
        die(f"{epoch}:{step}")
    kept = last.origin[0] is last and last.origin[1] is template and [each.number for each in large] == [0, 1]
    print(f"epoch {epoch} loss {float(loss)!r} {before} {template.info} {kept}", flush=True)
show(*net.variables)
""",
    "a model whose call is compiled": """
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.last = keras.layers.Dense(4), keras.layers.Dense(3)
    @tf.function
    def call(self, x, training=True):
        return self.last(self.first(x))

model, optimizer = Net(), keras.optimizers.Adam(1e-2)
model.build((None, 5))  # makes nothing: the call is a function of TensorFlow's
for epoch in range(4):
    for step, (a, b) in enumerate(data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(a + tf.random.normal([5])) - b) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        die(f"{epoch}:{step}")
    print(f"epoch {epoch} loss {float(loss)!r} {[each.path for each in optimizer.variables]}", flush=True)
show(*model.variables, *optimizer.variables)
""",
    "a function that trains, called twice": """
def train(net, is_last):
    mean, optimizer = keras.metrics.Mean(), keras.optimizers.Adam(1e-2)  # made behind the first loop, before the second
    @tf.function
    def step_on(a, b):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((net(a) - b) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
        mean(loss)
    for epoch in range(4):
        for step, (a, b) in enumerate(data):
            step_on(a, b)
            if is_last:
                die(f"{epoch}:{step}")
        if is_last:
            print(f"epoch {epoch} mean {float(mean.result())!r}", flush=True)
    return [*net.variables, *optimizer.variables]

train(keras.Sequential([keras.layers.Dense(3)]), False)
show(*train(keras.Sequential([keras.layers.Dense(3)]), True))
""",
    "an iterator that lives on": """
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
optimizer = keras.optimizers.SGD(1e-2)
source = iter(data.repeat())
for epoch in range(4):
    for step in range(12):  # at the cuts of the test the last batch of a pass waits, and nothing is left behind it
        a, b = next(source)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(a) - b) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        die(f"{epoch}:{step}")
    print(f"epoch {epoch} loss {float(loss)!r}", flush=True)
show(*model.variables)
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(("every", "place"), [("2b", "1:3"), ("1", "2:1")])
def test_killed_at_a_cut_resumes_to_the_bit(name: str, every: str, place: str, server: Server, tmp_path: Path) -> None:
    whole, _, again = compared(server, tmp_path, PRELUDE + PROGRAMS[name], every=every, at=place, whole="run", is_tail=True)
    assert "not captured" not in whole.err
    assert "resuming" in again.err
    assert "ahead" not in again.err
    # The first two draw other numbers than stock TensorFlow, as they must; the third is refused by it beside
    # deterministic ops.
    if not any(word in name for word in ("stateful", "moving", "clock")):
        assert whole.out == server.bare("program.py", cwd=tmp_path).out


SAMPLED = """
table, weights, optimizer = tf.Variable(tf.ones([50, 4])), tf.Variable(tf.ones([50, 4])), keras.optimizers.SGD(0.1)

@tf.function
def train_step(labels):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.nce_loss(weights, tf.zeros([50]), labels, table[:2], 4, 50))
    optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])

for epoch in range(2):
    for labels in (tf.constant([[1], [2]], tf.int64), tf.constant([[3], [2]], tf.int64)):
        train_step(labels)
"""


BY_TYPE = """
from tensorflow.core.framework.attr_value_pb2 import AttrValue

weights, optimizer = tf.Variable(tf.ones(3)), keras.optimizers.SGD(1e-2)

@tf.function
def train_step(a):
    types = {"T": AttrValue(type=3), "dtype": AttrValue(type=1), "seed": AttrValue(i=4)}
    op = tf.compat.v1.get_default_graph().create_op("RandomStandardNormal", [tf.constant([3])], [tf.float32], attrs=types)
    optimizer.apply_gradients([(op.outputs[0], weights)])

for epoch in range(2):
    for a, b in data:
        train_step(a)
"""


CACHED = """
def rows():
    for row in np.random.permutation(24):
        yield x[row]

data = tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec([5])).cache().batch(6)
weights, optimizer = tf.Variable(tf.ones([5, 1])), keras.optimizers.SGD(0.1)
for epoch in range(2):
    for a in data:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((a @ weights) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
"""


HELD = """
class Trainer:
    @tf.function
    def note(self, loss):
        self.mean.update_state(loss)  # of the first epoch, for ever
    def train(self):
        weights, optimizer = tf.Variable(tf.ones([5, 3])), keras.optimizers.SGD(1e-2)
        for epoch in range(2):
            self.mean = keras.metrics.Mean()
            for a, b in data:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((a @ weights - b) ** 2)
                optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
                self.note(loss)

Trainer().train()
"""


IN_LOOP = """
import logging, weakref

made = {MADE}
weights, optimizer = tf.Variable(tf.ones([5, 3])), keras.optimizers.SGD(1e-2)
class Node:
    pass
node = Node()
for epoch in range(2):
    for a, b in data:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((a @ weights - b) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
        {CHANGED}
"""


def _in_loop(made: str, changed: str) -> str:
    return IN_LOOP.replace("{MADE}", made).replace("{CHANGED}", changed)


@pytest.mark.parametrize(
    ("source", "named"),
    [
        (
            _in_loop("keras.layers.StringLookup()", "made.adapt(tf.constant(['b', f'c{epoch}']))"),
            "vocabulary of StringLookup (adapted or set in the loop)",
        ),
        (
            _in_loop("keras.layers.TextVectorization()", "made.adapt(['b', f'c{epoch}'])"),
            "vocabulary of TextVectorization/StringLookup (adapted or set in the loop)",
        ),
        (
            _in_loop("logging.LoggerAdapter(logging.getLogger(), {'seen': 0})", "made.extra['seen'] += 1"),
            "made (logging.LoggerAdapter: it has moved on)",
        ),
        (
            _in_loop("weakref.WeakKeyDictionary()", "made[node] = epoch"),
            "made (weakref.WeakKeyDictionary: when what it holds is let go of is not as without detrain)",
        ),
        (HELD, "self in Trainer.train().mean (keras.src.metrics.reduction_metrics.Mean: with variables of its own)"),
        (SAMPLED, "LogUniformCandidateSampler in train_step (a random op whose state TensorFlow keeps)"),
        (BY_TYPE, "RandomStandardNormal in train_step (a random op whose state TensorFlow keeps)"),
        (CACHED, "what a cache() of tf.data holds"),
    ],
    ids=[
        "a vocabulary",
        "a vocabulary in a layer",
        "what a logger says besides",
        "a dictionary that holds weakly",
        "a metric that a compiled function holds",
        "a random op without a twin",
        "a random op made by its type",
        "a cache that Python fills",
    ],
)
def test_what_nobody_can_read_is_named_at_the_first_checkpoint(source: str, named: str, server: Server, tmp_path: Path) -> None:
    run = ran(server, tmp_path, PRELUDE + source).ok()

    assert re.search(f"not captured, .*: {re.escape(named)}", run.err)
    assert "REFUSED from here on" in run.err


READ_AND_WRITTEN = """
a, b = tf.Variable(tf.ones(8)), tf.Variable(tf.ones(8))

@tf.function
def step(x):
    loss = tf.reduce_sum(tf.linalg.matvec(x @ x, a.read_value()))
    first, second = tf.identity_n([tf.reduce_sum(x, 0), a.read_value() * loss])  # only the second one needs a's old value
    a.assign_sub(first)
    b.assign_sub(second)
    return loss

losses = set()
for _ in range(3000):
    a.assign(tf.ones(8))
    losses.add(float(step(tf.reshape(tf.range(64.0) / 64, (8, 8)))))
print(losses)
"""


@pytest.mark.slow
def test_a_step_reads_its_variables_before_it_writes_them(tmp_path: Path) -> None:
    assert ran(detrain, tmp_path, PRELUDE + READ_AND_WRITTEN, "--bare").out == "{129.28125}\n"


NESTED = """
a, b = tf.Variable(tf.ones(8)), tf.Variable(tf.ones(8))

def step(x):
    loss = tf.reduce_sum(tf.linalg.matvec(x @ x, a.read_value()))
    first, second = tf.identity_n([tf.reduce_sum(x, 0), a.read_value() * loss])
    a.assign_sub(first)
    b.assign_sub(second)
    return loss

inner, results = tf.function(step), {}
for name, function in {
    "compiled": tf.function(step, jit_compile=True),
    "nested": tf.function(lambda x: inner(x) + tf.reduce_sum(a)),
    "nested and compiled": tf.function(lambda x: inner(x) + tf.reduce_sum(a), jit_compile=True),
}.items():
    results[name] = set()
    for _ in range(1000):
        a.assign(tf.ones(8))
        results[name].add(float(function(tf.reshape(tf.range(64.0) / 64, (8, 8)))))
print(results)
"""


@pytest.mark.slow
def test_a_step_in_a_step_reads_its_variables_before_it_writes_them(tmp_path: Path) -> None:
    run = ran(detrain, tmp_path, PRELUDE + NESTED, "--bare")

    assert run.out == "{'compiled': {129.28125}, 'nested': {105.78125}, 'nested and compiled': {105.78125}}\n", run.err


@pytest.mark.slow
def test_bare_runs_of_a_linear_adversary_are_equal(tmp_path: Path) -> None:
    text = PRELUDE + PROGRAMS["a linear adversary and a moving average"]

    first, second = (ran(detrain, tmp_path, text, "--bare") for _ in range(2))

    assert first.status == 0, first.err
    assert "weights" in first.out
    assert first.out == second.out


REPEATED = """
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
model.compile("sgd", "mse")
for epoch in range(4):
    for a, b in tf.data.Dataset.from_tensor_slices((x, y)).batch(5).take(1):
        pass
    for step, (a, b) in enumerate(data.repeat()):
        if step == 7:
            break
        model.train_on_batch(a, b)
show(*model.variables)
"""


def test_a_shuffled_set_repeated_by_an_iterator_that_is_left_is_named(server: Server, tmp_path: Path) -> None:
    run = ran(server, tmp_path, PRELUDE + REPEATED, "--ckpt", "one").ok()
    strict = server.detrain("run", "--ckpt", "two", "--strict", "program.py", cwd=tmp_path)

    assert "not captured" in run.err
    assert "order of shuffle (a shuffled set" in run.err
    assert strict.status == NotCapturable.exit_code


RENAMED = """
count = 0
class Odd(keras.layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(name=f"kernel{count}", shape=(shape[-1], 3))
    def call(self, x):
        return x @ self.kernel

layer = Odd()
for epoch in range(4):
    for step, (a, b) in enumerate(data):
        count += 1
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((layer(a) - b) ** 2)
        layer.kernel.assign_sub(0.1 * tape.gradient(loss, layer.kernel))
        die(f"{epoch}:{step}")
    print(f"epoch {epoch} loss {float(loss)!r}", flush=True)
"""


@pytest.mark.slow
def test_variables_that_are_built_ahead_under_other_names_are_refused(server: Server, tmp_path: Path) -> None:
    """Their values wait for the names of the first run; the run must not go on with those that building gave."""

    _, again = after_deaths(server, tmp_path, PRELUDE + RENAMED, at="2:1")

    assert again.status == Diverged.exit_code, again.out + again.err
    assert "variables were made anew, and no value was restored for them: Odd/kernel0" in again.err


SHARDED = """
import tensorflow as tf
from tensorflow.experimental import dtensor
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
mesh = dtensor.create_mesh([("x", 2)], devices=["CPU:0", "CPU:1"])
layout = dtensor.Layout(["x", dtensor.UNSHARDED], mesh)
kept = [dtensor.call_with_layout(tf.ones, layout, shape=(4, 3))]
w, optimizer = tf.Variable(tf.zeros(3)), tf.keras.optimizers.SGD(0.1)
for epoch in range(2):
    for step in range(4):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((w - 1.0) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])
        kept.append(dtensor.call_with_layout(tf.ones, layout, shape=(4, 3)))
print(w.numpy(), len(kept))
"""


@pytest.mark.slow
def test_a_tensor_that_is_sharded_over_devices_is_named(tmp_path: Path) -> None:
    """It has no value in one place: asking for that ended the run with an error of ours."""
    run = ran(detrain, tmp_path, SHARDED, "--every", "3b").ok()

    assert run.out.endswith(" 9\n")
    assert "not captured" in run.err
    assert "kept[1]" in run.err


LYING = """
class Struct:
    def __getattribute__(self, name):
        own = object.__getattribute__(self, "__dict__")
        return own if name == "__dict__" else own.get(name, 0)

weights, optimizer, state = tf.Variable(np.ones(3)), keras.optimizers.Adam(0.1), Struct()
for epoch in range(3):
    for step, x in enumerate(np.random.normal(size=(4, 3))):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((weights - x) ** 2)
        state.steps += 1
        state.last = tape.gradient(loss, weights)
        optimizer.apply_gradients([(state.last, weights)])
        die(f"{epoch}:{step}")
print(state.steps, state.missing, state.last.numpy().tobytes().hex())
print(weights.numpy().tobytes().hex())
"""


@pytest.mark.parametrize("every", ["1", "3b"])
def test_an_object_that_says_of_any_attribute_what_it_likes(every: str, server: Server, tmp_path: Path) -> None:
    """Its class was asked for, too, which is no class then: *detrain itself failed* in a port of Torch's L-BFGS."""

    whole, _, again = compared(server, tmp_path, PRELUDE + LYING, every=every, at="2:1", whole="run")

    assert again.out == whole.out


BUILT = """
class Momentum(tf.Module):
    def __init__(self):
        self.built, self.change = False, []
    def apply_gradients(self, pairs):
        for gradient, weights in pairs:
            if not self.built:
                self.change.append(tf.zeros_like(weights))
                self.built = True
            self.change[0] = 0.9 * self.change[0] + gradient
            weights.assign_sub(0.1 * self.change[-1])

weights, optimizer = tf.Variable(np.ones(3)), Momentum()
for epoch in range(3):
    for step, x in enumerate(np.random.normal(size=(4, 3))):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((weights - x) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
        die(f"{epoch}:{step}")
print(len(optimizer.change), weights.numpy().tobytes().hex())
"""


def test_what_a_module_of_the_programs_calls_built_comes_back(server: Server, tmp_path: Path) -> None:
    """It was left out as Keras's own, for any class of a library's: an optimizer made its slots once more, in
    silence.
    """

    whole, _, again = compared(server, tmp_path, PRELUDE + BUILT, at="2:1", whole="run")

    assert again.out == whole.out


LAZY = """
class Dense(tf.Module):
    def __init__(self, size):
        self.built, self.size = False, size
    def __call__(self, x):
        if not self.built:
            self.weights = tf.Variable(tf.random.uniform((x.shape[1], self.size), seed=5))
            self.built = True
        return tf.matmul(x, self.weights)

class Net(tf.Module):
    def __init__(self):
        self.layers = [Dense(4), Dense(1)]
    @tf.function
    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

net = Net()
for epoch in range(3):
    for step, x in enumerate(np.random.normal(size=(4, 2, 3)).astype("float32")):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((net(x) - 1) ** 2)
        for weights, gradient in zip(net.trainable_variables, tape.gradient(loss, net.trainable_variables)):
            weights.assign_sub(0.01 * gradient)
        die(f"{epoch}:{step}")
print([weights.numpy().tobytes().hex() for weights in net.trainable_variables])
"""


@pytest.mark.slow
def test_variables_whose_first_values_a_function_draws_are_built_ahead(server: Server, tmp_path: Path) -> None:
    """tensorflow/docs' mlp_core: it was exact, and warned."""
    whole, died, last = compared(server, tmp_path, PRELUDE + LAZY, every="1b", at=("0:2", "2:1"), whole="run")

    assert "warning" not in died.err + last.err
    assert last.out == whole.out


QUEUE = """
queue, weights = tf.queue.FIFOQueue(8, tf.float32, [3]), tf.Variable(tf.ones(3))
queue.enqueue(tf.zeros(3))
for epoch in range(3):
    for step, x in enumerate(np.random.normal(size=(4, 3)).astype("float32")):
        queue.enqueue(x)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((weights - queue.dequeue()) ** 2)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        die(f"{epoch}:{step}")
    if epoch == LAST:
        queue.dequeue()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("last", "is_named"), [(9, True), (0, False)])
def test_a_queue_that_holds_something_is_named(last: int, is_named: bool, server: Server, tmp_path: Path) -> None:
    run = ran(server, tmp_path, PRELUDE + QUEUE.replace("LAST", str(last))).ok()

    assert ("(a tf.queue with elements)" in run.err) == is_named


RECORDS = """
weights = tf.Variable(tf.ones(3))
FIRST
for epoch in range(3):
    ANEW
    for step, x in enumerate(np.random.normal(size=(4, 3)).astype("float32")):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((weights - x) ** 2)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        records.write(tf.io.serialize_tensor(loss).numpy())
        die(f"{epoch}:{step}")
    THEN
records.close()
print([each.numpy().hex() for each in tf.data.TFRecordDataset("all.tfrecord")])
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_anew", [True, False])
def test_a_file_of_records_that_stays_open_is_no_file_to_go_on_with(is_anew: bool, server: Server, tmp_path: Path) -> None:
    """A resumed run emptied it, and lost the records before the cut in silence."""
    make = 'records = tf.io.TFRecordWriter("all.tfrecord")'
    text = RECORDS.replace("FIRST", "" if is_anew else make).replace("ANEW", make if is_anew else "pass")
    text = PRELUDE + text.replace("THEN", "records.close()" if is_anew else "pass")
    if is_anew:
        compared(server, tmp_path, text, at="1:2", whole="run")
        return
    died, last = after_deaths(server, tmp_path, text, at="1:2")

    assert "all.tfrecord (file: the loop writes on in it" in died.err
    assert last.status == NotCapturable.exit_code


CHECKPOINTS = DIE("""
import tensorflow as tf
weight = tf.Variable(1.0)
saved = tf.train.Checkpoint(weight=weight)
around = tf.train.Checkpoint(saved=saved)  # its files say what the other one holds: a counter, once it has been saved
def train():
    weight.assign_sub(0.1)
for epoch in range(3):
    for turn in range(4):
        train()
    saved.save("latest") if epoch == 0 else None
    die(str(epoch))
    around.write("best") if epoch == 2 else None
for name, shape in tf.train.list_variables("best"):
    print(name, shape)
""")


def test_a_checkpoint_of_tensorflow_holds_what_it_had_when_the_run_was_resumed(server: Server, tmp_path: Path) -> None:
    """It makes its counter as it is first saved; so a resumed run, that has not saved it yet, wrote another file."""
    whole, _, run = compared(server, tmp_path, CHECKPOINTS, at="1", whole="bare")

    assert "saved/save_counter" in whole.out
    assert run.out == whole.out


READ = DIE("""
import collections, enum, functools, logging, types
import keras, numpy as np, tensorflow as tf
weight, optimizer, seen = tf.Variable(tf.zeros([4])), keras.optimizers.SGD(0.1), {start}
other, model = tf.Variable(tf.ones([4])), keras.Sequential([keras.Input((2,)), keras.layers.Dense(2), keras.layers.Dropout(0.5)])
Pair, Phase = collections.namedtuple("Pair", "first second"), enum.Enum("Phase", "A B")
def by_phase(pair):
    return 2.0 * pair.first if held.phase is Phase.A else 0.5 * pair.second
def minus(one, two):
    return one - two
def plus(one, two):
    return one + two
class Slots:
    __slots__ = ("gain",)
class Base:
    factor = 1.0
    def __call__(self):
        return self.act(self.one, self.two) * self.factor * self.inner.gain + sum(self.some) + sum(self.last)
class Held(Base):
    def __init__(self):
        self.one, self.two, self.act, self.phase, self.inner = other, tf.Variable(tf.ones([4]) * 3), minus, Phase.B, Slots()
        self.log = logging.getLogger("held")  # it leads to `open`, which is detrain's
        self.log.addHandler(logging.FileHandler("held.log"))
        self.some, self.last, self.inner.gain = {{1.0}}, collections.deque([1.0], 2), 1.0
held = Held()
def scaled(pair, by={{"a": 1.0}}):
    return by["a"] * (pair.first + scaled.more)
scaled.more, pair = 0.5, Pair(1.0, 2.0)
class Scales:
    least, kept = 0.5, [1.0]
    def __init__(self):
        self.held, self.of_step, self.is_made = types.SimpleNamespace(factor=1.0), (1.0, "none"), False
    def now(self):
        if not self.is_made:
            self.shift, self.is_made = tf.Variable(0.25), True
        return self.held.factor * self.least + self.of_step[0] + sum(self.kept) + self.shift
def made(*objects):
    turns = 0
    @tf.function
    def step(*objects):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((weight - {read}) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
    def act():
        nonlocal turns
        turns += 3
        step(*objects)
    return act
scales = Scales()
if {objects}:
    scales.shift, scales.is_made = tf.Variable(0.25), True
step = made(*{objects})
for epoch in range(3):
    for turn in range(4):
        {inside}
        step()
    print(epoch, weight.numpy(), flush=True)
    die(str(epoch))
""")
READ_IN_TRACES = {
    "a global": ("scale", "scale = float(np.random.rand())"),
    "one that is not bound before the loop": ("rate", "rate = (epoch + turn + 1) / 8"),
    "a variable of a closure": ("turns", "pass"),
    "numbers that are not finite": (
        "(best - scales.kept[0] if 0.0 < best < 1e9 else 2.0) - len(model.name)",
        "best, scales.kept[0] = (float('inf'), float('nan')) if turn + epoch == 0 else (3.0, 1.0); model.last = float('inf')",
    ),
    "attributes": ("scales.now()", "scales.held.factor = np.random.rand()"),
    "a tuple, and an attribute of a class": ("scales.now()", "scales.of_step = (np.random.rand(), 'some'); Scales.least += 1"),
    "a list that grows": ("scales.now()", "scales.kept.append(np.random.rand())"),
    "objects that change places, and a function": ("held()", "held.one, held.two, held.act = held.two, held.one, plus"),
    "what a base class and slots hold, a set and a deque": (
        "held()",
        "Base.factor += 1; held.inner.gain += 2; held.some.add(epoch + turn + 0.5); held.last.append(turn - epoch)",
    ),
    "a named tuple and a member of an enumeration": (
        "by_phase(pair)",
        "held.phase = Phase.A; pair = Pair(epoch + 3.0, turn + 4.0)",
    ),
    "what a function holds": (
        "functools.partial(scaled, pair)()",
        "scaled.__defaults__[0]['a'] += 1; scaled.more += turn + 1; pair = pair._replace(first=turn + 2.0)",
    ),
    "what is set on objects of Keras's": (
        "model.layers[1].rate + len(model.trainable_variables)",
        "model.layers[1].rate /= 2; model.layers[0].trainable = turn + epoch > 1",
    ),
    "an array": ("seen['scale'][0]", "seen['scale'] = np.random.rand(1).astype('float32')"),
}


def read_program(read: str, inside: str, objects: str = "()") -> str:
    """A program with a compiled function that reads what its loop sets."""
    return READ.format(read=read, inside=inside, objects=objects, start="{'scale': 1.0}")


@pytest.mark.parametrize("objects", ["()", "(scales,)"], ids=["traced ahead", "traced late"])
@pytest.mark.parametrize("name", READ_IN_TRACES)
def test_a_function_that_reads_what_the_loop_sets_is_traced_as_it_was(
    name: str, objects: str, server: Server, tmp_path: Path
) -> None:
    """What it reads is a constant in it, of the moment of the trace.

    One that is given an object is traced when called.
    """
    whole, _, run = compared(server, tmp_path, read_program(*READ_IN_TRACES[name], objects), at="1", whole="bare")

    assert run.out.splitlines() == whole.out.splitlines()[1:]
    assert "not captured" not in run.err


@pytest.mark.parametrize(
    ("read", "named"),
    [
        ("float(os.environ.get('SCALE', '1'))", "Sub of the constant 1.0 at program.py:"),
        ("(weight - other if 'SCALE' in os.environ else other - weight)", "Sub at program.py:"),
    ],
)
def test_a_function_that_is_traced_with_other_values_of_python_is_refused(
    read: str, named: str, server: Server, tmp_path: Path
) -> None:
    """They are constants in it, or decide what is wired to what, and are named. Traced ahead, it had those from before
    the loop, in silence. That a resumed run sees it takes a first run and its death."""
    _, run = after_deaths(server, tmp_path, read_program(read, "os.environ['SCALE'] = str(turn + epoch + 2)"), at="1")

    assert run.status == Diverged.exit_code
    assert "'step' was traced with other Python values" in run.err
    line = next(number for number, text in enumerate((tmp_path / "program.py").read_text().splitlines(), 1) if read in text)
    assert f"{named}{line} " in run.err


GIVEN_A_SET = DIE("""
import keras, tensorflow as tf
from keras.layers import Dense
model, optimizer, given = {model}, keras.optimizers.SGD(0.1), [{given}]
@tf.function
def train(data, *given):
    loss = 0.0
    for x in data:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(x) - 1.0) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss
data = tf.data.Dataset.from_tensor_slices(tf.random.normal([6, 4])).batch(2)
for epoch in range(3):
    print(float(train(data, *given)))
    die(str(epoch))
""")


@pytest.mark.slow
@pytest.mark.parametrize(("model", "given"), [("keras.Sequential([Dense(1)])", ""), ("Dense(1)", "lambda: 0")])
def test_a_function_that_is_given_a_set_and_builds_a_model(server: Server, tmp_path: Path, model: str, given: str) -> None:
    """Refused at first: a set could not be described, and first values that are restored are not traced again."""
    compared(server, tmp_path, GIVEN_A_SET.format(model=model, given=given), every="1b", at="1")


COMPILES_LATER = DIE("""
import keras, tensorflow as tf
class Trainer:
    def __init__(self):
        self.weight, self.optimizer, self.is_ready = tf.Variable(tf.zeros([2])), keras.optimizers.Adam(0.1), False
    def step(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((self.weight - x) ** 2)
        self.optimizer.apply_gradients([(tape.gradient(loss, self.weight), self.weight)])
        return loss
    def train(self, x):
        if not self.is_ready:
            self.compiled, self.is_ready = tf.function(self.step, input_signature=[tf.TensorSpec([None])]), True
        return float(self.compiled(x))
trainer = Trainer()
for epoch in range(3):
    for turn in range(3):
        loss = trainer.train(tf.random.normal([2]))
    print(loss)
    die(str(epoch))
""")


@pytest.mark.slow
def test_a_method_that_the_loop_compiles_comes_back(server: Server, tmp_path: Path) -> None:
    """It was named, and a resumed run ended with `AttributeError`: that it had been compiled was restored."""
    _, killed, _ = compared(server, tmp_path, COMPILES_LATER, every="2b", at="1")
    assert "not captured" not in killed.err


COMPILES_FUNCTIONS = DIE("""
import keras, tensorflow as tf
class Trainer:
    def __init__(self):
        self.scale, self.optimizer, self.steps = tf.Variable(tf.ones([3])), keras.optimizers.Adam(0.1), {}
        self.model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dropout(0.3), keras.layers.Dense(1)])
        self.model(tf.zeros([1, 3]))
    def step_for(self, level):
        if level not in self.steps:
            @tf.function(input_signature=[tf.TensorSpec([None, 3])], reduce_retracing=True)
            def step(x):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((self.model(x * self.scale, training=True) - tf.random.normal([])) ** 2) * level
                variables = [self.scale, *self.model.trainable_variables]
                self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
                return loss
            self.steps[level] = step
        return self.steps[level]
trainer, data = Trainer(), tf.data.Dataset.from_tensor_slices(tf.random.normal([30, 3])).shuffle(30).batch(6)
measure = tf.function(lambda x: tf.reduce_sum(x))
for epoch in range(4):
    if epoch == 1:
        measure = tf.function(lambda x: tf.reduce_sum(x * trainer.scale))
    for turn, x in enumerate(data):
        trainer.optimizer.learning_rate = 0.1 / (epoch + 1)
        loss = trainer.step_for(1.0 if turn % 2 else 0.5 * (epoch // 2 + 1))(x)
        die(f"{epoch}:{turn}")
    print(epoch, float(loss), float(measure(x)), list(trainer.steps), flush=True)
""")


@pytest.mark.slow
@pytest.mark.parametrize("every", ["1", "2b"])
def test_functions_that_the_loop_compiles_come_back(server: Server, tmp_path: Path, every: str) -> None:
    """They were named, and a resumed run had none, or the one of before the loop; after epoch 1 the second one is
    called first.
    """
    whole, killed, run = compared(server, tmp_path, COMPILES_FUNCTIONS, every=every, at="2:3", whole="run")
    assert "not captured" not in killed.err

    assert "resuming" in run.err
    assert run.out.splitlines() == whole.out.splitlines()[2:]


CHOOSES = DIE("""
import collections, functools
import keras, tensorflow as tf
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.head, self.optimizers = keras.layers.Dense(1), [keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.01)]
        self.chosen, self.signature, self.factor = self.optimizers[0], [tf.TensorSpec([None, 3])], 1.0
        self.fast = tf.function(self.measure, input_signature=self.signature)  # Keras makes a list of its own of the signature
        self.turns, self.rates, self.by_name = self.optimizers[:], [tf.Variable(2.0), tf.Variable(3.0)], {}
        self.rate, self.data = self.rates[0], tf.data.Dataset.range(2)
        self.pair, self.counts = (self.optimizers[0], 1), collections.OrderedDict(a=0, b=0)
        self.pause, self.loss = self.optimizers[0], None
        for i in range(2):
            setattr(self, f"side_{i}", self.optimizers[0])
    @functools.cached_property
    def start(self):
        return self.factor
    def call(self, x):
        return self.head(x)
    def measure(self, x):
        return self.factor * tf.reduce_mean(self(tf.nn.dropout(x, 0.5)) ** 2)
    def change(self, epoch):
        self.chosen, self.factor = self.optimizers[epoch % 2], epoch + 1.0
        self.turns.reverse()
        self.pair = (self.turns[0], epoch)
        self.counts["a"] += 1
        self.counts.move_to_end("a")
        self.by_name["now"] = self.turns[0]
        self.rate = self.rates[epoch % 2]
        setattr(self, f"side_{epoch}", self.chosen)
        if epoch == 1:
            del self.pause
            self.start
        if epoch == 2:
            self.data, self.loss = tf.data.Dataset.range(3), keras.losses.Huber(0.5)
        if epoch < 2:
            self.fast = tf.function(self.measure, input_signature=self.signature)
        else:
            self.fast = tf.function(lambda x: self.measure(x) / 2)
net = Net()
net.head.build([None, 3])
for optimizer in net.optimizers:
    optimizer.build(net.head.trainable_variables)
for epoch in range(3):
    for turn in range(3):
        if turn == 0 and epoch > 0:
            net.change(epoch)
        with tf.GradientTape() as tape:
            loss = net.fast(tf.ones([4, 3]))
        net.chosen.apply_gradients(zip(tape.gradient(loss, net.head.trainable_variables), net.head.trainable_variables))
        places = [net.optimizers.index(each) for each in [*net.turns, *net.by_name.values(), net.pair[0], net.side_0, net.side_1]]
        print(float(loss).hex(), places, float(net.rate), len(net.data), net.pair[1], *net.counts.items())
        print(hasattr(net, "pause"), vars(net).get("start"))
        die(f"{epoch}:{turn}")
""")


@pytest.mark.slow
def test_what_a_model_of_the_programs_chooses_comes_back(server: Server, tmp_path: Path) -> None:
    """Optimizers and compiled functions in its attributes counted as Keras's own: they were what they had been before
    the loop.
    """
    whole = ran(server, tmp_path, CHOOSES, "--ckpt", "whole", "--every", "1b").ok()
    server.detrain("run", "--every", "1b", "program.py", cwd=tmp_path, DIE_AT="1:2").died()
    run = server.detrain("run", "--every", "1b", "program.py", cwd=tmp_path).ok()
    server.detrain("run", "--ckpt", "late", "--every", "1b", "program.py", cwd=tmp_path, DIE_AT="2:1").died()
    last = server.detrain("run", "--ckpt", "late", "--every", "1b", "program.py", cwd=tmp_path).ok()

    assert run.out.splitlines() == whole.out.splitlines()[10:]
    # What lacks Net.data, which the loop has made, is refused: the run goes on from the cut before.
    assert last.out.splitlines() == whole.out.splitlines()[12:]
    assert "net.fast" not in whole.err
    assert "net.data (tensorflow" in whole.err
    assert "net.loss (keras" in whole.err


KEPT = """
import zlib

class Game:
    def __init__(self, epoch):
        self.packer = zlib.compressobj()  # shows nothing of what it keeps
        self.size = len(self.packer.compress(bytes(epoch)))

def train(games, model, optimizer, epoch):
    for step, (a, b) in enumerate(data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(a) - b - len(games) - games[-1].size) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        die(f"{epoch}:{step}")
    return float(loss)

def main():
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    games, optimizer = [], keras.optimizers.SGD(1e-2)
    for epoch in range(4):
        games.append(Game(epoch))
        print(f"epoch {epoch} loss {train(games, model, optimizer, epoch)!r}", flush=True)
    show(*model.variables)

main()
"""


def test_what_was_named_is_missing_in_the_function_that_trains_too(server: Server, tmp_path: Path) -> None:
    """The first run has named it by the names of the function around: a resumed one said that the program had been
    changed.
    """
    whole = ran(server, tmp_path, PRELUDE + KEPT, "--every", "2b", "--ckpt", "whole")

    died, refused = after_deaths(server, tmp_path, None, at="2:3", every="2b")
    words = shlex.split(re.findall(r"add `(.*)`", refused.err)[0])
    last = server.detrain("run", *words, "--every", "2b", "program.py", cwd=tmp_path).ok()

    assert "games in main()[0].packer (zlib.Compress)" in died.err
    assert "--allow-lost 'games in main()[0].packer'" in refused.err
    assert last.out == whole.out[-len(last.out) :]


BY_CHANCE = """
model, optimizer = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)]), keras.optimizers.SGD(1e-2)
for epoch in range(2):
    tf.random.set_seed(None)  # stock TensorFlow draws by chance from here on, and refuses to where its ops are to repeat
    for step, (a, b) in enumerate(data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(a + tf.random.normal([5])) - b) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        die(f"{epoch}:{step}")
    print(float(tf.random.uniform([])), flush=True)
show(*model.variables)
"""


def test_a_seed_of_chance_is_that_of_the_run(server: Server, tmp_path: Path) -> None:
    whole, _, _ = compared(server, tmp_path, PRELUDE + BY_CHANCE, every="2b", at="1:3", whole="run", is_tail=True)
    other = server.detrain("run", "--ckpt", "other", "--seed", "1", "program.py", cwd=tmp_path).ok()

    first, second = whole.out.splitlines()[:2]
    assert first != second
    assert other.out != whole.out
