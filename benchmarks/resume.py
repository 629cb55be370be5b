"""What a resume takes: detrain (seek, and loading again) beside what else there is, all in one run.

    python benchmarks/resume.py [--framework tensorflow | torch] [--repeat N] [--method NAME] [--json]

Beside it on TensorFlow: Keras's BackupAndRestore, tf.train.Checkpoint with the iterator, dataset.skip. On PyTorch:
torchdata's StatefulDataLoader with torch.save, and the own resume of Lightning and of transformers' Trainer, where they
are installed.

One model with dropout, trained for two epochs (`resume_tensorflow.py`, `resume_torch.py`). Each method's process kills
itself in the second one, one batch after a checkpoint, and is started again (`--repeat` times, from copies of what was
left).

- *first new step*: seconds from the start of the process until a step is done that had not been done before it was
  killed.
- *twice*: batches that were trained on twice. *bits*: how many bits of the final weights differ from those of an
  uninterrupted run.
- *seek / floor*: the floor is a fresh start of the same program under detrain until its first step, and a read of the
  checkpoint.
- *seek / bare*: the same with a fresh start of the bare program.
- *forward / bare*: batches a second while loading again, against plain iteration over the same set in a process of its
  own.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
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
from typing import Any

import numpy as np

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


def command_of(method: str, programs: Any, loader: str = "auto") -> list[str]:
    """Return how a method's program is started."""
    if method == "detrain":
        return [sys.executable, "-m", "detrain", "run", "--every", f"{programs.EVERY}b", "--loader", loader, "program.py"]
    return [sys.executable, "program.py"]


def measure(method: str, programs: Any, repeat: int, folder: Path) -> tuple[list[Row], Path]:
    """Measure one method. Returns its rows, and the folder that the killed process left."""
    whole, killed = folder / method / "whole", folder / method / "killed"
    for each in (whole, killed):
        each.mkdir(parents=True)
        (each / "program.py").write_text(programs.PROGRAMS[method])
    start(command_of(method, programs), whole, "weights")
    start(command_of(method, programs), killed, "weights", programs.STOP)
    expected = np.load(whole / "weights.npy")
    rows = []
    for name, loader in DETRAIN.items() if method == "detrain" else [(method, "auto")]:
        firsts, twice, differing = [], 0, 0
        for turn in range(repeat):
            again = folder / method / f"{loader}{turn}"
            shutil.copytree(killed, again, copy_function=shutil.copy2)
            times = start(command_of(method, programs, loader), again, "weights")
            twice = programs.STOP + len(times) - programs.STEPS * programs.EPOCHS
            firsts.append(times[twice])
            got = np.load(again / "weights.npy")
            differing = int(np.bitwise_count(got.view(np.uint32) ^ expected.view(np.uint32)).sum())
        rows.append(Row(name, statistics.median(firsts), _quartiles(firsts), twice, differing, expected.nbytes * 8))
    return rows, killed


def floor(programs: Any, repeat: int, killed: Path, folder: Path) -> tuple[float, float, float]:
    """Return the median seconds of a fresh start until its first step, under detrain and of the bare program, and of a
    read of the newest checkpoint.
    """
    from detrain.store import Catalogue, read

    starts, bare, reads = [], [], []
    newest = Catalogue(killed / "ckpt").entries()[-1].path
    for turn in range(repeat):
        fresh = folder / f"fresh{turn}"
        fresh.mkdir()
        (fresh / "program.py").write_text(programs.PROGRAMS["detrain"])
        starts.append(start(command_of("detrain", programs), fresh, "weights", 1)[0])
        bare.append(start([sys.executable, "program.py"], fresh, "weights", 1)[0])
        began = time.perf_counter()
        read(newest)
        reads.append(time.perf_counter() - began)
    return statistics.median(starts), statistics.median(bare), statistics.median(reads)


def bare_rate(programs: Any, repeat: int, folder: Path) -> float:
    """Return the batches a second of plain iteration."""
    (folder / "bare.py").write_text(programs.BARE)
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
    parser.add_argument("--framework", choices=("tensorflow", "torch"), default="tensorflow")
    parser.add_argument("--repeat", type=int, default=5, help="resumes of each method")
    parser.add_argument("--method", help="measure this one beside detrain, and no other")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    programs = importlib.import_module(f"resume_{args.framework}")
    with tempfile.TemporaryDirectory() as name:
        folder, rows, killed = Path(name), [], {}
        for method in programs.PROGRAMS if args.method is None else ("detrain", args.method):
            if method in programs.NEEDS and importlib.util.find_spec(programs.NEEDS[method]) is None:
                print(f"{method}: left out, {programs.NEEDS[method]} is not installed", file=sys.stderr)
                continue
            more, killed[method] = measure(method, programs, args.repeat, folder)
            rows += more
        fresh_s, bare_s, read_s = floor(programs, args.repeat, killed["detrain"], folder)
        rate = bare_rate(programs, args.repeat, folder)
    by_name = {row.method: row.first_new_step_s for row in rows}
    loading_s = by_name["detrain, loading again"] - by_name["detrain, seek"]
    ratios = {
        "seek / floor": by_name["detrain, seek"] / (fresh_s + read_s),
        "seek / bare": by_name["detrain, seek"] / (bare_s + read_s),
        "forward / bare": (programs.STOP - 1 - programs.STEPS) / loading_s / rate,
    }
    if args.json:
        starts = {"fresh_start_s": fresh_s, "bare_start_s": bare_s, "read_s": read_s}
        what = {"rows": [asdict(row) for row in rows], **starts, "bare_batches_s": rate, **ratios}
        print(json.dumps(what, indent=2))
        return
    print(f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, {args.repeat} resumes of each")
    for row in rows:
        low, high = row.quartiles_s
        spread = f"[{low:.2f}, {high:.2f}]"
        print(
            f"{row.method:36} first new step {row.first_new_step_s:6.2f} s {spread:16} "
            f"twice {row.twice:5}   bits {row.differing_bits} of {row.bits}"
        )
    print(f"fresh start {fresh_s:.2f} s, of the bare program {bare_s:.2f} s, read of the checkpoint {read_s:.3f} s")
    print(f"bare iteration {rate:.0f} batches/s")
    print("   ".join(f"{name} {value:.2f}" for name, value in ratios.items()))


if __name__ == "__main__":
    main()
