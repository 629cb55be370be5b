"""A campaign over the six networks of examples/workloads: which groups of instructions, bits and stages matter.

    python benchmarks/campaign_networks.py --home FOLDER [--trials 3400] [--after 5] [--mode IOV] [--report FOLDER]

Plans and runs one campaign a network, small ones (an eighth of the channels, half the blocks; DenseNet-121 a quarter
and a fifth; batches of 8, an epoch of 60 steps), on a stand-in for CIFAR-10. Trials in the home are not run again. A
loss is harmful if it lies outside of the spread of eight golden runs with other seeds. Prints tables in Markdown: the
share of harmful trials of each network, in percent, with 95 % intervals. --report writes the page of each campaign.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "examples" / "workloads"
SIZES = {
    "resnet18": ("0.125", "0.5"),
    "resnet18_sgd": ("0.125", "0.5"),
    "resnet18_nobn": ("0.125", "0.5"),
    "nf_resnet": ("0.125", "0.5"),
    "densenet121": ("0.25", "0.2"),
    "efficientnet_b0": ("0.125", "0.5"),
}
"""Factors on the numbers of channels and of blocks."""
ENOUGH = 30
"""Trials that a cell of a table needs."""


def main() -> None:
    """Run what is missing of the campaigns, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=3400, help="of each network")
    parser.add_argument("--after", type=int, default=5)
    parser.add_argument("--spread", type=int, default=8, help="golden runs of other seeds that tell harm from chance")
    parser.add_argument("--mode", default="IOV")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--models", default=",".join(SIZES))
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    found = {}
    for model in options.models.split(","):
        home = options.home.absolute() / model
        if not list(home.glob("*.faults/*/campaign-campaign/plan.json")):
            drawn = ("--mode", options.mode, "-n", str(options.trials), "--seed", str(options.seed))
            judged = ("--after", str(options.after), "--spread", str(options.spread))
            detrain("plan", model, home, *drawn, *judged)
        done = detrain("run", model, home, "--workers", str(options.workers))
        rate = f", {done['new'] / done['seconds'] * 3600:,.0f} an hour now" if done.get("new") else ""
        print(f"{model}: {done['done']} trials{rate}; {done['digest']}", file=sys.stderr, flush=True)
        page = ("--html", str(options.report.absolute() / f"{model}.html")) if options.report else ()
        found[model] = detrain("report", model, home, *page)
    show(found)


def detrain(command: str, model: str, home: Path, *words: str) -> dict[str, Any]:
    """Run a command of a campaign; return what it prints."""
    width, depth = SIZES[model]
    program = ["train.py", "--model", model, "--data", "synthetic", "--width", width, "--depth", depth, "--seed", "0"]
    program += ["--batch", "8", "--steps", "60", "--epochs", "1"]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    environment["PYTHONPATH"] = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    line = [sys.executable, "-m", "detrain", "campaign", command, "--ckpt", str(home), "--json", *words, *program]
    done = subprocess.run(line, cwd=FOLDER, env=environment, stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def show(found: dict[str, dict[str, Any]]) -> None:
    """Print the tables."""
    names = list(found)
    trials = sum(each["trials"] for each in found.values())
    whole = {name.replace("_", " "): [each[name] for each in found.values()] for name in ("harmful", "masked", "not_judged")}
    table(f"of {trials:,} trials", names, whole)
    outcomes = list(dict.fromkeys(name for each in found.values() for name in each["outcomes"]))
    table("outcome", names, {o: [found[n]["outcomes"].get(o) for n in names] for o in outcomes})
    for title in ("group", "stage", "fault model", "change of the value"):
        parts = [{part["name"]: part["harmful"] for part in of(each, title)} for each in found.values()]
        rows = list(dict.fromkeys(name for each in parts for name in each))
        if title == "group":
            rows.sort(key=lambda name: int(name.split()[0]) if name[0].isdigit() else 99)
        table(f"harmful, by {title}", names, {row: [each.get(row) for each in parts] for row in rows})


def of(report: dict[str, Any], title: str) -> list[dict[str, Any]]:
    """Return the parts of one of a report's breakdowns, or of what stands by itself."""
    all_of = [*report["breakdowns"], report["deviations"], report["progress"]]
    return next((list(each["parts"]) for each in all_of if each["title"] == title), [])


def table(title: str, names: list[str], rows: dict[str, list[dict[str, Any] | None]]) -> None:
    """Print shares with intervals, in percent."""
    print(f"\n| {title} | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
    for name, cells in rows.items():
        if any(cell is not None and cell["trials"] >= ENOUGH for cell in cells):
            print(f"| {name} | {' | '.join(map(written, cells))} |")


def written(cell: dict[str, Any] | None) -> str:
    """Return an estimate as a cell."""
    if cell is None or cell["share"] is None or cell["trials"] < ENOUGH:
        return "–"
    return f"{cell['share'] * 100:.1f} ({cell['low'] * 100:.1f} to {cell['high'] * 100:.1f})"


if __name__ == "__main__":
    main()
