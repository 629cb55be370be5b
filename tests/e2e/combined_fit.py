"""Programs around `Model.fit`, put together at random: data, a model, callbacks that draw, train, predict and write,
and the number of calls.

As in `tests.e2e.combined`, a program dies by SIGKILL after the batch that `DIE_AT` names: call of `fit`, epoch, batch.
"""

from __future__ import annotations

import random
from typing import Final

from tests.e2e.combined import PRELUDE

_SET: Final = "tf.data.Dataset.from_tensor_slices((x, y))"
_SPEC: Final = "output_signature=(tf.TensorSpec([5]), tf.TensorSpec([3]))"

DATA: Final = {
    "arrays": ("", "x, y, batch_size=5"),
    "arrays, a part of them for validation": ("", "x, y, batch_size=6, validation_split=0.25"),
    "a shuffled set": (f"data = {_SET}.cache().shuffle(24).batch(6).prefetch(2)", "data"),
    "steps of a repeated set": (f"data = {_SET}.shuffle(24).batch(6).repeat()", "data, steps_per_epoch=3"),
    "a set with random maps": (
        f"data = {_SET}.shuffle(24).map(lambda a, b: (a + tf.random.normal([5], stddev=0.1), b)).batch(6)",
        "data",
    ),
    "a set of two": (
        f"data = {_SET}.shuffle(24).batch(6)\n"
        "data = tf.data.Dataset.zip((data, data)).map(lambda p, q: ((p[0] + q[0]) / 2, (p[1] + q[1]) / 2))",
        "data",
    ),
    "windows": (
        f"data = {_SET}.window(6, shift=4).flat_map(lambda a, b: tf.data.Dataset.zip((a, b)).batch(6)).shuffle(5)",
        "data",
    ),
    "maps of Python": (
        "def shaken(row):\n    return (row * np.random.uniform(0.9, 1.1)).astype('float32')\n"
        f"data = {_SET}.map(lambda a, b: (tf.ensure_shape(tf.numpy_function(shaken, [a], tf.float32), [5]), b)).batch(6)",
        "data",
    ),
    "a set of a generator": (
        "def rows():\n    for row in np.random.permutation(24):\n        yield x[row], y[row]\n"
        f"data = tf.data.Dataset.from_generator(rows, {_SPEC}).batch(6)",
        "data",
    ),
    "a set of a generator with arguments": (
        "def rows(scale):\n    for row in range(24):\n        yield x[row] + np.random.normal(0, scale, 5), y[row]\n"
        f"data = tf.data.Dataset.from_generator(rows, args=(0.1,), {_SPEC}).shuffle(10).batch(6)",
        "data",
    ),
    "a generator": (
        "weights = np.linspace(0.5, 1, 6)\n"
        "def batches():\n    while True:\n        rows = np.random.choice(24, 6)\n        yield x[rows], y[rows], weights",
        "batches(), steps_per_epoch=4",
    ),
    "an iterator of its own": (
        """\
class Feed:
    def __init__(self):
        self.rng, self.at = np.random.default_rng(3), 0
    def __iter__(self):
        return self
    def __next__(self):
        self.at += 1
        rows = self.rng.choice(24, 6)
        return x[rows] + self.at * 0.001, y[rows]
feed = Feed()
def pulled():
    yield from feed""",
        "pulled(), steps_per_epoch=3",
    ),
    "a PyDataset": (
        """\
class Rows(keras.utils.PyDataset):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.order, self.epochs = np.arange(24), 0
    def __len__(self):
        return 4
    def __getitem__(self, index):
        rows = self.order[index * 6 : index * 6 + 6]
        return x[rows] * (1 + 0.1 * self.epochs) + np.random.normal(), y[rows]
    def on_epoch_end(self):
        np.random.shuffle(self.order)
        self.epochs += 1
rows = Rows(workers=2)""",
        "rows",
    ),
}
"""Code before the training, and the arguments of `fit`."""

