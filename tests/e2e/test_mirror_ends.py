"""Ends at random moments, of the process, of what started it, of the machine with its disk, and of the store, also by
disks and stores that are full: training goes on from the newest whole state of the mirror, and comes to the bits of a
run that never ended.

What the mirror has is read from the store's objects, with nothing of detrain.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash

from tests.e2e.runs import Result, environment
from tests.store.servers import S3Server

ENDS = int(os.environ.get("DETRAIN_TEST_ENDS", "12"))
"""In the long suite, of each seed."""

PROGRAM = """
import hashlib, pathlib, sys, time, torch
torch.manual_seed(3)
rows, aims = torch.randn(96, 6), torch.randn(96, 1)
net = torch.nn.Sequential(torch.nn.Linear(6, 64), torch.nn.Dropout(0.3), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(net.parameters(), 0.01)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows, aims), batch_size=8, shuffle=True)
out = pathlib.Path("out")
out.mkdir(exist_ok=True)
log, best = open(out / "log.txt", "a"), out / "best.txt"
said = ""
for epoch in range(5):
    (out / f"epoch-{epoch}.txt").write_text(f"{epoch} {loader.batch_size}")
    for row, aim in loader:
        loss = (net(row) - aim).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(float(sys.argv[1]))
        if not best.exists() or loss.item() < float(best.read_text()) or loss.item() > 1.5:
            best.write_text(repr(loss.item()))
        line = f"{epoch} {loss.item()!r} {best.read_text()}"
        said = hashlib.sha256((said + line).encode()).hexdigest()
        print(line)
        print(line, file=log, flush=True)
weights = torch.cat([each.detach().flatten() for each in net.parameters()])
print("weights", hashlib.sha256(weights.numpy().tobytes()).hexdigest(), "said", said)
"""

RANKS = """
import hashlib, os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(3)
rank = dist.get_rank()
rows = torch.randn(48, 6)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(6, 64), torch.nn.Linear(64, 1)))
optimizer = torch.optim.AdamW(net.parameters(), 0.01)
said = ""
for epoch in range(6):
    for start in range(0, 48, 12):
        loss = (net(rows[start + 4 * rank : start + 4 * rank + 4]) + 0.1 * torch.rand(())).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(float(sys.argv[1]))
        said = hashlib.sha256(f"{said} {loss.item()!r}".encode()).hexdigest()
weights = torch.cat([each.detach().flatten() for each in net.parameters()])
sys.stdout.write(f"rank {rank} weights {hashlib.sha256(weights.numpy().tobytes()).hexdigest()} said {said}\\n")
dist.destroy_process_group()
"""


def whole_states(objects: dict[str, bytes], place: str) -> list[set[str]]:
    """Return the checkpoints of each whole state of a place in a mirror, the newest last."""
    found = []
    for name in sorted(name for name in objects if name.startswith(f"deep/{place}/states/")):
        digest, _, text = objects[name].partition(b"\n")
        if xxhash.xxh3_128_hexdigest(text.rstrip(b"\n")).encode() != digest:
            continue
        state = json.loads(text)
        parts = {part for each in (*state["home"], *state["files"]) for part in each["parts"]}
        held = {part: objects.get(f"deep/{place}/{part}", b"") for part in parts}
        if all(f"{xxhash.xxh3_128_hexdigest(each)}-{len(each)}" == part.rpartition("/")[2] for part, each in held.items()):
            names = {each["path"] for each in state["home"] if each["path"].endswith(".h5")}
            assert state["checkpoint"] in names
            found.append(names)
    return found


def newest_common(objects: dict[str, bytes], places: list[str]) -> str:
    """Return the newest checkpoint of which each place has its part in a whole state; empty: there is none."""
    return max(set.intersection(*(set().union(*whole_states(objects, place)) for place in places)), default="")


def kill_all_in(folder: Path, *, but: str = "nothing") -> None:
    """Kill what runs in a folder, until nothing does: launchers, ranks, and those that send; not what has `but` in its
    command.
    """
    while found := processes_in(folder, but=but):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def processes_in(folder: Path, *, but: str = "nothing") -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*") if _is_in(path, folder) and not _has(path, but)]


def _is_in(process: Path, folder: Path) -> bool:
    try:
        return str((process / "cwd").readlink()).removesuffix(" (deleted)") == str(folder)
    except OSError:  # it has ended
        return False


def _has(process: Path, word: str) -> bool:
    try:
        return word in (process / "cmdline").read_text()
    except OSError:
        return False


class Machine:
    """A folder that stands for a machine: the program is there always, what a run leaves is gone with it."""

    def __init__(self, disk: Path, program: str, *command: str) -> None:
        self.disk, self.folder, self.program = disk, disk / "machine", program
        self.command = [sys.executable, "-m", "detrain", *command]
        self.errors = disk.with_suffix(".err")
        self.appear()

    def appear(self) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "program.py").write_text(self.program)

    def vanish(self) -> None:
        while self.folder.exists():
            shutil.rmtree(self.folder, ignore_errors=True)
        self.appear()

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """No room is left on the disk for a while."""
        filler = self.disk / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while self.disk.is_mount():
                file.write(bytes(4096))
        yield
        filler.unlink()

    def start(self) -> subprocess.Popen[str]:
        with self.errors.open("w") as errors:
            return subprocess.Popen(
                self.command, cwd=self.folder, env=environment(), stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def run(self) -> Result:
        process = self.start()
        out, _ = process.communicate(timeout=240)
        return Result(process.returncode, out, self.errors.read_text())

    def checkpoints(self) -> list[str]:
        """Names of what is in the home; of a job, in the first rank's."""
        folders = (self.folder / "ckpt", self.folder / "ckpt" / "program" / "rank-0")
        return sorted(path.name for folder in folders for path in folder.glob("*.h5"))


