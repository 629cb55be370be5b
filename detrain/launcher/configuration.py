"""How a run goes: what was asked for, the probes, the folder of its checkpoints, and where it goes on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from detrain.base import messages
from detrain.base.config import RESTARTED, Config, Every, Mode
from detrain.base.digest import digest_bytes
from detrain.instrument.text_edits import Edit
from detrain.launcher.program import Program
from detrain.launcher.resume_point import newest_checkpoint, resumed
from detrain.launcher.structure import find_structure, info_owner
from detrain.python.process.environment import base_environment
from detrain.store import Catalogue, Meta
from detrain.store.catalogue import INFO_NAME
from detrain.store.lock import hold

DEFAULT_SEED: Final = 0
"""Of a run that is given none."""
_EACH_EPOCH: Final = Every(1, "epochs")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What a run is asked for. The fields are those of `Config` of the same names."""

    every: Every = _EACH_EPOCH
    """In a program without a loop over epochs, a distance in epochs becomes 10 minutes."""
    keep: int = 3
    seed: int | None = None
    """None: that of the run to resume, or else `DEFAULT_SEED`."""
    keep_every: int | None = None
    keep_best: str = ""
    starts_anew: bool = False
    """Checkpoints that are there are not resumed from; they stay."""
    is_strict: bool = False
    stops_on_save_error: bool = True
    saves_on_sigterm: bool = True
    allows_environment: bool = False
    loader: Mode = "auto"
    guard: str = ""
    guards_gradients: bool = False
    ring: str = "device"
    goes_on_after_repeat: bool = False
    command: tuple[str, ...] = ()


def configure(program: Program, arguments: tuple[str, ...], home: Path, options: RunOptions) -> tuple[Config, Meta | None]:
    """Return the configuration of a run, and the meta data of the checkpoint from which it goes on, if it does.

    Makes and locks the folder `home`, and clears away what a killed run has left in it. Raises NoStructure,
    AnotherProgram, EnvironmentChanged, CannotSeek, UsageError for another seed than that of the run to resume,
    StoreError.
    """
    structure = find_structure(program, home)
    by_hand = program.probes() & {"epoch_loop", "record_epoch"}
    has_epochs = any(nest.epoch_loop is not None for nest in structure.nests) or bool(structure.fits or by_hand)
    every = options.every
    if not has_epochs and every.unit == "epochs":
        every = Every(10, "minutes")
        messages.say("no loop over epochs: a checkpoint each 10 minutes; --every 50b and --every 10min say it otherwise")
    for nest in structure.nests:
        for remark in nest.remarks:
            messages.say(f"{Path(nest.batch_loop.file).name}: {remark}")
    catalogue = Catalogue(home.absolute())
    catalogue.create()
    is_alone = hold(catalogue.folder, program.name)
    runs = [entry.run for entry in catalogue.entries() if entry.program == program.name]
    restarted, is_fresh = int(os.environ.pop(RESTARTED, "0")), options.starts_anew
    if restarted:  # an alarm of the guard: go on with that run, from its start if it has no checkpoint
        is_fresh = restarted not in runs
    chosen = None if is_fresh else newest_checkpoint(catalogue, program, arguments)
    run = chosen[0].entry.run if chosen else restarted or max(runs, default=0) + 1
    if is_alone:
        catalogue.remove_leftovers(program.name)
    info = catalogue.folder / INFO_NAME
    is_own = structure.source == "static analysis" and (not info.is_file() or info_owner(info) != "")
    edits = _merged(program.edits(structure, "detrain"), program.edits_for_yields(), program.edits_for_fetches(structure))
    config = msgspec.structs.replace(
        new_config(program, arguments, catalogue.folder, run, options.seed or DEFAULT_SEED, every, options.keep),
        keep_every=options.keep_every or 0,
        guard=options.guard,
        guards_gradients=options.guards_gradients,
        ring=options.ring,
        goes_on_after_repeat=options.goes_on_after_repeat,
        is_restarted=restarted > 0,
        keep_best=options.keep_best,
        is_fresh=is_fresh and not restarted,
        is_strict=options.is_strict,
        stops_on_save_error=options.stops_on_save_error,
        saves_on_sigterm=options.saves_on_sigterm,
        allows_environment=options.allows_environment,
        loader=options.loader,
        edits=edits,
        edited={file: digest_bytes(Path(file).read_bytes()) for file in edits},
        structure=structure,
        info=str(info) if is_own else "",
        command=options.command,
    )
    if chosen is None:
        return config, None
    return resumed(config, *chosen, options.seed), chosen[1]


def configure_bare(program: Program, arguments: tuple[str, ...], home: Path, options: RunOptions) -> Config:
    """Return the configuration of a run with the deterministic settings only: no probes, no checkpoints."""
    config = new_config(program, arguments, home, 0, options.seed or DEFAULT_SEED, options.every, options.keep)
    return msgspec.structs.replace(config, is_bare=True)


def new_config(program: Program, arguments: tuple[str, ...], home: Path, run: int, seed: int, every: Every, keep: int) -> Config:
    """Return the configuration of a run, without probes."""
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Config(
        target=program.target,
        is_module=program.is_module,
        entry=str(program.path),
        shown=program.shown,
        arguments=arguments,
        program=program.name,
        run=run,
        home=str(home.absolute()),
        seed=seed,
        threads=threads,
        every=every,
        keep=keep,
        environment=base_environment(threads),
    )


def _merged(*found: dict[str, list[Edit]]) -> dict[str, list[Edit]]:
    return {
        file: sorted(edit for each in found for edit in each.get(file, [])) for file in {file for each in found for file in each}
    }
