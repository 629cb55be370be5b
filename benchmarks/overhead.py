"""What detrain costs: run time under `detrain run` / bare with the same determinism, and fast-forward / bare loader
iteration.

    python benchmarks/overhead.py [--framework tensorflow | torch | compiled | jax] [--repeat N] [--json]

Measurements of the same workloads, with a checkpoint an epoch, tracing left out:

- *inside*: processor time spent inside of what the probes call (batches and checkpoints; of the former what digests and
  the journal take), in whatever thread, against that of the whole process in the same epochs. It does not see what the
  probes' memory traffic costs the program; but it does not see other processes either: this is the figure to trust on a
  machine that others use too.
- *in turn*: one process, in which probes are on and off in alternate epochs. Each epoch with probes (its checkpoint
  included) is compared with its two neighbours without, by processor time and by wall time. Not for `fit`, whose data
  pipeline keeps its stage.
- *pairs*: `--repeat` pairs of processes, bare (`detrain run --bare`: the same settings, no probes) and under detrain,
  compared by the median of their epochs' times.

Given are the median and the range of the middle half. Fast-forward: batches a second that a resumed loop passes over
(restoring the state included), against plain iteration over the same loader.
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
import json, os, sys, time, keras, numpy as np, tensorflow as tf
layers = keras.layers
model = keras.Sequential([keras.Input((64,)), layers.Dense(512, activation="relu"), layers.Dropout(0.2), layers.Dense(10)])
x, y = np.random.normal(size=(65536, 64)).astype("float32"), np.random.randint(0, 10, 65536)
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(4096).batch(64)
EPOCHS = 4
""",
    "convolution, 128 steps an epoch": """
import json, os, sys, time, keras, numpy as np, tensorflow as tf
layers = keras.layers
model = keras.Sequential([keras.Input((32, 32, 3)), layers.Conv2D(32, 3, activation="relu"), layers.BatchNormalization(),
    layers.Conv2D(32, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten(), layers.Dropout(0.3), layers.Dense(10)])
x, y = np.random.normal(size=(4096, 32, 32, 3)).astype("float32"), np.random.randint(0, 10, 4096)
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(4096).batch(32)
EPOCHS = 3
""",
    "recurrent, 128 steps an epoch": """
import json, os, sys, time, keras, numpy as np, tensorflow as tf
layers = keras.layers
model = keras.Sequential([keras.Input((96,)), layers.Embedding(5000, 96), layers.LSTM(128), layers.Dropout(0.3), layers.Dense(10)])
x, y = np.random.randint(0, 5000, (8192, 96)), np.random.randint(0, 10, 8192)
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1024).batch(64)
EPOCHS = 3
""",
    "wide convolution, 128 steps an epoch": """
import json, os, sys, time, keras, numpy as np, tensorflow as tf
layers = keras.layers
blocks = [layer for _ in range(3) for layer in (layers.Conv2D(64, 3, padding="same", use_bias=False), layers.BatchNormalization(),
    layers.ReLU())]
last = layers.GlobalAveragePooling2D(), layers.Dropout(0.3), layers.Dense(10)
model = keras.Sequential([keras.Input((32, 32, 3)), *blocks, *last])
x, y = np.random.normal(size=(4096, 32, 32, 3)).astype("float32"), np.random.randint(0, 10, 4096)
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(4096).batch(32)
EPOCHS = 3
""",
    "fit, 128 steps an epoch": """
import json, os, sys, time, keras, numpy as np, tensorflow as tf
layers = keras.layers
model = keras.Sequential([keras.Input((32, 32, 3)), layers.Conv2D(32, 3, activation="relu"), layers.BatchNormalization(),
    layers.Conv2D(32, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten(), layers.Dropout(0.3), layers.Dense(10)])
x, y = np.random.normal(size=(4096, 32, 32, 3)).astype("float32"), np.random.randint(0, 10, 4096)
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(4096).batch(32)
EPOCHS = 3
""",
}

