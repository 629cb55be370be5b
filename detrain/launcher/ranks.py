"""A run that is one rank of a job: the options that such runs refuse, and how the ranks agree on the checkpoint from
which all go on, before any of them has become the program.

All ranks see one file system. Rank 0 asks, with a new random number; each rank answers that question, with a number of
its own; rank 0 decides, and repeats the numbers of all. So no rank takes an answer or a decision that an earlier start
has left, no matter which rank was killed when, and clocks serve only to give up.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from detrain.base import messages, timing
from detrain.base.byte_digests import digest_bytes
from detrain.base.config import Ranks
from detrain.base.errors import CheckpointDamaged, EnvironmentChanged, RanksDisagree, StoreError, UsageError
from detrain.base.options import Every, Options
from detrain.launcher import own_ranks
from detrain.launcher.program import Program
from detrain.launcher.resume_point import good_checkpoints
from detrain.store import Catalogue, Choice, Meta, read_meta
from detrain.store.atomic_file import read_regular, replacing, way_out
from detrain.store.job_home import ranks_of

WORLD: Final = "world size"
"""The key in the environment for the number of ranks of a job."""

_DECISION: Final = ".decision"
_PAUSE_S: Final = 0.01
LIMIT_S: Final = 120.0
"""How long a rank waits for the others."""
_T = TypeVar("_T", bound=msgspec.Struct)


def require_for_ranks(options: Options) -> None:
    """Raise UsageError for options that the ranks of a job cannot follow together."""
    if options.every.unit == "minutes":
        raise UsageError(
            f"--every {options.every}: the clocks of the ranks differ, and all must save at the same batch",
            "give a number of batches or epochs, as --every 50b",
        )
    if options.goes_on_from:
        raise UsageError(f"--from {options.goes_on_from}: ranks choose together where they go on", "leave it out")


def just_in_time(options: Options, every: Every) -> bool | None:
    """Return whether the job takes just-in-time checkpoints: True if the user asks for them, None if the job tries to,
    or False, with a message that says why.
    """
    if options.jit is not None or options.jit_every:
        return options.jit is not False
    why = ""
    if every.unit == "epochs" and every.count > 1:
        why = f"--every {every.count:g} leaves epochs without a checkpoint at their start; --jit takes one at each"
    elif options.strict:
        why = "--strict refuses what cannot be captured, of which there may be more inside of an epoch; --jit takes them"
    if why:
        messages.say(f"no just-in-time checkpoints: {why}")
    return False if why else None


def require_no_other_kind(home: Path, program: str, ranks: Ranks | None, *, fresh: bool) -> None:
    """Raise EnvironmentChanged if a home's checkpoints are from a job and this run is alone, or the other way round."""
    if fresh:
        return
    job = home / program
    if ranks is None and ranks_of(job):
        count = len(ranks_of(job))
        raise EnvironmentChanged(
            f"{str(home)!r} holds checkpoints of {program!r} as a job of {count} ranks; this run is one process",
            f"start it by `detrain launch --nproc-per-node {count}` or torchrun, or start anew with --fresh",
        )
    if ranks is not None and any(entry.program == program for entry in Catalogue(home).entries()):
        raise EnvironmentChanged(
            f"{str(home)!r} holds checkpoints of {program!r} as one process; this is a job of {ranks.world} ranks",
            "run it alone, give another folder with --ckpt DIR, or start anew with --fresh",
        )


def where_ranks_go_on(
    catalogue: Catalogue, program: Program, arguments: tuple[str, ...], options: Options, ranks: Ranks
) -> tuple[Ranks, int, bool, tuple[Choice, Meta] | None]:
    """Return this rank with the number of the job's start, the number of the run, whether it starts anew, and the
    checkpoint from which it goes on, if any: the newest one that all ranks have.

    Raises the errors of `newest_checkpoint`, EnvironmentChanged for another number of ranks, RanksDisagree.
    """
    from detrain.launcher.just_in_time import clear, take_in

    job = catalogue.folder.parent
    runs = [entry.run for entry in catalogue.entries() if entry.program == program.name] or [0]
    begun = _begun(job / _DECISION, ranks.rank) if options.fresh else max(*runs, 1)
    if begun:
        take_in(catalogue, program.name, begun, ranks)
        runs = [entry.run for entry in catalogue.entries() if entry.program == program.name] or [0]
    good = good_checkpoints(catalogue, program, arguments) if not options.fresh or (begun and begun in runs) else []
    if good:
        _require_world(read_meta(good[0].entry.path), ranks)
    names = tuple("/".join(station.path.name for station in choice.stations) for choice in good)
    asked_for = digest_bytes(msgspec.json.encode([arguments, program.name, str(options.every), options.seed, options.fresh]))

    def offer(question: str, token: str) -> Offer:
        return Offer(question=question, token=token, asked_for=asked_for, run=max(runs), good=names)

    def choose(offers: Sequence[Offer]) -> tuple[int, str]:
        clear(job)  # each rank has taken in its part, and none has begun a new one
        return _chosen(offers, fresh=options.fresh)

    with timing.during("agreement of the ranks"):
        decision = Agreement(job, ranks.rank, ranks.world).decide(offer, choose)
    ranks = msgspec.structs.replace(ranks, job=decision.job, port=decision.port)
    at = names.index(decision.name) if decision.name else len(names)
    mine = [entry for entry in catalogue.entries() if (entry.program, entry.run) == (program.name, decision.run)]
    kept = {station.path for choice in good[at : at + 1] for station in choice.stations}
    newer = [entry for entry in mine if not kept or entry.cursor.key() > good[at].entry.cursor.key()]
    catalogue.put_aside(newer)  # other ranks have no parts of these cuts, and this run will come to them again
    if not decision.name:
        return ranks, decision.run, options.fresh, None
    choice = good[at]
    catalogue.adopt(Choice(choice.entry, choice.stations, choice.digest, choice.damaged))
    return ranks, decision.run, False, (choice, read_meta(choice.entry.path))


