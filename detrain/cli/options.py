"""What commands share about the user's program: finding it, its structure, and the probes to insert."""

from __future__ import annotations

import importlib.util
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from detrain.base import messages
from detrain.base.digest import digest_source
from detrain.base.errors import NoStructure, ProgramNotFound, StructureInvalid, UsageError
from detrain.base.structure import Structure, read_info
from detrain.instrument.text_edits import Edit
from detrain.store.catalogue import INFO_NAME

PROGRAM_SETTINGS: Final = {"ignore_unknown_options": False, "allow_interspersed_args": False}
"""Options after PROGRAM belong to the program."""


class Seconds(click.FloatRange):
    """A time limit: a number of seconds from 1 on."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; a usage error for what is none, or none that a clock reaches."""
        seconds: float = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        return seconds


SECONDS: Final = Seconds(min=1)


class FileThenProgram(click.Command):
    """A command with a file before PROGRAM (if there is no --model instead of it): options may stand behind the file, too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move the file behind such options."""
        options, rest = self._parsed(ctx, args)
        if rest and options.get("model") is None:
            behind = self._parsed(ctx, rest[1:])[1]
            between = rest[1 : len(rest) - len(behind)]
            args = [*args[: len(args) - len(rest)], *between, rest[0], *behind]
        return super().parse_args(ctx, args)

    def _parsed(self, ctx: click.Context, args: list[str]) -> tuple[Mapping[str, object], list[str]]:
        """Return the options at the beginning, and what stands behind them."""
        options = self.make_parser(ctx).parse_args(list(args))[0]
        values = [options.get(str(each.name)) for each in self.params if isinstance(each, click.Argument)]
        rest = [each for value in values for each in (value if isinstance(value, list | tuple) else [value])]
        return options, [each for each in rest if isinstance(each, str)]


def program_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add PROGRAM and its arguments to a command."""
    function = click.argument("arguments", nargs=-1, type=click.UNPROCESSED)(function)
    return click.argument("program", metavar="PROGRAM")(function)


def home_option(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option `--ckpt`."""
    return click.option(
        "--ckpt",
        "home",
        envvar="CKPT_DIR",
        metavar="DIR",
        default="ckpt",
        show_default=True,
        callback=_named,
        help=f"{what} [$CKPT_DIR].",
    )


def _named(ctx: click.Context, param: click.Parameter, home: str) -> str:
    """Refuse a home without a name, which would be the current folder: more likely, a variable of the shell was not set."""
    if not home:
        raise UsageError("--ckpt '' names no folder", "give one with --ckpt DIR or $CKPT_DIR (the current one is '.')")
    return home


@dataclass(frozen=True, slots=True)
class Program:
    """The user's program: `target` is its absolute path or, with `is_module`, its module name."""

    target: str
    is_module: bool
    shown: str
    path: Path
    """The source file of its entry."""

    @property
    def name(self) -> str:
        """Its name in the checkpoint home."""
        return self.target if self.is_module else self.path.stem

    @classmethod
    def find(cls, program: str, *, is_module: bool) -> Program:
        """Find a program. Raises ProgramNotFound; where Python cannot compile it, that is said as Python says it."""
        if is_module:
            return _compiled(cls(program, True, program, _module_path(program)))
        path = Path(program)
        if path.is_dir() and (path / "__main__.py").is_file():
            path = path / "__main__.py"
        if not path.is_file():
            raise ProgramNotFound(
                f"no program at {program!r} (looked in {os.getcwd()!r})",
                "give the path of a Python file, or a module with -m",
            )
        if not os.access(path, os.R_OK):
            raise ProgramNotFound(f"program {program!r} cannot be read", "check its permissions")
        return _compiled(cls(os.path.abspath(path), False, program, Path(os.path.abspath(path))))

    def edits(self, structure: Structure, module: str) -> dict[str, list[Edit]]:
        """Return the probes to insert, by file."""
        from detrain.instrument.rewriter import edits_for

        files = {loop.file for nest in structure.nests for loop in (nest.batch_loop, nest.epoch_loop) if loop is not None}
        edits: dict[str, list[Edit]] = {}
        for file in files:
            found = edits_for(Path(file).read_bytes(), structure.nests, file, module)
            if found:
                edits[self._as_run(file)] = found
        return edits

    def edits_for_yields(self) -> dict[str, list[Edit]]:
        """Return the probes to insert into the generators of the program, by file."""
        from detrain.base.source_files import sources
        from detrain.instrument.yield_probes import edits_for_yields

        found = {file: edits_for_yields(Path(file).read_bytes()) for file, _tree in sources(self.path)}
        return {self._as_run(file): edits for file, edits in found.items() if edits}

    def edits_for_fetches(self, structure: Structure) -> dict[str, list[Edit]]:
        """Return the probes to insert where the line of an update loads its batch, by file."""
        from detrain.instrument.fetch_probes import edits_for_fetches

        files = {nest.batch_loop.file for nest in structure.nests}
        found = {file: edits_for_fetches(Path(file).read_bytes(), structure.nests, file) for file in sorted(files)}
        return {self._as_run(file): edits for file, edits in found.items() if edits}

    def edits_for_marks(self) -> tuple[dict[str, list[Edit]], list[tuple[str, int]]]:
        """Return the marks to insert into the loops of the program, by file, and the loops (file, line) by their numbers."""
        from detrain.base.source_files import sources
        from detrain.instrument.loop_marks import edits_for_marks

        edits: dict[str, list[Edit]] = {}
        loops: list[tuple[str, int]] = []
        for file, _tree in sources(self.path):
            found, lines = edits_for_marks(Path(file).read_bytes(), len(loops))
            loops += [(file, line) for line in lines]
            if found:
                edits[self._as_run(file)] = found
        return edits, loops

    def _as_run(self, file: str) -> str:
        """Return the name that a source file has in the run: that of the entry may be a link."""
        return str(self.path) if Path(file) == self.path.resolve() else file

    def probes(self) -> set[str]:
        """Return the probes that the entry, or a module beside it, carries already."""
        from detrain.base.source_files import sources
        from detrain.instrument.rewriter import probes_in
        from detrain.instrument.text_edits import decode_source

        texts = (decode_source(Path(file).read_bytes())[0] for file, _tree in sources(self.path))
        return {name for text in texts for name in probes_in(text)}

    def changed_sources(self, recorded: Mapping[str, str]) -> list[str]:
        """Return which of the recorded source files, relative to the entry's folder, are other than they were."""
        folder = self.path.resolve().parent
        changed = []
        for name, digest in sorted(recorded.items()):
            file = folder / name
            if not file.is_file():
                changed.append(f"{name} (gone)")
            elif digest_source(file.read_bytes()) != digest:
                changed.append(name)
        return changed


