"""The same failure of the same small job, as just-in-time checkpoints, `torch.save` and torchft come through it.

    python benchmarks/peers/just_in_time.py [--only WORD] [--torchft PYTHON]

Three ranks train by DistributedDataParallel; rank 1 is killed in step 70 of 120. *Lost*: steps that rank 0 did again.
*Seconds*: from the kill to the end of the first step that nobody had done before. *Bits*: those of rank 0's weights at
the end that are not as in a run of the same kind that nothing befell. `--torchft`: a Python that has torchft, where it
is not this one; without, its row says that it is absent. All stays on this machine.

The programs differ in what each way asks of them: nothing; to save and load all state each 20 steps; torchft's manager.
torchrun starts the first two again, as `--max-restarts` says; the third's dead process is started again at once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
WORLD, DEATH, STEPS, EVERY = 3, 70, 120, 20
ENOUGH_S = 100
HEAD = f"""
import os, random, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

torch.set_num_threads(1)
PER_EPOCH, EPOCHS = 20, {STEPS // 20}
torch.manual_seed(5)
data = TensorDataset(torch.randn({WORLD} * 8 * PER_EPOCH, 16), torch.randint(4, ({WORLD} * 8 * PER_EPOCH,)))
net = nn.Sequential(nn.Linear(16, 128), nn.Tanh(), nn.Dropout(0.2), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 4))


def say(*words):
    os.write(1, (" ".join(map(str, words)) + chr(10)).encode())


def write_weights(rank):
    with open(f"weights-{{rank}}", "wb") as file:
        file.write(b"".join(each.detach().numpy().tobytes() for each in net.state_dict().values()))
"""
PLAIN = """
dist.init_process_group("gloo")
rank = dist.get_rank()
say("process", rank, os.getpid())
torch.manual_seed(100 + rank)
model = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.01)
optimizer = torch.optim.Adam(net.parameters(), 0.003)
shares = DistributedSampler(data, dist.get_world_size(), rank)
loader = DataLoader(data, 8, sampler=shares)
for epoch in range(EPOCHS):
    shares.set_epoch(epoch)
    for step, (inputs, labels) in enumerate(loader):
        time.sleep(0.05)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        say("step", rank, epoch * PER_EPOCH + step, time.time())
write_weights(rank)
dist.barrier()
dist.destroy_process_group()
"""
LOAD = """
first = 0
if os.path.exists(f"state-{rank}"):
    state = torch.load(f"state-{rank}", weights_only=False)
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["torch"])
    random.setstate(state["random"])
    first = state["step"]
for epoch in range(first // PER_EPOCH, EPOCHS):
"""
SAVE = f"""
        done = epoch * PER_EPOCH + step + 1
        if done % {EVERY} == 0:
            state = {{"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": done}}
            torch.save({{**state, "torch": torch.get_rng_state(), "random": random.getstate()}}, f"state-{{rank}}.new")
            dist.barrier()
            os.replace(f"state-{{rank}}.new", f"state-{{rank}}")
write_weights(rank)
"""
SAVING = PLAIN.replace("\nfor epoch in range(EPOCHS):\n", LOAD).replace("\nwrite_weights(rank)\n", SAVE)
"""An epoch is as long as the distance of saves, so the loader starts anew at each."""
TORCHFT = """
from datetime import timedelta
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

rank = int(sys.argv[1])
say("process", rank, os.getpid())
torch.manual_seed(100 + rank)


def load(state):
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])


manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=5)), min_replica_size=2, load_state_dict=load, replica_id=f"group-{rank}",
    state_dict=lambda: {"net": net.state_dict(), "optimizer": optimizer.state_dict()}, timeout=timedelta(seconds=10),
)
model = DistributedDataParallel(manager, net)
optimizer = Optimizer(manager, torch.optim.Adam(net.parameters(), 0.003))
shares = DistributedSampler(data, WORLD, rank)
loader = DataLoader(data, 8, sampler=shares)
while manager.current_step() < EPOCHS * PER_EPOCH:
    epoch = manager.current_step() // PER_EPOCH
    shares.set_epoch(epoch)
    for step, (inputs, labels) in enumerate(loader):
        if step < manager.current_step() - epoch * PER_EPOCH:
            continue
        time.sleep(0.05)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        before = manager.current_step()
        optimizer.step()
        if manager.current_step() > before:
            say("step", rank, before, time.time())
        if manager.current_step() >= min(EPOCHS, epoch + 1) * PER_EPOCH:
            break
write_weights(rank)
os._exit(0)
""".replace("WORLD", str(WORLD))


@dataclass
class Job:
    """One job: its folder, its output, and its processes by rank."""

    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, command: list[str], **changes: str) -> None:
        """Start a process of it."""
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **changes}
        with (self.folder / "out").open("ab") as out, (self.folder / "err").open("ab") as err:
            self.processes.append(
                subprocess.Popen(command, cwd=self.folder, stdout=out, stderr=err, env=variables, start_new_session=True)
            )

    def said(self) -> str:
        """Return its output so far."""
        return (self.folder / "out").read_text()

    def process_of(self, rank: int) -> int:
        """Return the number of the newest process of a rank."""
        return int(re.findall(rf"process {rank} (\d+)", self.said())[-1])

    def steps(self, rank: int) -> list[tuple[int, float]]:
        """Return the steps of a rank, and when they ended."""
        return [(int(step), float(at)) for step, at in re.findall(rf"step {rank} (\d+) ([\d.]+)\n", self.said())]

    def end(self) -> None:
        """Kill what is left."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with what it has started
            process.wait()


