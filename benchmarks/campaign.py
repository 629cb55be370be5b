"""Which injected faults the guard sees: all fault models over the sites of the six workloads, small.

    python benchmarks/campaign.py [--trials 90] [--after 10] [--models resnet18,nf_resnet] [--home FOLDER] [--seed 1]

Runs `detrain random --guard` on each workload of examples/workloads. Prints, as tables in Markdown, for each class of
outcome how many trials there were, and how many of them the guard saw within two steps (the faulty one counted) and
later, with Wilson's intervals at 95 %; the same by workload and by fault model; how long it took to see them; and what
was missed. With --home, a campaign that was stopped goes on.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from detrain.faults.statistics.intervals import wilson

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "examples" / "workloads" / "train.py"
SIZES = {
    "resnet18": ("0.25", "1"),
    "resnet18_sgd": ("0.25", "1"),
    "resnet18_nobn": ("0.25", "1"),
    "efficientnet_b0": ("0.25", "0.4"),
    "densenet121": ("0.25", "0.2"),
    "nf_resnet": ("0.25", "1"),
}
"""Factors on the numbers of channels and of blocks."""
STEPS = 120
"""An epoch: long, because a trial that goes beyond it takes a process of its own."""


def campaign(model: str, trials: int, after: int, seed: int, home: Path) -> list[dict[str, Any]]:
    """Run the trials of one workload; return their records."""
    width, depth = SIZES[model]
    program = [str(PROGRAM), "--model", model, "--data", "synthetic", "--width", width, "--depth", depth, "--seed", "0"]
    program += ["--batch", "16", "--steps", str(STEPS), "--epochs", "1"]
    command = [sys.executable, "-m", "detrain", "random", "--guard", "--ckpt", str(home / model), "-n", str(trials)]
    command += ["--seed", str(seed), "--after", str(after), "--time-limit", "600", "--json", *program]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    began = time.perf_counter()
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
    records: list[dict[str, Any]] = json.loads(done.stdout)
    print(f"{model}: {len(records)} trials in {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    return [{**record, "workload": model} for record in records]


def table(title: str, records: list[dict[str, Any]], key: Callable[[dict[str, Any]], str]) -> None:
    """Print how many trials of each kind the guard saw."""
    print(f"\n| {title} | trials | seen within two steps | later | 95 % interval of seen within two |\n|---|---|---|---|---|")
    groups: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for record in records:
        groups[key(record)].append(record)
    for name, mine in sorted(groups.items(), key=lambda pair: (-len(pair[1]), pair[0])):
        soon = sum(record["alarm"] is not None and record["alarm"]["steps"] < 2 for record in mine)
        late = sum(record["alarm"] is not None for record in mine) - soon
        low, high = wilson(soon, len(mine))
        print(f"| {name} | {len(mine)} | {soon} ({soon / len(mine):.1%}) | {late} | {low:.1%} to {high:.1%} |")


def main() -> None:
    """Run the campaigns and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=90, help="of each workload")
    parser.add_argument("--after", type=int, default=10)
    parser.add_argument("--models", default=",".join(SIZES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--home", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        records = [
            record
            for model in options.models.split(",")
            for record in campaign(model, options.trials, options.after, options.seed, options.home or Path(scratch))
        ]
    print(f"{len(records)} trials of {options.after} steps")
    table("outcome", records, lambda record: str(record["outcome"]))
    harmful = [record for record in records if record["outcome"] != "masked"]
    table("workload (not masked)", harmful, lambda record: str(record["workload"]))
    table("model (not masked)", harmful, lambda record: str(record["model"]))
    latencies = collections.Counter(record["alarm"]["steps"] for record in records if record["alarm"] is not None)
    print(f"\nsteps from the fault to the alarm: {', '.join(f'{steps}: {count}' for steps, count in sorted(latencies.items()))}")
    for record in harmful:
        if record["alarm"] is None:
            plan = record["experiment"]
            print(
                f"missed: {record['workload']} {record['model']} {plan['injection']['site']} at {plan['at']}: {record['outcome']}"
            )


if __name__ == "__main__":
    main()