TORCH_WORKLOADS = {
    "torch dense, 512 steps an epoch": """
import json, os, sys, time, numpy as np, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Dropout(0.2), nn.Linear(512, 10))
x, y = torch.randn(32768, 64), torch.randint(0, 10, (32768,))
data = DataLoader(TensorDataset(x, y), 64, shuffle=True)
EPOCHS = 4
""",
    "torch convolution, 128 steps an epoch": """
import json, os, sys, time, numpy as np, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.BatchNorm2d(32), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Dropout(0.3), nn.LazyLinear(10))
model(torch.zeros(2, 3, 32, 32))
x, y = torch.randn(4096, 3, 32, 32), torch.randint(0, 10, (4096,))
data = DataLoader(TensorDataset(x, y), 32, shuffle=True)
EPOCHS = 3
""",
    "torch transformer, 64 steps an epoch": """
import json, os, sys, time, numpy as np, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(1000, 128), nn.Linear(128, 10)
        layer = nn.TransformerEncoderLayer(128, 4, 256, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    def forward(self, x):
        return self.head(self.encoder(self.words(x)).mean(1))
model = Net()
x, y = torch.randint(0, 1000, (2048, 48)), torch.randint(0, 10, (2048,))
data = DataLoader(TensorDataset(x, y), 32, shuffle=True)
EPOCHS = 3
""",
    "torch workers that augment, 128 steps an epoch": """
import json, os, random, sys, time, numpy as np, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
class Rows(Dataset):
    def __len__(self):
        return 4096
    def __getitem__(self, index):
        return images[index].roll(random.randrange(4), 1) + 0.1 * torch.randn(3, 32, 32) + np.random.normal(scale=0.1), kinds[index]
model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(25088, 10))
images, kinds = torch.randn(4096, 3, 32, 32).double(), torch.randint(0, 10, (4096,))
model = model.double()
data = DataLoader(Rows(), 32, shuffle=True, num_workers=2)
EPOCHS = 3
""",
}

COMPILED_WORKLOADS = {
    name.replace("torch", "compiled"): f"{text}model = torch.compile(model)\n"
    for name, text in TORCH_WORKLOADS.items()
    if "convolution" in name or "transformer" in name
}

JAX_START = """
import json, os, sys, time, numpy as np, jax, jax.numpy as jnp, optax
from flax import nnx
def batches():
    order = np.random.permutation(len(x))
    for at in range(0, len(x), SIZE):
        yield x[order[at : at + SIZE]], y[order[at : at + SIZE]]
"""

JAX_WORKLOADS = {
    "jax dense, 256 steps an epoch": """
rngs = nnx.Rngs(0)
model = nnx.Sequential(nnx.Linear(256, 2048, rngs=rngs), nnx.relu, nnx.Linear(2048, 2048, rngs=rngs), nnx.relu,
    nnx.Dropout(0.2, rngs=rngs), nnx.Linear(2048, 10, rngs=rngs))
SIZE = 128
x, y = np.random.normal(size=(256 * SIZE, 256)).astype("float32"), np.random.randint(0, 10, 256 * SIZE)
EPOCHS = 3
""",
    "jax convolution, 128 steps an epoch": """
rngs = nnx.Rngs(0)
model = nnx.Sequential(nnx.Conv(3, 32, (3, 3), rngs=rngs), nnx.relu, nnx.BatchNorm(32, rngs=rngs),
    nnx.Conv(32, 32, (3, 3), strides=2, rngs=rngs), nnx.relu, lambda h: h.reshape(len(h), -1), nnx.Linear(8192, 10, rngs=rngs))
SIZE = 32
x, y = np.random.normal(size=(128 * SIZE, 32, 32, 3)).astype("float32"), np.random.randint(0, 10, 128 * SIZE)
EPOCHS = 3
""",
    "jax attention, 64 steps an epoch": """
rngs = nnx.Rngs(0)
class Net(nnx.Module):
    def __init__(self):
        self.words, self.head = nnx.Embed(1000, 128, rngs=rngs), nnx.Linear(128, 10, rngs=rngs)
        self.mixed = nnx.List([nnx.MultiHeadAttention(4, 128, decode=False, rngs=rngs) for _ in range(3)])
        self.wide = nnx.List([nnx.Linear(128, 128, rngs=rngs) for _ in range(3)])
    def __call__(self, ids):
        h = self.words(ids)
        for mixed, wide in zip(self.mixed, self.wide):
            h = h + mixed(h)
            h = h + nnx.gelu(wide(h))
        return self.head(h.mean(1))
model = Net()
SIZE = 32
x, y = np.random.randint(0, 1000, (64 * SIZE, 48)), np.random.randint(0, 10, 64 * SIZE)
EPOCHS = 3
""",
}

