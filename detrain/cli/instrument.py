"""`detrain instrument`: show the probes as a diff, write the instrumented program elsewhere, or change it in place and back."""

from __future__ import annotations

import difflib
import io
import os
import shutil
import sys
from pathlib import Path

import click

from detrain.base.errors import NoStructure, UsageError
from detrain.base.messages import shown
from detrain.cli.options import home_option
from detrain.cli.printing import console
from detrain.instrument.text_edits import decode_source
from detrain.launcher.program import Program
from detrain.launcher.structure import find_structure

_ORIGINAL = ".orig"


@click.command()
@click.option("--write", "out", type=click.Path(path_type=Path), help="Write the instrumented program to this file or folder.")
@click.option("--in-place", is_flag=True, help="Change the program's own files; a copy of each is kept as FILE.orig.")
@click.option("--remove", is_flag=True, help="Take the probes out of the program's files again.")
@home_option("Where to look for an inst.info")
@click.option("-m", "is_module", is_flag=True, help="PROGRAM is a module, as with python -m.")
@click.argument("program", metavar="PROGRAM")
def command(out: Path | None, in_place: bool, remove: bool, home: str, is_module: bool, program: str) -> int:
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
        return _remove(target)
    from detrain.instrument.rewriter import instrument

    structure = find_structure(target, Path(home))
    files = sorted({loop.file for nest in structure.nests for loop in (nest.batch_loop, nest.epoch_loop) if loop is not None})
    changed = {Path(file): instrument(Path(file).read_bytes(), structure.nests, file) for file in files}
    changed = {path: data for path, data in changed.items() if data != path.read_bytes()}
    if not changed and not target.probes():
        what = "it trains through `fit`, which gets its probes as it runs" if structure.fits else "a run will show its loops"
        raise NoStructure(f"no probes go into the source of {program!r}: {what}", "use `detrain run`, which needs no other source")
    if not changed:
        click.echo(f"{program} carries probes already", err=True)
    if in_place:
        _write_in_place(changed)
    elif out is not None:
        _write_elsewhere(target, changed, out)
    else:
        for path, data in changed.items():
            _print_diff(path, data)
    return 0


def _print_diff(path: Path, data: bytes) -> None:
    """Print the diff in the bytes of the source, so that `patch` takes it; on a terminal, in colours."""
    before, after = (io.BytesIO(each).readlines() for each in (path.read_bytes(), data))
    name = os.fsencode(shown(path))
    lines = difflib.diff_bytes(difflib.unified_diff, before, after, name, name)
    diff = b"".join(line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n" for line in lines)
    if sys.stdout.isatty():
        from rich.syntax import Syntax

        console().print(Syntax(diff.decode(decode_source(data)[1], "replace"), "diff", background_color="default"))
    else:
        click.echo(diff, nl=False)


def _write_in_place(changed: dict[Path, bytes]) -> None:
    for path in changed:
        copy = path.with_name(path.name + _ORIGINAL)
        if copy.exists() and copy.read_bytes() != path.read_bytes():
            raise UsageError(f"{str(copy)!r} is there already, with other content", "move it away, or run with --remove first")
    for path, data in changed.items():
        shutil.copy2(path, path.with_name(path.name + _ORIGINAL))
        path.write_bytes(data)
        click.echo(f"instrumented {shown(path)} (original: {path.name}{_ORIGINAL})", err=True)


def _write_elsewhere(target: Program, changed: dict[Path, bytes], out: Path) -> None:
    """Write the entry to `out`; other files of the program keep their place relative to it. Only our own files are replaced."""
    entry = target.path.resolve()
    to = out / entry.name if out.is_dir() else out
    places = {path: to if path == entry else to.parent / os.path.relpath(path, entry.parent) for path in {entry, *changed}}
    for path, place in places.items():
        if place.resolve() == path:
            raise UsageError(f"--write {str(out)!r} is the program itself", "use --in-place for that")
        if place.is_file() and place.read_bytes() != path.read_bytes() and not _is_ours(place):
            raise UsageError(f"{str(place)!r} is there already, with other content", "move it away, or write to another place")
    for path, place in places.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(changed.get(path, path.read_bytes()))
        click.echo(f"wrote {place}", err=True)


def _is_ours(path: Path) -> bool:
    from detrain.instrument.rewriter import remove

    data = path.read_bytes()
    try:
        return remove(data) != data
    except (SyntaxError, UnicodeError):  # no source at all
        return False


def _remove(target: Program) -> int:
    from detrain.base.source_files import sources
    from detrain.instrument.rewriter import remove

    found = False
    for file, _tree in sources(target.path):
        path = Path(file)
        before = path.read_bytes()
        after = remove(before)
        if after == before:
            continue
        found = True
        path.write_bytes(after)
        copy = path.with_name(path.name + _ORIGINAL)
        if copy.exists() and copy.read_bytes() == after:
            copy.unlink()
        click.echo(f"took the probes out of {shown(path)}", err=True)
    if not found:
        click.echo(f"{target.shown} carries no probes that detrain put there", err=True)
    return 0
