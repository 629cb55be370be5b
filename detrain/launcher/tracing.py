"""A run that is only to find the loops of a program, by watching it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from detrain.base.config import Config, Trace
from detrain.base.errors import UsageError
from detrain.base.options import Options, TraceOptions
from detrain.launcher.configuration import new_config
from detrain.launcher.program import Program
from detrain.store import Catalogue
from detrain.store.catalogue import INFO_NAME


def configure_trace(program: Program, arguments: tuple[str, ...], options: TraceOptions) -> Config:
    """Return the configuration of a traced run, which writes an inst.info into the home; that folder is made.

    Raises UsageError for a second round without a first, StoreError.
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
