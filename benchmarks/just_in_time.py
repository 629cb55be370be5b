"""What just-in-time checkpoints of a job with several ranks take, and what they save.

In one run: how soon a failure is noticed and saved, by its kind; and the processor time of a batch without them, with
the state held at each batch, and held as by default, in turn; and one failure of one job, with periodic `torch.save`
and torchft beside it (`benchmarks/peers/just_in_time.py`; `--torchft`: a Python that has it, if there is one). Then, by
itself, whether noise is taken for a failure.

    python benchmarks/just_in_time.py [--trials 4] [--rounds 3] [--only-cost] [--torchft PYTHON]
    python benchmarks/just_in_time.py --noise 20000 [--floor 1]

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
from benchmarks.peers.just_in_time import compare_peers  # noqa: E402
from detrain.runtime.ranks.rendezvous import FolderStore  # noqa: E402
from detrain.runtime.ranks.room import RankMember, Setup  # noqa: E402
from detrain.runtime.ranks.watcher import Ending  # noqa: E402
from detrain.store.lock import holder_of  # noqa: E402
from tests.e2e.forkserver import Server  # noqa: E402

KINDS = {"KILL": signal.SIGKILL, "SEGV": signal.SIGSEGV, "STOP": signal.SIGSTOP, "exception": signal.SIGUSR1}
MODES = ROOT / "tests" / "programs" / "ranks" / "modes.py"
STAMPED = """
import os
import signal
import time

from detrain.runtime.ranks.program import ProgramThread

freeze = ProgramThread.freeze


def stamped(program):
    os.close(os.open(f"STAMP{time.time_ns()}", os.O_CREAT))
    freeze(program)


def fail(*_):
    raise ZeroDivisionError("a defect")


