"""Ordinary programs: the common ways to train, by their documented arguments, in pairs.

A table has the possible values of each argument. `fits` and `loops` choose so that each two values occur together
(pairwise testing), `text` writes the program. Its data have 5 batches, and it trains for 4 epochs at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.e2e import choices
from tests.e2e.choices import DIE, pairs

LOADED: Final = """\
class Data(keras.utils.PyDataset):
    def __init__(self, draws=False, **settings):
        super().__init__(**settings)
        self.order, self.draws = None, draws
    def __len__(self):
        return 5
    def __getitem__(self, index):
        if self.order is None:
            self.order = np.random.permutation(46) if self.draws else np.arange(46)
        chosen = self.order[index * 10 : (index + 1) * 10]
        return x[chosen], y[chosen]
    def on_epoch_end(self):
        self.order = None

def batches(epochs):
    for _ in range(epochs):
        order = np.random.permutation(46)
        for start in range(0, 46, 10):
            chosen = order[start : start + 10]
            yield x[chosen], y[chosen]
"""
"""Data of Keras's that Python loads."""

PRELUDE: Final = (
    f"""\
import hashlib, os, random, signal, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
import numpy as np
import tensorflow as tf

{DIE}"""
    + """\
class Die(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        starts.append(turns + 1)
    def __init__(self, draws=False):
        super().__init__()
        self.draws = draws
    def on_train_batch_begin(self, batch, logs=None):
        die()
        if self.draws:  # from the streams of what loads
            np.random.rand(), random.random()

"""
    + LOADED
    + """
def each_row():
    for number in np.random.permutation(46):
        yield x[number] + np.random.normal(), y[number]

x = np.random.default_rng(0).normal(size=(46, 6)).astype("float32")
y = (x.sum(1) > 0).astype("int32")
rows = tf.data.Dataset.from_tensor_slices((x, y))
spec = tf.TensorSpec([6]), tf.TensorSpec([], tf.int32)
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.2),
                          keras.layers.BatchNormalization(), keras.layers.Dense(2)])
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

def show(*more):
    digest = hashlib.sha256(b"".join(np.asarray(v).tobytes() for v in [*model.variables, *model.optimizer.variables]))
    print("starts", starts or [1, 6, 11, 16])
    print("steps", int(model.optimizer.iterations), digest.hexdigest(), np.random.rand(), random.random(), *more)

"""
)

_GIVEN: Final = {
    "arrays": "x, y",
    "set": "rows.shuffle(46).batch(10)",
    "set of unknown length": "rows.filter(lambda row, _: row[0] > -9.0).shuffle(46).batch(10)",
    "rows repeated": "rows.shuffle(46).repeat().batch(10)",
    "batches repeated": "rows.shuffle(46).batch(10).repeat()",
    "set that Python fills": "tf.data.Dataset.from_generator(each_row, output_signature=spec).batch(10)",
    "set with noise": "rows.map(lambda a, b: (a + tf.random.normal([6]), b)).batch(10).prefetch(2)",
    "PyDataset": "Data()",
    "PyDataset that draws": "Data(draws=True)",
    "PyDataset, workers": "Data(draws=True, workers=2)",
    "endless generator": "batches(1000)",
    "generator": "batches(3)",
}
BY_PYTHON: Final = ("set that Python fills", "PyDataset", "PyDataset that draws", "endless generator", "generator")
"""Data that Python loads."""
ENDLESS: Final = ("rows repeated", "batches repeated", "endless generator", "generator")
"""Data for which `fit` must be told how many steps an epoch has."""

FIT: Final[dict[str, list[object]]] = {
    "data": list(_GIVEN),
    "steps_per_epoch": [None, 3, 5, 7, 10],
    "every": ["1", "2b"],
    "steps_per_execution": [1, 2],
    "validation": [None, "set", "arrays", "split", "PyDataset"],
    "validation_steps": [None, 1],
    "validation_freq": [1, 2],
    "initial_epoch": [0, 1],
    "shuffle": [True, False, "batch"],
    "weights": [None, "class", "sample"],
    "callbacks": ["", "EarlyStopping", "ReduceLROnPlateau", "ModelCheckpoint"],
    "run": ["", "run_eagerly", "jit_compile"],
    "draws": [False, True],
}

_VALIDATION: Final = {
    "set": "validation_data=rows.shuffle(46).batch(10)",
    "arrays": "validation_data=(x[:25], y[:25]), validation_batch_size=10",
    "split": "validation_split=0.3",
    "PyDataset": "validation_data=Data()",
}
_CALLBACKS: Final = {
    "EarlyStopping": "keras.callbacks.EarlyStopping('loss', patience=1, restore_best_weights=True)",
    "ReduceLROnPlateau": "keras.callbacks.ReduceLROnPlateau('loss', patience=1)",
    "ModelCheckpoint": "keras.callbacks.ModelCheckpoint('best.keras', 'loss', save_best_only=True), "
    "keras.callbacks.CSVLogger('log.csv')",
    "schedule": "keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 * 0.5**epoch)",
}

