"""A run that is only to find the loops of a program, by watching it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from detrain.base.config import Config, Trace
from detrain.base.errors import UsageError
from detrain.base.options import Options
from detrain.launcher.configuration import new_config
from detrain.launcher.program import Program
from detrain.store import Catalogue
from detrain.store.catalogue import INFO_NAME


def configure_trace(
    program: Program,
    arguments: tuple[str, ...],
    home: Path,
    *,
    epochs: int | None = None,
    is_second: bool = False,
    diff_size: int | None = None,
) -> Config:
    """Return the configuration of a traced run, which writes an inst.info into `home`; that folder is made.

    It ends when the loops are known for sure, or after so many `epochs`. The second round goes over data that are
    `diff_size` elements longer or shorter. Raises UsageError for a second round without a first, StoreError.
    """
    from detrain.instrument.find_loops import analyse
    from detrain.tracer.events import marks_are_used

    info = home.absolute() / INFO_NAME
    if is_second and not info.is_file():
        raise UsageError(f"--second: there is no first round in {str(info)!r}", "run `detrain trace` without --second first")
    Catalogue(home.absolute()).create()
    edits, marks = program.edits_for_marks() if marks_are_used() else ({}, [])
    trace = Trace(
        info=str(info),
        base=str(program.path.parent),
        static=analyse(program.path),
        epochs=epochs,
        is_second=is_second,
        diff_size=diff_size,
        marks=tuple(marks),
    )
    config = new_config(program, arguments, home, 0, Options())
    return msgspec.structs.replace(config, trace=trace, edits=edits)
