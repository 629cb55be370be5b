"""A job on two nodes, by torchrun's c10d rendezvous: a rank dies, a node is cut off, a node is cut off and gone.

The nodes are namespaces of this machine: each has a network of its own, with one cable between them, its own process
numbers and its own `/dev/shm`. Nothing leaves the machine. They are real processes, as neither a cable nor a node that
is gone without a word can be had in one.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.forkserver import Server
from tests.e2e.runs import environment
from tests.e2e.test_ranks import PROGRAM

pytestmark = pytest.mark.slow
WORLD = 4
ENOUGH_S = 120
STORE_PORT = 29400
NODE = 'mount -t tmpfs tmpfs /dev/shm && exec "$@"'


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Nodes:
    """Two nodes, the cable between them, and what runs there."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._name = folder, f"dt{os.getpid() % 100_000}"
        self._names = [f"{self._name}-{node}" for node in range(2)]
        self._starts = 0
        self.running: list[subprocess.Popen[bytes]] = []

    def make(self) -> None:
        """Make them. Raises OSError, CalledProcessError where that is not allowed."""
        for name in self._names:
            ip("netns", "add", name)
        ip(
            "link",
            "add",
            f"{self._name}a",
            "netns",
            self._names[0],
            "type",
            "veth",
            "peer",
            f"{self._name}b",
            "netns",
            self._names[1],
        )
        for node, (name, end) in enumerate(zip(self._names, "ab", strict=True)):
            ip("-n", name, "addr", "add", f"10.77.0.{node + 1}/24", "dev", f"{self._name}{end}")
            ip("-n", name, "link", "set", "lo", "up")
        self.cable("up")
        command = ["ip", "netns", "exec", self._names[0], *self._unshare(), "true"]
        subprocess.run(command, check=True, capture_output=True, timeout=30)

    def remove(self) -> None:
        """End what runs there, and remove them."""
        self.end()
        for name in self._names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def cable(self, state: str) -> None:
        """Pull the cable ("down"), or plug it in ("up")."""
        for name, end in zip(self._names, "ab", strict=True):
            ip("-n", name, "link", "set", f"{self._name}{end}", state)

    def launch(self, *command: object) -> None:
        """Start one job on both."""
        self._starts += 1
        for node, end in enumerate("ab"):
            options = ["--nnodes", "2", "--nproc-per-node", str(WORLD // 2), "--max-restarts", "3", "--rdzv-backend", "c10d"]
            options += ["--rdzv-endpoint", f"10.77.0.1:{STORE_PORT}", "--rdzv-id", f"{self._name}-{self._starts}"]
            options += ["--rdzv-conf", f"is_host={node == 0}", "--local-addr", f"10.77.0.{node + 1}", *map(str, command)]
            launch = [sys.executable, "-m", "detrain", "launch", *options]
            with self._file("out", node).open("ab") as out, self._file("err", node).open("ab") as err:
                process = subprocess.Popen(
                    ["ip", "netns", "exec", self._names[node], *self._unshare(), *launch],
                    cwd=self._folder,
                    stdout=out,
                    stderr=err,
                    env=environment(GLOO_SOCKET_IFNAME=f"{self._name}{end}", OMP_NUM_THREADS="1"),
                )
            self.running.append(process)

    def end(self) -> None:
        """Kill all that runs on the nodes: a node's first process takes all others with it."""
        for process in self.running:
            process.kill()
            process.wait()
        self.running.clear()

    def ranks(self) -> dict[int, int]:
        """Return the processes of the ranks that live, as this test sees them."""
        run, found = f"TORCHELASTIC_RUN_ID={self._name}-{self._starts}".encode(), {}
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                words = path.read_bytes().split(b"\0")
                number = next((word[5:] for word in words if word.startswith(b"RANK=")), b"")
                if run in words and number:
                    found[int(number)] = int(path.parent.name)
        return found

    def said(self, kind: str) -> str:
        """Return what both have written."""
        return "".join(self._file(kind, node).read_text() for node in range(2))

    def _file(self, kind: str, node: int) -> Path:
        return self._folder / f"{kind}-{node}"

    @staticmethod
    def _unshare() -> list[str]:
        return ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL", "sh", "-c", NODE, "node"]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """Two nodes, which are removed again."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("namespaces need root, ip and unshare")
    made = Nodes(tmp_path)
    try:
        try:
            made.make()
        except (OSError, subprocess.SubprocessError) as error:
            pytest.skip(f"namespaces cannot be made here: {getattr(error, 'stderr', '') or error}")
        yield made
    finally:
        made.remove()


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The program with batches of 0.2 s."""
    path = tmp_path / "modes.py"
    text = PROGRAM.read_text().replace("            total += ", "            time.sleep(0.2)\n            total += ")
    path.write_text(text.replace("import sys\n", "import sys\nimport time\n"))
    return path


def manifests(home: Path) -> list[Path]:
    return list(home.glob("modes/jit/*/manifest.json"))


def await_batches(home: Path, count: int) -> None:
    until(lambda: all(batches(home, rank) >= count for rank in range(WORLD)), f"{count} batches")


def batches(home: Path, rank: int) -> int:
    path = home / "modes" / f"rank-{rank}" / "modes-r1.journal"
    return path.read_bytes().count(b"\xa1b") if path.is_file() else 0


def until(is_so: object, what: str) -> None:
    assert callable(is_so)
    deadline = time.monotonic() + ENOUGH_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def last_lines(text: str) -> list[str]:
    return sorted(set(re.findall(r"rank \d+ [0-9a-f]{64}", text)))


def whole_of(server: Server, program: Path, folder: Path) -> list[str]:
    results = server.job(program, "default", cwd=folder, ranks=[{}] * WORLD, is_bare=True)
    return last_lines("\n".join(each.out for each in results))


def assert_went_on(nodes: Nodes, done: int, whole: list[str]) -> None:
    for process in nodes.running:
        assert process.wait(ENOUGH_S) == 0, nodes.said("err")
    at = re.search(r"resuming modes at (\d+):(\d+)", nodes.said("err"))
    assert at is not None, nodes.said("err")
    assert done - (6 * int(at[1]) + int(at[2])) <= 1, nodes.said("err")
    assert last_lines(nodes.said("out")) == whole


def test_a_rank_dies_on_the_other_node(nodes: Nodes, program: Path, ranks_server: Server, tmp_path: Path) -> None:
    home = tmp_path / "home"
    nodes.launch("--jit-every", "1", "--ckpt", home, program, "default")
    await_batches(home, 8)
    os.kill(nodes.ranks()[3], signal.SIGKILL)
    done = batches(home, 3)

    assert_went_on(nodes, done, whole_of(ranks_server, program, tmp_path))


@pytest.mark.parametrize("is_gone", [False, True], ids=["cut off", "cut off and gone"])
def test_a_node_is_cut_off(is_gone: bool, nodes: Nodes, program: Path, ranks_server: Server, tmp_path: Path) -> None:
    """Where it is gone too, what its ranks were is known by their buddies on the other node alone. Where it lives, each
    half has all that it takes: both end, with one checkpoint, and no half goes on alone.
    """
    home = tmp_path / "home"
    command = ("--jit-every", "1", "--ckpt", home, program, "default")
    nodes.launch(*command)
    await_batches(home, 8)
    nodes.cable("down")
    if is_gone:
        other = nodes.running.pop()
        other.kill()
        other.wait()
    done = max(batches(home, rank) for rank in range(WORLD))
    until(lambda: manifests(home), "a manifest")  # 60 s of silence
    until(lambda: not nodes.ranks(), "all ranks end, those without a checkpoint of their own, too")
    assert len(manifests(home)) == 1
    assert max(batches(home, rank) for rank in range(WORLD)) - done <= 1, "neither half goes on"

    nodes.end()  # or torchrun's agents go on by themselves, unless their store has not answered for a minute
    nodes.cable("up")
    nodes.launch(*command)
    assert_went_on(nodes, done, whole_of(ranks_server, program, tmp_path))
