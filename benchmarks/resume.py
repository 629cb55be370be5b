"""What a resume takes: detrain (seek, and loading again) beside Keras's BackupAndRestore, tf.train.Checkpoint with the
iterator, and dataset.skip, all in one run.

    python benchmarks/resume.py [--repeat N] [--json]

One model with dropout on a reshuffled tf.data set of 2000 batches an epoch, with a checkpoint each 500. Each method's
process kills itself in the second epoch, one batch after a checkpoint, and is started again (`--repeat` times, from
copies of what was left).

- *first new step*: seconds from the start of the process until a step is done that had not been done before it was
  killed.
- *twice*: batches that were trained on twice. *bits*: how many bits of the final weights differ from those of an
  uninterrupted run.
- *seek / floor*: the floor is a fresh start of the same program under detrain until its first step, and a read of the
  checkpoint.
- *forward / bare*: batches a second while loading again, against plain iteration over the same set in a process of its
  own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

STEPS, EPOCHS, EVERY, STOP = 2000, 2, 500, 3501

SETUP = """
import json, os, signal, sys, time
import keras, numpy as np, tensorflow as tf
keras.utils.set_random_seed(0)
tf.config.experimental.enable_op_determinism()
STEPS, EPOCHS, EVERY = 2000, 2, 500
x = np.random.default_rng(0).normal(size=(STEPS * 32, 128)).astype("float32")
def prepared(row):  # about what decoding and cropping an image costs
    for _ in range(6):
        row = tf.sort(tf.sin(row * 1.1))
    return row, row[:1]
data = tf.data.Dataset.from_tensor_slices(x).shuffle(4096).map(prepared).batch(32)
layers = keras.layers
model = keras.Sequential([keras.Input((128,)), layers.Dense(64, activation="relu"), layers.Dropout(0.2), layers.Dense(1)])
optimizer = keras.optimizers.Adam(1e-3)
optimizer.build(model.trainable_variables)
seen = [0]
def done():
    seen[0] += 1
    os.write(2, f"STEP {time.time()}\\n".encode())  # no file: those are set back to the cut
    if os.environ.get("STOP") == str(seen[0]):  # not in a name: those come back with a checkpoint
        os.kill(os.getpid(), signal.SIGKILL)
def finish():
    np.save(os.environ["OUT"] + ".npy", np.concatenate([np.asarray(v).reshape(-1) for v in model.trainable_variables]))
@tf.function
def step(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(a, training=True) - b) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
"""

PROGRAMS = {
    "detrain": SETUP
    + """
for epoch in range(EPOCHS):
    for a, b in data:
        step(a, b)
        done()
finish()
""",
    "tf.train.Checkpoint + iterator": SETUP
    + """
iterator, at = iter(data.repeat(EPOCHS)), tf.Variable(0)
manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model, optimizer=optimizer, iterator=iterator, at=at), "tf", 3)
manager.restore_or_initialize()
while int(at) < STEPS * EPOCHS:
    step(*next(iterator))
    at.assign_add(1)
    if int(at) % EVERY == 0:
        manager.save()
    done()
finish()
""",
    "dataset.skip": SETUP
    + """
at = tf.Variable(0)
manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model, optimizer=optimizer, at=at), "tf", 3)
manager.restore_or_initialize()
iterator = iter(data.repeat(EPOCHS).skip(int(at)))
while int(at) < STEPS * EPOCHS:
    step(*next(iterator))
    at.assign_add(1)
    if int(at) % EVERY == 0:
        manager.save()
    done()
finish()
""",
    "Keras BackupAndRestore": SETUP
    + """
