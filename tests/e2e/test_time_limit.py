"""A fault in a number that the program counts by: its trial hangs, and those beside it are judged as ever."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from detrain.campaign.engine.ledger import Ledgers
from detrain.campaign.trial_log import HANG
from tests.e2e.runs import detrain, environment

pytest.importorskip("torch")

PROGRAM = """
import time, torch
from torch import nn
torch.manual_seed(0)
network = nn.Linear(4, 2)
optimizer = torch.optim.SGD(network.parameters(), 0.1)
x, y, one = torch.randn(24, 4), torch.randint(0, 2, (24,)), torch.ones(1, dtype=torch.int64)
for epoch in range(2):
    for start in range(0, 24, 8):
        loss = nn.functional.cross_entropy(network(x[start : start + 8]), y[start : start + 8])
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        turns = (one + one).item()
        while turns > 2:
            time.sleep(1)
            turns -= 1
"""


@pytest.mark.slow
def test_a_trial_whose_step_does_not_end_hangs(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    hits = ("--model", "BIT:20", "--site", "forward/add", "--at", "0:1", "--until", "+1", "--json")
    done = detrain("inject", *hits, "program.py", cwd=tmp_path).ok()

    record = json.loads(done.out)
    assert (record["outcome"], record["end"]) == ("hang", "status 124")


@pytest.mark.slow
def test_the_command_that_is_printed_runs_a_record_again(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import sys\nassert sys.argv[1:] == ['--lr', '0.1', 'a b']\n" + PROGRAM)
    hits = ("--model", "BIT:20", "--site", "backward/*mm", "--at", "0:1", "--until", "+1", "--ckpt", "saved here")
    done = detrain("inject", *hits, "program.py", "--lr", "0.1", "a b", cwd=tmp_path).ok()
    command = re.search(r"`detrain (replay .*)` runs it again", done.err)
    assert command is not None, done.err

    again = detrain(*shlex.split(command[1]), cwd=tmp_path)

    assert (again.status, "IDENTICAL" in again.out) == (0, True), again.err


@pytest.mark.slow
def test_in_a_campaign_trials_hang_and_those_beside_them_are_as_alone(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    plan = ("-n", 8, "--seed", 2, "--models", "FLIP:1", "--site", "forward/add", "--after", 2, "--json")
    assert detrain("campaign", "plan", *plan, "program.py", cwd=tmp_path).status == 0
    done = detrain("campaign", "run", "--workers", 1, "--json", "program.py", cwd=tmp_path).ok()

    folder = next(tmp_path.glob("ckpt/*/*/campaign-campaign/ledger"))
    rows = list(Ledgers(folder, json.loads(done.out)["plan"]).rows())
    assert len(rows) == 8
    # A trial that is ended within its step has not said what it has changed. Of the others, bit 63 has made the number
    # negative, bit 1 has made it 0, and bits 0, 2 and 3 add less than ten seconds.
    hung = [row for row in rows if row.outcome == "hang"]
    assert len(hung) >= 4
    assert {row.status for row in hung} == {HANG}
    assert {bit for row in rows if row not in hung for bit in row.bits} <= {0, 1, 2, 3, 63}
    assert all(row.bits for row in rows if row not in hung)


@pytest.mark.slow
def test_trials_that_hang_keep_no_others_waiting_and_what_is_killed_meanwhile_goes_on(tmp_path: Path) -> None:
    """All hit the number that the program counts by, and most hang, ten seconds each."""
    (tmp_path / "program.py").write_text(PROGRAM)
    plan = ("-n", 24, "--seed", 2, "--models", "FLIP:1", "--site", "forward/add", "--after", 2, "--json")
    for name in ("whole", "killed"):
        assert detrain("campaign", "plan", "--name", name, *plan, "program.py", cwd=tmp_path).status == 0

    whole = detrain("campaign", "run", "--name", "whole", "--workers", 1, "--json", "program.py", cwd=tmp_path).ok()
    told = json.loads(whole.out)
    assert told["shares"]["hang"] >= 15
    assert told["seconds"] < 10 * told["shares"]["hang"] / 2, told

    run = [sys.executable, "-m", "detrain", "campaign", "run", "--name", "killed", "--workers", "1", "program.py"]
    with subprocess.Popen(run, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()) as driver:
        while len(processes_in(tmp_path)) < 6:  # driver, worker, program, and copies that are left in their trials
            assert driver.poll() is None
            time.sleep(0.1)
        driver.kill()
    end = time.monotonic() + 20
    while left := processes_in(tmp_path):
        assert time.monotonic() < end, left
        time.sleep(0.1)
    again = detrain("campaign", "run", "--name", "killed", "--workers", 2, "--json", "program.py", cwd=tmp_path)
    assert json.loads(again.out)["digest"] == told["digest"], again.err


def processes_in(folder: Path) -> list[int]:
    """Return the processes whose working folder this is, but those that have ended."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink() == folder:
                found.append(int(process.name))
    return found
