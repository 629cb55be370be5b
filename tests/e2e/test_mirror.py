"""A machine that vanishes with its disk: training goes on from the mirror, to the bit."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from detrain.store import Catalogue, read
from detrain.store.mirror.restore import read_sent
from detrain.verify.state_diff import compare
from tests.e2e.runs import Result, detrain, environment

PROGRAM = """
import sys, time, torch
torch.manual_seed(3)
rows, aims = torch.randn(48, 6), torch.randn(48, 1)
net = torch.nn.Sequential(torch.nn.Linear(6, 64), torch.nn.Dropout(0.3), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(net.parameters(), 0.01)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows, aims), batch_size=8, shuffle=True)
log = open("log.txt", "a")
for epoch in range(5):
    for row, aim in loader:
        loss = (net(row) - aim).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(float(sys.argv[1]))
        print(epoch, loss.item(), file=log, flush=True)
print("end", loss.item())
"""


class Machine:
    """A folder that stands for a machine: the program is there always, what a run leaves is gone with it."""

    def __init__(self, folder: Path, url: str, *options: str, pause: float = 0.05) -> None:
        self.folder, self.pause = folder, str(pause)
        self.options = ("--every", "4b", "--mirror", url, "--mirror-files", "*.txt", *options)
        self.appear()

    def appear(self) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "program.py").write_text(PROGRAM)

    def vanish(self) -> None:
        shutil.rmtree(self.folder)
        self.appear()

    def start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "detrain", "run", *self.options, "program.py", self.pause]
        return subprocess.Popen(
            command, cwd=self.folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self) -> Result:
        return detrain("run", *self.options, "program.py", self.pause, cwd=self.folder)

    def checkpoints(self) -> list[str]:
        return [entry.path.name for entry in Catalogue(self.folder / "ckpt").entries()]


@pytest.fixture
def whole(tmp_path: Path) -> tuple[Machine, str]:
    pytest.importorskip("torch")
    machine = Machine(tmp_path / "whole", str(tmp_path / "unused"), pause=0)
    done = machine.run()
    assert done.status == 0, done.err
    return machine, done.out


def assert_same(machine: Machine, done: Result, whole: tuple[Machine, str]) -> None:
    assert done.status == 0, done.err
    assert done.out == whole[1]
    assert (machine.folder / "log.txt").read_bytes() == (whole[0].folder / "log.txt").read_bytes()
    last = machine.checkpoints()[-1]
    mine, its = (read(each.folder / "ckpt" / last) for each in (machine, whole[0]))
    assert [each for each in compare(mine, its) if "arguments" not in str(each)] == []


def wait_for(machine: Machine, process: subprocess.Popen[str], names: int) -> None:
    until = time.monotonic() + 60
    while len(list((machine.folder / "ckpt").glob("*.h5"))) < names and process.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_machine_that_is_killed_and_vanishes_goes_on_elsewhere_to_the_bit(tmp_path: Path, whole: tuple[Machine, str]) -> None:
    machine = Machine(tmp_path / "machine", f"file://{tmp_path}/mirror")
    process = machine.start()
    wait_for(machine, process, 2)
    time.sleep(1)
    process.kill()
    process.communicate()
    machine.vanish()

    done = machine.run()

    assert "is back from the mirror" in done.err
    assert "resuming program" in done.err
    assert_same(machine, done, whole)


@pytest.mark.slow
def test_a_preempted_run_waits_for_its_mirror(tmp_path: Path, whole: tuple[Machine, str]) -> None:
    machine = Machine(tmp_path / "machine", f"file://{tmp_path}/mirror", pause=0.2)
    process = machine.start()
    wait_for(machine, process, 1)
    process.send_signal(signal.SIGTERM)
    _out, error = process.communicate()
    assert process.returncode == -signal.SIGTERM
    last = machine.checkpoints()[-1]
    machine.vanish()

    done = machine.run()

    assert f"{last} is back from the mirror" in done.err, error
    assert_same(machine, done, whole)


@pytest.mark.slow
def test_a_second_run_of_a_mirror_is_refused(tmp_path: Path, whole: tuple[Machine, str]) -> None:
    one, other = (Machine(tmp_path / name, f"file://{tmp_path}/mirror", pause=0.3) for name in ("one", "other"))
    process = one.start()
    wait_for(one, process, 1)

    refused = other.run()
    assert refused.status == 81
    assert f"being written by process {process.pid}" in refused.err
    process.kill()
    process.communicate()

    assert_same(other, other.run(), whole)


@pytest.mark.slow
def test_a_mirror_that_cannot_be_written_is_refused_at_the_start_or_tried_again(tmp_path: Path, whole: tuple[Machine, str]) -> None:
    (tmp_path / "mirror").write_text("a file, and no folder")
    machine = Machine(tmp_path / "machine", f"file://{tmp_path}/mirror", pause=0.1)
    refused = machine.run()
    assert refused.status == 71
    assert "--mirror-later" in refused.err

    machine = Machine(tmp_path / "machine", f"file://{tmp_path}/mirror", "--mirror-later", pause=0.1)
    process = machine.start()
    wait_for(machine, process, 1)
    (tmp_path / "mirror").unlink()
    out, error = process.communicate()
    assert_same(machine, Result(process.returncode, out, error), whole)
    listed = detrain("ckpt", "ls", "--json", f"file://{tmp_path}/mirror", cwd=tmp_path)
    assert machine.checkpoints()[-1] in listed.out


class Store:
    """A server of S3 whose buckets live in its memory."""

    def __init__(self) -> None:
        from moto.server import ThreadedMotoServer

        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
        self._server.start()
        _host, self.port = self._server.get_host_and_port()

    def stop(self) -> None:
        self._server.stop()

    def again(self) -> None:
        """The same server, with what was in it."""
        from moto.server import ThreadedMotoServer

        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=self.port)
        self._server.start()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    pytest.importorskip("moto.server")
    boto3, _ = pytest.importorskip("boto3"), pytest.importorskip("s3fs")
    made = Store()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{made.port}",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    boto3.client("s3").create_bucket(Bucket="runs")
    yield made
    made.stop()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_random_ends_of_process_machine_and_store_lose_no_bit(
    tmp_path: Path, whole: tuple[Machine, str], store: Store, seed: int
) -> None:
    """Kills at random moments; mostly the folder is gone, and now and then the store does not answer for a while."""
    rng = random.Random(seed)
    machine = Machine(tmp_path / "machine", "s3://runs/deep", pause=0.04)
    ends = int(os.environ.get("DETRAIN_TEST_ENDS", "6"))
    for _ in range(ends):
        process = machine.start()
        time.sleep(rng.uniform(2.0, 6.5))
        if rng.random() < 0.3:
            store.stop()
            time.sleep(rng.uniform(0.2, 1.5))
            process.kill()
            store.again()
        else:
            process.kill()
        if rng.random() < 0.5 and (sent := read_sent(machine.folder / "ckpt", "program")) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(sent.pid, signal.SIGKILL)  # the whole machine is gone
        process.communicate()
        if rng.random() < 0.8:
            machine.vanish()
    assert_same(machine, machine.run(), whole)


def kill_all_in(folder: Path) -> None:
    """Kill what runs in a folder, until nothing does: launchers, ranks, and those that send."""
    while found := [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cwd") if _leads_to(path, folder)]:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _leads_to(link: Path, folder: Path) -> bool:
    try:
        return link.readlink() == folder
    except OSError:
        return False


RANKS = """
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(3)
rank = dist.get_rank()
rows = torch.randn(48, 6)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(6, 64), torch.nn.Linear(64, 1)))
optimizer = torch.optim.AdamW(net.parameters(), 0.01)
for epoch in range(4):
    for start in range(0, 48, 12):
        loss = (net(rows[start + 4 * rank : start + 4 * rank + 4]) + 0.1 * torch.rand(())).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(float(sys.argv[1]))