JAX_WORKLOADS["jax attention, 384 steps an epoch"] = JAX_WORKLOADS["jax attention, 64 steps an epoch"].replace(
    "64 * SIZE", "384 * SIZE"
)

TIMED = """
spent = {}
def real_ns():  # the program's own clock first looks who asks
    return int(sys.modules["detrain.base.timing"]._wall() * 1e9)
def timed(owner, name, kind):
    import functools, threading
    act, inside = getattr(owner, name), timed.__dict__.setdefault("inside", threading.local())
    @functools.wraps(act)
    def measured(*args, **kwargs):
        depth = inside.__dict__.setdefault("depth", 0)
        if depth and kind != "journal":
            return act(*args, **kwargs)
        clock = time.thread_time_ns if kind == "epoch" else real_ns  # asking the first takes a system call
        started, wall, inside.depth = clock(), real_ns(), depth + (kind != "journal")
        try:
            return act(*args, **kwargs)
        finally:
            inside.depth = depth
            total, count = spent.get(kind, (0, 0))
            spent[kind] = total + clock() - started, count + 1
            if name == "at_epoch":
                spent["stall"] = spent.get("stall", (0, 0))[0] + real_ns() - wall, 0
    setattr(owner, name, measured)
if "INSIDE" in os.environ:
    session = sys.modules["detrain.runtime.session.probes"]._session  # an import of detrain would say: the probes are there
    for owner, kind, names in (
        (session, "batch", ("turn", "at_load", "end_load", "record_batch_fast", "at_batch", "note_fetched", "on_update")),
        (session, "epoch", ("at_epoch", "at_end")),
        (session.parts.saves, "epoch", ("_write",)),
        (session.recorder, "journal", ("note_streams",)),
        (session.recorder.batches, "journal", ("_record", "note_fetched")),
    ):
        for name in names:
            timed(owner, name, kind)
marks = []
def mark():
    marks.append((time.perf_counter(), time.process_time(), {kind: total for kind, (total, _count) in spent.items()}))
"""

FIT = """
class Marks(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        mark()
model.compile(keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(data, epochs=int(os.environ.get("EPOCHS", EPOCHS)) + 1, verbose=0, callbacks=[Marks()])
print("MARKS", json.dumps(marks))
"""

EPOCHS = """
def epochs():
    if "ALTERNATE" not in os.environ:
        yield from range(int(os.environ.get("EPOCHS", EPOCHS)) + 1)
        return
    probes = sys.modules["detrain.runtime.session.probes"]  # an import of detrain would say that the probes are there already
    session, ends = probes._session, []
    for epoch in range(int(os.environ["ALTERNATE"])):
        ends.append((time.perf_counter(), time.process_time()))
        probes._session, probes._loops.wrapped_epoch = (session if epoch % 2 else None), epoch
        yield epoch
    assert session.position.phase == 0, "there are no probes in the loops"
    print("ENDS", json.dumps([*ends, (time.perf_counter(), time.process_time())]), flush=True)
    os._exit(0)
"""

