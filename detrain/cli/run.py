"""`detrain run`: settle the environment, choose where to resume, and become the program."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path
from typing import Final

import click
import msgspec

from detrain.base import PACKAGE, messages
from detrain.base.config import RESTARTED, VARIABLE, Config, Every, Mode
from detrain.base.digest import digest_bytes
from detrain.base.errors import AnotherProgram, EnvironmentChanged, StoreError, UsageError
from detrain.cli.options import PROGRAM_SETTINGS, home_option, program_arguments
from detrain.cli.printing import shown
from detrain.instrument.text_edits import Edit
from detrain.launcher.program import Program
from detrain.launcher.structure import find_structure, info_owner
from detrain.python.loaders.strategy import cannot_seek
from detrain.python.process.environment import base_environment, compare, options_of_python, variables
from detrain.store import Catalogue, Choice, Entry, Meta, read_meta
from detrain.store.catalogue import INFO_NAME
from detrain.store.lock import hold

DEFAULT_SEED = 0
_INSTEAD: Final[dict[str, tuple[str, ...]]] = {"-I": ("-s", "-P"), "-E": ()}


class EveryType(click.ParamType[Every]):
    """`3` (epochs), `50b` (batches) or `10min`."""

    name = "N|Nb|Nmin"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Every:
        """Parse the option."""
        if isinstance(value, Every):
            return value
        match = re.fullmatch(r"(\d+|\d*\.\d+(?=min))(b|min|)", str(value))
        if match is None or float(match[1]) <= 0:
            raise UsageError(
                f"--every {value!r} is not a distance between checkpoints",
                "give a number above 0: 3 (epochs), 50b (batches) or 10min",
            )
        units = {"": "epochs", "b": "batches", "min": "minutes"}
        return Every(float(match[1]), units[match[2]])  # type: ignore[arg-type]


@click.command(context_settings=PROGRAM_SETTINGS)
@click.option("--every", type=EveryType(), default="1", show_default=True, help="Save each N epochs, N batches or N minutes.")
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    metavar="K",
    default=3,
    show_default=True,
    help="How many checkpoints to keep.",
)
@click.option("--keep-every", type=click.IntRange(min=1), metavar="M", help="Keep those of each Mth epoch, too.")
@click.option("--keep-best", default="", metavar="[max:]METRIC", help="Keep the one with the lowest (max: highest) METRIC, too.")
@home_option("Folder of the checkpoints")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    metavar="S",
    default=None,
    help=f"Seed of all random streams [{DEFAULT_SEED}].",
)
@click.option("--fresh", is_flag=True, help="Start anew; checkpoints that are there stay.")
@click.option(
    "--on-save-error",
    type=click.Choice(["stop", "warn"]),
    default="stop",
    show_default=True,
    help="When a checkpoint cannot be written: end the program, or go on without it.",
)
@click.option(
    "--on-sigterm",
    type=click.Choice(["checkpoint", "ignore"]),
    default="checkpoint",
    show_default=True,
    help="On SIGTERM: take a last checkpoint at the next cut, or leave the signal to the program.",
)
@click.option(
    "--guard",
    type=click.Choice(["detect", "recover"]),
    default=None,
    help="Look for hardware faults after each step: name them, or go back and run the steps again.",
)
@click.option("--guard-gradients", is_flag=True, help="With --guard: look at the norms of gradients, too.")
@click.option(
    "--guard-ring",
    type=click.Choice(["device", "host"]),
    default="device",
    show_default=True,
    help="Where --guard recover holds the last two states: on the device, copied on write, or copied to the host's memory.",
)
@click.option(
    "--on-repeat",
    type=click.Choice(["stop", "continue"]),
    default="stop",
    show_default=True,
    help="When an alarm comes again in the steps that are run again: end the program, or go on.",
)
@click.option(
    "--loader",
    type=click.Choice(["auto", "seek", "forward"]),
    default="auto",
    show_default=True,
    help="On resume: set loaders to their positions, or load the batches before the cut again (auto: seek where it is exact).",
)
@click.option("--strict", is_flag=True, help="Refuse to run if some state cannot be captured.")
@click.option("--allow-environment", is_flag=True, help="Resume although versions or the machine differ.")
@click.option("--bare", is_flag=True, help="Only the deterministic settings: no probes, no checkpoints.")
@click.option("-m", "is_module", is_flag=True, help="PROGRAM is a module, as with python -m.")
@program_arguments
def command(
    every: Every,
    keep: int,
    keep_every: int | None,
    keep_best: str,
    home: str,
    seed: int | None,
    fresh: bool,
    on_save_error: str,
    on_sigterm: str,
    guard: str | None,
    guard_gradients: bool,
    guard_ring: str,
    on_repeat: str,
    loader: Mode,
    strict: bool,
    allow_environment: bool,
    bare: bool,
    is_module: bool,
    program: str,
    arguments: tuple[str, ...],
) -> int:
    """Run PROGRAM deterministically and with checkpoints; run again, it resumes to the bit.

    \b
    Example:
      detrain run --every 50b train.py --epochs 10
    """
    if guard_gradients and guard is None:
        raise UsageError("--guard-gradients without --guard", "give --guard detect or --guard recover")
    if guard != "recover" and (guard_ring != "device" or on_repeat != "stop"):
        option = f"--guard-ring {guard_ring}" if guard_ring != "device" else f"--on-repeat {on_repeat}"
        raise UsageError(f"{option} without --guard recover", "give --guard recover, or leave it out")
    target = Program.find(program, is_module=is_module)
    if bare:
        config = new_config(target, arguments, Path(home), 0, seed or DEFAULT_SEED, every, keep)
        become(msgspec.structs.replace(config, is_bare=True), None)
    structure = find_structure(target, Path(home))
    by_hand = target.probes() & {"epoch_loop", "record_epoch"}
    has_epochs = any(nest.epoch_loop is not None for nest in structure.nests) or bool(structure.fits or by_hand)
    if not has_epochs and every.unit == "epochs":
        every = Every(10, "minutes")
        messages.say("no loop over epochs: a checkpoint each 10 minutes; --every 50b and --every 10min say it otherwise")
    for nest in structure.nests:
        for remark in nest.remarks:
            messages.say(f"{Path(nest.batch_loop.file).name}: {remark}")
    catalogue = Catalogue(Path(home).absolute())
    catalogue.create()
    is_alone = hold(catalogue.folder, target.name)
    runs = [entry.run for entry in catalogue.entries() if entry.program == target.name]
    restarted = int(os.environ.pop(RESTARTED, "0"))
    if restarted:  # an alarm of the guard: go on with that run, from its start if it has no checkpoint
        fresh = restarted not in runs
    chosen = None if fresh else _newest(catalogue, target, arguments)
    run = chosen[0].entry.run if chosen else restarted or max(runs, default=0) + 1
    if is_alone:
        catalogue.remove_leftovers(target.name)
    config = new_config(target, arguments, catalogue.folder, run, seed or DEFAULT_SEED, every, keep)
    info = catalogue.folder / INFO_NAME
    is_own = structure.source == "static analysis" and (not info.is_file() or info_owner(info) != "")
    edits = _merged(target.edits(structure, "detrain"), target.edits_for_yields(), target.edits_for_fetches(structure))
    config = msgspec.structs.replace(
        config,
        keep_every=keep_every or 0,
        guard=guard or "",
        guards_gradients=guard_gradients,
        ring=guard_ring,
        goes_on_after_repeat=on_repeat == "continue",
        is_restarted=restarted > 0,
        keep_best=keep_best,
        is_fresh=fresh and not restarted,
        is_strict=strict,
        stops_on_save_error=on_save_error == "stop",
        saves_on_sigterm=on_sigterm == "checkpoint",
        allows_environment=allow_environment,
        loader=loader,
        edits=edits,
        edited={file: digest_bytes(Path(file).read_bytes()) for file in edits},
        structure=structure,
        info=str(info) if is_own else "",
        command=tuple(sys.argv[1:]),
    )
    return become(_resuming(config, *chosen, seed) if chosen else config, chosen[1] if chosen else None)


def _resuming(config: Config, choice: Choice, meta: Meta, seed: int | None) -> Config:
    """Return the configuration of a run that goes on from a checkpoint, and say so; `seed` is the one that was asked for."""
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
    threads = int(meta.environment.get("threads", config.threads))
    return msgspec.structs.replace(
        config,
        stations=tuple(str(station.path) for station in choice.stations),
        seed=meta.seed,
        threads=threads,
        environment={**config.environment, "threads": str(threads)},
    )


def _say_how_loaders_come_back(entry: Entry, meta: Meta, mode: Mode) -> None:
    """Say whether batches are loaded again, and why. Raises CannotSeek where a seek was asked for and would not be exact."""
    is_inside = entry.cursor.is_inside
    why = "--loader forward" if mode == "forward" else meta.forward
    if mode == "seek" and meta.forward:
        raise cannot_seek(meta.forward)
    if why and (is_inside or meta.loaders):
        number = entry.cursor.batch
        batches = "the batch of the epoch before it is" if number == 1 else f"the {number} batches of the epoch before it are"
        messages.say(f"{batches if is_inside else 'what loaders gave before it is'} loaded again: {why}")
    elif is_inside or meta.loaders:
        messages.say("loaders are set to their positions, nothing is loaded again")


def _merged(*found: dict[str, list[Edit]]) -> dict[str, list[Edit]]:
    return {
        file: sorted(edit for each in found for edit in each.get(file, [])) for file in {file for each in found for file in each}
    }


def new_config(target: Program, arguments: tuple[str, ...], home: Path, run: int, seed: int, every: Every, keep: int) -> Config:
    """Return the configuration of a run, without probes."""
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Config(
        target=target.target,
        is_module=target.is_module,
        entry=str(target.path),
        shown=target.shown,
        arguments=arguments,
        program=target.name,
        run=run,
        home=str(home.absolute()),
        seed=seed,
        threads=threads,
        every=every,
        keep=keep,
        environment=base_environment(threads),
    )


def _newest(catalogue: Catalogue, target: Program, arguments: tuple[str, ...]) -> tuple[Choice, Meta] | None:
    """Return the newest good checkpoint of the program, or None if the folder has none of any program."""
    everything = catalogue.entries()
    if everything and not any(entry.program == target.name for entry in everything):
        others = sorted({entry.program for entry in everything})
        raise AnotherProgram(
            f"{str(catalogue.folder)!r} holds checkpoints of {', '.join(map(repr, others))}, none of {target.name!r}",
            "give another folder with --ckpt DIR, or start beside them with --fresh",
        )
    chosen = catalogue.newest(target.name)
    if chosen is None:
        return None
    meta = read_meta(chosen.entry.path)
    _check_program(meta, target, arguments)
    catalogue.adopt(chosen)
    return chosen, meta


def _check_program(meta: Meta, target: Program, arguments: tuple[str, ...]) -> None:
    if tuple(meta.arguments) != arguments:
        raise AnotherProgram(
            f"the checkpoints are of {target.name!r} with arguments {list(meta.arguments)}; got {list(arguments)}",
            "give the same arguments, another folder with --ckpt DIR, or start anew with --fresh",
        )
    changed = target.changed_sources(meta.sources)
    if changed:
        raise AnotherProgram(
            f"source has changed since the checkpoint was taken: {', '.join(changed)}",
            "bring the source back, or start anew with --fresh (the old checkpoints stay)",
        )


def _check_environment(config: Config, meta: Meta) -> None:
    changed = compare(meta.environment, config.environment)
    if changed and not config.allows_environment:
        raise EnvironmentChanged(
            f"the environment differs from the checkpoint's: {'; '.join(changed)}",
            "resume where it is the same, or go on, perhaps with other bits, with --allow-environment",
        )


def become(config: Config, meta: Meta | None) -> int:
    """Replace this process by the program's: same pid, same signals, same exit status."""
    settings = variables(config.threads, meta.environment if meta else None)
    inherited = {name: value for name, value in os.environ.items() if not (sys.flags.ignore_environment and name[:6] == "PYTHON")}
    try:
        environment = {**inherited, **settings, VARIABLE: config.hand_over()}
    except UnicodeEncodeError as error:
        raise UsageError(f"{error.object!r} is not text in UTF-8", "rename the file or folder, or give another argument") from error
    folder = str(PACKAGE.parent)
    known = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    if folder not in sys.path[1:] and folder not in known:  # run from a source tree that is not installed
        environment["PYTHONPATH"] = os.pathsep.join([folder, *known])
    messages.flush_output()
    # The hash seed comes from the environment, so what -I and -E do is done without them: above, and by -s and -P.
    options = [again for option in options_of_python() for again in _INSTEAD.get(option, (option,))]
    try:
        os.execve(sys.executable, [sys.executable, *options, str(PACKAGE / "runtime" / "session" / "start.py")], environment)
    except OSError as error:
        raise StoreError(f"cannot start {sys.executable!r}: {error}", "the arguments may be too long") from error


def _age(path: Path) -> str:
    seconds = max(time.time() - path.stat().st_mtime, 0)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
