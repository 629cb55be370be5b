"""A job of several ranks without a framework, and the server that forks its processes.

The training is a toy of integers in which every bit of every rank's state matters: weights that all share, changed only
in the step by the sum over all ranks, and each rank's own random stream, which advances before and after the step. The
collective blocks for ever when a peer is gone, as gloo's does. `expected` computes the same in one process, without
ranks, cuts or checkpoints.

A fault is (rank, step, place, kind). Places: cut, body, gate, step, tail; vote and save: when the rank is asked to.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from detrain.runtime.ranks.machine import Timing
from detrain.runtime.ranks.manifest import FoundCheckpoint, find
from detrain.runtime.ranks.rendezvous import FolderStore
from detrain.runtime.ranks.room import RankMember, Setup

STEPS = 14
LIMIT_S = 40.0
EXIT_CODE = 138


def mixed(*values: int) -> int:
    """Return a number in which every bit of the values matters."""
    return int.from_bytes(hashlib.blake2b(repr(values).encode(), digest_size=7).digest(), "big")


def expected(world: int, steps: int = STEPS) -> tuple[int, list[int]]:
    """Return the weights, and each rank's stream, at the end of a training without faults."""
    weights, streams = 1, [mixed(rank) for rank in range(world)]
    for _ in range(steps):
        streams = [mixed(stream, 1) for stream in streams]
        total = sum(mixed(weights, stream) % 1000 for stream in streams)
        weights = mixed(weights, total)
        streams = [mixed(stream, 2) for stream in streams]
    return weights, streams


class AllReduce:
    """A sum over all ranks through a page of shared memory. It waits for ever for a rank that is gone."""

    def __init__(self, path: Path, rank: int, world: int) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(descriptor, 32 * world)
        self._map, self._rank, self._world = mmap.mmap(descriptor, 32 * world), rank, world

    def sum(self, step: int, value: int) -> int:
        """Return the sum of all ranks' values at this step. Each rank has two places: ranks may be one step apart."""
        at = 16 * (step % 2)
        struct.pack_into("<q", self._map, 32 * self._rank + at + 8, value)
        struct.pack_into("<q", self._map, 32 * self._rank + at, step + 1)
        while any(struct.unpack_from("<q", self._map, 32 * rank + at)[0] != step + 1 for rank in range(self._world)):
            time.sleep(0.0005)
        return sum(struct.unpack_from("<q", self._map, 32 * rank + at + 8)[0] for rank in range(self._world))