LOOP: Final[dict[str, list[object]]] = {
    "data": [
        "set",
        "iterator",
        "take",
        "enumerate",
        "zip",
        "noise",
        "Python",
        "PyDataset",
        "arrays",
        "generator",
        "stream",
        "cache",
    ],
    "every": ["1", "2b", "1b"],
    "update": ["train_on_batch", "tape", "tape, compiled", "apply, compiled"],
    "epochs": ["for", "while", "enumerate"],
    "draws": ["", "NumPy", "a generator of NumPy's", "Python", "TensorFlow"],
    "weights": [None, "class", "sample"],
    "metrics": ["", "return_dict", "reset_metrics"],
    "validation": ["", "evaluate", "test_on_batch", "predict"],
    "after": ["", "learning rate", "best weights", "stop"],
}

_LOADS: Final = {  # before the loops, before an epoch's, the header of the batch loop, the load in its body, behind it
    "set": ("data = rows.shuffle(46).batch(10)", "", "for a, b in data:", "", ""),
    "iterator": ("data = iter(rows.shuffle(46).repeat().batch(10))", "", "for step in range(5):", "a, b = next(data)", ""),
    "take": ("data = rows.shuffle(46).repeat().batch(10)", "", "for a, b in data.take(5):", "", ""),
    "enumerate": ("data = rows.shuffle(46).batch(10).prefetch(2)", "", "for step, (a, b) in enumerate(data):", "", ""),
    "zip": ("data = rows.shuffle(46).batch(10)", "", "for (a, b), (c, _) in zip(data, data):", "a = a + 0.1 * c", ""),
    "noise": (
        "data = rows.map(lambda a, b: (a + tf.random.normal([6]), b)).shuffle(46).batch(10).prefetch(2)",
        "",
        "for a, b in data:",
        "",
        "",
    ),
    "Python": (
        "data = tf.data.Dataset.from_generator(each_row, output_signature=spec).batch(10)",
        "",
        "for a, b in data:",
        "",
        "",
    ),
    "PyDataset": ("data = Data(draws=True)", "", "for step in range(len(data)):", "a, b = data[step]", "data.on_epoch_end()"),
    "arrays": (
        "",
        "order = np.random.permutation(46)",
        "for start in range(0, 46, 10):",
        "a, b = x[order[start : start + 10]], y[order[start : start + 10]]",
        "",
    ),
    "generator": ("", "", "for a, b in batches(1):", "", ""),
    "stream": ("data = batches(1000)", "", "for step in range(5):", "a, b = next(data)", ""),
    "cache": ("data = rows.batch(10).cache().shuffle(3)", "", "for a, b in data:", "", ""),
}
_DRAWS: Final = {
    "NumPy": "a = np.asarray(a) + np.random.normal(size=6).astype('float32')",
    "a generator of NumPy's": "a = np.asarray(a) + own.normal(size=6).astype('float32')",
    "Python": "a = np.asarray(a) * np.float32(random.random())",
    "TensorFlow": "a = a + tf.random.normal([6])",
}
_AFTER: Final = {
    "learning rate": "model.optimizer.learning_rate = 0.01 * 0.5 ** epoch",
    "best weights": "best = min(best, (float(loss), model.get_weights()), key=lambda each: each[0])",
    "stop": "losses.append(float(loss))\n    if len(losses) > 3 and losses[-1] > 1e6:\n        break",
}
_VALIDATING: Final = {
    "evaluate": "print(epoch, model.evaluate(x[:20], y[:20], verbose=0))",
    "test_on_batch": "print(epoch, [float(each) for c, d in rows.batch(20) for each in model.test_on_batch(c, d)])",
    "predict": "print(epoch, float(model.predict(x[:20], verbose=0).sum()))",
}


def fits() -> list[dict[str, object]]:
    """Return calls of `fit` with arguments that Keras accepts together."""
    return pairs(FIT, _is_fit)


def loops() -> list[dict[str, object]]:
    """Return loops of the program's own, chosen in the same way."""
    return pairs(LOOP, _is_loop)


def _is_loop(row: Mapping[str, object]) -> bool:
    """Return True if the arguments chosen so far for a loop go together: some are for `train_on_batch` alone."""
    return row.get("update", "train_on_batch") == "train_on_batch" or not (row.get("weights") or row.get("metrics"))


