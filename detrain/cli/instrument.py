"""`detrain instrument`: show the probes as a diff, write the program with them elsewhere, or put them into its own
files and take them out again.
"""

from __future__ import annotations

import difflib
import io
import os
import sys
from pathlib import Path
from typing import Annotated

import click

from detrain.base.errors import UsageError
from detrain.base.messages import shown
from detrain.base.options import Option
from detrain.cli.shared.options import InfoHome, IsModule, takes_options
from detrain.cli.shared.printing import console
from detrain.instrument.text_edits import decode_source
from detrain.launcher.instrumented_files import copy_of, instrumented, remove_probes, write_elsewhere, write_in_place
from detrain.launcher.program import Program


@click.command()
@takes_options
def command(
    *,
    out: Annotated[Path | None, Option("Write the instrumented program to this file or folder.", flag="--write")] = None,
    in_place: Annotated[bool, Option("Change the program's own files; a copy of each is kept as FILE.orig.")] = False,
    remove: Annotated[bool, Option("Take the probes out of the program's files again.")] = False,
    home: InfoHome = "ckpt",
    is_module: IsModule = False,
    program: str,
) -> int:
    """Print, as a unified diff, the probes that `detrain run` inserts into PROGRAM.

    \b
    Example:
      detrain instrument train.py
      detrain instrument --write instrumented/train.py train.py
    """
    if sum((out is not None, in_place, remove)) > 1:
        raise UsageError("--write, --in-place and --remove exclude each other", "give one of them")
    target = Program.find(program, is_module=is_module)
    if remove:
        path = None
        for path in remove_probes(target):
            click.echo(f"took the probes out of {shown(path)}", err=True)
        if path is None:
            click.echo(f"{target.shown} carries no probes that detrain put there", err=True)
        return 0
    changed = instrumented(target, Path(home))
    if not changed:
        click.echo(f"{program} carries probes already", err=True)
    if in_place:
        for path in write_in_place(changed):
            click.echo(f"instrumented {shown(path)} (original: {copy_of(path).name})", err=True)
    elif out is not None:
        for path in write_elsewhere(target, changed, out):
            click.echo(f"wrote {path}", err=True)
    else:
        for path, data in changed.items():
            _print_diff(path, data)
    return 0


def _print_diff(path: Path, data: bytes) -> None:
    """Print the diff in the bytes of the source, so that `patch` accepts it; on a terminal, in colours."""
    before, after = (io.BytesIO(each).readlines() for each in (path.read_bytes(), data))
    name = os.fsencode(shown(path))
    lines = difflib.diff_bytes(difflib.unified_diff, before, after, name, name)
    diff = b"".join(line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n" for line in lines)
    if sys.stdout.isatty():
        from rich.syntax import Syntax

        console().print(Syntax(diff.decode(decode_source(data)[1], "replace"), "diff", background_color="default"))
    else:
        click.echo(diff, nl=False)
