"""What just-in-time checkpoints of a job with several ranks take, and what they save.

In one run: how soon a failure is noticed and saved, by its kind; and the processor time of a step with and without
`--jit`, in turn.

    python benchmarks/just_in_time.py [--trials 4] [--rounds 3]

*Noticed*: from the failure to the moment that a rank is told to come to rest. *Saved*: from there to the manifest.
*Lost*: batches that the rank had done and that the job does again. A server forks the processes of jobs, so that they
need not import PyTorch.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from detrain.store.lock import holder_of  # noqa: E402
from tests.e2e.forkserver import Server  # noqa: E402

KINDS = {"KILL": signal.SIGKILL, "SEGV": signal.SIGSEGV, "STOP": signal.SIGSTOP, "exception": signal.SIGUSR1}
MODES = ROOT / "tests" / "programs" / "ranks" / "modes.py"
STAMPED = """
import os
import signal
import time

from detrain.runtime.ranks.program import Program

freeze = Program.freeze


def stamped(program):
    os.close(os.open(f"STAMP{time.time_ns()}", os.O_CREAT))
    freeze(program)


def fail(*_):
    raise ZeroDivisionError("a defect")


Program.freeze = stamped
signal.signal(signal.SIGUSR1, fail)
"""
COST = """
import statistics, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(*[each for _ in range(4) for each in (nn.Linear(128, 128), nn.ReLU())]))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
torch.manual_seed(dist.get_rank())


def main():
    times = []
    for epoch in range(1):
        for number in range(200):
            times.append(time.process_time())
            optimizer.zero_grad()
            model(torch.randn(32, 128)).pow(2).mean().backward()
            optimizer.step()
    print("cost", 1000 * statistics.median(b - a for a, b in zip(times[20:], times[21:])))


main()
dist.barrier()
dist.destroy_process_group()
"""


def failing(server: Server, folder: Path, kind: str, draw: random.Random) -> tuple[float, float, int]:
    """Have a rank of a job fail; return when it was noticed, and saved, in seconds, and how many batches are lost."""
    folder.mkdir()
    program = folder / "modes.py"
    program.write_text(MODES.read_text().replace("\nMODES = {", STAMPED.replace("STAMP", f"{folder}/frozen-") + "\nMODES = {"))
    home, rank, at = folder / "home", draw.randrange(3), []
    own, size = home / "modes" / f"rank-{rank}", draw.randrange(20_000, 60_000)

    def fail() -> None:
        journal = own / "modes-r1.journal"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (journal.is_file() and journal.stat().st_size > size):
            time.sleep(0.0005)
        process = holder_of(own, "modes")
        if process is not None:
            at.append(time.time())
            os.kill(process, KINDS[kind])

    thread = threading.Thread(target=fail)
    thread.start()
    command = ("run", "--jit", "--ckpt", home, program, "default")
    died = server.job(*command, cwd=folder, ranks=[{}] * 3)
    thread.join()
    manifests = list((home / "modes" / "jit").glob("*/manifest.json"))
    if not at or not manifests:
        raise RuntimeError(f"{kind}: nothing was saved: {[(each.status, each.err[-400:]) for each in died]}")
    saved = manifests[0].stat().st_mtime
    noticed = min(int(each.name.removeprefix("frozen-")) for each in folder.glob("frozen-*")) / 1e9
    batches = (own / "modes-r1.journal").read_bytes().count(b"\xa1b")
    again = server.job(*command, cwd=folder, ranks=[{}] * 3)
    found = re.search(r"resuming modes at (\d+):(\d+)", again[0].err)
    if found is None or any(each.status for each in again):
        raise RuntimeError(f"{kind}: the job does not go on: {again[0].err}")
    return noticed - at[0], saved - noticed, batches - (6 * int(found[1]) + int(found[2]))


def cost_ms(server: Server, folder: Path, *options: str) -> float:
    """Return the processor time of a step of the first of two ranks."""
    folder.mkdir()
    program = folder / "cost.py"
    program.write_text(COST)
    results = server.job("run", *options, "--every", "100000b", "--ckpt", "home", program, cwd=folder, ranks=[{}] * 2)
    return float(results[0].out.split()[-1])


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    server, draw = Server("torch", OMP_NUM_THREADS="1"), random.Random(0)
    print(f"load {os.getloadavg()[0]:.0f}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print("| a rank's failure | trials | noticed, median (p90) | saved, median (p90) | batches lost, at most |")
        print("|---|---|---|---|---|")
        for kind in KINDS:
            found = [failing(server, folder / f"{kind}{trial}", kind, draw) for trial in range(options.trials)]
            columns = [sorted(each[column] for each in found) for column in (0, 1)]
            shown = [f"{statistics.median(each):.3f} s ({each[int(0.9 * len(each))]:.3f})" for each in columns]
            print(f"| {kind} | {len(found)} | {shown[0]} | {shown[1]} | {max(each[2] for each in found)} |", flush=True)
        ways = {"off": (), "on": ("--jit",)}
        each = {way: [] for way in ways}
        for turn in range(options.rounds):
            for way, given in ways.items():
                each[way].append(cost_ms(server, folder / f"cost-{way}{turn}", *given))
        print("processor time a step, ms:", {way: [round(value, 1) for value in found] for way, found in each.items()})
    server.close()


if __name__ == "__main__":
    main()