LOOP = """
optimizer = keras.optimizers.Adam(1e-3)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_of(y, model(x, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss

for epoch in epochs():
    mark()
    for x, y in data:
        loss = step(x, y)
    float(loss)
print("MARKS", json.dumps(marks))
"""

TORCH_LOOP = """
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for epoch in epochs():
    mark()
    for x, y in data:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    float(loss)
print("MARKS", json.dumps(marks))
"""

JAX_LOOP = """
optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)

@nnx.jit
def step(model, optimizer, x, y):
    def loss_of(model):
        return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()
    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss

for epoch in epochs():
    mark()
    for a, b in batches():
        loss = step(model, optimizer, a, b)
    float(loss)
print("MARKS", json.dumps(marks))
"""

FRAMEWORKS = {"tensorflow": WORKLOADS, "torch": TORCH_WORKLOADS, "compiled": COMPILED_WORKLOADS, "jax": JAX_WORKLOADS}

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


def source(name: str) -> str:
    """Return the program of a workload."""
    if name in JAX_WORKLOADS:
        return JAX_START + JAX_WORKLOADS[name] + TIMED + EPOCHS + JAX_LOOP
    if name not in WORKLOADS:
        return (TORCH_WORKLOADS | COMPILED_WORKLOADS)[name] + TIMED + EPOCHS + TORCH_LOOP
    return WORKLOADS[name] + TIMED + (FIT if name.startswith("fit") else EPOCHS + LOOP)


Epochs = list[tuple[float, float, dict[str, int]]]
"""Of each epoch but the first (which traces): wall seconds, processor seconds, nanoseconds inside by kind."""


def epochs_of(program: Path, *options: str, **variables: str) -> Epochs:
    """Run a workload; return what its epochs took."""
    done = subprocess.run(
        [sys.executable, "-m", "detrain", "run", *options, str(program)],
        capture_output=True, text=True, check=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **variables},
    )  # fmt: skip
    marks = json.loads(done.stdout.split("MARKS")[1])[1:]
    return [
        (end[0] - start[0], end[1] - start[1], {kind: total - start[2].get(kind, 0) for kind, total in end[2].items()})
        for start, end in itertools.pairwise(marks)
    ]


def spread(values: list[float]) -> list[float]:
    """Return quartile, median, quartile."""
    return statistics.quantiles(values, n=4) if len(values) > 1 else values * 3


def inside(name: str, epochs: int, folder: Path) -> dict[str, object]:
    """Measure what share of a process's time is detrain's, epoch by epoch."""
    program = folder / "workload.py"
    program.write_text(source(name))
    home = str(folder / "home")
    took = epochs_of(program, "--fresh", "--ckpt", home, INSIDE="1", EPOCHS=str(epochs))
    steps = int(name.split(", ")[1].split(maxsplit=1)[0])
    assert all(spent.get("batch") for *_took, spent in took), "there are no probes in the loops"
    own = [(spent.get("batch", 0) + spent.get("epoch", 0)) / 1e9 for _wall, _cpu, spent in took]
    low, middle, high = spread([cpu / (cpu - ours) for (_wall, cpu, _spent), ours in zip(took, own, strict=True)])
    return {
        "workload": name,
        "step_ms": statistics.median(wall for wall, _cpu, _spent in took) / steps * 1e3,
        "batch_us": statistics.median(spent.get("batch", 0) for *_took, spent in took) / steps / 1e3,
        "journal_us": statistics.median(spent.get("journal", 0) for *_took, spent in took) / steps / 1e3,
        "stall_ms": statistics.median(spent.get("stall", 0) for *_took, spent in took) / 1e6,
        "checkpoint_ms": statistics.median(spent.get("epoch", 0) for *_took, spent in took) / 1e6,
        "ratio": middle,
        "quartiles": [low, high],
    }


