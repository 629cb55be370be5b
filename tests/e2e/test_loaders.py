"""Loaders come back by a seek where that is exact, else by loading again; a seek that went wrong is caught.

A loader of these programs writes `load` to its standard error (past detrain) for each batch, so that what is loaded can
be counted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from detrain.base import errors
from detrain.store import Catalogue, Snapshot, read
from tests.e2e.programs import PRELUDE
from tests.e2e.runs import Result, Run, bare, environment, library, ran

COUNTING = PRELUDE("""
data = np.random.default_rng(1).normal(size=(24, 3))
def load(i):
    os.write(2, b"load\\n")
    return data[i * 2 : (i + 1) * 2] + np.random.normal(size=3)
class Rows:
    def __getitem__(self, i):
        if i >= 12:
            raise IndexError(i)
        return load(i)
class Stream:
    def __init__(self):
        self.at = 0
    def __iter__(self):
        return self
    def __next__(self):
        self.at += 1
        if self.at > 12:
            self.at = 0
            raise StopIteration
        return load(self.at - 1)
class Optimizer:
    def __init__(self):
        self.weights = np.ones(3)
    def apply_gradients(self, x):
        self.weights += x.sum(axis=0) * random.random()
optimizer, stream = Optimizer(), Stream()
open("numbers.txt", "w").write("".join(f"{i * 7 % 31}\\n" for i in range(99)))
lines = open("numbers.txt")
def numbered():
    for i in range(12):
        yield load(i)
""")
LOOP = """
for epoch in range(3):
    {before}
    {header}
        {first}
        optimizer.apply_gradients(x)
        {last}
        die(f"{{epoch}}:{{i}}")
    print(epoch, optimizer.weights.tolist(), flush=True)
show(optimizer.weights)
"""


def program(header: str, first: str = "pass", before: str = "pass", last: str = "pass") -> str:
    return COUNTING + LOOP.format(header=header, first=first, before=before, last=last)


SOUGHT = {
    "an array, by index": program("for i in range(12):", "x = load(i)"),
    "a while loop": program("while i < 11:", "i += 1; x = load(i)", before="i = -1"),
    "an object with an index": program("for i, x in enumerate(Rows()):"),
    "an object that is its own iterator": program("for x, i in zip(stream, range(12)):"),
    "a map over a list": program("for i, x in enumerate(map(load, [*range(12)])):"),
    "two at a time": program("for i, (x, n) in enumerate(zip(Rows(), reversed(range(40)))):"),
    "a file, read in the body too": program(
        "for i in range(12):", "x = load(i) * float(lines.readline())", last="optimizer.weights += float(lines.readline())"
    ),
}
SHARDS = """
for epoch in range(3):
    for shard in [0, 6]:
        {header}
            x = load(i)
            optimizer.apply_gradients(x)
            die(f"{{epoch}}:{{i}}")
            {last}
    print(epoch, optimizer.weights.tolist(), flush=True)
show(optimizer.weights)
"""
FORWARDED = {
    "shards": (
        COUNTING + SHARDS.format(header="for i in range(shard, shard + 6):", last="pass"),
        "the batch loop has run before in this epoch, or other loops have",
    ),
    "a generator": (program("for i, x in enumerate(numbered()):"), "what the batch loop goes over[0][0] (generator)"),
    "code beside a library": (
        program("for i in range(12):", "x = load(i)").replace("import numpy", "import msgspec\nimport numpy"),
        "imports msgspec, which may keep a state",
    ),
}


CURSOR = program("for i in range(12):", "x = load(i) + next(cursor)[0]").replace(
    "optimizer, stream",
    "import sqlite3\ncursor = sqlite3.connect(':memory:').execute("
    "'with recursive n(i) as (select 1 union all select i + 1 from n) select i from n')\noptimizer, stream",
)

TWO_LOOPS = """
for epoch in range(3):
    for i in np.random.permutation(12)[:6]:
        x = load(i)
        optimizer.apply_gradients(x)
        {last}
    for n, i in enumerate(np.random.permutation(12)):
        x = load(i)
        optimizer.apply_gradients(x)
        die(f"{{epoch}}:{{n}}")
