"""For how long a training stands still while it is saved, and what memory that takes.

Compared in one run: detrain; `torch.save`, and `async_save` of torch.distributed.checkpoint; or orbax, which is waited
for, and which is not; or TensorFlow's checkpoint.

    python benchmarks/stall.py [--framework torch | jax | tensorflow] [--sizes 100,400] [--saves 6] [--rounds 3]
                               [--every 40] [--threads N] [--place DIR]

For each size (MB of parameters and Adam's state, in 12 layers) each way of saving trains the same steps, in turn,
`--rounds` times, with a save each `--every` steps. *Stall* is what the step with a save and the step behind it take
longer than two others: a save that goes on in the background makes the next update wait, or copy. It is given in
milliseconds, with the range of the middle half, and as a ratio to copying the whole state into memory that is in use
already. *All* is what half of the steps, from the save on, take longer: what is written beside them takes time of
processors and memory from them. *Memory* is the highest resident size less that of the same training without saves, in
states.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TRAINING = """
import json, resource, sys, time
import numpy as np

megabytes, saves, how, place, EVERY = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5])
side = int((megabytes * 1_000_000 / 12 / 12) ** 0.5)  # parameters and two slots, in float32
pending = None
begins = []
{setting}
for epoch in range(1):
    for batch in range(EVERY * (saves + 1)):
        begins.append(time.perf_counter())
        {step}
        if batch % EVERY == EVERY - 1 and how not in ("none", "detrain"):
            save(batch)
begins.append(time.perf_counter())
finish()
state = arrays()
part, taken = [], 0
for each in state:  # of large states a part: their copies would not fit beside them
    if taken < 1e9:
        part.append(each)
        taken += each.nbytes
copies = [each.copy() for each in part]
times = []
for _ in range(5):
    begin = time.perf_counter()
    for copy, each in zip(copies, part):
        copy_into(copy, each)
    times.append(time.perf_counter() - begin)
steps = [after - before for before, after in zip(begins, begins[1:])]
size = sum(each.nbytes for each in state)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - size  # without the copies, which came last
print(json.dumps({{"steps": steps, "copy": sorted(times)[2] * size / taken, "bytes": size, "peak": peak}}))
"""

TORCH = """
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(*[nn.Linear(side, side, bias=False) for _ in range(12)])
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
data = torch.randn(64, side)
def save(batch):
    global pending
    finish()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    if how == "torch.save":
        torch.save(state, f"{place}/state.pt")
    else:
        pending = dcp.async_save(state, checkpoint_id=f"{place}/dcp-{batch}", no_dist=True)
def finish():
    if pending is not None:
        pending.result()
def arrays():
    slots = [each for held in optimizer.state.values() for each in held.values()]
    return [each.detach().numpy() for each in (*model.parameters(), *slots)]
def copy_into(copy, each):  # by all processors
    torch.from_numpy(copy).copy_(torch.from_numpy(each))
"""
TORCH_STEP = """optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()"""

JAX = """
import jax, optax
import jax.numpy as jnp
import orbax.checkpoint as ocp
keys = jax.random.split(jax.random.key(0), 13)
weights = [jax.random.normal(key, (side, side)) * side ** -0.5 for key in keys[:12]]
optimizer = optax.adam(1e-3)
slots = optimizer.init(weights)
data = jax.random.normal(keys[12], (64, side))
checkpointer = ocp.StandardCheckpointer()
def loss_of(weights, h):
    for weight in weights:
        h = h @ weight
    return jnp.square(h).mean()
@jax.jit
def train(weights, slots):
    updates, slots = optimizer.update(jax.grad(loss_of)(weights, data), slots)
    return optax.apply_updates(weights, updates), slots
def save(batch):
    checkpointer.save(f"{place}/orbax-{batch}", {"weights": weights, "slots": slots})
    if how == "orbax":
        finish()
def finish():
    checkpointer.wait_until_finished()
def arrays():
    return [np.asarray(each) for each in jax.tree.leaves((weights, slots))]
copy_into = np.copyto
"""
JAX_STEP = "weights, slots = jax.block_until_ready(train(weights, slots))"

TENSORFLOW = """
import keras
import tensorflow as tf
model = keras.Sequential([keras.Input((side,)), *[keras.layers.Dense(side, use_bias=False) for _ in range(12)]])
optimizer = keras.optimizers.Adam(1e-3)
data = tf.random.normal((64, side))
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
@tf.function
def train():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(data, training=True)))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss
def save(batch):
    checkpoint.write(f"{place}/state")
