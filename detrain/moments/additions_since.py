"""The statements that were added to a program since a run of it, found by the source kept beside its checkpoints."""

from __future__ import annotations

import ast
import bisect
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from detrain.base.added_statements import AddedStatements
from detrain.base.byte_digests import digest_source
from detrain.base.compiled_sources import parse
from detrain.base.errors import AnotherProgram, StoreError, UsageError
from detrain.instrument.additions import Addition, Changed, additions, without
from detrain.moments.past_run import PastRun
from detrain.store import Catalogue
from detrain.store.catalogue import INFO_NAME


@dataclass(frozen=True)
class ChangedFile:
    """A source file to which statements were added."""

    name: str
    """Its path relative to the folder of the program."""
    path: Path
    earlier: bytes
    now: bytes
    added: tuple[Addition, ...]


@dataclass(frozen=True)
class Added:
    """All statements that were added since a run."""

    run: PastRun
    files: tuple[ChangedFile, ...]

    @property
    def statements(self) -> list[tuple[ChangedFile, Addition]]:
        """Each addition with its file, in order."""
        return [(file, each) for file in self.files for each in file.added]

    def sources(self, kept: int) -> dict[Path, bytes]:
        """Return the bytes of the changed files with only the first `kept` additions."""
        dropped = self.statements[kept:]
        return {file.path: without(file.now, [each for of, each in dropped if of is file]) for file in self.files}

    def told(self, kept: int) -> AddedStatements:
        """Return the settings for a process that runs the sources with the first `kept` additions."""
        sources, dropped = self.sources(kept), [each for _file, each in self.statements[kept:]]
        starts = {
            file.name: [line for each in file.added for line in (each.starts if each not in dropped else each.starts[:1])]
            for file in self.files
        }
        digests = {digest_source(sources[file.path]): digest_source(file.earlier) for file in self.files}
        return AddedStatements(digests, starts)

    def write_info(self, home: Path) -> None:
        """Write the run's inst.info, if it has one, into another home, with the lines that its loops have now."""
        known = [folder / INFO_NAME for folder in (self.run.home, self.run.program.path.parent) if (folder / INFO_NAME).is_file()]
        if not known or (home / INFO_NAME).exists():
            return
        try:
            plain = msgspec.json.decode(known[0].read_bytes())
            for nest in plain["nests"]:
                loops = [nest[name] for name in ("batch_loop", "epoch_loop") if nest.get(name)]
                lines = self._lines(loops[0]["file"])
                for name in ("load_line", "update_line"):
                    nest[name] = lines(nest[name]) if nest.get(name) else nest.get(name)
                for loop in loops:
                    loop["line"], loop["digest"] = self._lines(loop["file"])(loop["line"]), ""
        except (msgspec.DecodeError, KeyError, TypeError):  # it has the original project's format, or is damaged
            shutil.copyfile(known[0], home / INFO_NAME)
            return
        (home / INFO_NAME).write_bytes(msgspec.json.encode(plain))

    def _lines(self, name: str) -> _Lines:
        folder = self.run.program.path.resolve().parent
        file = next((each for each in self.files if each.path == (folder / name).resolve()), None)
        return _Lines((), ()) if file is None else _Lines.of(file)


@dataclass(frozen=True)
class _Lines:
    """The lines on which the statements of a file began at the run, and begin now."""

    earlier: Sequence[int]
    now: Sequence[int]

    @classmethod
    def of(cls, file: ChangedFile) -> _Lines:
        new = {line for each in file.added for line in each.starts}
        earlier, now = (_statement_lines(data) for data in (file.earlier, file.now))
        return cls(sorted(earlier), sorted(now - new))

    def __call__(self, line: int) -> int:
        """Return the line that a line of the earlier source has now. Raises KeyError if that is not clear."""
        at = bisect.bisect_right(self.earlier, line) - 1
        if len(self.earlier) != len(self.now):
            raise KeyError(line)  # two statements are on one line
        return line if at < 0 else line - self.earlier[at] + self.now[at]


def _statement_lines(source: bytes) -> set[int]:
    return {each.lineno for each in ast.walk(parse(source)) if isinstance(each, ast.stmt)}


def added_since(run: PastRun) -> Added:
    """Return the statements that were added to a program since a run.

    Raises AnotherProgram if a statement was changed or removed, or a file is gone; StoreError if the text of a file at
    the time of the run is not kept; UsageError for a notebook.
    """
    folder = run.program.path.resolve().parent
    sources = run.recorded.sources
    kept = Catalogue(run.home).chronicle(run.program.name, run.number).sources(sources)
    files = []
    for name, digest in sorted(sources.items()):
        path = folder / name
        if not name.endswith(".py"):
            raise UsageError(f"{name!r} is a cell of a notebook, not a file of a program", "export the notebook as a program")
        if not path.is_file():
            raise AnotherProgram(f"{name} is gone, which the run had", "bring it back")
        now = path.read_bytes()
        if digest_source(now) == digest:
            continue
        if name not in kept:
            raise StoreError(
                f"{name} has changed, and its text at the time of the run is not kept beside the checkpoints",
                "runs that an earlier version of detrain has begun and ended have none; run the program anew",
            )
        files.append(ChangedFile(name, path, kept[name], now, _additions(name, kept[name], now)))
    return Added(run, tuple(files))


def _additions(name: str, earlier: bytes, now: bytes) -> tuple[Addition, ...]:
    try:
        found = additions(earlier, now)
    except (SyntaxError, ValueError) as error:
        raise AnotherProgram(f"{name} is no Python now: {error}", "correct it") from error
    if isinstance(found, Changed):
        raise AnotherProgram(
            f"{name} has not only more statements: `{found.text}`, line {found.line} in the run, was changed or is gone",
            "bring it back: only statements that are added can be looked back with",
        )
    return tuple(found)