show(optimizer.weights)
"""

WRITES_BETWEEN = """
for epoch in range(2):
    for shard in [0, 6]:
        {header}
            x = load(i)
            optimizer.apply_gradients(x)
            die(f"{{epoch}}:{{i}}")
            {last}
        {between}
show(optimizer.weights)
"""


@pytest.fixture
def run(detrain: Run) -> Run:
    def run(text: str, folder: Path, *options: str, die_at: str = "", **changes: str) -> Result:
        if not (folder / "program.py").exists():
            (folder / "program.py").write_text(text)
        return detrain("run", "--every", "3b", *options, "program.py", cwd=folder, DIE_AT=die_at, **changes)

    return run


def loads(result: Result) -> int:
    return result.err.count("load\n")


@pytest.mark.parametrize("name", SOUGHT)
def test_a_loader_whose_position_is_state_is_sought(name: str, tmp_path: Path, run: Run) -> None:
    text = SOUGHT[name]
    whole = run(text, tmp_path, "--bare")
    assert run(text, tmp_path, die_at="1:7").status == -9
    resumed = run(text, tmp_path)

    assert resumed.status == 0, resumed.err
    assert "resuming program at 1:6" in resumed.err
    assert "loaders are set to their positions" in resumed.err
    assert resumed.out == whole.out[-len(resumed.out) :]
    assert loads(resumed) == 18  # six of the second epoch, all of the third
    assert "warning" not in resumed.err


@pytest.mark.parametrize(
    ("header", "last", "between", "resumes_at"),
    [
        ("for i in range(shard, shard + 6):", "pass", "np.save(f'{shard}.npy', optimizer.weights)", "1:6"),
        (
            "for i in range(shard, 12):",
            "if i == shard + 5: break",
            "open('new', 'w').write(str(optimizer.weights)); os.replace('new', f'{shard}.txt')",
            "1:3",
        ),
    ],
)
def test_no_resume_runs_code_between_batch_loops_that_writes_files(
    header: str, last: str, between: str, resumes_at: str, tmp_path: Path, run: Run
) -> None:
    """It would run without what the bodies before it do: the file of the first shard would have the weights of the
    epoch before.
    """
    text = COUNTING + WRITES_BETWEEN.format(header=header, last=last, between=between)
    for folder in (whole := tmp_path / "whole", killed := tmp_path / "killed"):
        folder.mkdir()
    whole_run = run(text, whole, "--bare")

    died = run(text, killed, die_at="1:10")
    resumed = run(text, killed)

    assert died.err.count("code between the batch loops of an epoch writes 0.") == 1
    assert resumed.status == 0, resumed.err
    assert f"resuming program at {resumes_at} " in resumed.err  # at 1:6 the first of the two has run out
    assert "loaders are set to their positions" in resumed.err
    assert resumed.out == whole_run.out
    for path in (*whole.glob("*.npy"), *whole.glob("*.txt")):
        assert (killed / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize("last", ["pass", "if i > 10: break"], ids=["both run out", "the first is left by break"])
def test_killed_in_the_first_batch_of_an_epochs_second_loop(last: str, tmp_path: Path, run: Run) -> None:
    """The end of the first loop and the start of the second are one cursor; and who passes over bodies does not
    `break`.
    """
    text = COUNTING + TWO_LOOPS.format(last=last)
    whole = run(text, tmp_path, "--bare")

    died = run(text, tmp_path, "--every", "1b", die_at="1:0")
    resumed = run(text, tmp_path, "--every", "1b")

    assert died.status == -9
    assert resumed.status == 0, resumed.err
    assert resumed.out == whole.out
    assert died.err.count("a batch loop is left before its end") == int(last != "pass")


@pytest.mark.parametrize("name", FORWARDED)
def test_batches_are_loaded_again_where_a_seek_might_not_be_exact(name: str, tmp_path: Path, run: Run) -> None:
    text, why = FORWARDED[name]
    batches = 9 if name == "shards" else 6  # its first loop's end is sought, its second's middle is not
    run(text, tmp_path, die_at=f"0:{batches + 1}")
    resumed = run(text, tmp_path)

    assert resumed.status == 0, resumed.err
    assert f"the {batches} batches of the epoch before it are loaded again" in resumed.err
    assert why in resumed.err
    assert loads(resumed) == 36
    assert resumed.out == run(text, tmp_path, "--bare").out


def test_a_cursor_that_loads_move_on_is_refused_and_that_is_said_beforehand(tmp_path: Path, run: Run) -> None:
    """Nobody can see where the cursor of a database is, so whether loading again has brought it there."""
    text = CURSOR
    died = run(text, tmp_path, "--every", "1b", die_at="0:7")
    resumed = run(text, tmp_path)

    assert "cursor (sqlite3.Cursor: what an extension keeps in it cannot be read" in died.err
    assert "REFUSED" in died.err
    assert resumed.status == errors.NotCapturable.exit_code


def test_loading_again_can_be_asked_for(tmp_path: Path, run: Run) -> None:
    text = SOUGHT["an object that is its own iterator"]
    run(text, tmp_path, die_at="1:7")
    resumed = run(text, tmp_path, "--loader", "forward")

    assert resumed.out == run(text, tmp_path, "--bare").out[-len(resumed.out) :]
    assert loads(resumed) == 24
    assert "are loaded again: --loader forward" in resumed.err


def test_a_seek_that_would_not_be_exact_is_refused_at_the_first_checkpoint_and_on_resume(tmp_path: Path, run: Run) -> None:
    text, why = FORWARDED["a generator"]
    first = run(text, tmp_path, "--loader", "seek")
    run(text, tmp_path, "--fresh", die_at="1:7")
    resumed = run(text, tmp_path, "--loader", "seek")

    assert first.status == resumed.status == errors.CannotSeek.exit_code
    assert f"--loader seek would not be exact: {why}" in first.err
    assert f"--loader seek would not be exact: {why}" in resumed.err
    assert resumed.out == ""


ANOTHER_ITERATOR = """
import os, keras, tensorflow as tf
data = tf.data.Dataset.range(12).map(lambda i: tf.cast(i, tf.float32)).batch(2)
for _ in range(int(os.environ["OTHERS"])):
    next(iter(data))
