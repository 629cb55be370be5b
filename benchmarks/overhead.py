"""What detrain costs: run time under `detrain run` / bare with the same determinism, and fast-forward / bare loader iteration.

    python benchmarks/overhead.py [--repeat N] [--json]

Two measurements of the same three workloads, with a checkpoint an epoch, tracing left out:

- *in turn*: one process, in which probes are on and off in alternate epochs. Each epoch with probes (its checkpoint included) is
  compared with its two neighbours without. This is the figure to trust on a machine that others use too.
- *pairs*: `--repeat` pairs of processes, bare (`detrain run --bare`: the same settings, no probes) and under detrain.

Given are the median and the range of the middle half. Fast-forward: batches a second that a resumed loop passes over (restoring
the state included), against plain iteration over the same loader.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

WORKLOADS = {
    "dense, 1024 steps an epoch": """
import json, os, time, keras, numpy as np, tensorflow as tf
layers = keras.layers
model = keras.Sequential([keras.Input((64,)), layers.Dense(512, activation="relu"), layers.Dropout(0.2), layers.Dense(10)])
x, y = np.random.normal(size=(65536, 64)).astype("float32"), np.random.randint(0, 10, 65536)
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(4096).batch(64)
EPOCHS = 4
""",
    "convolution, 128 steps an epoch": """
import json, os, time, keras, numpy as np, tensorflow as tf
layers = keras.layers
model = keras.Sequential([keras.Input((32, 32, 3)), layers.Conv2D(32, 3, activation="relu"), layers.BatchNormalization(),
    layers.Conv2D(32, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten(), layers.Dropout(0.3), layers.Dense(10)])
x, y = np.random.normal(size=(4096, 32, 32, 3)).astype("float32"), np.random.randint(0, 10, 4096)
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(4096).batch(32)
EPOCHS = 3
""",
    "recurrent, 32 steps an epoch": """
import json, os, time, keras, numpy as np, tensorflow as tf
layers = keras.layers
model = keras.Sequential([keras.Input((96,)), layers.Embedding(5000, 96), layers.LSTM(128), layers.Dropout(0.3), layers.Dense(10)])
x, y = np.random.randint(0, 5000, (2048, 96)), np.random.randint(0, 10, 2048)
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1024).batch(64)
EPOCHS = 3
""",
}

LOOP = """
def epochs():
    if "ALTERNATE" not in os.environ:
        yield from range(EPOCHS)
        return
    from detrain.runtime import probes
    session, ends = probes._session, []
    for epoch in range(int(os.environ["ALTERNATE"])):
        ends.append(time.perf_counter())
        probes._session, probes._loops.wrapped_epoch = (session if epoch % 2 else None), epoch
        yield epoch
    print("ENDS", json.dumps([*ends, time.perf_counter()]), flush=True)
    os._exit(0)

