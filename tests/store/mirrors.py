"""Mirrors for the tests of the store: homes sent by the tests themselves, and by a sender."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from detrain.store.catalogue import Catalogue
from detrain.store.mirror import states
from detrain.store.mirror.link import Order
from detrain.store.mirror.remote import Remote
from detrain.store.mirror.sender import _Sender
from detrain.store.mirror.states import Gatherer, State, put_state
from tests.store.homes import Run


def home_with(folder: Path, *epochs: int) -> Path:
    Catalogue(folder).create()
    run = Run(folder, keep=9)
    for each in epochs:
        run.save(each)
    run.journal.close()
    return folder


def send(
    remote: Remote,
    home: Path,
    *,
    term: int = 1,
    number: int = 0,
    patterns: tuple[str, ...] = (),
    part_bytes: int = states.PART_BYTES,
) -> State:
    made = Gatherer(home, "train", patterns, home.parent, part_bytes).state(term, number, set(), remote.put)
    assert made is not None
    put_state(remote, made)
    return made


def size_at(remote: Remote, name: str) -> int:
    return len(remote.get(name) or b"")


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")}


def order_for(
    home: Path, remote: Remote, *, run_pid: int | None = None, may_come_later: bool = False, bandwidth: int | None = None
) -> Order:
    return Order(
        url=remote.url,
        home=str(home),
        program="train",
        patterns=(),
        run_pid=os.getpid() if run_pid is None else run_pid,
        is_fresh=False,
        may_come_later=may_come_later,
        bandwidth=bandwidth,
    )


def sender_of(home: Path, remote: Remote, *, bandwidth: int | None = None) -> _Sender:
    made = _Sender(order_for(home, remote, bandwidth=bandwidth), socket.socketpair()[0], Path.cwd())
    made.begin()
    return made


def is_whole(remote: Remote, state: State) -> bool:
    """Return True if each part of a state is there, and the newest checkpoint is among its files."""
    return state.checkpoint in state.checkpoints and all(size_at(remote, part) == states.size_of(part) for part in state.parts)