def in_turn(name: str, epochs: int, folder: Path) -> dict[str, object]:
    """Measure one workload in one process, probes on in every other epoch."""
    program = folder / "workload.py"
    program.write_text(source(name))
    done = subprocess.run(
        [sys.executable, "-m", "detrain", "run", "--fresh", "--ckpt", str(folder / "home"), str(program)],
        capture_output=True, text=True, check=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "ALTERNATE": str(epochs)},
    )  # fmt: skip
    ends = json.loads(done.stdout.split("ENDS")[1])
    row: dict[str, object] = {"workload": name, "epochs": epochs}
    for index, kind in enumerate(("wall", "processor")):
        took = [end[index] - start[index] for start, end in itertools.pairwise(ends)]
        row[kind] = spread([2 * took[at] / (took[at - 1] + took[at + 1]) for at in range(3, epochs - 1, 2)])
    return row


def pairs(name: str, repeat: int, folder: Path) -> dict[str, object]:
    """Measure one workload in pairs of processes, each first in turn."""
    program = folder / "workload.py"
    program.write_text(source(name))
    ratios: dict[str, list[float]] = {"wall": [], "processor": []}
    for number in range(repeat):
        pair = {}
        for kind in ("bare", "detrain") if number % 2 else ("detrain", "bare"):
            options = ["--bare"] if kind == "bare" else ["--fresh", "--ckpt", str(folder / "home")]
            pair[kind] = epochs_of(program, *options)
        for index, what in enumerate(("wall", "processor")):
            middles = {kind: statistics.median(epoch[index] for epoch in took) for kind, took in pair.items()}  # type: ignore[misc]
            ratios[what].append(middles["detrain"] / middles["bare"])
    return {"workload": name, "runs": repeat, **{what: spread(values) for what, values in ratios.items()}}


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
    parser.add_argument("--framework", choices=list(FRAMEWORKS), default="tensorflow")
    parser.add_argument("--repeat", type=int, default=7, help="pairs of processes (0 for none)")
    parser.add_argument("--epochs", type=int, default=42, help="epochs of the measurement in turn")
    parser.add_argument("--only", default="", help="workloads with this in their names")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    names = [name for name in FRAMEWORKS[args.framework] if args.only in name]
    with tempfile.TemporaryDirectory() as name:
        shares = [inside(workload, args.epochs, Path(name)) for workload in names]
        alternated = [in_turn(workload, args.epochs, Path(name)) for workload in names if not workload.startswith("fit")]
        paired = [pairs(workload, args.repeat, Path(name)) for workload in names if args.repeat]
        is_tensorflow = args.framework == "tensorflow"
        forwards = [forward(Path(tempfile.mkdtemp(dir=name))) for _ in range(max(args.repeat // 2, 3) if is_tensorflow else 0)]
    if args.json:
        print(json.dumps({"inside": shares, "in_turn": alternated, "pairs": paired, "forward": forwards}, indent=2))
        return
    for row in shares:
        low, high = row["quartiles"]  # type: ignore[misc]
        print(
            f"{row['workload']:46} inside   detrain/bare {row['ratio']:.4f} [{low:.4f}, {high:.4f}]; step {row['step_ms']:.1f} ms; "
            f"a batch {row['batch_us']:.0f} us, {row['journal_us']:.0f} of them journal; "
            f"a checkpoint {row['checkpoint_ms']:.1f} ms, stalls {row['stall_ms']:.1f} ms of wall time"
        )
    for kind, rows in (("in turn", alternated), ("pairs", paired)):
        for row in rows:
            spreads = {what: row[what] for what in ("processor", "wall")}
            shown = ", ".join(f"{what} {mid:.3f} [{low:.3f}, {high:.3f}]" for what, (low, mid, high) in spreads.items())  # type: ignore[misc]
            print(f"{row['workload']:46} {kind:8} detrain/bare by {shown}")
    ratios = [float(row["ratio"]) for row in forwards]  # type: ignore[arg-type]
    if not ratios:
        return
    print(f"fast-forward / bare iteration {statistics.median(ratios):.2f}  [{min(ratios):.2f}, {max(ratios):.2f}]")


if __name__ == "__main__":
    main()
