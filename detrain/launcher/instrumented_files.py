"""Write programs with probes in their source to disk: beside the original, or in its place; and take the probes out."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from detrain.base.errors import NoStructure, UsageError
from detrain.base.structure import loop_files
from detrain.launcher.program import Program
from detrain.launcher.structure import find_structure
from detrain.python.inspect.frames import is_user_file

_ORIGINAL: Final = ".orig"


def copy_of(path: Path) -> Path:
    """Return the path of the copy of a file that is changed in place."""
    return path.with_name(path.name + _ORIGINAL)


def instrumented(program: Program, home: Path) -> dict[Path, bytes]:
    """Return the program's files that get probes, with the new content; none if the program carries probes already.

    The structure may come from an inst.info in `home`. Raises NoStructure if no probes go into the source.
    """
    from detrain.instrument.rewriter import instrument

    structure = find_structure(program, home)
    own = [nest for nest in structure.nests if is_user_file(nest.batch_loop.file)]
    changed = {Path(file): instrument(Path(file).read_bytes(), own, file) for file in sorted(loop_files(own))}
    changed = {path: data for path, data in changed.items() if data != path.read_bytes()}
    if not changed and not program.probes():
        what = "a library trains, whose loops get their probes as it runs" if structure.nests else "a run will show its loops"
        what = "it trains through `fit`, which gets its probes as it runs" if structure.fits else what
        reason = f"no probes go into the source of {program.shown!r}: {what}"
        raise NoStructure(reason, "use `detrain run`, which needs no other source")
    return changed


def write_in_place(changed: dict[Path, bytes]) -> Iterator[Path]:
    """Write these files, each beside a copy of its old content (see `copy_of`); yield the written files.

    Raises UsageError, before it writes, if another file is in the place of a copy.
    """
    for path in changed:
        copy = copy_of(path)
        if copy.exists() and copy.read_bytes() != path.read_bytes():
            raise UsageError(f"{str(copy)!r} is there already, with other content", "move it away, or run with --remove first")
    for path, data in changed.items():
        shutil.copy2(path, copy_of(path))
        path.write_bytes(data)
        yield path


def write_elsewhere(program: Program, changed: dict[Path, bytes], out: Path) -> Iterator[Path]:
    """Write the entry to `out`; the program's other files keep their place relative to it. Yield the written files.

    Only files that detrain has written are replaced.

    Raises UsageError, before it writes, if a file there is the program's own or has other content.
    """
    entry = program.path.resolve()
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
        yield place


def remove_probes(program: Program) -> Iterator[Path]:
    """Remove detrain's probes from the files of a program; yield the files that carried some."""
    from detrain.base.source_files import sources
    from detrain.instrument.rewriter import remove

    for file, _tree in sources(program.path):
        path = Path(file)
        before = path.read_bytes()
        after = remove(before)
        if after == before:
            continue
        path.write_bytes(after)
        copy = copy_of(path)
        if copy.exists() and copy.read_bytes() == after:
            copy.unlink()
        yield path


def _is_ours(path: Path) -> bool:
    from detrain.instrument.rewriter import remove

    data = path.read_bytes()
    try:
        return remove(data) != data
    except (SyntaxError, UnicodeError):  # not Python source
        return False
