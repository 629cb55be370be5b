"""A machine that vanishes with its disk: training goes on from the mirror, to the bit."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from detrain.store import Catalogue, read
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


@pytest.mark.parametrize("kind", ["file", "ssh"])
def test_a_machine_that_is_killed_and_vanishes_goes_on_elsewhere_to_the_bit(
    tmp_path: Path, whole: tuple[Machine, str], request: pytest.FixtureRequest, kind: str
) -> None:
    url = request.getfixturevalue("ssh_server").url if kind == "ssh" else f"file://{tmp_path}/mirror"
    machine = Machine(tmp_path / "machine", url)
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