weight, optimizer = tf.Variable(1.0), keras.optimizers.SGD(0.1)
for epoch in range(2):
    for batch in data:
        optimizer.apply([tf.reduce_mean(batch)], [weight])
        if os.environ["OTHERS"] == os.environ["KILLED"] and float(batch[0]) == 4:
            os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(("before", "after"), [("0", "1"), ("1", "0")])
def test_a_position_is_not_set_in_another_iterator(before: str, after: str, tmp_path: Path, detrain: Run) -> None:
    """The digest of the next batch would tell; but a run may be killed before that is written down."""
    pytest.importorskip("tensorflow")
    (tmp_path / "program.py").write_text(ANOTHER_ITERATOR)
    command = ("run", "--every", "2b", "program.py")
    assert detrain(*command, cwd=tmp_path, OTHERS=before, KILLED=before).status == -9
    newest = Catalogue(tmp_path / "ckpt").entries()[-1]
    os.truncate(next((tmp_path / "ckpt").glob("*.journal")), read(newest.path).meta.journal_bytes)
    resumed = detrain(*command, cwd=tmp_path, OTHERS=after, KILLED=before)

    assert resumed.status == errors.Diverged.exit_code, resumed.err
    assert "in the first run it went over iterator" in resumed.err


def test_info_tells_how_loaders_come_back_and_what_is_taken_from_outside(tmp_path: Path, detrain: Run, run: Run) -> None:
    text, why = FORWARDED["a generator"]
    run(
        text.replace("optimizer, stream", "import time, uuid\nseed = int(time.time()) + uuid.uuid4().int\noptimizer, stream"),
        tmp_path,
        die_at="1:7",
    )
    shown = detrain("info", "program.py", cwd=tmp_path).out

    assert f"the newest checkpoint, 1:6, loads again: {why}" in shown
    assert "clock: time.time (program.py:" in shown
    assert "): recorded by the first run, replayed when it resumes" in shown
    assert "entropy: uuid.uuid4 (program.py:" in shown
    assert "position is not set back" not in shown


