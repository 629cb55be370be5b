"""What a checkpoint costs: stall, write, load and memory, against other formats, in one run.

    python benchmarks/store.py [--sizes 10,100,1000] [--repeat 5] [--places DIR ...] [--clock wall|cpu] [--json]

For each size (MB of float32 in 20 arrays) and place (a tmpfs and a disk), every measurement is taken in turn,
`--repeat` times; given are the median and the range of the middle half, in milliseconds. Files are flushed to the disk
(fsync) by all alike. `--clock cpu` counts the processor time of all threads: on a machine that others use too, and a
tmpfs, it says more.

- *stall*: for how long training stands still. detrain holds the variables by reference and writes in the background;
  the next update then writes into new memory. So the stall is that of the hold, and what an update of all variables
  takes longer while they are held. Against a copy into memory that is in use already, one into new memory, and
  `tf.train.Checkpoint.write`, for which training waits.
- *write*: everything, digests included, against the same bytes written plainly, and by others.
- *load*: with every digest checked, against others, of which only TensorFlow checks anything. Ours, TensorFlow's and
  Keras's set their values into variables, one behind the other; the others return arrays.
- *memory*: the most that a background save takes beyond the state itself, in states.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import h5py
import numpy as np

from detrain.store import Meta, Snapshot, opened, write
from detrain.store.background_writer import Writer

ARRAYS = 20
META = Meta(
    phase=0, epoch=1, batch=0, cut="epoch", run=1, program="bench", arguments=(), sources={}, environment={}, seed=0,
    batches_done=0, journal_bytes=0,
)  # fmt: skip


def state(megabytes: int) -> dict[str, np.ndarray]:
    """Random float32 arrays of so many MB in all."""
    draw = np.random.default_rng(0)
    return {f"layer_{n}/kernel": draw.random(megabytes * 250_000 // ARRAYS, np.float32) for n in range(ARRAYS)}


def flushed(path: Path) -> None:
    """fsync a file."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def operations(arrays: dict[str, np.ndarray], folder: Path) -> dict[str, Callable[[], object]]:
    """What is timed, by name; loads come behind the write of their file."""
    import keras
    import safetensors.numpy
    import tensorflow as tf

    from detrain.adapters.tensorflow.values.tensors import new_array, taken_over

    writer = Writer()
    held: list[np.ndarray] = []
    spare = {key: array.copy() for key, array in arrays.items()}
    variables = [tf.Variable(array) for array in arrays.values()]
    checkpoint = tf.train.Checkpoint(variables=variables)
    layer = keras.layers.Layer()
    for number, array in enumerate(arrays.values()):
        layer.add_weight(shape=array.shape, initializer="zeros", name=f"w{number}").assign(array)
    model = keras.Sequential([keras.Input((1,)), layer])
    raw = memoryview(np.concatenate(list(arrays.values()))).cast("B")
    files = {name: folder / name for name in ("a.h5", "raw", "bare.h5", "a.npy", "a.safetensors", "a.weights.h5")}

    def copy_warm() -> None:
        for key, array in arrays.items():
            np.copyto(spare[key], array)

    def bare_h5py() -> None:
        with h5py.File(files["bare.h5"], "w") as file:
            for key, array in arrays.items():
                file[key] = array
        flushed(files["bare.h5"])

    def load_h5py() -> None:
        with h5py.File(files["bare.h5"]) as file:
            for key in arrays:
                file[key][()]

    def raw_write() -> None:
        with files["raw"].open("wb", buffering=0) as file:
            done = 0
            while done < len(raw):
                done += file.write(raw[done:]) or 0
        flushed(files["raw"])

    def np_save() -> None:
        np.save(files["a.npy"], raw)
        flushed(files["a.npy"])

    def tf_write() -> None:
        checkpoint.write(str(folder / "tf"))
        for path in folder.glob("tf.*"):
            flushed(path)

    def safetensors_write() -> None:
        safetensors.numpy.save_file(arrays, files["a.safetensors"])
        flushed(files["a.safetensors"])

    def keras_write() -> None:
        model.save_weights(files["a.weights.h5"])
        flushed(files["a.weights.h5"])

    def load() -> None:
        with opened(files["a.h5"], new_array) as snapshot:
            for variable, (_key, array) in zip(variables, snapshot.tensors.items(), strict=True):
                variable.assign(taken_over(array, tf.float32))

    update = updating(variables)

    def hold() -> None:
        held.extend(values(variables))
        writer.write(lambda: None, is_large=True)

    def update_held() -> None:
        update()
        held.clear()

    return {
        "stall: memory copy, warm": copy_warm,
        "stall: memory copy, new": lambda: [array.copy() for array in arrays.values()],
        "stall: detrain, the hold": hold,
        "update: while they are held": update_held,
        "update: of all variables": update,
        "write: raw": raw_write,
        "write: bare h5py": bare_h5py,
        "write: np.save": np_save,
        "write: safetensors": safetensors_write,
        "write: .weights.h5": keras_write,
        "write: tf.train.Checkpoint": tf_write,
        "write: detrain": lambda: write(files["a.h5"], Snapshot(META, arrays, {}, b"")),
        "load: raw": files["raw"].read_bytes,
        "load: bare h5py": load_h5py,
        "load: safetensors": lambda: safetensors.numpy.load_file(files["a.safetensors"]),
        "load: .weights.h5": lambda: model.load_weights(files["a.weights.h5"]),
        "load: tf.train.Checkpoint": lambda: checkpoint.read(str(folder / "tf")).assert_consumed(),
        "load: detrain": load,
    }