print("end of", rank, loss.item())
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_job_of_three_ranks_goes_on_where_all_of_them_are(tmp_path: Path, seed: int) -> None:
    pytest.importorskip("torch")
    rng = random.Random(seed)

    def command(folder: Path, url: Path) -> list[str]:
        folder.mkdir(exist_ok=True)
        (folder / "program.py").write_text(RANKS)
        launch = [sys.executable, "-m", "detrain", "launch", "--nproc-per-node", "3", "--no-jit", "--every", "2b"]
        return [*launch, "--mirror", f"file://{url}", "program.py", "0.15"]

    def finished(folder: Path, url: Path) -> Result:
        done = subprocess.run(command(folder, url), cwd=folder, env=environment(), capture_output=True, text=True, check=False)
        return Result(done.returncode, done.stdout, done.stderr)

    whole = finished(tmp_path / "whole", tmp_path / "unused")
    assert whole.status == 0, whole.err
    for _ in range(3):
        process = subprocess.Popen(command(tmp_path / "machine", tmp_path / "mirror"), cwd=tmp_path / "machine", env=environment())
        until = time.monotonic() + 120
        while len(list((tmp_path / "machine").glob("ckpt/program/rank-*/*.h5"))) < 4 and process.poll() is None:
            assert time.monotonic() < until
            time.sleep(0.05)
        time.sleep(rng.uniform(0, 1.5))
        kill_all_in(tmp_path / "machine")
        process.wait()
        shutil.rmtree(tmp_path / "machine", ignore_errors=True)
    done = finished(tmp_path / "machine", tmp_path / "mirror")

    assert done.status == 0, done.err
    assert "is back from the mirror" in done.err
    assert sorted(done.out.splitlines()) == sorted(whole.out.splitlines())
