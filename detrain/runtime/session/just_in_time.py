"""Just-in-time checkpoints of one rank: at each cut its state is held in memory, its own part where it outlives it.

What `runtime/ranks` calls a step reaches here from one cut to the next: each cut is published (`c`), then all wait for
each other (`d`), then it counts. So the ranks are never more than one cut apart, and the big state of the last two is
held: tensors of optimizers by copies that are made when they are written. A save needs nothing that the program's
thread could be changing.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from detrain.base.config import Config
from detrain.base.digest import digest_bytes
from detrain.base.errors import StoreError
from detrain.runtime.ranks.rendezvous import FolderStore, host_towards
from detrain.runtime.ranks.room import Ranks, Setup
from detrain.runtime.state.split_snapshot import Split, split
from detrain.store import Snapshot
from detrain.store.job_home import JUST_IN_TIME

_ECHO_S: Final = 3.0
"""So long after the death of a rank the others know of it, at the latest."""
_HANG_FLOOR_S: Final = 30.0
_NOTHING: Final = Split(b"", {})
"""Published at a cut from which no run could go on."""


class JustInTime:
    """Made when the first training loop is entered."""

    def __init__(self, config: Config, replicas: Callable[[], Mapping[int, str]]) -> None:
        """Meet the other ranks. Raises RanksApart."""
        assert config.ranks is not None
        self._replicas = replicas
        self._cuts = 0
        self._held: dict[int, Split] = {}
        job = Path(config.home).parent
        # One folder a home: what a job that was killed has left there, the next one clears away.
        name = f"detrain-{os.getuid()}-{digest_bytes(str(job.resolve()).encode())[:16]}"
        self._rank, self._local = config.ranks.rank, _local_folder() / name
        (job / JUST_IN_TIME).mkdir(exist_ok=True)
        setup = Setup(
            config.ranks.rank,
            config.ranks.world,
            job / JUST_IN_TIME,
            self._local,
            f"{config.program} run {config.run}",
            host=_host(config.ranks.world),
            hang_floor_s=_HANG_FLOOR_S,
            key=f"ranks-{config.ranks.job}",
        )
        self._ranks = Ranks(setup, FolderStore(job / JUST_IN_TIME), self)

    def at_cut(self, snapshot: Snapshot | None) -> None:
        """A cut is here; None: no run could go on from it. Returns when all ranks are, unless the job is ending."""
        state = _NOTHING if snapshot is None else split(snapshot, self._replicas())
        self._held = {number: each for number, each in self._held.items() if number == self._cuts - 1} | {self._cuts: state}
        try:
            self._ranks.cut(state.own)
        except OSError as error:
            raise StoreError(
                f"the state of rank {self._rank} ({len(state.own)} bytes, several times) does not fit into {str(self._local)!r}: "
                f"{error.strerror or error}",
                "make that larger (of a container: --shm-size), or run the job with --no-jit",
            ) from error
        self._cuts += 1
        self._ranks.gate(b"")
        self._ranks.stepped()

    def mark(self, kind: str) -> None:
        """What comes now may take longer than a batch."""
        self._ranks.mark(kind)

    def fails(self, error: BaseException, show: Callable[[], None]) -> None:
        """The program has raised: the ranks save, and the process ends. `show` prints the error, if it is its own."""
        self.rest_if_echo(error)
        show()
        self._ranks.failed(f"{type(error).__name__}: {error}"[:200], may_be_echo=False)

    def rest_if_echo(self, error: BaseException) -> None:
        """An error has come: does not return where another rank's death has caused it."""
        if not (isinstance(error, RuntimeError) and any(word in str(error) for word in _OF_PEERS)):
            return
        until = time.monotonic() + _ECHO_S
        while time.monotonic() < until:
            if self._ranks.is_frozen:
                self._ranks.failed(str(error)[:200], may_be_echo=True)
            time.sleep(0.005)

    def finish(self) -> None:
        """The program has ended."""
        self._ranks.finish()
        shutil.rmtree(self._local, ignore_errors=True)

    # For the watcher: see `detrain.runtime.ranks.watcher.Source`.

    def fingerprint(self) -> bytes:
        """Return a digest of what all ranks hold alike at the last cut that all have passed."""
        held = self._held.get(self._ranks.steps - 1, _NOTHING)
        return held.fingerprint() if held.own else b""

    def save(self, folder: Path) -> None:
        """Write what all ranks hold alike at the last two cuts: the decision is for one of them."""
        (folder / "cuts").write_text(" ".join(map(str, self._held)))
        for number, state in list(self._held.items()):
            state.write(folder / f"cut-{number}")

    def extra(self) -> bytes:
        """Return nothing: the order of the buckets is in each rank's own part."""
        return b""


_OF_PEERS: Final = ("gloo", "Connection closed by peer", "Connection reset by peer", "NCCL", "Socket", "Timed out")
"""In the texts of errors that a collective raises when a peer is gone."""


def _local_folder() -> Path:
    shared = Path("/dev/shm")
    return shared if os.access(shared, os.W_OK) else Path("/tmp")


def _host(world: int) -> str:
    """Return this node's address as the other ranks reach it."""
    if os.environ.get("LOCAL_WORLD_SIZE", "") == str(world) or os.environ["MASTER_ADDR"] in ("127.0.0.1", "localhost"):
        return "127.0.0.1"
    return host_towards(os.environ["MASTER_ADDR"], int(os.environ.get("MASTER_PORT", "29500")))
