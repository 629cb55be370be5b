"""The user's program: its place, and the probes to insert into its source."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from detrain.base.added_statements import as_it_was
from detrain.base.byte_digests import digest_source
from detrain.base.errors import ProgramNotFound, UsageError
from detrain.base.structure import Structure, loop_files
from detrain.instrument.text_edits import Edit

_STARTERS: Final = frozenset(
    {"torchrun", "accelerate", "deepspeed", "torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"}
)
"""Programs and modules that start the program that trains."""


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
        """The program's name in the checkpoint home."""
        return self.target if self.is_module else self.path.stem

    @classmethod
    def find(cls, program: str, *, is_module: bool) -> Program:
        """Find a program. Raises ProgramNotFound; UsageError if it only starts other programs; SystemExit, with
        Python's own message, if Python cannot compile it.
        """
        if (program if is_module else os.path.basename(program)) in _STARTERS:
            raise UsageError(
                f"{program!r} starts the program that trains, in other processes, which detrain does not see",
                "have it start detrain, as in `torchrun … -m detrain run train.py`; or use `detrain launch`",
            )
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

        files = loop_files(structure.nests)
        edits: dict[str, list[Edit]] = {}
        for file in files:
            found = edits_for(Path(file).read_bytes(), structure.nests, file, module)
            if found:
                edits[self._as_run(file)] = found
        return edits

    def edits_for_yields(self) -> dict[str, list[Edit]]:
        """Return the probes to insert into the generators of the program, by file."""
        from detrain.base.source_files import sources
        from detrain.instrument.value_probes import edits_for_yields

        found = {file: edits_for_yields(Path(file).read_bytes()) for file, _tree in sources(self.path)}
        return {self._as_run(file): edits for file, edits in found.items() if edits}

    def edits_for_fetches(self, structure: Structure) -> dict[str, list[Edit]]:
        """Return the probes to insert into lines that load a batch and update weights with it, by file."""
        from detrain.instrument.value_probes import edits_for_fetches

        files = {nest.batch_loop.file for nest in structure.nests}
        found = {file: edits_for_fetches(Path(file).read_bytes(), structure.nests, file) for file in sorted(files)}
        return {self._as_run(file): edits for file, edits in found.items() if edits}

    def edits_for_marks(self) -> tuple[dict[str, list[Edit]], list[tuple[str, int]]]:
        """Return the marks to insert into the program's loops, by file, and the loops (file, line) by their numbers."""
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
        """Return the name of a source file in the run: the entry may have been given as a link."""
        return str(self.path) if Path(file) == self.path.resolve() else file

    def probes(self) -> set[str]:
        """Return the probes that the entry, or a module beside it, carries already."""
        from detrain.base.source_files import sources
        from detrain.instrument.rewriter import probes_in
        from detrain.instrument.text_edits import decode_source

        texts = (decode_source(Path(file).read_bytes())[0] for file, _tree in sources(self.path))
        return {name for text in texts for name in probes_in(text)}

    def changed_sources(self, recorded: Mapping[str, str]) -> list[str]:
        """Return the recorded source files, relative to the entry's folder, that have changed or are gone."""
        folder = self.path.resolve().parent
        changed = []
        for name, digest in sorted(recorded.items()):
            file = folder / name
            if not file.is_file():
                changed.append(f"{name} (gone)")
            elif as_it_was(digest_source(file.read_bytes())) != digest:
                changed.append(name)
        return changed


def _compiled(program: Program) -> Program:
    """Return the program if Python can compile it; else print Python's error and raise SystemExit."""
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
