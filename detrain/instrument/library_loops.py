"""The training loops inside libraries (`LIBRARY_TRAININGS`), found in the installed sources without importing them."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Collection, Iterator
from pathlib import Path

from detrain.base.framework_names import LIBRARY_TRAININGS, LibraryTraining
from detrain.base.source_parsing import parse
from detrain.base.structure import AnyLoop, Nest
from detrain.instrument.find_loops import observed_nest
from detrain.instrument.syntax import called_name


def library_nests(imported: Collection[str]) -> tuple[Nest, ...]:
    """Return the loops of the libraries among these top-level modules that run a training in a program's place."""
    known = [each for each in LIBRARY_TRAININGS if each.package.partition(".")[0] in imported]
    return tuple(nest for each in known for nest in _nests(each))


def _nests(training: LibraryTraining) -> Iterator[Nest]:
    top, _, inside = training.package.partition(".")
    spec = importlib.util.find_spec(top)
    for place in (spec.submodule_search_locations if spec is not None else None) or ():
        folder = Path(place, *inside.split("."))
        (epochs_in, epochs), (batches_in, batches) = training.epochs, training.batches
        outer = _loop(folder / epochs_in, epochs, batches.rpartition(".")[2])
        inner = _loop(folder / batches_in, batches, training.update)
        if outer is not None and inner is not None:
            update = _call(inner, training.update)
            file = str(folder / batches_in)
            yield observed_nest(file, parse(Path(file).read_bytes()), inner, (str(folder / epochs_in), outer), update)


def _loop(file: Path, function: str, called: str) -> AnyLoop | None:
    """Return the outermost loop of a function that calls something, or, calls it by way of a method, the only one."""
    try:
        node: ast.AST | None = parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):  # another version of the library: the run will show its loops
        return None
    for name in function.split("."):
        kinds = ast.ClassDef | ast.FunctionDef
        node = next((each for each in getattr(node, "body", ()) if isinstance(each, kinds) and each.name == name), None)
    if node is None:
        return None
    loops = [each for each in ast.walk(node) if isinstance(each, AnyLoop)]
    return next((each for each in loops if _call(each, called) is not None), loops[0] if len(loops) == 1 else None)


def _call(loop: AnyLoop, called: str) -> ast.Call | None:
    calls = (each for each in ast.walk(loop) if isinstance(each, ast.Call))
    return next((each for each in calls if called_name(each) == called), None)
