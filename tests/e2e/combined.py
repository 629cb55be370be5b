"""Training programs put together at random from parts of ordinary programs, to find combinations that nobody has
thought of.

Each part is a few lines, as a person would write them. `program(seed)` chooses a loader, a model, an optimizer, a form
of the step, some state beside the weights, and where the loop stands. It dies by SIGKILL after the batch that `DIE_AT`
names.
"""

from __future__ import annotations

import random
from textwrap import indent
from typing import Final

PRELUDE: Final = """\
import collections, csv, dataclasses, hashlib, heapq, itertools, json, math, os, random, signal, sys
import keras
import numpy as np
import tensorflow as tf

def die(where):
    if os.environ.get("DIE_AT") == where:
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)

def digest(values):
    return hashlib.sha256(b"".join(np.asarray(value).tobytes() for value in values)).hexdigest()

x = np.random.default_rng(0).normal(size=(24, 5)).astype("float32")
y = np.random.default_rng(1).normal(size=(24, 3)).astype("float32")
"""

_SET: Final = "tf.data.Dataset.from_tensor_slices((x, y))"

LOADERS: Final = {
    "a shuffled set": (f"data = {_SET}.shuffle(24).batch(5)", "", "for step, (a, b) in enumerate(data):", ""),
    "an iterator that lives on": (
        f"source = iter({_SET}.shuffle(24).batch(5).repeat())",
        "",
        "for step in range(4):",
        "a, b = next(source)",
    ),
    "a set with random maps": (
        f"data = {_SET}.cache().shuffle(24).map(lambda a, b: (a + tf.random.normal([5]), b), num_parallel_calls=2).batch(5)",
        "",
        "for step, (a, b) in enumerate(data):",
        "",
    ),
    "two sets at once": (
        f"left, right = ({_SET}.shuffle(24, seed=seed).batch(6) for seed in (1, 2))",
        "",
        "for step, ((a, b), (other, _)) in enumerate(zip(left, right)):",
        "a = a + 0.1 * other",
    ),
    "arrays of a set": (f"data = {_SET}.shuffle(24).batch(5)", "", "for step, (a, b) in enumerate(data.as_numpy_iterator()):", ""),
    "another size of batch": (
        f"data = {_SET}.shuffle(24)",
        "size = 4 + epoch % 3",
        "for step, (a, b) in enumerate(data.batch(size).take(3)):",
        "",
    ),
    "a permutation": (
        "",
        "order = np.random.permutation(24)",
        "for step, at in enumerate(range(0, 24, 5)):",
        "a, b = x[order[at : at + 5]], y[order[at : at + 5]]",
    ),
    "a generator": (
        """\
def rows():
    order = list(range(24))
    random.shuffle(order)
    for at in range(0, 24, 5):
        yield x[order[at : at + 5]], y[order[at : at + 5]]""",
        "",
        "for step, (a, b) in enumerate(rows()):",
        "",
    ),
    "a generator without end": (
        """\
def forever():
    count = 0
    while True:
        rows = np.random.choice(24, 6, replace=False)
        count += 1
        yield x[rows] * (1 + 0.01 * count), y[rows]
source = forever()""",
        "",
        "for step in range(4):",
        "a, b = next(source)",
    ),
    "a set of a generator": (
        """\
def draw():
    for row in np.random.permutation(24):
        yield x[row], y[row]
data = tf.data.Dataset.from_generator(draw, output_signature=(tf.TensorSpec([5]), tf.TensorSpec([3]))).batch(5)""",
        "",
        "for step, (a, b) in enumerate(data):",
        "",
    ),
    "an object with lengths": (
        """\
class Rows(keras.utils.PyDataset):
    def __init__(self):
        super().__init__()
        self.order = np.arange(24)
    def __len__(self):
        return 4
    def __getitem__(self, index):
        rows = self.order[index * 6 : index * 6 + 6]
        return x[rows], y[rows]
    def on_epoch_end(self):
        np.random.shuffle(self.order)
loader = Rows()""",
        "loader.on_epoch_end()",
        "for step in range(len(loader)):",
        "a, b = loader[step]",
    ),
    "an iterator of its own": (
        """\
class Stream:
    def __init__(self):
        self.at, self.rng = 0, np.random.RandomState(4)
    def __iter__(self):
        self.order, self.at = self.rng.permutation(24), 0
        return self
    def __next__(self):
        if self.at >= 24:
            raise StopIteration
        rows = self.order[self.at : self.at + 5]
        self.at += 5
        return x[rows], y[rows]
loader = Stream()""",
        "",
        "for step, (a, b) in enumerate(loader):",
        "",
    ),
    "a pool": (
        "pool = []",
        "pool = pool or list(range(24))\nrandom.shuffle(pool)",
        "for step in range(2):",
        "rows = [pool.pop() for _ in range(5)]\na, b = x[rows], y[rows]\npool = pool if len(pool) >= 5 else list(range(24))",
    ),
    "a cycle": (
        "cycle = itertools.cycle([(x[at : at + 6], y[at : at + 6]) for at in range(0, 24, 6)])",
        "",
        "for step in range(3):",
        "a, b = next(cycle)",
    ),
    "a counter that the body moves": (
        "",
        "at, step = 0, -1",
        "while at < 24:",
        "a, b = x[at : at + 5], y[at : at + 5]\nat, step = at + 5, step + 1",
    ),
}
"""Code before the loops, code at the start of an epoch, the batch loop's header, and code that loads a batch in its
body."""

