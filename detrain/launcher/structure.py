"""Find the structure of a program: from an inst.info, or from its source."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from detrain.base import keras_backend, messages
from detrain.base.errors import NoStructure, StructureInvalid
from detrain.base.framework_names import NAMES
from detrain.base.source_files import imported_by_libraries, imported_modules, sources
from detrain.base.structure import Structure, read_info
from detrain.launcher.program import Program
from detrain.store.catalogue import INFO_NAME


def find_structure(program: Program, *homes: Path) -> Structure:
    """Return the structure of a program: from an inst.info in one of the `homes` or beside the program, else
    from static analysis.

    Raises NoStructure if there is no loop to instrument.
    """
    written = (_written(folder / INFO_NAME, program) for folder in (*homes, program.path.parent))
    structure = next((each for each in written if each is not None), None)
    if structure is None:
        from detrain.instrument.find_loops import analyse

        structure = analyse(program.path)
    if structure.nests or program.probes():
        return structure
    from detrain.adapters.registry import ADAPTERS, FOLLOWED, FOREIGN
    from detrain.instrument.find_loops import library_nests

    imported = imported_modules(program.path)
    backend = keras_backend.foreseen(tree for _file, tree in sources(program.path))
    libraries = imported.difference(ADAPTERS, FOLLOWED, FOREIGN)
    inside = library_nests(imported, backend) or library_nests(imported_by_libraries(libraries), backend)
    if inside:
        is_fit = any("keras" in Path(nest.batch_loop.file).parts for nest in inside)
        return msgspec.structs.replace(structure, nests=inside, fits=() if is_fit else structure.fits)
    if structure.fits or not imported.isdisjoint((*ADAPTERS, *FOLLOWED)) or _leads_elsewhere(imported - set(FOREIGN), program):
        return structure  # the run will show its loops
    foreign = sorted(imported.intersection(FOREIGN))
    raise NoStructure(
        f"no training loop found in {program.shown!r}: no loop in it or in the modules beside it updates weights"
        + (f" of {NAMES} (it imports {' and '.join(foreign)})" if foreign else ""),
        f"train with {NAMES}: detrain knows no other framework yet"
        if foreign
        else "where a library trains, write its loop out; or name the loops in an inst.info (docs/reference/inst-info.md), "
        "or put in probes by hand (docs/reference/api.md)",
    )


def _written(info: Path, program: Program) -> Structure | None:
    """Return the structure in an inst.info, None if there is none for this program.

    An inst.info that a run wrote does not outlive an edit of the loops.
    """
    if not info.is_file():
        return None
    owner = info_owner(info)
    if owner not in ("", program.name):
        return None
    try:
        return read_info(info, program.path.parent)
    except StructureInvalid as error:
        if not owner:
            raise
        messages.warn(f"{error.what}; finding the loops anew")
        return None


def info_owner(info: Path) -> str:
    """Return the name of the program in an inst.info that a run wrote; empty for one written by hand."""
    try:
        content = msgspec.json.decode(info.read_bytes())
    except (OSError, msgspec.DecodeError, RecursionError):
        return ""
    owner = content.get("program") if isinstance(content, dict) else ""
    return owner if isinstance(owner, str) else ""


def _leads_elsewhere(imported: set[str], program: Program) -> bool:
    """Return whether a program imports user modules from other folders: by PYTHONPATH, or by a path that it adds."""
    import importlib.util

    from detrain.python.inspect.frames import is_user_file

    beside = {path.stem for path in program.path.parent.iterdir()}
    for name in imported - sys.stdlib_module_names - beside - {"__main__", ""}:
        spec = importlib.util.find_spec(name)
        places = [] if spec is None else [spec.origin or "", *(spec.submodule_search_locations or ())]
        if spec is None or any(is_user_file(place) for place in places if place):
            return True
    return False
