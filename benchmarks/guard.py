"""What the guard costs a step, what the way back costs, and how often it is wrong.

    python benchmarks/guard.py [--steps N] [--width W] [--batch B] [--ring device|host] [--json]
    python benchmarks/guard.py --false-alarms 20000

First form: a convolutional network with Adam under `detrain run --guard recover`. In one process, for each step: the
time of the step, in turn with the look's sums inside of it and without them (a ratio with the neighbours of each); of
what is done at the cut behind it (as it happens, with cold caches: beside it stands TensorFlow's smallest call), and of
holding the moment. The sums alone, too, repeated inside of a compiled function. Then one fault: the time from the alarm
until the run is there again, in step times. For comparison the algebraic inverse of Adam (the way back that keeps no
copy): its error in ULP, for a usual gradient and for a faulty one, and its time.

Second form: steps without a fault of five optimizers under `--guard detect`, and how many of them raised an alarm.

Given are medians and the range of the middle half. CPU times are of all threads, those that wait for work included.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

COST = """
import json, os, sys, time, keras, numpy as np, tensorflow as tf
probes = sys.modules["detrain.runtime.session.probes"]  # a program that imports detrain would get no probes
of_holding = sys.modules["detrain.adapters.tensorflow.guard.norms"]
Compiled, sums_of_squares = of_holding.Compiled, of_holding.sums_of_squares
Context = type(sys.modules["tensorflow.python.eager.context"].context())
layers = keras.layers
steps, width, batch = map(int, sys.argv[1:4])
model = keras.Sequential([keras.Input((32, 32, 3)), *[layer for scale in (1, 2, 4) for layer in (
    layers.Conv2D(scale * width, 3, strides=1 if scale == 1 else 2, use_bias=False), layers.BatchNormalization(), layers.ReLU())],
    layers.GlobalAveragePooling2D(), layers.Dense(10)])
optimizer = keras.optimizers.Adam(1e-3)
optimizer.build(model.trainable_variables)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
x, y = np.random.normal(size=(batch * 4, 32, 32, 3)).astype("float32"), np.random.randint(0, 10, batch * 4)
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch).repeat()

