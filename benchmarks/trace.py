"""What tracing costs: time of a whole run under `detrain trace` / bare, beside plain `sys.settrace`; memory; time until sure.

    python benchmarks/trace.py [--repeat N] [--json]

The programs have a busy Python loop body: what a tracer slows most. Each is run in turn bare (`detrain run --bare`), under
`detrain trace --epochs N` (N: all its epochs, so that it is watched to its end), and bare with a `settrace` function that counts
the lines of the program's own frames. A program prints the seconds of its training loop. Ratios are taken round by round: median,
and the range of the middle half.
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
if "LINES" in sys.argv:
    count = [0]
    def local(frame, event, argument):
        count[0] += 1
        return local
    sys.settrace(lambda frame, event, argument: local if frame.f_code.co_filename == __file__ else None)
"""
TAIL = """
print("SECONDS", time.perf_counter() - started, "MB", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""

PROGRAMS = {
    "tokens, loop in a function": HEAD
    + """
def batches():
    for i in range(0, 256, 8):
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

def train(epochs):
    for epoch in range(epochs):
        for a, b in batches():
            step(a, b)

started = time.perf_counter()
train(30)
"""
    + TAIL,
    "augmentation, loop at module level": HEAD
    + """
started = time.perf_counter()
for epoch in range(30):
    for i in range(0, 256, 8):
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
    """Run one process; return the seconds of its loop, its peak memory, and the seconds until it was sure (traced runs)."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CKPT_DIR": str(folder / "home")}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    words = done.stdout.split()
    found = {"seconds": float(words[words.index("SECONDS") + 1]), "mb": float(words[words.index("MB") + 1])}
    sure = re.search(r"seen in ([\d.]+) s", done.stderr)
    return {**found, "sure": float(sure[1])} if sure else found


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
            kinds = {
                "bare": [*base, "run", "--bare", str(program)],
                "traced": [*base, "trace", "--epochs", "1000", str(program)],
                "settrace": [*base, "run", "--bare", str(program), "LINES"],
            }
            rounds = [{kind: measure(command, folder) for kind, command in kinds.items()} for _ in range(args.repeat)]
            until_sure = subprocess.run(
                [*base, "trace", str(program)],
                capture_output=True, text=True, check=True, env={**os.environ, "CKPT_DIR": str(folder / "home")},
            ).stderr  # fmt: skip
            sure = re.search(r"(\d+) updates seen in ([\d.]+) s", until_sure)
            rows.append(_row(label, rounds, sure))
    if args.json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        for kind in ("traced", "settrace"):
            low, middle, high = row[kind]  # type: ignore[misc]
            print(f"{row['program']:36} {kind + '/bare':14} {middle:.3f}  [{low:.3f}, {high:.3f}]")
        print(f"{'':36} memory, traced/bare {row['memory']:.3f}; sure after {row['sure']}")


def _row(label: str, rounds: list[dict[str, dict[str, float]]], sure: re.Match[str] | None) -> dict[str, object]:
    def ratios(kind: str, what: str) -> list[float]:
        return [each[kind][what] / each["bare"][what] for each in rounds]

    def spread(values: list[float]) -> list[float]:
        return [*statistics.quantiles(values, n=4)] if len(values) > 1 else values * 3

    return {
        "program": label,
        "python": sys.version.split()[0],
        "traced": spread(ratios("traced", "seconds")),
        "settrace": spread(ratios("settrace", "seconds")),
        "memory": statistics.median(ratios("traced", "mb")),
        "sure": f"{sure[1]} updates, {sure[2]} s" if sure else "never",
    }


if __name__ == "__main__":
    main()