def finish():
    pass
def arrays():
    return [np.asarray(each) for each in (*model.variables, *optimizer.variables)]
copy_into = np.copyto
"""
TENSORFLOW_STEP = "float(train())"

PROGRAMS = {
    "torch": TRAINING.format(setting=TORCH, step=TORCH_STEP),
    "jax": TRAINING.format(setting=JAX, step=JAX_STEP),
    "tensorflow": TRAINING.format(setting=TENSORFLOW, step=TENSORFLOW_STEP),
}
WAYS = {
    "torch": ("none", "detrain", "torch.save", "async_save"),
    "jax": ("none", "detrain", "orbax", "orbax, asynchronous"),
    "tensorflow": ("none", "detrain", "checkpoint"),  # its asynchronous one fails with variables of Keras 3
}


def run(way: str, megabytes: int, options: argparse.Namespace) -> dict[str, object]:
    """Train once; return what the program says of it."""
    framework, saves, every = options.framework, options.saves, options.every
    with tempfile.TemporaryDirectory(dir=options.place) as scratch:
        program = Path(scratch) / "program.py"
        program.write_text(PROGRAMS[framework])
        arguments = [str(program), str(megabytes), str(saves), way, scratch, str(every)]
        command = [sys.executable, *arguments]
        if way == "detrain":
            saving = ["--ckpt", f"{scratch}/ckpt", "--every", f"{every}b", "--keep", "1"]
            command = [sys.executable, "-m", "detrain", "run", *saving, *arguments]
        threads = {"OMP_NUM_THREADS": str(options.threads)} if options.threads else {}
        environment = {**os.environ, **threads, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def stalls(steps: list[float], count: int, every: int) -> list[float]:
    """Return what each save has cost in so many steps from it on [s]. The first steps make slots, and are left out."""
    plain = statistics.median(
        step for number, step in enumerate(steps) if number >= every and every // 2 <= number % every < every - 2
    )
    # detrain saves before the load of a batch whose number is a multiple, the others behind the batch before it.
    first = range(every * 2 - 1, len(steps) - count, every)
    return [sum(steps[number : number + count]) - count * plain for number in first]


def main() -> None:
    """Measure, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--framework", choices=list(PROGRAMS), default="torch")
    parser.add_argument("--sizes", default="100,400", help="MB, comma-separated")
    parser.add_argument("--saves", type=int, default=6, help="in each run")
    parser.add_argument("--every", type=int, default=40, help="steps from save to save")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, help="of PyTorch's steps; one less than there are processors: one is to spare")
    parser.add_argument("--place", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    print("| state | way | stall, ms (middle half) | in copies | all, ms | memory, in states | step, ms |")
    print("|---|---|---|---|---|---|---|")
    for megabytes in map(int, options.sizes.split(",")):
        ways = WAYS[options.framework]
        found: dict[str, list[dict[str, object]]] = {way: [] for way in ways}
        for _ in range(options.rounds):
            for way in ways:
                found[way].append(run(way, megabytes, options))
        copy = statistics.median(float(str(each["copy"])) for runs in found.values() for each in runs)
        bare = statistics.median(float(str(each["peak"])) for each in found["none"])
        for way in ways[1:]:
            costs = sorted(cost for each in found[way] for cost in stalls(each["steps"], 2, options.every))  # type: ignore[arg-type]
            of_all = [cost for each in found[way] for cost in stalls(each["steps"], options.every // 2, options.every)]  # type: ignore[arg-type]
            low, middle, high = costs[len(costs) // 4], statistics.median(costs), costs[len(costs) * 3 // 4]
            peak = statistics.median((float(str(each["peak"])) - bare) / float(str(each["bytes"])) for each in found[way])
            step = statistics.median(step for each in found[way] for step in each["steps"])  # type: ignore[attr-defined]
            stall = f"{middle * 1e3:.0f} ({low * 1e3:.0f} to {high * 1e3:.0f}) | {middle / copy:.2f}"
            cells = f"{stall} | {statistics.median(of_all) * 1e3:.0f} | {peak:.2f} | {step * 1e3:.0f}"
            print(f"| {megabytes} MB | {way} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
