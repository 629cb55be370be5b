"""The checkpoint from which a run goes on: the program's newest good one, and whether it may be resumed here."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from detrain.base import messages
from detrain.base.config import Config
from detrain.base.errors import AnotherProgram, CannotSeek, EnvironmentChanged, StoreError, UsageError
from detrain.base.losses import lacking, place_of_loss
from detrain.base.messages import shown
from detrain.base.options import Mode
from detrain.launcher.program import Program
from detrain.python.process.environment import compare
from detrain.store import Catalogue, Choice, Entry, Meta, read_meta


def newest_checkpoint(
    catalogue: Catalogue,
    program: Program,
    arguments: tuple[str, ...],
    asked_for: str = "",
    allowed: tuple[str, ...] = (),
    *,
    reads_all: bool = True,
) -> tuple[Choice, Meta] | None:
    """Return the program's newest good checkpoint, or None if the folder has none. Those of other programs stay as they
    are. Without `reads_all`, the arrays are not read yet: the run checks them as it reads them.

    A checkpoint with losses for which a resume is refused is passed over if an earlier one has none. With `asked_for`
    (a cursor), return the one that was taken there; `allowed` are the places of losses that the user accepts.

    Raises AnotherProgram if the checkpoints are from another source or other arguments, CheckpointDamaged, and
    UsageError if none was taken at `asked_for`.
    """
    _name_others(catalogue, program)
    good = catalogue.good(program.name, reads_all=reads_all)
    chosen = _at(catalogue, program, good, asked_for) if asked_for else _not_refused(good, allowed)
    if chosen is None:
        return None
    meta = read_meta(chosen.entry.path)
    require_same_program(meta, program, arguments)
    catalogue.adopt(chosen)
    return chosen, meta


def _at(catalogue: Catalogue, program: Program, good: Iterable[Choice], cursor: str) -> Choice:
    found = []
    for choice in good:
        if str(choice.entry.cursor) == cursor:
            return choice
        found.append(str(choice.entry.cursor))
    raise UsageError(
        f"--from {cursor}: no checkpoint of {program.name!r} in {str(catalogue.folder)!r} was taken there",
        f"there are {', '.join(reversed(found))}" if found else "there is none at all: leave it out",
    )


def _not_refused(good: Iterable[Choice], allowed: tuple[str, ...]) -> Choice | None:
    """Return the newest good checkpoint that has no losses for which a resume is refused; if there is none, the newest
    one: its resume will give the reason.
    """
    newest: Choice | None = None
    lost: list[str] = []
    for choice in good:
        refused = [loss for station in choice.stations for loss in lacking(read_meta(station.path).not_captured, allowed)]
        if not refused:
            if newest is not None:
                messages.say(
                    f"going back from {newest.entry.cursor} to {choice.entry.cursor}: later ones lack {lost[0]}, "
                    "without which a run would do other things"
                )
            return choice
        newest, lost = newest or choice, lost or refused
    return newest


def good_checkpoints(catalogue: Catalogue, program: Program, arguments: tuple[str, ...]) -> list[Choice]:
    """Return the good checkpoints of the newest run, the newest first, up to one that cannot be read. Raises the errors
    of `newest_checkpoint`.
    """
    _name_others(catalogue, program)
    found: list[Choice] = []
    try:
        found.extend(catalogue.good(program.name))  # keeps those before an error
    except StoreError as error:
        if not found:
            raise
        messages.warn(error.what)
    if found:
        require_same_program(read_meta(found[0].entry.path), program, arguments)
    return found


def _name_others(catalogue: Catalogue, program: Program) -> None:
    """Say once that the folder has checkpoints of other programs only, and that these stay as they are."""
    programs = {entry.program for entry in catalogue.entries()}
    if programs and program.name not in programs:
        others = ", ".join(map(repr, sorted(programs)))
        messages.say(f"{shown(catalogue.folder)} holds checkpoints of {others}, none of {program.name!r}, which starts beside them")


def require_same_program(meta: Meta, program: Program, arguments: tuple[str, ...]) -> None:
    """Raise AnotherProgram if a checkpoint is from another source or other arguments."""
    if tuple(meta.arguments) != arguments:
        raise AnotherProgram(
            f"the checkpoints are of {program.name!r} with arguments {list(meta.arguments)}; got {list(arguments)}",
            "give the same arguments, another folder with --ckpt DIR, or start anew with --fresh",
        )
    changed = program.changed_sources(meta.sources)
    if changed:
        raise AnotherProgram(
            f"source has changed since the checkpoint was taken: {', '.join(changed)}",
            "bring the source back, or start anew with --fresh (the old checkpoints stay)",
        )


def _check_environment(config: Config, meta: Meta) -> None:
    changed = compare(meta.environment, config.environment)
    if changed and not config.allow_environment:
        raise EnvironmentChanged(
            f"the environment differs from the checkpoint's: {'; '.join(changed)}",
            "resume where it is the same, or go on, perhaps with other bits, with --allow-environment",
        )


def resumed(config: Config, choice: Choice, meta: Meta, seed: int | None) -> Config:
    """Return the configuration of a run that goes on from a checkpoint, and say so.

    `seed` is the one that the user asked for.

    Raises UsageError for a seed other than the run's, EnvironmentChanged, CannotSeek.
    """
    if seed is not None and seed != meta.seed:
        raise UsageError(
            f"--seed {seed} is not the seed of the run to resume, {meta.seed}",
            "leave it out, or start anew with --fresh",
        )
    _check_environment(config, meta)
    path = choice.entry.path
    found = f"{_age(path)} old, digest {choice.digest[:12]}"
    messages.say(f"resuming {config.program} at {choice.entry.cursor} ({found}) from {shown(path)}")
    _say_how_loaders_come_back(choice.entry, meta, config.loader)
    _say_what_is_lost(choice, meta, config.allow_lost)
    threads = int(meta.environment.get("threads", config.threads))
    return msgspec.structs.replace(
        config,
        stations=tuple(str(station.path) for station in choice.stations),
        seed=meta.seed,
        threads=threads,
        environment={**config.environment, "threads": str(threads)},
    )


def _say_what_is_lost(choice: Choice, meta: Meta, allowed: tuple[str, ...]) -> None:
    """Name the losses that the user allowed: those that the run has accepted before, and those that it accepts now."""
    if meta.gone_on_without:
        messages.warn(f"this run has gone on without {', '.join(meta.gone_on_without)}, by --allow-lost")
    lost = {loss for station in choice.stations for loss in read_meta(station.path).not_captured}
    places = [place_of_loss(loss) for loss in lacking(sorted(lost), ())]
    for name in allowed:
        if name in places:
            messages.warn(f"going on without {name}, by --allow-lost")
        elif name not in meta.gone_on_without:
            has = f"it lacks {', '.join(places)}" if places else "it lacks nothing that matters"
            messages.say(f"--allow-lost {name}: the checkpoint at {choice.entry.cursor} lacks nothing of that name; {has}")


def _say_how_loaders_come_back(entry: Entry, meta: Meta, mode: Mode) -> None:
    """Say whether batches are loaded again, and why.

    Raises CannotSeek if the user asked for a seek that would not be exact, or for loads without streams on record.
    """
    is_inside = entry.cursor.is_inside
    why = "--loader forward" if mode == "forward" else meta.forward
    if mode == "seek" and meta.forward:
        from detrain.python.loaders.strategy import cannot_seek

        raise cannot_seek(meta.forward)
    if mode == "forward" and is_inside and meta.lacks_streams:
        raise CannotSeek(
            f"--loader forward: the job has not written down the random streams at the batches before {entry.cursor}, as its "
            "loaders are set to their positions",
            "leave it out, or start anew with --fresh and --loader forward",
        )
    if why and (is_inside or meta.loaders):
        number = entry.cursor.batch
        batches = "the batch of the epoch before it is" if number == 1 else f"the {number} batches of the epoch before it are"
        messages.say(f"{batches if is_inside else 'what loaders gave before it is'} loaded again: {why}")
    elif is_inside or meta.loaders:
        messages.say("loaders are set to their positions, nothing is loaded again")


def _age(path: Path) -> str:
    seconds = max(time.time() - path.stat().st_mtime, 0)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