def test_info_tells_where_the_probes_of_a_program_are(tmp_path: Path, detrain: Run) -> None:
    for name, body in (("fits", "model.fit(x, y)"), ("probed", "from detrain import record_epoch\nrecord_epoch(0)"), ("none", "")):
        (tmp_path / f"{name}.py").write_text(f"import keras\n{body}\n")
    fits, probed, none = (detrain("info", f"{name}.py", cwd=tmp_path).out for name in ("fits", "probed", "none"))

    assert "in Keras's own loops" in fits
    assert "probes are in the program already" in probed
    assert "probes are in the program already" not in fits + none
    assert "no training loop in the source: a run will show it" in none


def test_info_takes_a_whole_command_line(tmp_path: Path, detrain: Run) -> None:
    (tmp_path / "program.py").write_text("import keras\n")
    alone = detrain("info", "--json", "program.py", cwd=tmp_path).ok()

    assert detrain("info", "program.py", "--epochs", "3", "--json", "data", cwd=tmp_path).out == alone.out


def test_info_refuses_what_a_run_refuses(tmp_path: Path, detrain: Run) -> None:
    loop = "async def train():\n    async for x in loader:\n        optimizer.apply_gradients(x)\n"
    (tmp_path / "program.py").write_text(f"import keras\n{loop}")

    for command in (("info",), ("info", "--json"), ("run",)):
        refused = detrain(*command, "program.py", cwd=tmp_path)
        assert refused.status == errors.CannotRewrite.exit_code, command
        assert "program.py:3: the training loop is an `async for`" in refused.err


LIBRARY = """
import os
class Iterator:
    def __init__(self):
        self.at, self.thread = 0, __import__("threading").Thread()
    def __iter__(self):
        return self
    def __next__(self):
        if self.at >= 12:
            raise StopIteration
        os.write(2, b"load\\n")
        self.at += 1
        return self.at * 0.1
class Seekable(Iterator):
    def get_state(self):
        return {"at": self.at}
    def set_state(self, state):
        self.at = state["at"] + int(os.environ.get("OFF", "0"))
class Stateful:
    def __init__(self):
        self.iterator, self.start, self.thread = None, 0, __import__("threading").Thread()
    def __iter__(self):
        self.iterator = Iterator()
        self.iterator.at, self.start = self.start, 0
        return self.iterator
    def state_dict(self):
        return {"at": self.iterator.at if self.iterator else 0}
    def load_state_dict(self, state):
        self.start = state["at"] % 12
class Mute:
    def __iter__(self):
        return Iterator()
"""


def with_library(loader: str, folder: Path) -> tuple[str, dict[str, str]]:
    """A program whose loop goes over a loader of an installed library."""
    text = program(f"for x in {loader}:", "i = int(x * 10)", before="loader = somelib.Stateful()")
    text = text.replace("import numpy", "import somelib\nimport numpy").replace("x.sum(axis=0)", "np.float64(x)")
    return text, library(folder, {"somelib.py": LIBRARY})


@pytest.mark.parametrize("loader", ["somelib.Seekable()", "loader"])
def test_a_loader_of_a_library_that_offers_its_position_is_sought(loader: str, tmp_path: Path, run: Run) -> None:
    text, path = with_library(loader, tmp_path)
    run(text, tmp_path, die_at="1:8", **path)
    resumed = run(text, tmp_path, **path)

    assert resumed.status == 0, resumed.err
    assert "loaders are set to their positions" in resumed.err
    assert resumed.out == run(text, tmp_path, "--bare", **path).out[-len(resumed.out) :]
    assert loads(resumed) == 18


def test_a_loader_of_a_library_that_offers_none_is_loaded_from_again(tmp_path: Path, run: Run) -> None:
    text, path = with_library("somelib.Mute()", tmp_path)
    run(text, tmp_path, die_at="0:8", **path)
    resumed = run(text, tmp_path, **path)

    assert "are loaded again: what the batch loop goes over (somelib.Iterator)" in resumed.err
    assert resumed.out == run(text, tmp_path, "--bare", **path).out