_MODULE: Final = """\
class Linear(tf.Module):
    def __init__(self, units):
        super().__init__()
        self.units, self.w = units, None
    def __call__(self, x):
        if self.w is None:
            self.w = tf.Variable(tf.random.normal([x.shape[-1], self.units]) * 0.3)
            self.b = tf.Variable(tf.zeros([self.units]))
        return x @ self.w + self.b
class Net(tf.Module):
    def __init__(self):
        super().__init__()
        self.parts = [Linear(8), Linear(3)]
    def __call__(self, x, training=False):
        return self.parts[1](tf.tanh(self.parts[0](x)))
net = Net()"""

MODELS: Final = {
    "built": "net = keras.Sequential([keras.Input((5,)), keras.layers.Dense(8), keras.layers.Dropout(0.3), keras.layers.Dense(3)])",
    "built by its first batch": (
        "net = keras.Sequential([keras.layers.Dense(8, 'tanh'), keras.layers.BatchNormalization(), keras.layers.Dense(3)])"
    ),
    "recurrent": (
        "net = keras.Sequential(\n"
        "    [keras.Input((5,)), keras.layers.Reshape((5, 1)), keras.layers.LSTM(6, dropout=0.2), keras.layers.Dense(3)]\n)"
    ),
    "a subclass": """\
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.parts = [keras.Sequential([keras.layers.Dense(6), keras.layers.ReLU()]), keras.layers.Dropout(0.5)]
        self.heads, self.scale = {"out": keras.layers.Dense(3)}, tf.Variable(1.0)
    def call(self, x, training=False):
        return self.heads["out"](self.parts[1](self.parts[0](x), training=training)) * self.scale
net = Net()""",
    "layers of its own": """\
class Block(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(5)
    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], 6))
        self.inner = keras.layers.Dense(6)
    def call(self, x, training=False):
        noise = 0.1 * keras.random.normal(tf.shape(x), seed=self.seeds) if training else 0.0
        return tf.nn.relu((x + noise) @ self.w) + self.inner(x)
net = keras.Sequential([Block(), keras.layers.SpectralNormalization(keras.layers.Dense(3))])""",
    "a module": _MODULE + "\nnet(x[:2])",
    "a module built by its first batch": _MODULE,
    "Keras 2": """\
import tf_keras
net = tf_keras.Sequential(
    [tf_keras.layers.Dense(8), tf_keras.layers.Dropout(0.3), tf_keras.layers.BatchNormalization(), tf_keras.layers.Dense(3)]
)""",
}

OPTIMIZERS: Final = (
    "keras.optimizers.Adam(1e-2)",
    "keras.optimizers.SGD(1e-2, momentum=0.9)",
    "keras.optimizers.AdamW(1e-2, use_ema=True, ema_overwrite_frequency=3)",
    "keras.optimizers.RMSprop(1e-2, centered=True)",
    "keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(1e-2, 3, 0.9))",
    "keras.optimizers.Nadam(1e-2, clipnorm=0.5)",
    "keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1e-2), dynamic_growth_steps=2)",
    "keras.optimizers.Adam(1e-2, gradient_accumulation_steps=2)",
)
OPTIMIZERS_2: Final = ("tf_keras.optimizers.Adam(1e-2)", "tf_keras.optimizers.legacy.SGD(1e-2, momentum=0.9)")

STEP: Final = """\
with tf.GradientTape() as tape:
    loss = tf.reduce_mean((net(a, training=True) - b) ** 2)
gradients = tape.gradient(loss, net.trainable_variables)
optimizer.apply_gradients(zip(gradients, net.trainable_variables))"""
NOISE: Final = "a = a + tf.random.normal(tf.shape(a), stddev=0.05)\n"
FORMS: Final = ("inline", "", "@tf.function\n", "@tf.function(jit_compile=True)\n", "@tf.function(reduce_retracing=True)\n")

_CLOSURE: Final = """\
def make():
    count = 0
    def bump():
        nonlocal count
        count += 1
        return count
    return bump
bump = make()"""

