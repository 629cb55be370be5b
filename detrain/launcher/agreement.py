"""How the ranks of a job agree on where they go on, before any of them has become the program.

All ranks see one file system. Rank 0 asks, with a number that nobody had before; each rank answers that question, with
a number of its own; rank 0 decides, and repeats the numbers of all. So nobody takes an answer or a decision that an
earlier start has left, whoever was killed when, and no clock is read but to give up.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from detrain.base.errors import RanksDisagree, StoreError
from detrain.store.atomic_file import read_regular, replacing, way_out

_PAUSE_S: Final = 0.01
LIMIT_S: Final = 120.0
"""How long one waits for the others."""

_T = TypeVar("_T", bound=msgspec.Struct)


class Question(msgspec.Struct, frozen=True):
    """Rank 0 has started."""

    token: str
    world: int


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank has to go on from."""

    question: str
    token: str
    asked_for: str
    """How the run was asked for: must be the same for all."""
    run: int
    """The newest run of which there is anything; 0 if there is none."""
    good: tuple[str, ...]
    """The names of the checkpoints of that run from which it can be resumed, the newest first."""


class CommonStart(msgspec.Struct, frozen=True, kw_only=True):
    """Where all go on."""

    tokens: tuple[str, ...]
    """Those of all ranks."""
    run: int
    name: str
    """The name of the checkpoint to go on from; empty where the run starts anew."""
    job: str
    """A number that no other start of the job has."""
    port: int
    """Free on rank 0's machine."""


class Agreement:
    """One rank's part. `folder` is that of the job, and each rank has a folder in it."""

    def __init__(self, folder: Path, rank: int, world: int, limit_s: float = LIMIT_S) -> None:
        self._folder, self._rank, self._world, self._limit_s = folder, rank, world, limit_s
        self._token = os.urandom(8).hex()
        self._until = time.monotonic() + limit_s

    def decide(self, offer: Callable[[str, str], Offer], choose: Callable[[Sequence[Offer]], tuple[int, str]]) -> CommonStart:
        """Return what rank 0 decides by `choose` (run, name), of what all offer.

        `offer` is given the question's number and one's own. Raises RanksDisagree where a rank does not come, and
        StoreError.
        """
        if self._rank == 0:
            _write(self._question(), Question(self._token, self._world))
            _write(self._offer(0), offer(self._token, self._token))
            offers = [self._wait(self._offer(rank), Offer, self._is_answer, f"rank {rank}") for rank in range(self._world)]
            run, name = choose(offers)
            decision = CommonStart(
                tokens=tuple(each.token for each in offers), run=run, name=name, job=self._token, port=_free_port()
            )
            _write(self._decision(), decision)
            return decision
        answered = ""

        def is_mine(found: CommonStart) -> bool:
            nonlocal answered
            question = _read(self._question(), Question)
            if question is not None and question.token != answered:
                _write(self._offer(self._rank), offer(question.token, self._token))
                answered = question.token
            return self._token in found.tokens

        nothing = CommonStart(tokens=(), run=0, name="", job="", port=0)
        return self._wait(self._decision(), CommonStart, is_mine, "rank 0", nothing)

    def _is_answer(self, found: Offer) -> bool:
        return found.question == self._token

    def _wait(self, path: Path, kind: type[_T], is_right: Callable[[_T], bool], who: str, instead: _T | None = None) -> _T:
        while True:
            found = _read(path, kind) or instead
            if found is not None and is_right(found):
                return found
            if time.monotonic() > self._until:
                raise RanksDisagree(
                    f"rank {self._rank} of {self._world} has waited {self._limit_s:.0f} s for {who}, which has not come to "
                    f"{str(self._folder)!r}",
                    "start all ranks at the same time, by torchrun, with one folder that all of them see (--ckpt DIR)",
                )
            time.sleep(_PAUSE_S)

    def _question(self) -> Path:
        return self._folder / ".question"

    def _offer(self, rank: int) -> Path:
        return self._folder / f"rank-{rank}" / ".offer"

    def _decision(self) -> Path:
        return self._folder / ".decision"


def _free_port() -> int:
    with socket.create_server(("", 0)) as free:
        return int(free.getsockname()[1])


def _read(path: Path, kind: type[_T]) -> _T | None:
    data = read_regular(path, "message of a rank")
    try:
        return msgspec.json.decode(data, type=kind) if data else None
    except msgspec.DecodeError:  # of another version of detrain
        return None


def _write(path: Path, content: msgspec.Struct) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as sink:
            sink.write(msgspec.json.encode(content))
    except OSError as error:
        raise StoreError(f"cannot write {str(path)!r}: {error.strerror or error}", way_out(error)) from error