@pytest.mark.parametrize(("off", "what"), [("1", "batch 1:6 has digest"), ("9", "epoch 1 has ended before 1:6; the first run had")])
def test_a_wrong_seek_is_caught(off: str, what: str, tmp_path: Path, run: Run) -> None:
    text, path = with_library("somelib.Seekable()", tmp_path)
    run(text, tmp_path, die_at="1:8", **path)
    resumed = run(text, tmp_path, OFF=off, **path)
    instead = run(text, tmp_path, "--loader", "forward", **path)

    assert resumed.status == errors.Diverged.exit_code
    assert what in resumed.err
    assert "--loader forward" in resumed.err
    assert instead.out == run(text, tmp_path, "--bare", **path).out[-len(instead.out) :]


# TensorFlow.

TENSORFLOW = """
import hashlib, os, signal, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
import numpy as np
import tensorflow as tf

def die(where):
    if os.environ.get("DIE_AT") == where:
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
rows = np.random.default_rng(0).normal(size=(96, 8)).astype("float32")
def loaded(row):
    tf.print("load", output_stream=sys.stderr)
    return row * 2
data = tf.data.Dataset.from_tensor_slices(rows).shuffle(20).batch(8).map(loaded)
noisy = data.map(lambda row: row + tf.random.normal([8]))
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dropout(0.3), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam()
optimizer.build(model.trainable_variables)
@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x, training=True) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss
@tf.function
def step_of(source):
    return step(next(source))
other = tf.data.Dataset.from_tensor_slices(rows[::-1]).shuffle(20).batch(8)
endless, closed = iter(data.repeat()), iter(other.repeat())  # of one set they would draw the seeds of reshuffling in a race
@tf.function
def step_of_closed():
    return step(next(closed))
class Die(keras.callbacks.Callback):
    turns = 0
    def on_train_batch_end(self, batch, logs=None):
        Die.turns += 1
        die(f"{Die.turns // 12}:{Die.turns % 12 - 1}")
"""
TENSORFLOW_LOOP = """
for epoch in range(3):
    for i{target} in {over}:
        loss = {step}
        die(f"{{epoch}}:{{i}}")
    print(epoch, float(loss), flush=True)
print("weights", hashlib.sha256(b"".join(np.asarray(v).tobytes() for v in model.variables)).hexdigest())
"""
FIT = """
model.compile("adam", "mse")
paired = data.map(lambda row: (row, row[:, :1]))
model.fit(paired, epochs=3, verbose=0, callbacks=[Die()])
print("weights", hashlib.sha256(b"".join(np.asarray(v).tobytes() for v in model.variables)).hexdigest())
"""
CUSTOM = TENSORFLOW + TENSORFLOW_LOOP.format(target=", x", over="enumerate(data)", step="step(x)")
DRAWING = TENSORFLOW + TENSORFLOW_LOOP.format(target=", x", over="enumerate(noisy)", step="step(x)")
INSIDE = TENSORFLOW + TENSORFLOW_LOOP.format(target="", over="range(12)", step="step_of(endless) + step_of_closed()")


@pytest.mark.slow
def test_a_data_set_is_sought_without_reading_what_lies_before(tmp_path: Path, run: Run) -> None:
    whole = run(CUSTOM, tmp_path, "--bare")
    run(CUSTOM, tmp_path, die_at="1:8")
    shutil.copytree(tmp_path / "ckpt", tmp_path / "tampered")
    resumed = run(CUSTOM, tmp_path)

    assert resumed.status == 0, resumed.err
    assert "resuming program at 1:6" in resumed.err
    assert "loaders are set to their positions" in resumed.err
    assert resumed.last_line() == whole.last_line()
    assert 12 < loads(resumed) <= 18  # of what lies ahead, a little may have waited in a buffer
    assert loads(whole) == 36

    _exchange_positions(tmp_path / "tampered")
    wrong = run(CUSTOM, tmp_path, "--ckpt", "tampered")
    assert wrong.status == errors.Diverged.exit_code
    assert "batch 1:6 has digest" in wrong.err