MODELS: Final = {
    "built": (
        "def make():\n"
        "    return keras.Sequential([keras.Input((5,)), keras.layers.Dense(8), keras.layers.Dropout(0.3), keras.layers.Dense(3)])"
    ),
    "built by its first batch": (
        "def make():\n"
        "    return keras.Sequential([keras.layers.Dense(8, 'tanh'), keras.layers.BatchNormalization(), keras.layers.Dense(3)])"
    ),
    "a recurrent one, adapted": """\
def make():
    norm = keras.layers.Normalization()
    norm.adapt(x)
    return keras.Sequential([norm, keras.layers.Reshape((5, 1)), keras.layers.GRU(4, dropout=0.1), keras.layers.Dense(3)])""",
    "with a step of its own": """\
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = keras.layers.Dense(6, 'relu'), keras.layers.Dense(3)
        self.seen, self.drop = keras.metrics.Mean(name='seen'), keras.layers.Dropout(0.2)
    def call(self, x, training=False):
        return self.out(self.drop(self.hidden(x), training=training))
    def train_step(self, data):
        a, b = data[:2]
        with tf.GradientTape() as tape:
            loss = self.compute_loss(a, b, self(a + tf.random.normal(tf.shape(a), stddev=0.1), training=True))
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables))
        self.seen.update_state(loss)
        return {'loss': loss, 'seen': self.seen.result()}
def make():
    return Net()""",
    "two that play against each other": """\
class Gan(keras.Model):
    def __init__(self):
        super().__init__()
        self.maker, self.turn = keras.layers.Dense(3), tf.Variable(0, trainable=False)
        self.judge = keras.Sequential([keras.layers.Dense(4, 'relu'), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
        self.of_judge, self.noise = keras.optimizers.Adam(1e-3), keras.random.SeedGenerator(3)
    def call(self, x):
        return self.maker(x)
    def train_step(self, data):
        a, b = data[:2]
        noise = 0.1 * keras.random.normal(tf.shape(a), seed=self.noise)
        with tf.GradientTape() as one, tf.GradientTape() as two:
            made = self.maker(a + noise)
            gap = tf.reduce_mean(self.judge(made, training=True) - self.judge(b, training=True))
            loss = tf.reduce_mean((made - b) ** 2) - gap
        self.of_judge.apply_gradients(zip(two.gradient(gap, self.judge.trainable_variables), self.judge.trainable_variables))
        self.optimizer.apply_gradients(zip(one.gradient(loss, self.maker.trainable_variables), self.maker.trainable_variables))
        self.turn.assign_add(1)
        return {'loss': loss, 'gap': gap}
def make():
    return Gan()""",
}

OPTIMIZERS: Final = (
    "'sgd'",
    "keras.optimizers.Adam(1e-2)",
    "keras.optimizers.SGD(1e-2, momentum=0.9)",
    "keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(1e-2, 20))",
    "keras.optimizers.RMSprop(1e-2, use_ema=True, ema_overwrite_frequency=3)",
    "keras.optimizers.Adam(1e-2, gradient_accumulation_steps=2)",
    "keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(1e-2), dynamic_growth_steps=3)",
)
COMPILED: Final = ("", "", ", run_eagerly=True", ", steps_per_execution=2", ", steps_per_execution=3")

CALLBACKS: Final = {
    "Draws()": """\
class Draws(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        self.last = float(tf.random.normal([])) + float(keras.random.uniform([])) + random.gauss(0, 1) + np.random.rand()
    def on_epoch_end(self, epoch, logs=None):
        print('draws', self.last, np.random.rand())""",
    "Shakes()": """\
class Shakes(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if self.model.trainable_variables:
            first = self.model.trainable_variables[0]
            first.assign_add(np.random.normal(0, 0.01, first.shape).astype('float32'))""",
    "Predicts()": """\
class Predicts(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.kept = []
    def on_epoch_end(self, epoch, logs=None):
        self.kept.append(self.model.predict(x[:4], verbose=0))
        print('predicts', digest(self.kept))""",
    "Trains()": """\
class Trains(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.net, self.optimizer = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]), keras.optimizers.SGD(0.1)
    def on_train_batch_end(self, batch, logs=None):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.net(y[batch : batch + 3]) ** 2)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.net.trainable_variables), self.net.trainable_variables))
    def on_train_end(self, logs=None):
        print('trains', digest(self.net.variables), int(self.optimizer.iterations))""",
    "Averages()": """\
class Averages(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.slow, self.turn = None, 0
    def on_train_batch_end(self, batch, logs=None):
        self.turn += 1
        if self.slow is None:
            self.slow = self.model.get_weights()
        elif self.turn % 3 == 0:
            pairs = zip(self.slow, self.model.get_weights())
            self.slow = [one + 0.5 * (two - one) if two.dtype == np.float32 else two for one, two in pairs]
            self.model.set_weights(self.slow)""",
    "Stops()": """\
class Stops(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch >= 1 and random.random() < 0.2:
            print('stops', batch)
            self.model.stop_training = True""",
    "Returns()": """\
class Returns(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.kept = self.model.get_weights()
    def on_epoch_end(self, epoch, logs=None):
        if len(self.kept) == len(self.model.get_weights()) and random.random() < 0.3:
            print('returns', epoch)
            self.model.set_weights(self.kept)""",
    "Begins()": """\
class Begins(keras.callbacks.Callback):
    order = np.arange(9)
    def on_train_begin(self, logs=None):
        self.rng, self.table = random.Random(random.random()), {}
        np.random.shuffle(Begins.order)
    def on_train_batch_begin(self, batch, logs=None):
        self.table[self.rng.randrange(9)] = self.rng.random()
    def on_epoch_end(self, epoch, logs=None):
        print('begins', sorted(self.table.items())[:2], Begins.order.tolist())""",
    "counts()": """\
def counts():
    seen, order = 0, []
    def end(batch, logs):
        nonlocal seen
        seen += 1
        order.append((seen, random.random()))
    return keras.callbacks.LambdaCallback(on_train_batch_end=end, on_train_end=lambda logs: print('counts', order[-1]))""",
    "Writes()": """\
class Writes(keras.callbacks.Callback):
    best = math.inf
    def on_epoch_end(self, epoch, logs=None):
        Writes.best = min(Writes.best, logs['loss'])
        with open('log.best', 'w') as file:
            json.dump({'epoch': epoch, 'best': float(Writes.best)}, file)
        with open('log.jsonl', 'a') as file:
            file.write(json.dumps({name: float(value) for name, value in logs.items()}) + '\\n')""",
    "keras.callbacks.EarlyStopping(monitor='loss', patience=1, restore_best_weights=True)": "",
    "keras.callbacks.CSVLogger('log.csv')": "",
    "keras.callbacks.BackupAndRestore('backup')": "",
    "keras.callbacks.TensorBoard('board')": "",
    "keras.callbacks.ModelCheckpoint('{epoch}.weights.h5', save_weights_only=True)": "",
}
"""Expressions of callbacks, and the classes that these need."""

