"""What it takes to look back at a run: to stand at a step, and to print what was not printed.

    python benchmarks/moment.py [--epochs 8] [--batch-size 32] [--times 80] [--jobs 2] [--repeats 3]

Trains examples/digits/torch_train.py once, with the data so many `--times` an epoch, and once `--after-batches`. Then,
the fastest of some repeats, or, of the first, the median of pairs in turn:

- `detrain at` in the middle of the last epoch but one, against a run that goes on from the same checkpoint with
  `detrain run` and is ended there: what cannot be saved is the start, the reading and the steps between;
- `detrain hindsight` of all epochs with a print in the body, against plain Python that trains again with it, and that
  against two that train at the same time: so much two processes are in each other's way;
- `detrain hindsight --no-bodies` with a print behind the batches, against plain Python.

All run in one thread, and load without workers, so that two jobs have a core each: bits depend on the number of
threads. The more often an epoch has the data, the longer it is beside the start of a process.

Prints a table in Markdown: seconds, and how many times as fast.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = "torch_train.py"
IMAGES = 1440
"""Of an epoch of the example, as full batches of 32."""
SPLIT = "order[:1437]"
PLACE = "            schedule.step()\n"
PRINT = "            print(step, model[0].weight.grad.norm().item())\n"
BEHIND = "        history.append(accuracy)\n"
PRINT_BEHIND = "        print(epoch, [value.norm().item() for value in model.parameters()])\n"
END = "            import os; (epoch, step) == {at} and os._exit(0)\n"


def seconds(folder: Path, command: Sequence[str], repeats: int, *, before: Sequence[tuple[Path, Path]] = ()) -> float:
    """Return how long the fastest of some runs of a command took; `before` each, folders are copied anew."""
    fastest = float("inf")
    for _repeat in range(repeats):
        for source, target in before:
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source, target)
        began = time.perf_counter()
        subprocess.run(command, cwd=folder, env=environment(), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        fastest = min(fastest, time.perf_counter() - began)
    return fastest


def environment() -> dict[str, str]:
    """The environment of all runs."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--times", type=int, default=80)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    numbers = {"epochs": given.epochs, "patience": given.epochs, "batch-size": given.batch_size, "workers": 0}
    arguments = [word for name, number in numbers.items() for word in (f"--{name}", str(number))]
    text = (ROOT / "examples" / "digits" / PROGRAM).read_text()
    assert SPLIT in text
    text = text.replace(SPLIT, f"{SPLIT} * {given.times}")
    detrain = [sys.executable, "-m", "detrain"]
    with tempfile.TemporaryDirectory() as made:
        work, ended, after = (Path(made) / name for name in ("work", "ended", "after"))
        for folder in (work, ended, after):
            folder.mkdir()
            (folder / PROGRAM).write_text(text)
        for folder, options in ((work, ()), (after, ("--after-batches",))):
            command = [*detrain, "run", *options, "--keep", "1000", PROGRAM, *arguments]
            subprocess.run(command, cwd=folder, env=environment(), check=True, stdout=subprocess.DEVNULL)
        at = (given.epochs - 2, IMAGES * given.times // given.batch_size // 2)
        # The same way by a run of its own: it needs a run with the line that ends it.
        (ended / PROGRAM).write_text(text.replace(PLACE, PLACE + END.format(at=at)))
        subprocess.run([*detrain, "run", PROGRAM, *arguments], cwd=ended, env=environment(), check=False, stdout=subprocess.DEVNULL)
        shutil.copytree(ended / "ckpt", ended / "kept")
        stand = [*detrain, "at", "--print", "loss", f"{at[0]}:{at[1]}", PROGRAM, *arguments]
        kept = [(ended / "kept", ended / "ckpt")]
        pairs = [
            (seconds(work, stand, 1), seconds(ended, [*detrain, "run", PROGRAM, *arguments], 1, before=kept))
            for _repeat in range(given.repeats)
        ]
        (work / PROGRAM).write_text(text.replace(PLACE, PLACE + PRINT))
        looked = seconds(work, [*detrain, "hindsight", "--jobs", str(given.jobs), PROGRAM, *arguments], given.repeats)
        one = seconds(work, [*detrain, "hindsight", "--epochs", f"{at[0]}:{at[0] + 1}", PROGRAM, *arguments], given.repeats)
        trained = seconds(work, [sys.executable, PROGRAM, *arguments], given.repeats)
        twice = f"{sys.executable} {PROGRAM} {' '.join(arguments)}"
        both = seconds(work, ["sh", "-c", f"{twice} & {twice}; wait"], given.repeats)
        (after / PROGRAM).write_text(text.replace(BEHIND, BEHIND + PRINT_BEHIND))
        outside = seconds(after, [*detrain, "hindsight", "--no-bodies", PROGRAM, *arguments], given.repeats)
    print("| looking back | s | otherwise | s | |\n|---|---|---|---|---|")
    stood, run_there = (statistics.median(each) for each in zip(*pairs, strict=True))
    ratio = statistics.median(one / other for one, other in pairs)
    print(f"| `at` {at[0]}:{at[1]} | {stood:.2f} | a resumed run up to there | {run_there:.2f} | {ratio:.2f} of it |")
    again = f"training again with the print, {given.epochs} epochs"
    print(f"| `hindsight`, {given.jobs} jobs | {looked:.2f} | {again} | {trained:.2f} | {trained / looked:.2f} times as fast |")
    print(f"| two that train at a time | {both:.2f} | one | {trained:.2f} | {2 * trained / both:.2f} times as fast together |")
    print(f"| `hindsight --no-bodies` | {outside:.2f} | {again} | {trained:.2f} | {trained / outside:.2f} times as fast |")
    print(f"| `hindsight` of one epoch | {one:.2f} | {again} | {trained:.2f} | {trained / one:.2f} times as fast |")


if __name__ == "__main__":
    main()