class Job:
    """One rank's process."""

    def __init__(self, spec: dict[str, Any], rank: int) -> None:
        self.spec, self.rank, self.world = spec, rank, spec["world"]
        self.folder = Path(spec["folder"])
        self.weights, self.stream, self.step, self.is_mid_step = 1, mixed(rank), 0, False
        self.faults = [fault for fault in spec["faults"] if fault["rank"] in {rank, "all"}]
        self.reduce = AllReduce(self.folder / f"reduce-{spec['incarnation']}", rank, self.world)

    # The source of the big state.

    def fingerprint(self) -> bytes | None:
        self.meet("vote")
        return None if self.is_mid_step else str(self.weights).encode()

    def save(self, folder: Path) -> None:
        (folder / "half").write_bytes(b"half")
        self.meet("save")
        (folder / "weights").write_text(str(self.weights))

    def extra(self) -> bytes:
        return b"order of buckets"

    # Faults.

    def meet(self, place: str) -> None:
        """Carry out the faults for this place and step."""
        for fault in self.faults:
            if fault["place"] == place and fault.get("step", self.step) == self.step:
                getattr(self, fault["kind"])(fault)

    def kill(self, fault: dict[str, Any]) -> None:
        """Kill the ranks of the fault's `dead` at once, or this rank alone."""
        for peer in sorted(self.ranks._mesh.table.peers, key=lambda peer: peer.rank == self.rank):
            if peer.rank in fault.get("dead", (self.rank,)):
                os.kill(peer.process.pid, signal.SIGKILL)

    def segv(self, _: Any) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(10)

    def stop(self, _: Any) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.05)

    def sleep_deeply(self, _: Any) -> None:
        """Stop this process; a child wakes it up again. The child must hold none of this rank's connections open."""
        parent = os.getpid()
        if os.fork() == 0:
            time.sleep(2.0)
            os.kill(parent, signal.SIGCONT)
            os._exit(0)
        self.stop(None)

    def raises(self, _: Any) -> None:
        raise ZeroDivisionError("loss")

    def sigterm(self, _: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.05)

    def hang(self, _: Any) -> None:
        time.sleep(1000)

    def hang_publishing(self, _: Any) -> None:
        """Make detrain's next call hang, as a signal handler may."""
        self.ranks._slots.publish = lambda *_: time.sleep(1000)  # type: ignore[method-assign]

    def disk_full(self, _: Any) -> None:
        raise OSError(28, "No space left on device")

    def cut_off(self, fault: Any) -> None:
        """Drop all messages from and to certain ranks, without closing the connections."""
        mesh, others = self.ranks._mesh, set(fault["others"])
        send, poll = mesh.send, mesh.poll
        mesh.send = lambda to, message: None if to in others else send(to, message)  # type: ignore[method-assign]
        mesh.poll = lambda timeout_s: [item for item in poll(timeout_s) if item[0] not in others]  # type: ignore[method-assign]

    # Training.

    def run(self) -> None:
        spec, rank = self.spec, self.rank
        node = spec["nodes"][rank]
        setup = Setup(
            rank,
            self.world,
            self.folder / "home",
            self.folder / f"local-{node}",
            "toy",
            node=f"node-{node}",
            timing=Timing(silence_s=spec["silence_s"], save_s=spec["save_s"], vote_s=spec["vote_s"]),
            hang_floor_s=0.5,
            join_s=20.0,
        )
        found, _ = find(setup.home, "toy", self.world)
        is_tail = found is not None and self.restore(found)
        self.ranks = RankMember(
            setup, FolderStore(self.folder / "store"), self, steps=self.step + is_tail, cuts=self.step + is_tail
        )
        try:
            if is_tail:
                self.tail()
            while self.step < STEPS:
                self.body()
                self.tail()
        except ZeroDivisionError as error:
            self.ranks.failed(f"{type(error).__name__}: {error}", may_be_echo=False)
        self.reduce.sum(STEPS, 0)
        self.ranks.finish()
        (self.folder / f"final-{rank}").write_text(json.dumps([self.weights, self.stream]))

    def restore(self, found: FoundCheckpoint) -> bool:
        """Set the state; return True if the tail of a step comes next."""
        point = found.manifest.point
        self.weights = int((found.big / "weights").read_text())
        self.stream, self.step = msgspec.msgpack.decode(found.small(self.rank, point), type=tuple[int, int])
        base = msgspec.msgpack.decode(found.small(self.rank, found.manifest.base), type=tuple[int, int])
        assert base[1] == self.step
        return point.kind == "d"

    def body(self) -> None:
        self.meet("cut")
        self.ranks.cut(self.small())
        self.meet("body")
        self.stream = mixed(self.stream, 1)
        total = self.reduce.sum(self.step, mixed(self.weights, self.stream) % 1000)
        self.meet("gate")
        self.ranks.gate(self.small())
        after = mixed(self.weights, total)
        self.weights, self.is_mid_step = -1, True
        time.sleep(self.spec["step_s"])
        self.meet("step")
        self.weights, self.is_mid_step = after, False
        self.ranks.stepped()

    def tail(self) -> None:
        self.meet("tail")
        self.stream = mixed(self.stream, 2)
        self.step += 1

    def small(self) -> bytes:
        return msgspec.msgpack.encode((self.stream, self.step))


def serve() -> None:
    """Read jobs, a line of JSON each; fork their ranks, and answer with their statuses."""
    for line in sys.stdin:
        spec = json.loads(line)
        children = [_forked(spec, rank) for rank in range(spec["world"])]
        statuses: dict[int, int] = {}
        began = time.monotonic()
        while len(statuses) < len(children):
            late = time.monotonic() - began > LIMIT_S
            for rank, child in enumerate(children):
                if rank in statuses:
                    continue
                if late:
                    os.kill(child, signal.SIGKILL)
                ended, status = os.waitpid(child, 0 if late else os.WNOHANG)
                if ended:
                    statuses[rank] = 1000 if late else os.waitstatus_to_exitcode(status)
            time.sleep(0.002)
        print(json.dumps([statuses[rank] for rank in range(spec["world"])]), flush=True)


def _forked(spec: dict[str, Any], rank: int) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        error = os.open(Path(spec["folder"]) / f"err-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(error, 2)
        Job(spec, rank).run()
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    os._exit(status)


class Server:
    """A server that starts jobs by forking one process, which has the imports already."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", "from tests.runtime.ranks.job import serve; serve()"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, folder: Path, world: int, *faults: dict[str, Any], nodes: str = "", **more: Any) -> list[int]:
        """Run a job until all its processes have ended; return their statuses, negative for signals."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        for name in ("home", "store"):
            (folder / name).mkdir(exist_ok=True)
        spec = {
            "folder": str(folder),
            "world": world,
            "faults": faults,
            "nodes": nodes or "A" * world,
            "incarnation": time.monotonic_ns(),
        }
        spec |= {"silence_s": 2.0, "save_s": 600.0, "vote_s": 30.0, "step_s": 0.001} | more
        self._process.stdin.write(json.dumps(spec) + "\n")
        self._process.stdin.flush()
        statuses = json.loads(self._process.stdout.readline())
        assert isinstance(statuses, list)
        return statuses

    def close(self) -> None:
        """End the server."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