def find_structure(program: Program, home: Path) -> Structure:
    """Return the structure of a program: from an inst.info in the checkpoint home or beside it, else from static analysis.

    Raises NoStructure if there is nothing to instrument.
    """
    from detrain.adapters.registry import ADAPTERS, FOLLOWED
    from detrain.adapters.unsupported import FOREIGN
    from detrain.instrument.find_loops import analyse

    structure = _written(home / INFO_NAME, program) or _written(program.path.parent / INFO_NAME, program)
    if structure is None:
        structure = analyse(program.path)
    if structure.nests or program.probes():
        return structure
    imported = imported_modules(program.path)
    if structure.fits or not imported.isdisjoint((*ADAPTERS, *FOLLOWED)) or _leads_elsewhere(imported - set(FOREIGN), program):
        return structure  # the run will show its loops
    foreign = sorted(imported.intersection(FOREIGN))
    raise NoStructure(
        f"no training loop found in {program.shown!r}: no loop in it or in the modules beside it updates weights"
        + (f" of TensorFlow (it imports {' and '.join(foreign)})" if foreign else ""),
        "detrain trains with TensorFlow only, so far"
        if foreign
        else "where a library trains, write its loop out; or name the loops in an inst.info (docs/inst-info.md), or put in probes"
        " by hand (README, Probes)",
    )


def _written(info: Path, program: Program) -> Structure | None:
    """Return the structure in an inst.info, if there is one for this program. One that a run wrote does not outlive an edit."""
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
    """Return the name of the program that a run wrote an inst.info of; empty for one written by hand."""
    try:
        content = msgspec.json.decode(info.read_bytes())
    except (OSError, msgspec.DecodeError, RecursionError):
        return ""
    owner = content.get("program") if isinstance(content, dict) else ""
    return owner if isinstance(owner, str) else ""


def imported_modules(entry: Path) -> set[str]:
    """Return the top-level names of what a program, or a module beside it, imports."""
    import ast

    from detrain.base.source_files import sources

    nodes = [node for _file, tree in sources(entry) for node in ast.walk(tree)]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return {name.partition(".")[0] for name in names}


def _leads_elsewhere(imported: set[str], program: Program) -> bool:
    """Return whether a program imports modules that are neither libraries nor beside it: by PYTHONPATH, or a path that it adds."""
    import importlib.util

    from detrain.python.inspect.frames import is_user_file

    beside = {path.stem for path in program.path.parent.iterdir()}
    for name in imported - sys.stdlib_module_names - beside - {"__main__", ""}:
        spec = importlib.util.find_spec(name)
        places = [] if spec is None else [spec.origin or "", *(spec.submodule_search_locations or ())]
        if spec is None or any(is_user_file(place) for place in places if place):
            return True
    return False


def _compiled(program: Program) -> Program:
    """Return a program that Python can compile; else end with what Python says of it."""
    import warnings

    from detrain.instrument.text_edits import compile_edited

    try:
        with warnings.catch_warnings(action="ignore"):
            compile_edited(program.path.read_bytes(), (), str(program.path))
    except (SyntaxError, ValueError) as error:
        sys.__excepthook__(type(error), error.with_traceback(None), None)
        raise SystemExit(1) from None
    return program


def _module_path(name: str) -> Path:
    sys.path.insert(0, os.getcwd())
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except (ImportError, ValueError, AttributeError) as error:
        raise ProgramNotFound(f"no module {name!r}: {error}", "give a module that `python -m` would run") from error
    finally:
        sys.path.pop(0)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise ProgramNotFound(f"no module {name!r} that is Python source", "give a module that `python -m` would run")
    return Path(spec.origin)
