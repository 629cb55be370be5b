"""The configuration of a run: its options, its probes, the folder of its checkpoints, and the checkpoint from which it
goes on; or that of a traced run, which only finds the program's loops. The launcher's last step: this process becomes
the program's.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from detrain.base import PACKAGE, messages, timing
from detrain.base.byte_digests import digest_bytes
from detrain.base.config import IS_CHECKED, RESTARTED, SELDOM, VARIABLE, Config, Ranks, Trace
from detrain.base.errors import StoreError, UsageError
from detrain.base.options import DEFAULT_SEED, Every, Options, TraceOptions
from detrain.instrument.text_edits import Edit
from detrain.launcher.program import Program
from detrain.launcher.ranks import WORLD, just_in_time, require_for_ranks, require_no_other_kind, where_ranks_go_on
from detrain.launcher.resume_point import newest_checkpoint, resumed
from detrain.launcher.structure import find_structure, info_owner
from detrain.python.process.environment import base_environment, options_of_python, set_again, threads_here, variables
from detrain.store import Catalogue, Choice, Meta
from detrain.store.catalogue import INFO_NAME
from detrain.store.job_home import rank_folder
from detrain.store.lock import hold
from detrain.store.read_ahead import read_ahead

_OF_RANKS: Final = Every(200, "batches")
"""Ranks take checkpoints after so many batches, as their clocks differ."""

_INSTEAD: Final[dict[str, tuple[str, ...]]] = {"-I": ("-s", "-P"), "-E": ()}


def configure(
    program: Program, arguments: tuple[str, ...], options: Options, command: tuple[str, ...] = ()
) -> tuple[Config, Meta | None]:
    """Return the configuration of a run, and the metadata of the checkpoint from which it goes on, if any.

    `command` are the arguments of `detrain` that start the run again. Makes and locks the home, and clears away the
    leftovers of killed runs. Raises NoStructure, AnotherProgram, EnvironmentChanged, CannotSeek, StoreError, and
    UsageError for a seed other than that of the run to resume.
    """
    home, ranks = Path(options.home), Ranks.of_environment()
    if options.bare:
        return new_config(program, arguments, home, 0, options), None
    catalogue = Catalogue(home.absolute() if ranks is None else rank_folder(home.absolute(), program.name, ranks.rank))
    if ranks is not None:
        messages.be_rank(ranks.rank)
        require_for_ranks(options)
    require_no_other_kind(home.absolute(), program.name, ranks, fresh=options.fresh)
    catalogue.create()
    is_alone = hold(catalogue.folder, program.name)
    timing.enter("checkpoints: looked at, and checked")
    restarted = int(os.environ.pop(RESTARTED, "0"))
    # A run that can start itself again reads a checkpoint only once; ranks, and restarts by the guard, check it first.
    checks_as_read = not os.environ.pop(IS_CHECKED, "") and bool(command) and ranks is None and not restarted
    if ranks is None:
        run, is_fresh, chosen = _where(catalogue, program, arguments, options, restarted, reads_all=not checks_as_read)
    else:
        ranks, run, is_fresh, chosen = where_ranks_go_on(catalogue, program, arguments, options, ranks)
    if is_alone:
        catalogue.remove_leftovers(program.name)
    if chosen is not None:
        read_ahead([station.path for station in chosen[0].stations])
    folder = catalogue.folder if ranks is None else catalogue.folder.parent
    timing.enter("structure of the program")
    structure = find_structure(program, folder, home)
    by_hand = program.probes() & {"epoch_loop", "record_epoch"}
    has_epochs = any(nest.epoch_loop is not None for nest in structure.nests) or bool(structure.fits or by_hand)
    every = options.every
    if not has_epochs and every.unit == "epochs" and (structure.nests or ranks is not None):
        every = Every(10, "minutes") if ranks is None else _OF_RANKS
        distance = "10 minutes" if ranks is None else f"{_OF_RANKS.count:g} batches"
        messages.say(f"no loop over epochs: a checkpoint each {distance}; --every 50b and --every 10min say it otherwise")
    jit = ranks is not None and just_in_time(options, every)
    if (jit is not False or options.after_batches) and every.unit == "epochs":
        every = Every(SELDOM, "batches")  # at the start of each epoch, and able to resume inside of one
    for nest in structure.nests:
        for remark in nest.remarks:
            messages.say(f"{Path(nest.batch_loop.file).name}: {remark}")
    info = folder / INFO_NAME
    is_own = structure.source == "static analysis" and (not info.is_file() or info_owner(info) != "")
    timing.enter("probes")
    edits = _merged(program.edits(structure, "detrain"), program.edits_for_yields(), program.edits_for_fetches(structure))
    config = msgspec.structs.replace(
        new_config(program, arguments, catalogue.folder, run, options),
        every=every,
        jit=jit,
        fresh=is_fresh and not restarted,
        is_restarted=restarted > 0,
        checks_as_read=checks_as_read,
        edits=edits,
        edited={file: digest_bytes(Path(file).read_bytes()) for file in edits},
        structure=structure,
        info=str(info) if is_own else "",
        command=command,
        ranks=ranks,
    )
    if chosen is None:
        return config, None
    config, meta = resumed(config, *chosen, options.seed), chosen[1]
    return msgspec.structs.replace(config, environment={**config.environment, **set_again(meta.environment)}), meta


def _where(
    catalogue: Catalogue, program: Program, arguments: tuple[str, ...], options: Options, restarted: int, *, reads_all: bool
) -> tuple[int, bool, tuple[Choice, Meta] | None]:
    """Return the number of the run, whether it starts anew, and the checkpoint from which it goes on, if any."""
    runs = [entry.run for entry in catalogue.entries() if entry.program == program.name]
    is_fresh = options.fresh
    if restarted:  # an alarm of the guard: go on with that run, from its start if it has no checkpoint
        is_fresh = restarted not in runs
    asked_for = (catalogue, program, arguments, options.goes_on_from, options.allow_lost)
    chosen = None if is_fresh else newest_checkpoint(*asked_for, reads_all=reads_all)
    return chosen[0].entry.run if chosen else restarted or max(runs, default=0) + 1, is_fresh, chosen


def new_config(program: Program, arguments: tuple[str, ...], home: Path, run: int, options: Options) -> Config:
    """Return the configuration of a run, without probes."""
    ranks = Ranks.of_environment()
    threads = threads_here()
    asked_for = msgspec.structs.asdict(options) | {"home": str(home.absolute()), "seed": options.seed or DEFAULT_SEED, "jit": False}
    return Config(
        **asked_for,
        target=program.target,
        is_module=program.is_module,
        entry=str(program.path),
        shown=program.shown,
        arguments=arguments,
        program=program.name,
        run=run,
        threads=threads,
        environment=base_environment(threads) | ({} if ranks is None else {WORLD: str(ranks.world)}),
        ranks=ranks,
    )


def _merged(*found: dict[str, list[Edit]]) -> dict[str, list[Edit]]:
    return {
        file: sorted(edit for each in found for edit in each.get(file, [])) for file in {file for each in found for file in each}
    }


def configure_trace(program: Program, arguments: tuple[str, ...], options: TraceOptions) -> Config:
    """Return the configuration of a traced run, which writes an inst.info into the home. Make that folder.

    Raises UsageError for a second round without a first one, StoreError.
    """
    from detrain.instrument.find_loops import analyse
    from detrain.tracer.events import marks_are_used

    home = Path(options.home)
    info = home.absolute() / INFO_NAME
    if options.second and not info.is_file():
        raise UsageError(f"--second: there is no first round in {str(info)!r}", "run `detrain trace` without --second first")
    Catalogue(home.absolute()).create()
    edits, marks = program.edits_for_marks() if marks_are_used() else ({}, [])
    trace = Trace(
        **msgspec.structs.asdict(options),
        info=str(info),
        base=str(program.path.parent),
        static=analyse(program.path),
        marks=tuple(marks),
    )
    config = new_config(program, arguments, home, 0, Options())
    return msgspec.structs.replace(config, trace=trace, edits=edits)


def become(config: Config, meta: Meta | None) -> NoReturn:
    """Replace this process by the program's: same pid, same signals, same exit status.

    `meta` is the metadata of the checkpoint from which the run goes on, if any: it decides about the environment.
    Raises UsageError for text that no environment can hold, StoreError if Python cannot be started.
    """
    settings = variables(config.threads, meta.environment if meta else None)
    inherited = {name: value for name, value in os.environ.items() if not (sys.flags.ignore_environment and name[:6] == "PYTHON")}
    timing.enter("start of detrain in the process")
    config = msgspec.structs.replace(config, start=timing.so_far())
    try:
        environment = {**inherited, **settings, VARIABLE: config.hand_over()}
    except UnicodeEncodeError as error:
        raise UsageError(f"{error.object!r} is not text in UTF-8", "rename the file or folder, or give another argument") from error
    folder = str(PACKAGE.parent)
    known = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    if folder not in sys.path and folder not in known:  # detrain runs from a source tree that is not installed
        environment["PYTHONPATH"] = os.pathsep.join([folder, *known])
    messages.flush_output()
    # Python reads the hash seed from the environment, so -I and -E are left out: code above, -s and -P replace them.
    options = [again for option in options_of_python() for again in _INSTEAD.get(option, (option,))]
    try:
        os.execve(sys.executable, [sys.executable, *options, str(PACKAGE / "runtime" / "session" / "start.py")], environment)
    except OSError as error:
        raise StoreError(f"cannot start {sys.executable!r}: {error}", "the arguments may be too long") from error