@pytest.mark.slow
def test_what_a_body_fetches_by_next_is_compared_with_what_the_first_run_fetched(tmp_path: Path, run: Run) -> None:
    rows = TENSORFLOW.replace("default_rng(0)", 'default_rng(int(os.environ.get("ROWS", 0)))')
    text = rows + TENSORFLOW_LOOP.format(target="", over="range(12)", step="step(next(endless))")
    whole = run(text, tmp_path, "--bare")
    run(text, tmp_path, die_at="1:8")
    shutil.copytree(tmp_path / "ckpt", tmp_path / "again")
    resumed = run(text, tmp_path)
    wrong = run(text, tmp_path, "--ckpt", "again", "--loader", "forward", ROWS="1")

    assert (resumed.status, resumed.last_line()) == (0, whole.last_line()), resumed.err
    assert wrong.status == errors.Diverged.exit_code
    assert "batch 1:6 has digest" in wrong.err


def _exchange_positions(home: Path) -> None:
    """Give the newest checkpoint the positions of the one before."""
    catalogue = Catalogue(home)
    wrong, right = sorted((e for e in catalogue.entries() if e.cursor.cut == "load"), key=lambda e: e.cursor.key())[-2:]
    one, other = read(wrong.path), read(right.path)
    names = [f"loader{number:05d}" for number in range(len(other.meta.loaders))]
    assert names
    arrays = {**other.arrays, **{name: one.arrays[name] for name in names}}
    changed = Snapshot(other.meta, other.tensors, other.rng, other.python, arrays)
    catalogue.save(right.program, right.run, right.cursor, changed)


@pytest.mark.slow
def test_fit_is_sought_without_reading_what_lies_before(tmp_path: Path, run: Run) -> None:
    whole = run(TENSORFLOW + FIT, tmp_path, "--bare")
    run(TENSORFLOW + FIT, tmp_path, die_at="1:8")
    resumed = run(TENSORFLOW + FIT, tmp_path)

    assert resumed.status == 0, resumed.err
    assert "resuming program at 1:6" in resumed.err
    assert "loaders are set to their positions" in resumed.err
    assert resumed.last_line() == whole.last_line()
    assert loads(resumed) == loads(whole) - 18


@pytest.mark.slow
def test_a_data_set_whose_maps_draw_is_loaded_from_again(tmp_path: Path, run: Run) -> None:
    run(DRAWING, tmp_path, die_at="1:8")
    resumed = run(DRAWING, tmp_path)

    assert "are loaded again: MapDataset in its tf.data pipeline draws random numbers (RandomStandardNormal)" in resumed.err
    assert resumed.last_line() == bare(tmp_path / "program.py").last_line()


@pytest.mark.slow
@pytest.mark.parametrize("every", ["1", "3b"])
def test_iterators_that_compiled_functions_advance_come_back(every: str, tmp_path: Path, run: Run) -> None:
    whole = run(INSIDE, tmp_path, "--bare")
    run(INSIDE, tmp_path, "--every", every, die_at="1:8")
    resumed = run(INSIDE, tmp_path, "--every", every)

    assert resumed.last_line() == whole.last_line()
    assert "not captured" not in resumed.err


