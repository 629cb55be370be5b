"""A kernel as a run: it begins before any framework is imported, and each training cell is a part of it. The cells that
have run, one after another, form a file that grows; the code of each cell is compiled from that file.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, Final, NoReturn

import msgspec

from detrain.adapters.registry import ADAPTERS
from detrain.base import compiled_sources, keras_backend, messages
from detrain.base.config import Config
from detrain.base.errors import CannotRewrite, DetrainError, EnvironmentChanged, NoStructure, UsageError
from detrain.base.options import Every, Options
from detrain.base.structure import Structure
from detrain.instrument.find_loops import analyse, library_nests
from detrain.instrument.rewriter import IMPORT_MARK
from detrain.instrument.text_edits import Edit, compile_edited, edited_tree
from detrain.launcher.configuration import new_config
from detrain.launcher.program import Program
from detrain.launcher.resume_point import newest_checkpoint, resumed
from detrain.python.inspect import function_source
from detrain.python.inspect.frames import set_notebook
from detrain.python.process.environment import variables
from detrain.runtime.session.launch import settle
from detrain.runtime.session.session import Session
from detrain.store import Catalogue
from detrain.store.lock import hold

_HASH_SEED: Final = "PYTHONHASHSEED"
_FRESH: Final = "DETRAIN_RUN_FRESH"
_FIRST_CELL: Final = "put `%load_ext detrain` alone into the first cell, and restart the kernel"

CELL: Final = "cell "
"""The prefix of the names of cells among the names of source files."""


class Cells:
    """The file of the cells that have run: the source of the program."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = b""
        self._edits: list[Edit] = []
        self._first = 0
        self.count = 0
        self._write()

    def add(self, source: str) -> None:
        """Add a cell, which is about to run, behind the others.

        Raises SyntaxError, and adds no cell then.
        """
        text = source.rstrip("\n") + "\n"
        compile(text, str(self.path), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        self._first = len(self._data)
        self._data += text.encode()
        self.count += 1
        compiled_sources.parts[f"{CELL}{self.count}"] = text.encode()
        self._write()

    @property
    def lines(self) -> range:
        """The line numbers of the last cell, from 1."""
        first = self._data[: self._first].count(b"\n") + 1
        return range(first, self._data.count(b"\n") + 1)

    def edit(self, edits: Sequence[Edit]) -> list[Edit]:
        """Make the edits that lie in the last cell, and the import of the probes that they call; return them with their
        positions in the text that `_cell` returns.
        """
        imports = [(self._first, self._first, text) for _, _, text in edits if text.rstrip().endswith(IMPORT_MARK.strip())]
        others = [edit for edit in edits if edit[0] >= self._first and not edit[2].rstrip().endswith(IMPORT_MARK.strip())]
        mine = sorted([*imports, *others]) if others else []
        self._edits = sorted([*self._edits, *mine])
        with contextlib.suppress(SyntaxError):  # some cells are valid alone: `await`, `from __future__`
            function_source.remember(compile_edited(self._data, self._edits, str(self.path)))
        shift = self._first - len(self._before())
        return [(first - shift, last - shift, text) for first, last, text in mine]

    def tree(self, edits: Sequence[Edit]) -> ast.Module:
        """Return the syntax tree of the last cell, edited, at its lines in the file."""
        return edited_tree(self._cell(), edits, str(self.path)) if edits else ast.parse(self._cell(), str(self.path))

    def code(self, edits: Sequence[Edit]) -> CodeType:
        """Return the code of the last cell, edited, at its lines in the file."""
        return compile_edited(self._cell(), edits, str(self.path))

    def _cell(self) -> bytes:
        return self._before() + self._data[self._first :]

    def _before(self) -> bytes:
        return b"\n" * (self.lines.start - 1)

    def _write(self) -> None:
        try:
            self.path.write_bytes(self._data)
        except OSError as error:
            raise CannotRewrite(
                f"cannot write {str(self.path)!r}: {error.strerror or error}", "run in a folder that can be written"
            ) from error
        compiled_sources.keep(str(self.path), self._data)


class Notebook(Program):
    """The cells of a kernel as a program. Its cells are compared when they have run, not before."""

    @property
    def name(self) -> str:
        """The notebook's name in the checkpoint home."""
        return self.shown

    def changed_sources(self, recorded: Mapping[str, str]) -> list[str]:
        """Return the recorded modules beside the notebook that have changed or are gone."""
        return super().changed_sources({name: digest for name, digest in recorded.items() if not _is_of_cells(name, self.path)})


def _is_of_cells(name: str, path: Path) -> bool:
    return name == path.name or name.startswith(CELL)


class NotebookRun:
    """The run of a kernel."""

    def __init__(self, namespace: dict[str, Any], inputs: Sequence[str]) -> None:
        """Begin the run. `inputs` are the cells that have run.

        Raises UsageError if this kernel cannot be a run, and the errors of `detrain run` when it goes on from a
        checkpoint.
        """
        _require_kernel(inputs)
        name = Path(os.environ.get("JPY_SESSION_NAME", "")).stem or "notebook"
        path = Path.cwd() / f".{name}.cells.py"
        self.cells = Cells(path)
        self._program = Notebook(str(path), False, name, path)
        messages.show_in_notebook()
        config = self._begin(name)
        os.environ.update({each: value for each, value in variables(config.threads, None).items() if each != _HASH_SEED})
        namespace["__file__"] = str(path)  # detrain recognizes the namespace as the program's module by it
        set_notebook(str(path))
        self._config = config
        session, _traced = settle(config)
        assert session is not None
        self._session: Session = session
        self._is_broken = False
        self._has_trained = False

    def _begin(self, name: str) -> Config:
        """Return the configuration of the run, which goes on from the newest checkpoint if there is one."""
        home = Path(os.environ.get("CKPT_DIR") or "ckpt").absolute()
        catalogue = Catalogue(home)
        catalogue.create()
        if hold(home, name):
            catalogue.remove_leftovers(name)
        is_fresh = os.environ.get(_FRESH, "") not in ("", "0")
        runs = [entry.run for entry in catalogue.entries() if entry.program == name]
        chosen = None if is_fresh else newest_checkpoint(catalogue, self._program, ())
        run = chosen[0].entry.run if chosen else max(runs, default=0) + 1
        options = Options(fresh=is_fresh, on_sigterm="ignore")  # a kernel also gets SIGTERM when it is shut down
        edits: dict[str, list[Edit]] = {str(self._program.path): []}
        config = msgspec.structs.replace(new_config(self._program, (), home, run, options), edits=edits)
        if chosen is None:
            return config
        was = chosen[1].environment.get(_HASH_SEED, "")
        if was != os.environ[_HASH_SEED]:
            raise EnvironmentChanged(
                f"{_HASH_SEED} was {was!r}, is {os.environ[_HASH_SEED]!r}: sets have another order in this kernel",
                f"start Jupyter with {_HASH_SEED}={was}",
            )
        return resumed(config, *chosen, None)

    def cell(self, source: str) -> Any:
        """Return the syntax tree of a cell that is about to run, with probes in its generators. Raises SyntaxError."""
        self.cells.add(source)
        found = self._program.edits_for_yields().get(str(self.cells.path), [])
        return self.cells.tree(self.cells.edit(found))

    def train(self, options: str, source: str, namespace: dict[str, Any]) -> None:
        """Run a training cell. Raises UsageError, NoStructure or CannotRewrite before the cell begins."""
        if self._is_broken:
            raise UsageError(
                "a training cell was left by an error or by hand: where in the training that was is chance",
                "restart the kernel and run the cells again: the run goes on from its newest checkpoint",
            )
        chosen = _parsed(options)
        self.cells.add(source)
        structure = self._structure()
        code = self.cells.code(self.cells.edit(self._edits(structure)))
        self._choose(chosen, structure)
        try:
            exec(code, namespace)
        except BaseException:
            self._is_broken = True
            raise
        self._end()

    def _structure(self) -> Structure:
        """Return the loops of the last cell. Raises NoStructure if none of its loops trains."""
        found = analyse(self.cells.path)
        inside = tuple(nest for nest in found.nests if self._is_inside(nest.batch_loop.file, nest.batch_loop.line))
        fits = tuple(fit for fit in found.fits if self._is_inside(fit.file, fit.line))
        if inside or fits:
            return msgspec.structs.replace(found, nests=inside, fits=fits)
        elsewhere = [nest.batch_loop for nest in found.nests]
        if elsewhere:
            raise NoStructure(
                f"no training loop in this cell; there is one in an earlier one ({elsewhere[0].function or 'at its top level'})",
                "put the loop, or the function that it is in, into the %%detrain cell",
            )
        tops = {each.partition(".")[0] for each in sys.modules}
        nests = library_nests(tops, keras_backend.in_process())
        if nests:
            raise NoStructure("a library trains here, in loops of its own", "run the notebook as a script with `detrain run`")
        raise NoStructure("no training loop in this cell: no loop in it updates weights", "write the loop into the %%detrain cell")

    def _is_inside(self, file: str, line: int) -> bool:
        return Path(file) == self.cells.path.resolve() and line in self.cells.lines

    def _edits(self, structure: Structure) -> list[Edit]:
        """Return the probes of the last cell, as edits of the file."""
        path = str(self.cells.path)
        found = (
            self._program.edits(structure, "detrain"),
            self._program.edits_for_yields(),
            self._program.edits_for_fetches(structure),
        )
        return sorted(edit for each in found for edit in each.get(path, []))

    def _choose(self, chosen: dict[str, Any], structure: Structure) -> None:
        """Take the options of the first training cell; raise UsageError if a later one has other options."""
        has_epochs = bool(structure.fits) or any(nest.epoch_loop is not None for nest in structure.nests)
        every: Every = chosen["every"]
        if not has_epochs and every.unit == "epochs":
            raise UsageError("no loop over epochs in this cell", "give a distance in batches or minutes: %%detrain --every 50b")
        self._session.parts.confirmation.set_structure(structure)
        if self._has_trained and any(getattr(self._config, name) != value for name, value in chosen.items()):
            raise UsageError(
                "%%detrain has other options than the training cell before", "give all training cells the same options"
            )
        self._has_trained = True
        self._session.choose(chosen)

    def _end(self) -> None:
        """End the training of a cell that has run to its end, and write everything."""
        if self._session.position.is_in_phase:
            self._session.end_phase()
        self._session.parts.saves.finish()


def refuse(error: DetrainError) -> NoReturn:
    """End the running cell, and show an error below it."""
    from IPython.core.error import UsageError as Shown

    raise Shown(error.printed()) from None


def _require_kernel(inputs: Sequence[str]) -> None:
    """Raise UsageError if a run cannot begin in this kernel. `inputs`: the cells that have run, this one last."""
    if not os.environ.get(_HASH_SEED, "").isdigit():
        raise UsageError(
            f"this kernel was started without {_HASH_SEED}: sets have another order in each kernel, so bits may differ",
            f"start Jupyter with it (`{_HASH_SEED}=0 jupyter lab`), or write it into the kernel's kernel.json, under env",
        )
    imported = [name for name in ADAPTERS if name in sys.modules]
    if imported:
        raise UsageError(f"{imported[0]} was imported before detrain", _FIRST_CELL)
    if not all(map(_has_only_magics, inputs)):
        raise UsageError("code has run before detrain came, or stands beside `%load_ext detrain`", _FIRST_CELL)


def _has_only_magics(source: str) -> bool:
    calls = [statement.value for statement in ast.parse(source).body if isinstance(statement, ast.Expr)]
    magics = [call for call in calls if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("get_ipython().run_")]
    return len(magics) == len(ast.parse(source).body)


def _parsed(options: str) -> dict[str, Any]:
    """Return the options of a training cell. Raises UsageError."""

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise UsageError(f"%%detrain {options}: {message}", "it takes --every, --keep, --keep-every and --keep-best")

    usual = Options()
    parser = Parser(prog="%%detrain", add_help=False, allow_abbrev=False)
    parser.add_argument("--every", type=Every.parse, default=usual.every)
    parser.add_argument("--keep", type=int, default=usual.keep)
    parser.add_argument("--keep-every", type=int, default=usual.keep_every)
    parser.add_argument("--keep-best", default=usual.keep_best)
    found = vars(parser.parse_args(shlex.split(options)))
    if found["keep"] < 1:
        raise UsageError(f"--keep {found['keep']}", "give a number above 0")
    return found