def values(variables: list[Any]) -> list[np.ndarray]:
    """What variables hold, by reference."""
    from detrain.adapters.tensorflow.values.tensors import read_each

    return list(read_each({str(number): variable for number, variable in enumerate(variables)}).values())


def updating(variables: list[Any]) -> Callable[[], object]:
    """A compiled update of all variables."""
    import tensorflow as tf

    step = tf.ones_like(variables[0])  # all have one shape

    @tf.function
    def update() -> None:
        for variable in variables:
            variable.assign_add(step)

    update()
    return update


def timed(megabytes: int, place: Path, repeat: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Times in milliseconds of each operation; the first round, which warms up, is left out."""
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(dir=place) as folder:
        acts = operations(state(megabytes), Path(folder))
        for turn in range(repeat + 1):
            for name, act in acts.items():
                began = clock()
                act()
                if turn:
                    times.setdefault(name, []).append(1e3 * (clock() - began))
    return times


def peak_states(megabytes: int, place: Path) -> float:
    """The growth of the process's largest size over two background saves, in states. Run in a process of its own."""
    import tensorflow as tf

    arrays = state(megabytes)
    variables = [tf.Variable(arrays.pop(key)) for key in list(arrays)]
    update, writer = updating(variables), Writer()
    with tempfile.TemporaryDirectory(dir=place) as folder:
        # What is loaded once.
        writer.write(writing(Path(folder) / "small.h5", [tf.Variable(tf.ones(10))]), is_large=True)
        writer.drain()
        before = most_bytes()
        for _ in range(2):
            writer.drain()
            writer.write(writing(Path(folder) / "a.h5", variables), is_large=True)
            update()
        writer.drain()
    return (most_bytes() - before) / (megabytes * 1e6)


def writing(path: Path, variables: list[Any]) -> Callable[[], None]:
    """The write of what variables hold now."""
    snapshot = Snapshot(META, {f"layer_{n}/kernel": array for n, array in enumerate(values(variables))}, {}, b"")
    return lambda: write(path, snapshot) and None


def most_bytes() -> int:
    """Return the most memory that this process has held."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return low, middle, high


TARGETS = (
    ("stall / memory copy, warm", "stall: detrain", "stall: memory copy, warm", 1.2, "at most"),
    ("stall / memory copy, new", "stall: detrain", "stall: memory copy, new", 1.2, "at most"),
    ("stall / tf.train.Checkpoint.write", "stall: detrain", "write: tf.train.Checkpoint", 0.1, "at most"),
    ("bare h5py / write", "write: bare h5py", "write: detrain", 0.75, "at least"),
    ("tf.train.Checkpoint.read / load", "load: tf.train.Checkpoint", "load: detrain", 1.0, "at least"),
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="10,100,1000", help="MB of state")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--places", nargs="*", type=Path, help="folders [/dev/shm and the temporary folder]")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.peak:
        print(peak_states(int(chosen.peak[0]), Path(chosen.peak[1])))
        return
    places = chosen.places or [place for place in (Path("/dev/shm"), Path(tempfile.gettempdir())) if place.is_dir()]
    rows = []
    for place in places:
        for megabytes in map(int, chosen.sizes.split(",")):
            times = timed(megabytes, place, chosen.repeat, CLOCKS[chosen.clock])
            command = [sys.executable, __file__, "--peak", str(megabytes), str(place)]
            peak = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            medians = {name: quartiles(each)[1] for name, each in times.items()}
            longer = medians["update: while they are held"] - medians["update: of all variables"]
            medians["stall: detrain"] = medians["stall: detrain, the hold"] + max(0.0, longer)
            ratios = {label: medians[one] / medians[other] for label, one, other, _, _ in TARGETS}
            ratios["extra memory, states"] = peak
            rows.append({"place": str(place), "megabytes": megabytes, "ms": times, "ratios": ratios})
            if chosen.json:
                continue
            print(f"\n{megabytes} MB, {place}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
            for name, each in times.items():
                low, middle, high = quartiles(each)
                print(f"  {name:28} {middle:9.1f} ms ({low:.1f} to {high:.1f}), {megabytes / middle:6.2f} GB/s")
            for label, _, _, target, sense in TARGETS:
                print(f"  {label:34} {ratios[label]:6.2f} ({sense} {target})")
            print(f"  {'extra memory, states':34} {peak:6.2f} (at most 1)", flush=True)
    if chosen.json:
        print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
