"""A Ray cluster that goes away stops a campaign with one message; it goes on later, here or elsewhere."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.campaign.test_engine import environment, planned, run

OPEN = {**environment(), "RAY_AUTH_MODE": "disabled", "RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE": "1"}


def below(process: int) -> list[int]:
    """Return a process and all below it, the lowest last."""
    listed = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = [tuple(map(int, line.split())) for line in listed.splitlines()]
    found = [process]
    for each in found:
        found += [child for child, parent in parents if parent == each]
    return found


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Start a cluster of this machine's; all its processes are ended with the context."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    temporary = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # short, for its sockets
    settings = ("--num-cpus=1", "--include-dashboard=false", "--disable-usage-stats")
    options = (f"--temp-dir={temporary}", "--head", "--block", f"--port={port}", *settings)
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *options]
    with (folder / "cluster.log").open("wb") as log:
        head = subprocess.Popen(command, stdout=log, stderr=log, env=OPEN)
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until and b"--block" not in (folder / "cluster.log").read_bytes():
            time.sleep(0.2)
        yield f"127.0.0.1:{port}", head
    finally:
        end(head)
        shutil.rmtree(temporary, ignore_errors=True)


def end(head: subprocess.Popen[bytes]) -> None:
    """Kill a cluster, all of it at once."""
    for process in below(head.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    head.wait()


@pytest.mark.slow
def test_a_cluster_that_goes_away_stops_the_campaign_which_goes_on_here(tmp_path: Path) -> None:
    """A whole cluster is started and killed: what Ray does to its driver then is what is to be seen."""
    pytest.importorskip("ray")
    folder = planned(tmp_path, "-n", 16)
    whole = run(tmp_path, "--workers", 1)
    (folder / "ledger").rename(folder / "of-one")
    with cluster(tmp_path) as (address, head):
        command = [sys.executable, "-m", "detrain", "campaign", "run", "--engine", "ray", "--address", address, "--workers", "1"]
        with (tmp_path / "driver.log").open("wb") as log:
            driver = subprocess.Popen([*command, "program.py"], cwd=tmp_path, env=OPEN, stderr=log, stdout=log)
        while not list(folder.glob("ledger/ray-*.sqlite")) and driver.poll() is None:
            time.sleep(0.1)
        end(head)
        status = driver.wait(150)
    said = (tmp_path / "driver.log").read_text()

    assert (status, "the Ray cluster is gone" in said, "Traceback" in said) == (96, True, False), said
    gone_on = run(tmp_path, "--workers", 1)
    assert (gone_on["done"], gone_on["shares"], gone_on["digest"]) == (whole["done"], whole["shares"], whole["digest"])