def _chosen(offers: Sequence[Offer], *, fresh: bool) -> tuple[int, str]:
    """Return the run, and the name of the newest checkpoint that all ranks offer; empty if there is none.

    Raises RanksDisagree, and CheckpointDamaged if a rank has lost its checkpoints.
    """
    if len({offer.asked_for for offer in offers}) > 1:
        other = next(rank for rank, offer in enumerate(offers) if offer.asked_for != offers[0].asked_for)
        raise RanksDisagree(
            f"rank {other} was started with other arguments or options than rank 0", "start all ranks by the same command"
        )
    newest = max(offer.run for offer in offers)
    common = [name for name in offers[0].good if all(name in offer.good for offer in offers)]
    if common:
        return offers[0].run, common[0]
    if fresh:
        return newest + 1, ""
    if newest == 0:
        return 1, ""
    most, least = max(len(offer.good) for offer in offers), min(len(offer.good) for offer in offers)
    if most > 1:  # more than the last cut before a kill can explain
        rank = next(rank for rank, offer in enumerate(offers) if len(offer.good) == least)
        raise CheckpointDamaged(
            f"no checkpoint is there of all ranks: rank {rank} has {least or 'none'} of up to {most}",
            "bring back what is missing, or start anew with --fresh",
        )
    messages.say("no checkpoint is there of all ranks: the run begins anew")
    return newest, ""


def _begun(decision: Path, rank: int) -> int:
    """Return the run that a job with --fresh began at its first start, if its launcher has started it again; else 0.

    No rank decides before all have called this, so all read the same decision.
    """
    if os.environ.get(own_ranks.RESTARTS, "0") != "0":
        found = _read(decision, CommonStart)
        return 0 if found is None else found.run
    if rank == 0:
        with contextlib.suppress(OSError):  # it is of an earlier job; if the folder cannot be written, the agreement fails
            decision.unlink()
    return 0


def _require_world(meta: Meta, ranks: Ranks) -> None:
    was = meta.environment.get(WORLD, "1")
    if was != str(ranks.world):
        raise EnvironmentChanged(
            f"the checkpoints are of a job of {was} ranks; this one has {ranks.world}",
            f"start {was} ranks (who has which data, and the order in which gradients are summed, depend on it), or start "
            "anew with --fresh",
        )


class Question(msgspec.Struct, frozen=True):
    """Rank 0's question at the start of the job."""

    token: str
    world: int


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's answer: the checkpoints from which it can go on."""

    question: str
    token: str
    asked_for: str
    """Digest of the arguments and options of the run; it must be the same on all ranks."""
    run: int
    """The newest run with a checkpoint; 0 if there is none."""
    good: tuple[str, ...]
    """The names of that run's good checkpoints, the newest first."""


class CommonStart(msgspec.Struct, frozen=True, kw_only=True):
    """Rank 0's decision: the checkpoint from which all ranks go on."""

    tokens: tuple[str, ...]
    """The tokens of all ranks."""
    run: int
    name: str
    """The name of the checkpoint to go on from; empty if the run starts anew."""
    job: str
    """A number that no other start of the job has."""
    port: int
    """A port that is free on rank 0's machine."""


class Agreement:
    """One rank's part in the agreement. `folder` is the job's; each rank has a folder in it."""

    def __init__(self, folder: Path, rank: int, world: int, limit_s: float = LIMIT_S) -> None:
        self._folder, self._rank, self._world, self._limit_s = folder, rank, world, limit_s
        self._token = os.urandom(8).hex()
        self._until = time.monotonic() + limit_s

    def decide(self, offer: Callable[[str, str], Offer], choose: Callable[[Sequence[Offer]], tuple[int, str]]) -> CommonStart:
        """Return rank 0's decision: it calls `choose`, which gets the offers of all and returns (run, name).

        `offer` gets the numbers of the question and of this rank. Raises RanksDisagree if a rank does not come, and
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
        return self._folder / _DECISION


def _free_port() -> int:
    import socket  # slow to import, and only jobs of ranks need it

    with socket.create_server(("", 0)) as free:
        return int(free.getsockname()[1])


def _read(path: Path, kind: type[_T]) -> _T | None:
    data = read_regular(path, "message of a rank")
    try:
        return msgspec.json.decode(data, type=kind) if data else None
    except msgspec.DecodeError:  # from another version of detrain
        return None


def _write(path: Path, content: msgspec.Struct) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as sink:
            sink.write(msgspec.json.encode(content))
    except OSError as error:
        raise StoreError(f"cannot write {str(path)!r}: {error.strerror or error}", way_out(error)) from error