ProgramThread.freeze = stamped
signal.signal(signal.SIGUSR1, fail)
"""
COST = """
import sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCHES, REST_S, WIDTH, VALUES = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(*[each for _ in range(4) for each in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
torch.manual_seed(dist.get_rank())
values = [[number] for number in range(VALUES)]


def main():
    for epoch in range(1):
        for number in range(BATCHES):
            if number == 16:
                began = time.process_time(), time.thread_time(), time.monotonic()
            optimizer.zero_grad()
            model(torch.randn(32, WIDTH)).pow(2).mean().backward()
            optimizer.step()
            values[number % max(VALUES, 1):][:1] = [[number]] if values else []
            time.sleep(REST_S)
    ended = time.process_time(), time.thread_time(), time.monotonic()
    print("cost", *(1000 * (after - before) / (BATCHES - 16) for before, after in zip(began, ended)))


main()
dist.barrier()
dist.destroy_process_group()
"""
INSIDE = """
import statistics, time
from detrain.runtime.ranks.watcher import Watcher
from detrain.runtime.session.session import Session

spent = {}


def timed(of, name):
    function = getattr(of, name)

    def call(*arguments, **named):
        began = time.thread_time()
        try:
            return function(*arguments, **named)
        finally:
            spent.setdefault(name, []).append(time.thread_time() - began)

    setattr(of, name, call)


for name in ("turn", "at_load", "record_batch_fast", "at_batch"):
    timed(Session, name)
timed(Watcher, "_turn")


def show_spent():
    watcher = spent.pop("_turn", [])
    loads = spent.pop("at_load", [0.0])
    each = sum(statistics.median(times) for times in spent.values() if len(times) > BATCHES / 2)
    if len(loads) > BATCHES / 2:
        each += statistics.median(loads)
    print("spent", 1e6 * each, 1e6 * sum(watcher) / BATCHES, 1e3 * max(loads))


"""
"""Put before the program of `COST`: the processor time of detrain's own calls."""
SHAPES = (
    # batches, rest in seconds, width of four layers, values of Python's
    (600, 0.02, 128, 0),
    (300, 0.05, 128, 0),
    (90, 0.2, 128, 0),
    (90, 0.2, 500, 0),
    (90, 0.2, 128, 10_000),
)


def failing(server: Server, folder: Path, kind: str, draw: random.Random) -> tuple[float, float, int]:
    """Have a rank of a job fail; return when it was noticed, and saved, in seconds, and how many batches are lost."""
    folder.mkdir()
    program = folder / "modes.py"
    program.write_text(MODES.read_text().replace("\nMODES = {", STAMPED.replace("STAMP", f"{folder}/frozen-") + "\nMODES = {"))
    home, rank, at = folder / "home", draw.randrange(3), []
    own, place = home / "modes" / f"rank-{rank}", draw.randrange(3, 9)

    def fail() -> None:
        journal = own / "modes-r1.journal"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (journal.is_file() and journal.read_bytes().count(b"\xa1b") >= place):
            time.sleep(0.0005)
        process = holder_of(own, "modes")
        if process is not None:
            at.append(time.time())
            os.kill(process, KINDS[kind])

    thread = threading.Thread(target=fail)
    thread.start()
    command = ("run", "--jit-every", "1", "--ckpt", home, program, "default")
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


def cost_ms(server: Server, folder: Path, shape: tuple[float, ...], *options: str) -> list[float]:
    """Return the processor time of a batch, of the process and of its main thread, and how long it takes; on average
    over two ranks.
    """
    folder.mkdir()
    program = folder / "cost.py"
    program.write_text(COST)
    results = server.job("run", *options, "--ckpt", "home", program, *shape, cwd=folder, ranks=[{}] * 2)
    each = [[float(word) for word in result.out.split()[-3:]] for result in results]
    return [sum(column) / len(column) for column in zip(*each, strict=True)]


def costs(server: Server, folder: Path, rounds: int) -> None:
    """Print what just-in-time checkpoints take of a batch: without them, each batch held, and as by default."""
    ways = {"off": ("--no-jit",), "each batch": ("--jit-every", "1"), "by default": ()}
    print("| batches of | layers | Python lists | off: process, main thread | each batch held | by default |")
    print("|---|---|---|---|---|---|")
    for number, shape in enumerate(SHAPES):
        found: dict[str, list[list[float]]] = {way: [] for way in ways}
        for turn in range(rounds):
            for way, given in ways.items():
                found[way].append(cost_ms(server, folder / f"cost{number}-{turn}-{way[:3]}", shape, *given))
        least = {way: [min(column) for column in zip(*each, strict=True)] for way, each in found.items()}
        shown = [f"{least[way][0]:.2f} ms, {least[way][1]:.2f} ms" for way in ways]
        lists = f"{shape[3]:,}"
        print(f"| {least['off'][2]:.0f} ms | 4 of {shape[2]}² | {lists} | {' | '.join(shown)} |", flush=True)


def inside(server: Server, folder: Path, rounds: int) -> None:
    """Print what detrain's own calls take of each batch, by the clocks of their threads: a hundredth of what programs
    differ by from run to run.
    """
    text = COST.replace("\ndef main():", f"\n{INSIDE}def main():").replace('    print("cost"', '    show_spent()\n    print("cost"')
    print("| 208 ms a batch, 4 layers of 128² | its calls, each batch | the watcher, each batch | the longest hold |")
    print("|---|---|---|---|")
    for way, given in {"off": ("--no-jit",), "by default": ()}.items():
        found = []
        for turn in range(rounds):
            place = folder / f"inside-{way[:3]}-{turn}"
            place.mkdir()
            (place / "cost.py").write_text(text)
            results = server.job("run", *given, "--ckpt", "home", place / "cost.py", 90, 0.2, 128, 0, cwd=place, ranks=[{}] * 2)
            lines = [line for result in results for line in result.out.splitlines() if line.startswith("spent")]
            found += [[float(word) for word in line.split()[1:]] for line in lines]
        calls, watcher, longest = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"| {way} | {calls:.0f} µs | {watcher:.0f} µs | {longest:.1f} ms |", flush=True)


def noisy(folder: Path, steps: int, floor_s: float) -> None:
    """Have three ranks make steps whose times are of a Pareto distribution; print how many alarms there were."""
    began, children = time.monotonic(), []
    for rank in range(3):
        child = os.fork()
        if child == 0:
            status = 70
            try:
                status = noisy_rank(folder, rank, steps, floor_s)
            finally:
                os._exit(status)
        children.append(child)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    longest = max((float(path.read_text()) for path in folder.glob("longest-*")), default=0.0)
    took = time.monotonic() - began
    print(f"{steps} noisy steps of 3 ranks in {took:.0f} s, the longest {longest:.2f} s, {floor_s:g} s and 8 of the last: ", end="")
    print(f"{sum(status != 0 for status in statuses)} alarms; load {os.getloadavg()[0]:.0f}")


def noisy_rank(folder: Path, rank: int, steps: int, floor_s: float) -> int:
    """Be one of them; return 0 if nothing was taken for a failure."""
    setup = Setup(rank, 3, folder / "home", folder / "local", "noise", hang_floor_s=floor_s)
    ranks = RankMember(setup, FolderStore(folder / "store"), Weights(), leave=alarm)
    draw, longest = random.Random(rank), 0.0
    for step in range(steps):
        began = time.monotonic()
        ranks.cut(step.to_bytes(8, "little"))
        time.sleep(0.003 * draw.paretovariate(2.2))
        ranks.gate(step.to_bytes(8, "little"))
        ranks.stepped()
        longest = max(longest, time.monotonic() - began)
    (folder / f"longest-{rank}").write_text(str(longest))
    ranks.finish()
    return 0


def alarm(ending: Ending) -> None:
    """Say what was noticed."""
    print(ending.text, flush=True)
    os._exit(1)


class Weights:
    """The big state, of which there is none."""

    def fingerprint(self) -> bytes:
        """See `detrain.runtime.ranks.watcher.BigState`."""
        return b""

    def save(self, folder: Path) -> None:
        """See there."""
        (folder / "none").write_bytes(b"none")

    def extra(self) -> bytes:
        """See there."""
        return b""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--noise", type=int, metavar="STEPS", help="only: so many steps of noisy times, and false alarms")
    parser.add_argument("--floor", type=float, default=1.0, metavar="SECONDS", help="with --noise: no hang takes less")
    parser.add_argument("--only-cost", action="store_true", help="only what a batch costs")
    parser.add_argument("--torchft", default=sys.executable, metavar="PYTHON", help="one that has torchft")
    options = parser.parse_args()
    if options.noise:
        with tempfile.TemporaryDirectory() as name:
            for each in ("home", "local", "store"):
                (Path(name) / each).mkdir()
            noisy(Path(name), options.noise, options.floor)
        return
    server, draw = Server("torch", OMP_NUM_THREADS="1"), random.Random(0)
    print(f"load {os.getloadavg()[0]:.0f}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print("| a rank's failure | trials | noticed, median (p90) | saved, median (p90) | batches lost, at most |")
        print("|---|---|---|---|---|")
        for kind in () if options.only_cost else KINDS:
            found = [failing(server, folder / f"{kind}{trial}", kind, draw) for trial in range(options.trials)]
            columns = [sorted(each[column] for each in found) for column in (0, 1)]
            shown = [f"{statistics.median(each):.3f} s ({each[int(0.9 * len(each))]:.3f})" for each in columns]
            print(f"| {kind} | {len(found)} | {shown[0]} | {shown[1]} | {max(each[2] for each in found)} |", flush=True)
        inside(server, folder, options.rounds)
        costs(server, folder, options.rounds)
        if not options.only_cost:
            compare_peers(folder, options.torchft, "")
    server.close()


if __name__ == "__main__":
    main()