@tf.function
def step(a, b, struck):
    with tf.GradientTape() as tape:
        loss = loss_of(b, model(a, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    gradients[0] = gradients[0] + struck
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss

class Timed:
    def __init__(self, owner, name):
        self.original, self.times, self.cpu = getattr(owner, name), [], []
        setattr(owner, name, self)
    def __call__(self, *arguments, **keywords):
        began, cpu = time.perf_counter(), time.process_time()
        try:
            return self.original(*arguments, **keywords)
        finally:
            self.times.append(time.perf_counter() - began)
            self.cpu.append(time.process_time() - cpu)

def repeated(count, keep):
    def make(variables):
        last = []
        for _ in range(count):
            with tf.control_dependencies(last):  # written down each time, or TensorFlow leaves all but the last out
                last = [keep.assign(sums_of_squares(variables)[0], read_value=False)]
        with tf.control_dependencies(last):
            return [keep.read_value()]
    return make

def per_call(call):
    for _ in range(20):
        call()
    times = []
    for _ in range(200):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return float(np.median(times))

bare_call, behind = [], []
is_with = True
faulty = steps - 3
recovery = looks = holds = None
for epoch in range(1):
    for turn, (a, b) in enumerate(data.take(steps)):
        if looks is None:
            recovery = probes._session.parts.recovery
            looks, holds = Timed(recovery.guard, "must_go_back"), Timed(recovery, "hold")
        if is_with and turn > 9:  # behind a step without the sums nothing new is looked at
            behind.append((looks.times[-1], looks.cpu[-1]))
        struck = 0.0
        if turn == faulty and not os.path.exists("struck"):
            os.close(os.open("struck", os.O_CREAT))
            struck = 1e18
        if turn == 9:
            with_sums, without = Context.call_function, Context.call_function.__wrapped__
        is_with = turn < 9 or turn % 2 == 1 or turn > steps - 8
        if turn >= 9:
            Context.call_function = with_sums if is_with else without
        began, cpu = time.perf_counter(), time.process_time()
        step(a, b, tf.constant(struck)).numpy()
        ended = time.perf_counter()
        marks = os.open("marks", os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        os.write(marks, f"{turn} {began} {ended} {time.process_time() - cpu} {int(is_with)}\\n".encode())
        os.close(marks)
        if turn == 8:
            [norms_of] = [each.norms for each in probes._session.parts.adapters]
            all_floats = [v.value for v in [*model.variables, *optimizer.variables] if "float" in v.dtype and len(v.shape)]
            keep = tf.Variable(np.zeros(len(all_floats), "float32"), trainable=False)
            once, often = (per_call(Compiled(dict(enumerate(all_floats)), repeated(count, keep))) for count in (1, 21))
            in_graph = (often - once) / 20
        if turn > 8:
            began = time.perf_counter()
            tf.add(1.0, 2.0)
            bare_call.append(time.perf_counter() - began)
watched, _ = norms_of.norms()
assert len(watched) == len(all_floats), (len(watched), len(all_floats))
held = sum(v.numpy().nbytes for v in [*model.variables, *optimizer.variables])
watched_bytes = sum(v.shape.num_elements() * v.dtype.size for v in all_floats)
look, look_cpu = zip(*behind)
print("RESULT", json.dumps({"look": look, "look_cpu": look_cpu, "hold": holds.times[3:], "hold_cpu": holds.cpu[3:],
    "in_graph": in_graph, "bare_call": bare_call, "variables": len(watched), "bytes": held, "watched_bytes": watched_bytes}))
"""

STEADY = """
import sys, keras, numpy as np, tensorflow as tf
steps = int(sys.argv[1])
layers, optimizers = keras.layers, keras.optimizers
random = np.random.default_rng(0)
x = random.normal(size=(512, 16)).astype("float32")
y = (x[:, :4].sum(1) > 0).astype("int32")
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(512).batch(16).repeat()

def train(optimizer):
    model = keras.Sequential([keras.Input((16,)), layers.Dense(32, activation="relu"), layers.BatchNormalization(),
                              layers.Dropout(0.2), layers.Dense(16, activation="relu"), layers.Dense(2)])
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer.build(model.trainable_variables)
    @tf.function
    def step(a, b):
        with tf.GradientTape() as tape:
            loss = loss_of(b, model(a, training=True))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss
    for epoch in range(1):
        for a, b in data.take(steps // 5):
            loss = step(a, b)
    print(type(optimizer).__name__, float(loss), flush=True)

schedule = optimizers.schedules.PolynomialDecay(1e-6, 1000, 1e-1)
for optimizer in (optimizers.Adam(1e-2), optimizers.SGD(schedule, momentum=0.9), optimizers.RMSprop(1e-2),
                  optimizers.Lamb(1e-2), optimizers.AdamW(1e-2, global_clipnorm=1.0)):
    train(optimizer)
"""


def run(source: str, *arguments: object, mode: str, ring: str = "device") -> tuple[str, list[dict[str, Any]], list[str]]:
    """Run a program with the guard; return its output, the log of alarms and the lines of `marks`."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "program.py").write_text(source)
        command = [sys.executable, "-m", "detrain", "run", "--guard", mode, "--guard-ring", ring]
        command += ["--ckpt", "home", "program.py", *map(str, arguments)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr[-3000:])
        logs = list((Path(folder) / "home").glob("*.alarms.jsonl"))
        marks = Path(folder) / "marks"
        alarms = [json.loads(line) for line in logs[0].read_text().splitlines()] if logs else []
        return done.stdout, alarms, marks.read_text().splitlines() if marks.exists() else []


def quartiles(times: list[float], unit: float = 1e3) -> list[float]:
    """Return [25 %, 50 %, 75 %] in milliseconds."""
    return [round(float(q) * unit, 4) for q in np.quantile(times, [0.25, 0.5, 0.75])]


def ulps(one: np.ndarray, other: np.ndarray) -> int:
    """Return the largest distance between two float32 arrays in units in the last place."""
    ordered = [np.where(x.view(np.int32) < 0, np.int64(-(2**31)) - x.view(np.int32), x.view(np.int32)) for x in (one, other)]
    return int(np.abs(ordered[0].astype(np.int64) - ordered[1].astype(np.int64)).max())


def inverse_of_adam(size: int) -> dict[str, Any]:
    """Undo one step of Adam by algebra, in float32, where the gradient is as usual and where
    one element of it is 1e10.
    """
    random = np.random.default_rng(0)
    one, b1, b2, rate = np.float32(1), np.float32(0.9), np.float32(0.999), np.float32(1e-3)
    found: dict[str, Any] = {}
    for name, spike in (("usual", None), ("faulty", np.float32(1e10))):
        m, w = (random.normal(size=size).astype(np.float32) * np.float32(1e-2) for _ in range(2))
        v, g = np.square(m), random.normal(size=size).astype(np.float32) * np.float32(1e-2)
        if spike is not None:
            g[:] = spike
        new_m, new_v = m + (g - m) * (one - b1), v + (g * g - v) * (one - b2)
        new_w = w - rate * new_m / (np.sqrt(new_v) + np.float32(1e-7))
        began = time.perf_counter()
        back_w = new_w + rate * new_m / (np.sqrt(new_v) + np.float32(1e-7))
        back_m, back_v = (new_m - (one - b1) * g) / b1, (new_v - (one - b2) * g * g) / b2
        found[name] = {"m": ulps(m, back_m), "v": ulps(v, back_v), "w": ulps(w, back_w)}
        found["ms"] = round((time.perf_counter() - began) * 1e3, 3)
    return found


def cost(steps: int, width: int, batch: int, ring: str) -> dict[str, Any]:
    """Measure what the guard costs."""
    out, alarms, lines = run(COST, steps, width, batch, mode="recover", ring=ring)
    result = json.loads(next(line for line in out.splitlines() if line.startswith("RESULT")).removeprefix("RESULT"))
    marks = [line.split() for line in lines]
    began, ended = [float(m[1]) for m in marks], [float(m[2]) for m in marks]
    step = float(np.median(np.subtract(ended, began)[3:]))
    struck = next(i for i, m in enumerate(marks) if int(m[0]) == steps - 3)
    assert [alarm["action"] for alarm in alarms][-2:] == ["went back", "recovered"], alarms
    again = ended[struck + 2] - ended[struck]  # from the end of the faulty step until both have been run again
    compared = [m for m in range(10, steps - 9) if int(marks[m][4])]
    took = np.subtract(ended, began)
    ratios = [2 * took[m] / (took[m - 1] + took[m + 1]) for m in compared]
    look, step_cpu = quartiles(result["look"]), float(np.median([float(m[3]) for m in marks][3:]))
    return {
        "step, ms": quartiles(list(np.subtract(ended, began)[3:])),
        "step with the sums / without, in turn": [round(float(q), 5) for q in np.quantile(ratios, [0.25, 0.5, 0.75])],
        "look at the cut, ms": look,
        "look at the cut, share of a step": round(look[1] / (step * 1e3), 6),
        "look at the cut, CPU ms": quartiles(result["look_cpu"]),
        "step, CPU ms": round(step_cpu * 1e3, 2),
        "look at the cut, share of a step in CPU time": round(float(np.median(result["look_cpu"])) / step_cpu, 6),
        "tf.add(1.0, 2.0) at the same place, ms": quartiles(result["bare_call"]),
        "sums repeated in the graph, ms": round(result["in_graph"] * 1e3, 4),
        "sums repeated in the graph, share of a step": round(result["in_graph"] / step, 6),
        "bytes watched, MB": round(result["watched_bytes"] / 1e6, 3),
        "variables watched": result["variables"],
        "hold, ms": quartiles(result["hold"]),
        "hold, CPU ms": quartiles(result["hold_cpu"]),
        "ring, MB (copied on write, two moments)": round(2 * result["bytes"] / 1e6, 2),
        "alarm to the same place again, in steps": round(again / step, 2),
        "inverse of Adam": inverse_of_adam(result["bytes"] // 12),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--ring", choices=["device", "host"], default="device")
    parser.add_argument("--false-alarms", type=int, metavar="STEPS")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.false_alarms:
        _out, alarms, _marks = run(STEADY, options.false_alarms, mode="detect")
        figures: dict[str, Any] = {"steps": options.false_alarms // 5 * 5, "alarms": len(alarms)}
    else:
        figures = cost(options.steps, options.width, options.batch, options.ring)
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:45} {value}")


if __name__ == "__main__":
    main()