_DIES: Final = """\
class Dies(keras.callbacks.Callback):
    call = -1
    def on_train_begin(self, logs=None):
        Dies.call += 1
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
    def on_train_batch_end(self, batch, logs=None):
        die(f'{Dies.call}:{self.epoch}:{batch}')"""

EPOCHS: Final = 4
SHAPES: Final = (
    "net = make()\n{built}{compile}\n{whole}\n{end}",
    "def main():\n    net = make()\n    net(x[:2])\n    {compile}\n    {whole}\n    {end}\n\nmain()",
    "net = make()\nnet(x[:2])\n{compile}\n{first}\nprint(digest(net.variables))\n{second}\n{end}",
    "net = make()\n{built}{compile}\n{first}\n{compile}\n{second}\n{end}",
)
_END: Final = "print(digest(net.variables), random.random(), np.random.rand(), float(tf.random.uniform([])))"


def program(seed: int) -> str:
    """Return the source of a program. The batches of its second call of `fit`, if there is one, begin with epoch 2."""
    rng = random.Random(seed)
    before, data = DATA[rng.choice([*DATA])]
    model, optimizer = rng.choice([*MODELS]), rng.choice(OPTIMIZERS)
    callbacks = rng.sample([*CALLBACKS], rng.randint(1, 4))
    is_own = "step of its own" in model or "two that play" in model
    validated = "" if is_own or "split" in data or rng.random() < 0.5 else ", validation_data=(x[:8], y[:8])"
    given = data.replace(", validation_split=0.25", "") if is_own else data

    def fit(epochs: str) -> str:
        return f"net.fit({given}, {epochs}{validated}, verbose=0, callbacks=[{', '.join([*callbacks, 'Dies()'])}])"

    shape = rng.choice(SHAPES)
    is_built_first = "keras.callbacks.BackupAndRestore('backup')" in callbacks or rng.random() < 0.3
    # The step calls only the model's parts: Keras refuses to save a model that was never called itself.
    is_built_first |= "two that play" in model and any("ModelCheckpoint" in each for each in callbacks)
    training = shape.format(
        built="net(x[:2])\n" * is_built_first,
        compile=f"net.compile({optimizer}, 'mse'{rng.choice(COMPILED)})",
        whole=fit(f"epochs={EPOCHS}"),
        first=fit("epochs=2"),
        second=fit(f"epochs={EPOCHS}, initial_epoch=2"),
        end=_END,
    )
    parts = (before, MODELS[model], *(CALLBACKS[each] for each in callbacks), _DIES, training)
    return PRELUDE + "\n".join(part for part in parts if part) + "\n"


def place(rng: random.Random, seed: int) -> str:
    """Return a place where a program may die: call of `fit`, epoch, batch."""
    epoch = rng.randrange(EPOCHS)
    return f"{int(epoch >= 2 and 'initial_epoch' in program(seed))}:{epoch}:{rng.randrange(4)}"