class Done(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        done()
model.compile(optimizer, "mse")
backup = keras.callbacks.BackupAndRestore("keras", save_freq=EVERY)
model.fit(data, epochs=EPOCHS, verbose=0, callbacks=[backup, Done()])
finish()
""",
}
BARE = (
    SETUP
    + """
iterator = iter(data)
next(iterator)
started = time.perf_counter()
for _ in range(1500):
    next(iterator)
print("RATE", 1500 / (time.perf_counter() - started))
"""
)
DETRAIN = {"detrain, seek": "seek", "detrain, loading again": "forward"}


@dataclass(frozen=True)
class Row:
    """One method: seconds to the first new step (median, quartiles), batches done twice, bits
    that differ, of how many.
    """

    method: str
    first_new_step_s: float
    quartiles_s: tuple[float, float]
    twice: int
    differing_bits: int
    bits: int


def start(command: list[str], folder: Path, name: str, stop: int = 0) -> list[float]:
    """Run a process in a folder; return when each of its steps was done, in seconds from its start."""
    out = folder / name
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "OUT": str(out), "STOP": str(stop)}
    began = time.time()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, -9):
        raise SystemExit(f"{command} failed:\n{done.stderr[-2000:]}")
    return [float(line[5:]) - began for line in done.stderr.splitlines() if line.startswith("STEP ")]


def command_of(method: str, loader: str = "auto") -> list[str]:
    """Return how a method's program is started."""
    if method == "detrain":
        return [sys.executable, "-m", "detrain", "run", "--every", f"{EVERY}b", "--loader", loader, "program.py"]
    return [sys.executable, "program.py"]


def measure(method: str, repeat: int, folder: Path) -> tuple[list[Row], Path]:
    """Measure one method. Returns its rows, and the folder that the killed process left."""
    whole, killed = folder / method / "whole", folder / method / "killed"
    for each in (whole, killed):
        each.mkdir(parents=True)
        (each / "program.py").write_text(PROGRAMS[method])
    start(command_of(method), whole, "weights")
    start(command_of(method), killed, "weights", STOP)
    expected = np.load(whole / "weights.npy")
    rows = []
    for name, loader in DETRAIN.items() if method == "detrain" else [(method, "auto")]:
        firsts, twice, differing = [], 0, 0
        for turn in range(repeat):
            again = folder / method / f"{loader}{turn}"
            shutil.copytree(killed, again, copy_function=shutil.copy2)
            times = start(command_of(method, loader), again, "weights")
            twice = STOP + len(times) - STEPS * EPOCHS
            firsts.append(times[twice])
            got = np.load(again / "weights.npy")
            differing = int(np.bitwise_count(got.view(np.uint32) ^ expected.view(np.uint32)).sum())
        rows.append(Row(name, statistics.median(firsts), _quartiles(firsts), twice, differing, expected.nbytes * 8))
    return rows, killed


def floor(repeat: int, killed: Path, folder: Path) -> tuple[float, float]:
    """Return the median seconds of a fresh start under detrain until its first step, and of a read of the newest
    checkpoint.
    """
    from detrain.store import Catalogue, read

    starts, reads = [], []
    newest = Catalogue(killed / "ckpt").entries()[-1].path
    for turn in range(repeat):
        fresh = folder / f"fresh{turn}"
        fresh.mkdir()
        (fresh / "program.py").write_text(PROGRAMS["detrain"])
        starts.append(start(command_of("detrain"), fresh, "weights", 1)[0])
        began = time.perf_counter()
        read(newest)
        reads.append(time.perf_counter() - began)
    return statistics.median(starts), statistics.median(reads)


def bare_rate(repeat: int, folder: Path) -> float:
    """Return the batches a second of plain iteration."""
    (folder / "bare.py").write_text(BARE)
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "OUT": str(folder / "bare")}
    command = [sys.executable, "bare.py"]
    outs = [
        subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout
        for _ in range(repeat)
    ]
    return statistics.median(float(out.split("RATE")[1]) for out in outs)


def _quartiles(values: list[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _middle, high = statistics.quantiles(values, n=4)
    return low, high


def main() -> None:
    """Run all methods and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5, help="resumes of each method")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, rows, killed = Path(name), [], {}
        for method in PROGRAMS:
            more, killed[method] = measure(method, args.repeat, folder)
            rows += more
        fresh_s, read_s = floor(args.repeat, killed["detrain"], folder)
        rate = bare_rate(args.repeat, folder)
    by_name = {row.method: row.first_new_step_s for row in rows}
    loading_s = by_name["detrain, loading again"] - by_name["detrain, seek"]
    ratios = {
        "seek / floor": by_name["detrain, seek"] / (fresh_s + read_s),
        "forward / bare": (STOP - 1 - STEPS) / loading_s / rate,
    }
    if args.json:
        what = {"rows": [asdict(row) for row in rows], "fresh_start_s": fresh_s, "read_s": read_s, "bare_batches_s": rate, **ratios}
        print(json.dumps(what, indent=2))
        return
    print(f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, {args.repeat} resumes of each")
    for row in rows:
        low, high = row.quartiles_s
        spread = f"[{low:.2f}, {high:.2f}]"
        print(
            f"{row.method:31} first new step {row.first_new_step_s:6.2f} s {spread:16} "
            f"twice {row.twice:5}   bits {row.differing_bits} of {row.bits}"
        )
    print(f"fresh start {fresh_s:.2f} s, read of the checkpoint {read_s:.3f} s, bare iteration {rate:.0f} batches/s")
    print("   ".join(f"{name} {value:.2f}" for name, value in ratios.items()))


if __name__ == "__main__":
    main()