KEPT = """
rows = np.random.default_rng(0).normal(size=(24, 5)).astype("float32")

class Trainer:
    def __init__(self):
        self.data = tf.data.Dataset.from_tensor_slices(rows).shuffle(24){noise}.batch(6).prefetch(2)
        self.rows, self.others, self.weights = iter(self.data), {{}}, tf.Variable(tf.ones(5))
        self.optimizer = keras.optimizers.SGD(0.1)

    def batch(self):
        try:
            return next(self.rows)
        except StopIteration:
            self.rows = iter(self.data)
            return next(self.rows)

    def step(self, number):
        if number % 2 == 0:
            self.others["tensors"] = iter(self.data)
        if number % 4 == 0:
            self.others["arrays"] = self.data.as_numpy_iterator()
        other = next(self.others["tensors"]) + next(self.others["arrays"])
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(((self.batch() + 0.01 * other) * self.weights) ** 2)
        self.optimizer.apply_gradients([(tape.gradient(loss, self.weights), self.weights)])
        return loss

trainer = Trainer()
for step in range(30):
    loss = trainer.step(step)
    die(str(step))
    if step % 3 == 0:
        print(step, float(loss), flush=True)
print(trainer.weights.numpy().tobytes().hex())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "deaths"),
    [
        ("", ("5", "6", "19")),
        (".map(lambda row: row + tf.random.normal([5]))", ("13", "15")),
        pytest.param("", ("7",), marks=pytest.mark.slow),
        pytest.param(".map(lambda row: row + tf.random.normal([5]))", ("4", "9", "10", "22"), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_iterators_that_the_body_makes_and_keeps_are_made_again(
    noise: str, deaths: tuple[str, ...], tmp_path: Path, detrain: Run
) -> None:
    """They were named, and the resumed run went on with a new one: only what was there before the loop was set to its
    position.
    """
    pytest.importorskip("tensorflow")
    (tmp_path / "program.py").write_text(TENSORFLOW.partition("rows = ")[0] + KEPT.format(noise=noise))

    whole = bare(tmp_path / "program.py")
    for death in (*deaths, ""):
        done = detrain("run", "--every", "1b", "program.py", cwd=tmp_path, DIE_AT=death)
        assert done.status == (-9 if death else 0), done.err
        assert "not captured" not in done.err

    assert done.last_line() == whole.last_line()


def test_one_that_cannot_come_back_is_named_and_no_run_goes_on_without_it(tmp_path: Path, run: Run) -> None:
    program = INSIDE.replace("iter(data.repeat())", "iter(noisy.repeat())")
    named = run(program, tmp_path, "--every", "3b", die_at="1:8")
    resumed = run(program, tmp_path, "--every", "3b")

    assert "iterator (a tf.data iterator that a tf.function advances; MapDataset in its tf.data pipeline draws" in named.err
    assert resumed.status == errors.NotCapturable.exit_code
    assert "lacks iterator (a tf.data iterator that a tf.function advances; MapDataset" in resumed.err


@pytest.mark.slow
def test_positions_of_pipelines_are_exact_in_another_process_or_refused(tmp_path: Path) -> None:
    from tests.e2e.pipelines import EXACT, REFUSED

    outs = []
    for what in ("save", "load"):
        command = [sys.executable, "-m", "tests.e2e.pipelines", what, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment(), timeout=120)
        outs.append(dict(line.split(": ", 1) for line in done.stdout.splitlines()))
    saved, loaded = outs

    assert loaded == {name: saved[name] for name in EXACT}
    for name, (_make, why) in REFUSED.items():
        assert why in saved[name]


NAMELESS = """
import tensorflow as tf

class Source:
    def __init__(self, seed):
        self.stream, self.calls = np.random.default_rng(seed), 0
    def __call__(self):
        self.calls += 1
        for row in self.stream.permutation(6):
            yield np.float32([row + self.stream.normal(), 1, self.calls])
    def rows(self):
        return self()

def counted(calls=0):
    def rows():
        nonlocal calls
        calls += 1
        for row in range(6):
            yield np.float32([1, row * calls, calls])
    return rows

spec = tf.TensorSpec([3], tf.float32)
made = [tf.data.Dataset.from_generator(each, output_signature=spec) for each in (Source(3), Source(4).rows, counted())]
data = tf.data.Dataset.zip(*made).batch(2)
del made
weights = tf.Variable(tf.ones(3))
optimizer = tf.keras.optimizers.SGD(0.01)
for epoch in range(4):
    for step, parts in enumerate(data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((weights - sum(parts)) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
        die(f"{epoch}:{step}")
print(weights.numpy().tobytes().hex())
"""


@pytest.mark.slow
@pytest.mark.parametrize("every", ["1", "1b"])
def test_what_only_a_pipeline_calls_is_state(every: str, tmp_path: Path, detrain: Run) -> None:
    """No name leads to it: its stream began anew, and the resumed run stopped at its first batch."""
    pytest.importorskip("tensorflow")
    whole = ran(detrain, tmp_path, PRELUDE + NAMELESS, "--ckpt", "whole").ok()
    for death in ("1:1", "3:2", ""):
        last = detrain("run", "--every", every, "program.py", cwd=tmp_path, DIE_AT=death)
        assert last.status == (-9 if death else 0), last.err

    assert last.out == whole.out