def _is_fit(row: Mapping[str, object]) -> bool:
    """Return True if Keras accepts the arguments chosen so far for a call together."""
    if row["data"] in ENDLESS and row.get("steps_per_epoch", 1) is None:
        return False
    if "generator" in str(row["data"]) and row.get("weights"):
        return False
    of_arrays = row.get("shuffle", True) is not True or row.get("validation") == "split" or row.get("weights") == "sample"
    if of_arrays and row["data"] != "arrays":
        return False
    of_validation = row.get("validation_steps") or row.get("validation_freq", 1) != 1
    if of_validation and row["validation"] is None:
        return False
    return not (row.get("run") == "run_eagerly" and row.get("steps_per_execution", 1) != 1)


def text(row: Mapping[str, object]) -> str:
    """Return the program of a row."""
    return PRELUDE + (_fit(row) if "steps_per_execution" in row else _loop(row))


def arguments(row: Mapping[str, object], data: str, die: str) -> str:
    """Return the arguments of a call of `fit`."""
    rest = [f"{name}={row[name]!r}" for name in ("steps_per_epoch", "initial_epoch") if row[name]]
    if row["data"] == "arrays":
        rest += ["batch_size=10", f"shuffle={row['shuffle']!r}"]
    if row["validation"]:
        rest += [_VALIDATION[str(row["validation"])], f"validation_freq={row['validation_freq']}"]
        rest += [f"validation_steps={row['validation_steps']}"] if row["validation_steps"] else []
    rest += {"class": ["class_weight={0: 1.0, 1: 2.0}"], "sample": ["sample_weight=np.abs(x[:, 0])"]}.get(str(row["weights"]), [])
    callbacks = ", ".join(filter(None, [die, _CALLBACKS.get(str(row["callbacks"]), "")]))
    first = [data, f"epochs={4 + bool(row['initial_epoch'])}", "verbose=0", f"callbacks=[{callbacks}]"]
    return ", ".join(first + rest)


def _fit(row: Mapping[str, object]) -> str:
    run = f", {row['run']}=True" if row["run"] else ""
    given = arguments(row, _GIVEN[str(row["data"])], f"Die(draws={row['draws']})")
    return f"""\
model.compile("adam", loss_of, metrics=["accuracy"], steps_per_execution={row["steps_per_execution"]}{run})
history = model.fit({given})
show(history.history)
"""


def _loop(row: Mapping[str, object]) -> str:
    before, at_epoch, header, load, behind = _LOADS[str(row["data"])]
    update = str(row["update"])
    given = {"class": ", class_weight={0: 1.0, 1: 2.0}", "sample": ", sample_weight=np.abs(np.asarray(a)[:, 0])"}
    if update == "train_on_batch":
        is_named = row["metrics"] == "return_dict"
        asked = f"a, b{given.get(str(row['weights']), '')}{', return_dict=True' if is_named else ''}"
        step, call = "", f"loss = model.train_on_batch({asked}){'[' + repr('loss') + ']' if is_named else '[0]'}"
    else:
        apply = "apply" if update.startswith("apply") else "apply_gradients"
        pairs = "gradients, model.trainable_variables" if apply == "apply" else "zip(gradients, model.trainable_variables)"
        step = f"""\
{"@tf.function" if update.endswith("compiled") else ""}
def step_on(a, b):
    with tf.GradientTape() as tape:
        loss = loss_of(b, model(a, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    model.optimizer.{apply}({pairs})
    return loss
"""
        call = "loss = step_on(a, b)"
    start, loop = {
        "for": ("", "for epoch in range(4):"),
        "while": ("epoch = 0", "while epoch < 4:"),
        "enumerate": ("", "for epoch, name in enumerate('abcd'):"),
    }[str(row["epochs"])]
    body = [load, "die()", _DRAWS.get(str(row["draws"]), ""), call]
    lines = [
        at_epoch,
        header,
        *(f"    {line}" for line in body if line),
        behind,
        "model.reset_metrics()" if row["metrics"] == "reset_metrics" else "",
        _VALIDATING.get(str(row["validation"]), ""),
        "print(epoch, float(loss))",
        _AFTER.get(str(row["after"]), ""),
        "epoch += 1" if start else "",
    ]
    inside = "\n".join(f"    {line}" for line in lines if line)
    return f"""\
model.compile("adam", loss_of, metrics=["accuracy"])
own, best, losses = np.random.default_rng(3), (9e9, None), []
{step}{before}
{start}
{loop}
{inside}
show(best[0], losses, hashlib.sha256(b"".join(each.tobytes() for each in best[1] or [])).hexdigest())
"""


def name_of(row: dict[str, object]) -> str:
    """Return a row in words."""
    return choices.name_of(row, FIT if "steps_per_execution" in row else LOOP)
