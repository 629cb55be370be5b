"""A run that is one rank of a job: what such runs refuse, and where all ranks go on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from detrain.base import messages, timing
from detrain.base.byte_digests import digest_bytes
from detrain.base.config import Ranks
from detrain.base.errors import CheckpointDamaged, EnvironmentChanged, RanksDisagree, UsageError
from detrain.base.options import Every, Options
from detrain.launcher.program import Program
from detrain.launcher.resume_point import good_checkpoints
from detrain.store import Catalogue, Choice, Meta, read_meta
from detrain.store.job_home import ranks_of

if TYPE_CHECKING:
    from detrain.launcher.agreement import Offer

WORLD: Final = "world size"
"""The environment's name of how many ranks a job has."""


def require_for_ranks(options: Options) -> None:
    """Raise UsageError for what the ranks of a job cannot do together."""
    if options.every.unit == "minutes":
        raise UsageError(
            f"--every {options.every}: the clocks of the ranks differ, and all must save at the same batch",
            "give a number of batches or epochs, as --every 50b",
        )
    if options.goes_on_from:
        raise UsageError(f"--from {options.goes_on_from}: ranks choose together where they go on", "leave it out")
    if options.guard:
        raise UsageError(f"--guard {options.guard}: ranks cannot go back together yet", "run the job without --guard")


def just_in_time(options: Options, every: Every) -> bool | None:
    """Return whether the job takes just-in-time checkpoints: True if that is asked for, None if it is tried, or False.
    Says why not.
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
    """Raise EnvironmentChanged where what lies in a home is of a job and this run is alone, or the other way round."""
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
    """Return this rank with the number of the job's start, that of the run, whether it starts anew, and else the
    checkpoint from which it goes on, if there is one: the newest that all ranks have.

    Raises what `newest_checkpoint` raises, EnvironmentChanged for another number of ranks, RanksDisagree.
    """
    from detrain.launcher.agreement import Agreement, Offer
    from detrain.launcher.just_in_time import clear, take_in

    runs = [entry.run for entry in catalogue.entries() if entry.program == program.name] or [0]
    if not options.fresh:
        take_in(catalogue, program.name, max(*runs, 1), ranks)
        runs = [entry.run for entry in catalogue.entries() if entry.program == program.name] or [0]
    good = [] if options.fresh else good_checkpoints(catalogue, program, arguments)
    if good:
        _require_world(read_meta(good[0].entry.path), ranks)
    names = tuple("/".join(station.path.name for station in choice.stations) for choice in good)
    asked_for = digest_bytes(msgspec.json.encode([arguments, program.name, str(options.every), options.seed, options.fresh]))

    def offer(question: str, token: str) -> Offer:
        return Offer(question=question, token=token, asked_for=asked_for, run=max(runs), good=names)

    def choose(offers: Sequence[Offer]) -> tuple[int, str]:
        clear(catalogue.folder.parent)  # each rank has taken its part in, and none has begun anew
        return _chosen(offers, fresh=options.fresh)

    with timing.during("agreement of the ranks"):
        decision = Agreement(catalogue.folder.parent, ranks.rank, ranks.world).decide(offer, choose)
    ranks = msgspec.structs.replace(ranks, job=decision.job, port=decision.port)
    at = names.index(decision.name) if decision.name else len(names)
    mine = [entry for entry in catalogue.entries() if (entry.program, entry.run) == (program.name, decision.run)]
    kept = {station.path for choice in good[at : at + 1] for station in choice.stations}
    newer = [entry for entry in mine if not kept or entry.cursor.key() > good[at].entry.cursor.key()]
    catalogue.put_aside(newer)  # parts of a cut that other ranks have none of: this run will come there again
    if not decision.name:
        return ranks, decision.run, options.fresh, None
    choice = good[at]
    catalogue.adopt(Choice(choice.entry, choice.stations, choice.digest, choice.damaged))
    return ranks, decision.run, False, (choice, read_meta(choice.entry.path))


def _chosen(offers: Sequence[Offer], *, fresh: bool) -> tuple[int, str]:
    """Return the run, and the name of the newest checkpoint that all ranks offer, or nothing.

    Raises RanksDisagree, and CheckpointDamaged where a rank has lost what it had.
    """
    if len({offer.asked_for for offer in offers}) > 1:
        other = next(rank for rank, offer in enumerate(offers) if offer.asked_for != offers[0].asked_for)
        raise RanksDisagree(
            f"rank {other} was started with other arguments or options than rank 0", "start all ranks by the same command"
        )
    newest = max(offer.run for offer in offers)
    if fresh:
        return newest + 1, ""
    common = [name for name in offers[0].good if all(name in offer.good for offer in offers)]
    if common:
        return offers[0].run, common[0]
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


def _require_world(meta: Meta, ranks: Ranks) -> None:
    was = meta.environment.get(WORLD, "1")
    if was != str(ranks.world):
        raise EnvironmentChanged(
            f"the checkpoints are of a job of {was} ranks; this one has {ranks.world}",
            f"start {was} ranks (who has which data, and the order in which gradients are summed, depend on it), or start "
            "anew with --fresh",
        )