def failure(job: Job, start_again: list[str] | None) -> float:
    """Kill rank 1 in its step, and return when that was; start it again where no launcher does."""
    deadline = time.monotonic() + ENOUGH_S
    while not job.steps(1) or job.steps(1)[-1][0] < DEATH - 1:
        if time.monotonic() > deadline:
            raise TimeoutError((job.folder / "err").read_text()[-3000:])
        time.sleep(0.002)
    time.sleep(0.02)
    at = time.time()
    os.kill(job.process_of(1), signal.SIGKILL)
    if start_again is not None:
        job.start(start_again, MASTER_PORT=str(free_port()))
    return at


def finish(job: Job) -> bytes:
    """Wait for the end, and return the weights of rank 0."""
    for process in job.processes:
        status = process.wait(ENOUGH_S)
        if status not in (0, -signal.SIGKILL):
            raise RuntimeError((job.folder / "err").read_text()[-3000:])
    return (job.folder / "weights-0").read_bytes()


def row(name: str, whole: bytes, job: Job, weights: bytes, at: float) -> None:
    """Print what came of a failure."""
    steps = job.steps(0)
    before = max(step for step, ended in steps if ended <= at)
    first_new = min(ended for step, ended in steps if step > before and ended > at)
    lost = sum(step <= before for step, ended in steps if ended > at)
    bits = int(np.unpackbits(np.frombuffer(whole, np.uint8) ^ np.frombuffer(weights, np.uint8)).sum())
    print(f"| {name} | {lost} | {first_new - at:.1f} s | {bits:,} of {8 * len(whole):,} |", flush=True)


def by_torchrun(folder: Path, name: str, text: str, options: list[str], *, fails: bool) -> tuple[Job, bytes, float]:
    """Run a program by torchrun, or by `detrain launch`."""
    job = Job(folder / f"{name}-{'fails' if fails else 'whole'}")
    job.folder.mkdir()
    (job.folder / "train.py").write_text(HEAD + text)
    # By an address: `--standalone` looks up the machine's name, which takes long where that is not known.
    here = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    launch = ["-m", "detrain", "launch"] if options else ["-m", "torch.distributed.run", *here]
    count = ["--nproc-per-node", str(WORLD), "--max-restarts", "3"]
    job.start([sys.executable, *launch, *count, *options, "train.py"])
    try:
        at = failure(job, None) if fails else 0.0
        return job, finish(job), at
    finally:
        job.end()


def by_torchft(folder: Path, python: str, *, fails: bool) -> tuple[Job, bytes, float]:
    """Run torchft's program: a replica group is one process."""
    job = Job(folder / f"torchft-{'fails' if fails else 'whole'}")
    job.folder.mkdir()
    (job.folder / "train.py").write_text(HEAD + TORCHFT)
    port = free_port()
    lighthouse = [str(Path(python).parent / "torchft_lighthouse"), "--min_replicas", "2", "--join_timeout_ms", "3000"]
    with (job.folder / "lighthouse").open("wb") as out:
        house = subprocess.Popen([*lighthouse, "--bind", f"127.0.0.1:{port}"], stdout=out, stderr=out)
    same = {"MASTER_ADDR": "127.0.0.1", "RANK": "0", "WORLD_SIZE": "1", "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}"}
    os.environ.update(same)
    try:
        for rank in range(WORLD):
            job.start([python, "train.py", str(rank)], MASTER_PORT=str(free_port()))
        at = failure(job, [python, "train.py", "1"]) if fails else 0.0
        return job, finish(job), at
    finally:
        job.end()
        house.kill()
        house.wait()
        for name in same:
            del os.environ[name]


def free_port() -> int:
    """Return a port of this machine that nobody has."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def compare_peers(folder: Path, torchft: str, only: str) -> None:
    """Print the table."""
    ways = {
        "detrain, each batch held": (PLAIN, ["--jit-every", "1"]),
        "detrain, by default": (PLAIN, ["--jit-hang", "600"]),
        f"`torch.save` each {EVERY} steps, torchrun": (SAVING, []),
    }
    print("| | steps lost | seconds to the first new step | bits that differ at the end |")
    print("|---|---|---|---|")
    for number, (name, (text, options)) in enumerate(ways.items()):
        if only in name:
            _job, whole, _at = by_torchrun(folder, str(number), text, options, fails=False)
            try:
                row(name, whole, *by_torchrun(folder, str(number), text, options, fails=True))
            except subprocess.TimeoutExpired:
                print(f"| {name} | did not end within {ENOUGH_S} s | | |", flush=True)
    if only in "torchft":
        has_it = subprocess.run([torchft, "-c", "import torchft"], capture_output=True, check=False).returncode == 0
        if not has_it:
            print("| torchft: absent here | | | |")
            return
        name = "torchft, two of three groups are enough"
        try:
            _job, whole, _at = by_torchft(folder, torchft, fails=False)
            row(name, whole, *by_torchft(folder, torchft, fails=True))
        except subprocess.TimeoutExpired:
            print(f"| {name} | did not end within {ENOUGH_S} s | | |")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torchft", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--only", default="", metavar="WORD")
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.0f}")
    with tempfile.TemporaryDirectory() as name:
        compare_peers(Path(name), options.torchft, options.only)


if __name__ == "__main__":
    main()