optimizer = keras.optimizers.Adam(1e-3)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_of(y, model(x, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss

started = None
for epoch in epochs():
    if epoch == 1:
        started = time.perf_counter()
    for x, y in data:
        loss = step(x, y)
    float(loss)
print("SECONDS", time.perf_counter() - started)
"""

FORWARD = """
import json, os, sys, time
import numpy as np, tensorflow as tf
x = np.random.normal(size=(32768, 256)).astype("float32")
data = tf.data.Dataset.from_tensor_slices(x).shuffle(1000).batch(32).repeat(8)
started = time.perf_counter()
for batch in data.take(8000):
    pass
print("PLAIN", 8000 / (time.perf_counter() - started))
class Optimizer:
    def apply_gradients(self, x):
        self.steps += 1
optimizer = Optimizer()
optimizer.steps = 0
print("START", time.perf_counter(), flush=True)
for batch in data:
    if optimizer.steps == 8000:
        print("ARRIVED", time.perf_counter(), flush=True)
        os._exit(0)
    optimizer.apply_gradients(batch)
"""


def seconds(program: Path, *options: str) -> float:
    """Run a workload; return the seconds of its loop."""
    done = subprocess.run(
        [sys.executable, "-m", "detrain", "run", *options, str(program)],
        capture_output=True, text=True, check=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )  # fmt: skip
    return float(done.stdout.split("SECONDS")[1])


def in_turn(name: str, epochs: int, folder: Path) -> dict[str, object]:
    """Measure one workload in one process, probes on in every other epoch."""
    program = folder / "workload.py"
    program.write_text(WORKLOADS[name] + LOOP)
    done = subprocess.run(
        [sys.executable, "-m", "detrain", "run", "--fresh", "--ckpt", str(folder / "home"), str(program)],
        capture_output=True, text=True, check=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "ALTERNATE": str(epochs)},
    )  # fmt: skip
    ends = json.loads(done.stdout.split("ENDS")[1])
    took = [end - start for start, end in itertools.pairwise(ends)]
    ratios = [2 * took[at] / (took[at - 1] + took[at + 1]) for at in range(3, epochs - 1, 2)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {"workload": name, "bare_s": statistics.median(took[2::2]), "ratio": middle, "quartiles": [low, high], "epochs": epochs}


def pairs(name: str, repeat: int, folder: Path) -> dict[str, object]:
    """Measure one workload."""
    program = folder / "workload.py"
    program.write_text(WORKLOADS[name] + LOOP)
    ratios, bares = [], []
    for number in range(repeat):
        pair = {}
        for kind in ("bare", "detrain") if number % 2 else ("detrain", "bare"):
            options = ["--bare"] if kind == "bare" else ["--fresh", "--ckpt", str(folder / "home")]
            pair[kind] = seconds(program, *options)
        ratios.append(pair["detrain"] / pair["bare"])
        bares.append(pair["bare"])
    low, middle, high = statistics.quantiles(ratios, n=4) if repeat > 1 else (ratios[0],) * 3
    return {"workload": name, "bare_s": statistics.median(bares), "ratio": middle, "quartiles": [low, high], "runs": repeat}


def forward(folder: Path) -> dict[str, object]:
    """Measure fast-forward against plain iteration over the same loader."""
    program, home = folder / "forward.py", folder / "forward"
    program.write_text(FORWARD)
    command = [sys.executable, "-m", "detrain", "run", "--every", "8000b", "--ckpt", str(home), str(program)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    subprocess.run(command, capture_output=True, check=True, env=environment)
    words = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.split()
    plain = float(words[words.index("PLAIN") + 1])
    took = float(words[words.index("ARRIVED") + 1]) - float(words[words.index("START") + 1])
    return {"plain_batches_s": plain, "forward_batches_s": 8000 / took, "ratio": 8000 / took / plain}


def main() -> None:
    """Run all workloads and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=7, help="pairs of processes (0 for none)")
    parser.add_argument("--epochs", type=int, default=42, help="epochs of the measurement in turn")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        alternated = [in_turn(workload, args.epochs, Path(name)) for workload in WORKLOADS]
        paired = [pairs(workload, args.repeat, Path(name)) for workload in WORKLOADS if args.repeat]
        forwards = [forward(Path(tempfile.mkdtemp(dir=name))) for _ in range(max(args.repeat // 2, 3))]
    if args.json:
        print(json.dumps({"in_turn": alternated, "pairs": paired, "forward": forwards}, indent=2))
        return
    for kind, rows in (("in turn", alternated), ("pairs", paired)):
        for row in rows:
            low, high = row["quartiles"]  # type: ignore[misc]
            print(
                f"{row['workload']:32} {kind:8} bare {row['bare_s']:6.2f} s   "
                f"detrain/bare {row['ratio']:.3f}  [{low:.3f}, {high:.3f}]"
            )
    ratios = [float(row["ratio"]) for row in forwards]  # type: ignore[arg-type]
    print(f"fast-forward / bare iteration {statistics.median(ratios):.2f}  [{min(ratios):.2f}, {max(ratios):.2f}]")


if __name__ == "__main__":
    main()