ENDS_OF_PROCESSES = ("process", "process, then its folder", "parent", "parent, then its folder", "machine", "reboot")
ENDS_OF_ROOM = ("store", "store, emptied", "store, full", "disk, full")
ENDINGS = (*ENDS_OF_PROCESSES, "home", *ENDS_OF_ROOM)


class Battery:
    """Trainings, one after another, that are ended again and again; what is to be after each end is asserted."""

    def __init__(self, machine: Machine, store: S3Server, rng: random.Random, places: list[str]) -> None:
        self.machine, self.store, self.rng, self.places = machine, store, rng, places
        started = time.monotonic()
        self.whole = machine.run()
        self.start_s = (time.monotonic() - started) / 2
        assert self.whole.status == 0, self.whole.err
        self._begin_anew()
        self.counts = dict.fromkeys((*ENDINGS, "whole", "back", "resumed"), 0)

    def _begin_anew(self) -> None:
        kill_all_in(self.machine.folder)
        self.machine.vanish()
        self.store.lose_all()

    def end_once(self) -> None:
        """Begin or go on, and end at a random moment in a random way; see that the run went on from where it should."""
        rng, machine = self.rng, self.machine
        is_empty = machine.checkpoints() == []
        expected = newest_common(self.store.objects(), self.places)
        process = machine.start()
        self._wait(process)
        what = rng.choice(ENDINGS)
        print(what, end="; ", flush=True)
        self.counts[what] += 1
        then = what
        with contextlib.ExitStack() as away:
            if what in ENDS_OF_ROOM:
                away.enter_context(machine.full() if what == "disk, full" else self._away(what))
                time.sleep(rng.uniform(0.2, 1.5))
                then = rng.choice(("machine", "reboot"))
                if rng.random() < 0.5:
                    away.close()
                    time.sleep(rng.uniform(0.2, 2))
                    then = rng.choice(ENDS_OF_PROCESSES)
            has_ended = process.poll()
            self._end(process, then)
            out, _ = process.communicate()
        error = machine.errors.read_text()
        self._require_newest(error, expected, is_empty=is_empty)
        if has_ended == 0:
            self.require_same(out, error)
            self._begin_anew()
        else:
            allowed = {71} if what.startswith("store") else {1, 73} if self._is_full(error) else set()  # 1: the program's own error
            assert has_ended in {None, *allowed}, error

    def _wait(self, process: subprocess.Popen[str]) -> None:
        """Wait for a random moment: of the start, or behind a checkpoint that was taken or is back."""
        if self.rng.random() < 0.25:
            time.sleep(self.rng.uniform(0, self.start_s))
            return
        wanted, before = self.rng.randrange(1, 9), set(self.machine.checkpoints())
        found, until = set(before), time.monotonic() + 120
        while len(found - before) < wanted and process.poll() is None:
            assert time.monotonic() < until, self.machine.errors.read_text()
            found |= set(self.machine.checkpoints())
            time.sleep(0.02)
        time.sleep(self.rng.uniform(0, 0.4))

    def finish(self) -> None:
        """Run to the end."""
        is_empty, expected = self.machine.checkpoints() == [], newest_common(self.store.objects(), self.places)
        done = self.machine.run()
        self._require_newest(done.err, expected, is_empty=is_empty)
        self.require_same(done.out, done.err)

    def require_same(self, out: str, error: str) -> None:
        """See that a run's last lines, and the program's files, are those of the run that never ended."""
        self.counts["whole"] += 1
        last = [sorted(line for line in each.splitlines() if "weights" in line) for each in (out, self.whole.out)]
        assert last[0] == last[1] != [], error
        if (log := self.machine.folder / "out" / "log.txt").exists():
            said = [line for line in self.whole.out.splitlines() if "weights" not in line]
            assert log.read_text().splitlines() == said, error

    def _require_newest(self, error: str, expected: str, *, is_empty: bool) -> None:
        assert "Traceback" not in error or self._is_full(error), error
        begun = set(re.findall(r"resuming .* from \S*?([^/\s]+\.h5)", error))
        assert len(begun) <= 1, error
        self.counts["resumed"] += len(begun)
        for name in begun:
            assert name >= expected, f"expected {expected}: {error}"
            assert not is_empty or name == expected, f"expected {expected}: {error}"
        if expected and is_empty and self.machine.checkpoints() and "starting" in error:
            assert begun or "back from the mirror" in error, f"expected {expected}: {error}"
        self.counts["back"] += "is back from the mirror" in error

    @staticmethod
    def _is_full(error: str) -> bool:
        return "No space left" in error or re.search("the disk has [0-9]+ left", error) is not None

    @contextlib.contextmanager
    def _away(self, what: str) -> Iterator[None]:
        if what == "store, full":
            self.store.is_full = True
        else:
            self.store.stop()
        yield
        if what == "store, full":
            self.store.is_full = False
        else:
            self.store.begin()
        if what == "store, emptied":
            self.store.lose_all()

    def _end(self, process: subprocess.Popen[str], what: str) -> None:
        if not what.startswith(("process", "parent")):
            kill_all_in(self.machine.folder)
            if what == "home":  # the files of the program are left, of whatever moment
                shutil.rmtree(self.machine.folder / "ckpt", ignore_errors=True)
            # What begins anew finds none of them: it would append to its log, with detrain and without.
            if what == "machine" or (what == "home" and not newest_common(self.store.objects(), self.places)):
                self.machine.vanish()
            return
        if what.startswith("parent"):  # the launcher of ranks, which end by themselves
            process.kill()
        else:
            kill_all_in(self.machine.folder, but="mirror.sender")
        if what.endswith("folder"):
            time.sleep(self.rng.uniform(0, 0.5))
            self.machine.vanish()
        until = time.monotonic() + 120
        while left := processes_in(self.machine.folder):  # what sends ends by itself
            assert time.monotonic() < until, (left, self.machine.errors.read_text())
            time.sleep(0.05)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system in memory; where none can be mounted, a folder that is never full."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", folder], capture_output=True, check=False)
    yield folder
    if mounted.returncode == 0:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "ends"), [(0, 1), *((seed, ENDS) for seed in range(1, 5))])
def test_a_run_goes_on_from_its_mirror_wherever_process_machine_and_store_end(
    disk: Path, s3_server: S3Server, seed: int, ends: int
) -> None:
    options = ("--every", "4b", "--mirror", s3_server.url, "--mirror-files", "out/*")
    machine = Machine(disk, PROGRAM, "run", *options, "program.py", "0.05")
    battery = Battery(machine, s3_server, random.Random(seed), ["program"])
    for _ in range(ends):
        battery.end_once()
    battery.finish()
    print(battery.counts)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "jit"), [(0, "--no-jit"), (1, "--no-jit"), (2, "--jit")])
def test_a_job_of_three_ranks_goes_on_where_all_of_them_are(disk: Path, s3_server: S3Server, seed: int, jit: str) -> None:
    options = ("--nproc-per-node", "3", jit, "--every", "2b", "--mirror", s3_server.url)
    machine = Machine(disk, RANKS, "launch", *options, "program.py", "0.15")
    battery = Battery(machine, s3_server, random.Random(seed), [f"program/rank-{rank}" for rank in range(3)])
    for _ in range(ENDS):
        battery.end_once()
    battery.finish()
    print(battery.counts)
