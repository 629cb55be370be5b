"""How many trials an hour a campaign does: with several numbers of workers, and with a process for each trial.

    python benchmarks/campaign_engine.py [--torch | --resnet] [--trials 2000] [--after 3] [--workers 1,2] [--process 8]

The digits example, with its validation, in batches of 8; or ResNet-18 at a quarter of its width, in batches of 16. The
plan is that of `detrain campaign plan`: all steps, those at the ends of epochs too, and all models. Starts of processes
are in the time; sites and golden run, which are made once, are not. Each campaign begins anew. Beside the rate stand
the processor's seconds a trial, which a busy machine changes less, and the efficiency: the time that the steps of a
trial take in the bare program, over the time that a worker takes for it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from faults import COUNTED, COUNTED_TORCH, ENVIRONMENT, EXAMPLE, TORCH_EXAMPLE, WORKLOADS, Trained, bare_step_s


def main() -> None:
    """Run the campaigns, and print their rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", action="store_true", help="PyTorch's example")
    parser.add_argument("--resnet", action="store_true", help="ResNet-18")
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--after", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--process", type=int, default=8, help="trials in processes of their own; 0: none")
    options = parser.parse_args()
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    os.environ.update({**ENVIRONMENT, **one_thread})
    fixed: tuple[str, ...] = (
        "--batch-size",
        "8",
        *(("--workers", "0", "--patience", "100000") if options.torch else ()),
        "--epochs",
    )
    program, counted = (TORCH_EXAMPLE, COUNTED_TORCH) if options.torch else (EXAMPLE, COUNTED)
    if options.resnet:
        program = WORKLOADS
        fixed = ("--data", "synthetic", "--width", "0.25", "--seed", "0", "--batch", "16", "--steps", "180", "--epochs")
    arguments = (*fixed, str(options.epochs))
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        step = bare_step_s(Trained(program.stem, program, arguments, (*fixed, "10000"), 0, counted), home)
        command = (str(program), *arguments)
        detrain(home, "plan", "--mode", "ISCA", "-n", options.trials, "--after", options.after, *command)
        print(f"{program.name}, a bare step of {step * 1e3:.2f} ms, {options.trials} trials of {options.after} steps")
        for workers in map(int, options.workers.split(",")):
            found, cpu = detrain(home, "run", "--workers", workers, *command)
            show(f"{workers} workers", found, cpu, workers, step * options.after)
            for ledger in home.glob("ckpt/*/*/campaign-*/ledger"):
                shutil.rmtree(ledger)
        if options.process:
            detrain(home, "plan", "--mode", "ISCA", "-n", options.process, "--after", options.after, "--name", "alone", *command)
            found, cpu = detrain(home, "run", "--workers", 1, "--name", "alone", "--engine", "process", *command)
            show("a process a trial, 1 worker", found, cpu, 1, step * options.after)


def detrain(home: Path, *words: object) -> tuple[dict[str, Any], float]:
    """Run a command of a campaign; return what it prints, and the seconds of processors that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    name, *rest = map(str, words)
    command = [sys.executable, "-m", "detrain", "campaign", name, "--ckpt", str(home / "ckpt"), "--json", *rest]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found: dict[str, Any] = json.loads(done.stdout)
    return found, cpu


def show(name: str, found: dict[str, Any], cpu: float, workers: int, own_s: float) -> None:
    """Print a campaign's rate."""
    trials = found["done"] + found["unfired"]
    trial = found["seconds"] * workers / trials
    print(
        f"  {name}: {trials / found['seconds'] * 3600:,.0f} an hour, {cpu / trials * 1e3:.0f} ms of processors a trial, "
        f"efficiency {own_s / trial:.2f}; {found['digest']}",
        flush=True,
    )


if __name__ == "__main__":
    main()