STATES: Final = (
    (
        "history = collections.defaultdict(list)",
        "",
        "history[epoch].append(float(loss))",
        "history['mean'].append(np.mean(history[epoch]))",
    ),
    ("best, best_weights = math.inf, None", "", "", "if loss < best:\n    best, best_weights = float(loss), digest(net.variables)"),
    (
        "best, wait = math.inf, 0",
        "",
        "",
        "best, wait = (float(loss), 0) if loss < best else (best, wait + 1)\nif wait > 1:\n    break",
    ),
    ("recent = collections.deque(maxlen=5)", "", "recent.append((step, float(loss)))", "print(list(recent))"),
    ("seen = collections.Counter()", "", "seen[int(np.random.randint(4))] += 1", "print(sorted(seen.items()))"),
    ("rng = np.random.default_rng(7)", "", "drawn = rng.normal()", "print(drawn)"),
    (
        "@dataclasses.dataclass\nclass State:\n    step: int = 0\n    total: float = 0.0\nstate = State()",
        "",
        "state.step += 1\nstate.total += float(loss)",
        "print(state)",
    ),
    (
        "average = {}",
        "",
        "average = {n: 0.9 * average.get(n, 0.0) + 0.1 * v.numpy() for n, v in enumerate(net.trainable_variables)}",
        "print(digest(average.values()))",
    ),
    ("mean = keras.metrics.Mean()", "mean.reset_state()", "mean.update_state(loss)", "print(float(mean.result()))"),
    ("", "mean = keras.metrics.Mean()", "mean.update_state(loss)", "print(float(mean.result()))"),
    ("counter = tf.Variable(0, trainable=False)", "", "counter.assign_add(1)", "print(int(counter))"),
    ("", "losses = []", "losses.append(loss)", "print(float(tf.reduce_mean(losses)))"),
    ("heap = []", "", "heapq.heappush(heap, (float(loss), step))", "print(heapq.heappop(heap))"),
    ("tickets = itertools.count(5)", "", "ticket = next(tickets)", "print(ticket)"),
    (
        _CLOSURE,
        "",
        "bumped = bump()",
        "print(bumped)",
    ),
    ("buffer = np.zeros((10, 3), 'float32')", "", "buffer[step] = np.asarray(b)[0]", "print(float(buffer.sum()))"),
    ("window = tf.zeros([4])", "", "window = tf.concat([window[1:], [loss]], 0)", "print(window.numpy().tolist())"),
    ("", "", "noise = float(keras.random.uniform([]))", "print(noise)"),
    ("", "", "noise = float(tf.random.uniform([]))", "print(noise)"),
    ("", "", "", "print(float(tf.reduce_mean(net(x[:12], training=False))))"),
    ("", "", "if random.random() < 0.3:\n    print('lucky', step)", ""),
    ("", "", "", "with open('log.csv', 'a', newline='') as file:\n    csv.writer(file).writerow([epoch, float(loss)])"),
    ("log = open('log.txt', 'w')", "", "print(epoch, step, float(loss), file=log, flush=True)", ""),
    ("ends = []", "", "", "ends.append(float(loss))\nwith open('log.json', 'w') as file:\n    json.dump(ends, file)"),
)
"""Code before the loops, at the start of an epoch, in each batch after the step, and at the end of an
epoch."""

EPOCHS: Final = 4
EPOCH_LOOPS: Final = (f"for epoch in range({EPOCHS}):", f"epoch = -1\nwhile epoch < {EPOCHS - 1}:\n    epoch += 1")
FRAMES: Final = (
    "{setup}\n{loops}\n{end}",
    "def main():\n{body}\n\nmain()",
    "class Trainer:\n    def train(self):\n{inner}\n\nTrainer().train()",
)


def program(seed: int) -> str:
    """Return the source of a program."""
    rng = random.Random(seed)
    before, at_start, header, load = LOADERS[rng.choice([*LOADERS])]
    model = rng.choice([*MODELS])
    optimizer = rng.choice(OPTIMIZERS_2 if model == "Keras 2" else OPTIMIZERS)
    form = rng.choice([each for each in FORMS if _can_be(model, each)])
    step, call = (NOISE if rng.random() < 0.3 else "") + STEP, "loss = train_step(tf.constant(a), tf.constant(b))"
    function = "" if form == "inline" else f"{form}def train_step(a, b):\n{indent(step, '    ')}\n    return loss"
    parts = rng.sample(STATES, rng.randint(1, 4))
    made, first, inside, last = ([part[place] for part in parts] for place in range(4))
    body = _joined(load, step if form == "inline" else call, *inside, "die(f'{epoch}:{step}')")
    epoch = _joined(at_start, *first, f"{header}\n{indent(body, '    ')}", "print(epoch, float(loss), flush=True)", *last)
    setup = _joined(before, MODELS[model], f"optimizer = {optimizer}", function, *made)
    loops = f"{rng.choice(EPOCH_LOOPS)}\n{indent(epoch, '    ')}"
    end = "print(digest(net.variables), random.random(), np.random.rand(), float(tf.random.uniform([])))"
    whole = _joined(setup, loops, end)
    frame = rng.choice(FRAMES)
    return (
        PRELUDE + frame.format(setup=setup, loops=loops, end=end, body=indent(whole, " " * 4), inner=indent(whole, " " * 8)) + "\n"
    )


def _can_be(model: str, form: str) -> bool:
    """Return True if a step of the model can be compiled in this form: a module makes its variables in its first call;

    XLA does not work with Keras 2.
    """
    return not ("module built" in model and "@" in form) and not (model == "Keras 2" and "jit" in form)


def _joined(*parts: str) -> str:
    return "\n".join(part for part in parts if part)
