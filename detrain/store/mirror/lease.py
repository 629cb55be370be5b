"""The lease of a mirror: one process at a time may write it, and repeats in a file that it is alive.

No clock is compared with another. A process that wants a mirror held by another waits longer than two repeats take; if
the file does not change, the holder is gone. Each holder has a term, one higher than the term before. So the states of
a holder that was wrongly taken for gone count less than those of its successor.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from pathlib import Path
from typing import Final

import msgspec

from detrain.base import messages
from detrain.base.child_processes import has_ended
from detrain.base.errors import HomeInUse, MirrorFailed
from detrain.store.mirror.remote import Remote
from detrain.store.mirror.states import state_names

BEAT_S: Final = 10.0
"""Seconds between two updates of the lease by its holder."""
_PATIENCE: Final = 2.5
"""The number of such intervals without an update after which a holder counts as gone."""
_NAME: Final = "lease.json"
_UNKNOWN: Final = 0
_TRIES: Final = 20
_LONGEST_S: Final = 120.0
"""The longest wait for a process of this machine that still sends the last state of an ended run."""


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The holder of a mirror's lease."""

    token: str
    term: int
    machine: str
    """Identifies one boot of a machine, or of a container on it."""
    host: str
    pid: int
    run_pid: int
    """The process that trains."""
    beats: int = 0
    """The number of times that it has updated the lease."""


class Lease:
    """The right to write a mirror. Raises MirrorFailed, and HomeInUse if another process has it."""

    def __init__(self, remote: Remote, run_pid: int) -> None:
        self._remote = remote
        self._mine = self._take(run_pid)
        self._is_mine = True
        self._alone = threading.Lock()
        """Lets one thread at a time read and write the file: a half-written one would look like another holder's."""

    @property
    def term(self) -> int:
        """The number of this holder's term."""
        return self._mine.term

    def _take(self, run_pid: int) -> Holder:
        for _ in range(_TRIES):
            before = self._read()
            if before is not None:
                self._require_gone(before)
            mine = Holder(
                token=secrets.token_hex(16),
                term=1 + max(before.term if before is not None else 0, self._newest_term()),
                machine=_machine(),
                host=socket.gethostname(),
                pid=os.getpid(),
                run_pid=run_pid,
            )
            if before is not None and self._read() == before:
                self._remote.remove(_NAME)
            if self._remote.put_new(_NAME, msgspec.json.encode(mine)):
                return mine
        raise MirrorFailed(f"the mirror {self._remote.url!r} cannot be used: {_NAME} can neither be read nor written there")

    def _newest_term(self) -> int:
        names = state_names(self._remote)
        return int(names[-1].rpartition("/")[2].partition("-")[0]) if names else 0

    def _require_gone(self, holder: Holder) -> None:
        if holder.machine == _machine():
            since = time.monotonic()
            while not has_ended(holder.pid):
                if not has_ended(holder.run_pid) or time.monotonic() - since > _LONGEST_S:
                    raise self._in_use(holder)
                time.sleep(0.2)
            return
        messages.say(
            f"{holder.host} has written the mirror {self._remote.url!r}: looking for {BEAT_S * _PATIENCE:.0f} s if it still does"
        )
        until = time.monotonic() + BEAT_S * _PATIENCE
        while time.monotonic() < until:
            time.sleep(1.0)
            now = self._read()
            if now is None:
                return
            if now != holder and now.pid != _UNKNOWN:  # an unknown one: the file is just being written
                raise self._in_use(now)

    def _in_use(self, holder: Holder) -> HomeInUse:
        return HomeInUse(
            f"the mirror {self._remote.url!r} is being written by process {holder.run_pid} on {holder.host}",
            "wait for it or end it, or give another --mirror",
        )

    def renew(self) -> bool:
        """Update the lease to show that this holder is alive; return False if another has taken its place."""
        with self._alone:
            now = self._read()
            if now is None and self._is_mine:  # the mirror has lost the file
                return self._remote.put_new(_NAME, msgspec.json.encode(self._mine))
            if now is None or now.token != self._mine.token:
                return False
            self._mine = msgspec.structs.replace(self._mine, beats=self._mine.beats + 1)
            self._remote.put(_NAME, msgspec.json.encode(self._mine))
            return True

    def give_back(self) -> None:
        """Remove the lease, so that others can take it."""
        with self._alone:
            self._is_mine = False
            if (now := self._read()) is not None and now.token == self._mine.token:
                self._remote.remove(_NAME)

    def _read(self) -> Holder | None:
        content = self._remote.get(_NAME)
        if content is None:
            return None
        try:
            return msgspec.json.decode(content, type=Holder)
        except msgspec.DecodeError:  # a folder shows a file while it is written, and keeps half of one if its writer is killed
            host = "a process that is not known"
            return Holder(token=content.hex(), term=0, machine="", host=host, pid=_UNKNOWN, run_pid=_UNKNOWN)


def _machine() -> str:
    """Return a text that is the same for two processes only if they share a machine and a namespace of process ids."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    namespace = Path("/proc/self/ns/pid")
    parts = [socket.gethostname(), boot.read_text().strip() if boot.exists() else ""]
    return " ".join([*parts, os.readlink(namespace) if namespace.is_symlink() else ""])
