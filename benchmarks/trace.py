"""What tracing costs: time of a whole run under `detrain trace` / bare, beside plain `sys.settrace`; memory; time until
sure.

    python benchmarks/trace.py [--repeat N] [--json]

The programs have a busy Python loop body and steps of well under a millisecond: what a tracer slows most. Each is
trained for 30 short epochs, of which two are watched until the loops are known, and for one long epoch, which shows no
epoch loop running again and is watched to its end. Each is run in turn bare (`detrain run --bare`), under `detrain
trace --epochs N` (N: all its epochs), and bare with a `settrace` function that counts the lines of the program's own
frames. Ratios of the training loop's time are taken round by round: median, and the range of the middle half; of the
main thread's processor time (which other processes disturb less), and of wall time. *Inside* is the share of a fourth
run, traced too, that was spent in the tracer's own looks: it does not see what events cost the interpreter, nor other
processes; where the machine is not quiet it says more than the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HEAD = """
import resource, sys, time
import keras, numpy as np, tensorflow as tf
rng = np.random.default_rng(0)
x, y = rng.normal(size=(256, 16)).astype("float32"), rng.integers(0, 4, 256)
model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(4)])
optimizer = keras.optimizers.Adam(1e-3)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
@tf.function
def step(a, b):
    with tf.GradientTape() as tape:
        loss = loss_of(b, model(a, training=True))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss
step(tf.constant(x[:8]), tf.constant(y[:8]))
EPOCHS = 1 if "LONG" in sys.argv else 30
BATCHES = 3840 // EPOCHS
if "LINES" in sys.argv:
    count = [0]
    def local(frame, event, argument):
        count[0] += 1
        return local
    sys.settrace(lambda frame, event, argument: local if frame.f_code.co_filename == __file__ else None)
inside = [0.0]
def timed(act):
    def measured(*args):
        began = time.thread_time()
        act(*args)
        inside[0] += time.thread_time() - began
    return measured
if "INSIDE" in sys.argv:
    import gc
    (updates,) = [each for each in gc.get_objects() if type(each).__name__ == "Updates"]
    updates._on_update = timed(updates._on_update)
"""
TAIL = """
wall, processor = time.perf_counter() - started, time.thread_time() - spent
print("SECONDS", wall, "CPU", processor, "INSIDE", processor / (processor - inside[0]))
print("MB", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""

PROGRAMS = {
    "tokens, loop in a function": HEAD
    + """
def batches():
    for i in (8 * number % 256 for number in range(BATCHES)):
        counts = {}
        rows = []
        for row in range(8):
            text = []
            for value in x[i + row]:
                word = int(abs(value) * 1000) % 97
                counts[word] = counts.get(word, 0) + 1
                for letter in range(4):
                    text.append((word * 31 + letter) % 26)
            rows.append(sum(text) % 7)
        yield tf.constant(x[i:i + 8] + np.float32(rows)[:, None]), tf.constant(y[i:i + 8])

def train():
    for epoch in range(EPOCHS):
        for a, b in batches():
            step(a, b)

started, spent = time.perf_counter(), time.thread_time()
train()
"""
    + TAIL,
    "augmentation, loop at module level": HEAD
    + """
started, spent = time.perf_counter(), time.thread_time()
for epoch in range(EPOCHS):
    for number in range(BATCHES):
        i = 8 * number % 256
        batch = x[i:i + 8].copy()
        for row in range(8):
            shift = 0.0
            for k in range(60):
                shift = (shift * 1.1 + k) % 1.7
            batch[row] += np.float32(shift)
        step(tf.constant(batch), tf.constant(y[i:i + 8]))
"""
    + TAIL,
}


def measure(command: list[str], folder: Path) -> dict[str, float]:
    """Run one process; return its loop's seconds, processor time of the main thread, that / without the looks, and peak
    memory.
    """
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CKPT_DIR": str(folder / "home")}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    words = done.stdout.split()
    return {name: float(words[words.index(name) + 1]) for name in ("SECONDS", "CPU", "INSIDE", "MB")}


def main() -> None:
    """Run all programs and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for label, source in PROGRAMS.items():
            program = folder / "program.py"
            program.write_text(source)
            base = [sys.executable, "-m", "detrain"]
            for shape in ("SHORT", "LONG"):
                kinds = {
                    "bare": [*base, "run", "--bare", str(program), shape],
                    "traced": [*base, "trace", "--epochs", "1000", str(program), shape],
                    "settrace": [*base, "run", "--bare", str(program), shape, "LINES"],
                    "inside": [*base, "trace", "--epochs", "1000", str(program), shape, "INSIDE"],
                }
                rounds = [{kind: measure(command, folder) for kind, command in kinds.items()} for _ in range(args.repeat)]
                rows.append(_row(f"{label}, {'one long epoch' if shape == 'LONG' else '30 epochs'}", rounds))
                if not args.json:
                    _print(rows[-1])
            until_sure = subprocess.run(
                [*base, "trace", str(program)],
                capture_output=True, text=True, check=True, env={**os.environ, "CKPT_DIR": str(folder / "home")},
            ).stderr  # fmt: skip
            sure = re.search(r"(\d+) updates seen in ([\d.]+) s", until_sure)
            rows.append({"program": label, "sure": f"{sure[1]} updates, {sure[2]} s" if sure else "never"})
            if not args.json:
                print(f"{label}: sure after {rows[-1]['sure']}", flush=True)
    if args.json:
        print(json.dumps(rows, indent=2))


def _print(row: dict[str, Any]) -> None:
    for what in ("traced", "settrace"):
        spreads = [row[f"{what} {measured}"] for measured in ("CPU", "SECONDS")]
        shown = "   ".join(f"{middle:.3f} [{low:.3f}, {high:.3f}]" for low, middle, high in spreads)
        print(f"{row['program']:50} {what + '/bare':14} processor, wall: {shown}")
    low, middle, high = row["inside"]
    print(f"{'':50} inside of looks {middle:.3f} [{low:.3f}, {high:.3f}]; memory, traced/bare {row['memory']:.3f}", flush=True)


def _row(label: str, rounds: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    def ratios(kind: str, what: str) -> list[float]:
        return [each[kind][what] / each["bare"][what] for each in rounds]

    def spread(values: list[float]) -> list[float]:
        return [*statistics.quantiles(values, n=4)] if len(values) > 1 else values * 3

    spreads = {f"{kind} {what}": spread(ratios(kind, what)) for kind in ("traced", "settrace") for what in ("CPU", "SECONDS")}
    spreads["inside"] = spread([each["inside"]["INSIDE"] for each in rounds])
    return {"program": label, "python": sys.version.split()[0], **spreads, "memory": statistics.median(ratios("traced", "MB"))}


if __name__ == "__main__":
    main()
