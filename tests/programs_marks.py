"""The reader of marks in tests/programs: trailing comments such as `# <- batch loop` that show the structure."""

from __future__ import annotations

import ast
import re
import tokenize
from pathlib import Path
from typing import Final, NamedTuple

PROGRAMS: Final = Path(__file__).resolve().parent / "programs"
TORCH: Final = PROGRAMS / "torch"
"""Programs that train with PyTorch."""
JAX: Final = PROGRAMS / "jax"
"""Programs that train with JAX."""
RANKS: Final = PROGRAMS / "ranks"
"""Programs that train in several processes."""
ROLES: Final = ("epoch loop", "batch loop", "load", "update")
LOOPS: Final = (ast.For, ast.AsyncFor, ast.While)
MARK: Final = re.compile(r"#\s*<-\s*(.+?)\s*$")


class Mark(NamedTuple):
    role: str
    """One of ROLES."""
    file: str
    """Relative to the program's folder."""
    line: int
    """One-based."""


class Phase(NamedTuple):
    """A batch loop and the epoch loop that runs it, if there is one."""

    epoch: Mark | None
    batch: Mark


def programs() -> list[Path]:
    """Return all programs: files, and folders of several files."""
    others = [TORCH, JAX, RANKS]
    found = [p for p in PROGRAMS.iterdir() if p.suffix == ".py" or (p.is_dir() and p not in others and any(p.glob("*.py")))]
    return sorted(found)


def sources(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def command(path: Path) -> list[str]:
    """Return arguments to run a program: a package as a module (with its parent PROGRAMS on PYTHONPATH), or a file."""
    if (path / "__main__.py").exists():
        return ["-m", path.name]
    return [str(path / "main.py" if path.is_dir() else path)]


def marks(path: Path) -> list[Mark]:
    """Return the marks of a program (a file, or a folder), in the order of files and lines."""
    root = path if path.is_dir() else path.parent
    found = []
    for source in sources(path):
        with tokenize.open(source) as file:
            comments = [token for token in tokenize.generate_tokens(file.readline) if token.type == tokenize.COMMENT]
        for token in comments:
            match = MARK.match(token.string)
            for role in match[1].split(", ") if match else ():
                if role not in ROLES:
                    raise ValueError(f"{source.name}:{token.start[0]}: no such mark: {role}")
                found.append(Mark(role, source.relative_to(root).as_posix(), token.start[0]))
    return found


def spans(path: Path) -> dict[tuple[str, int], int]:
    """Return the last line of each loop statement of a program, by the file and line of its header."""
    root = path if path.is_dir() else path.parent
    return {
        (source.relative_to(root).as_posix(), node.lineno): node.end_lineno or node.lineno
        for source in sources(path)
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, LOOPS)
    }


def phases(path: Path) -> list[Phase]:
    """Return the pairs of batch loops and the marked epoch loops around them. Loops in different functions or files are
    paired in order.

    One batch loop run by several epoch loops makes a phase with each, and so does one epoch loop that runs several
    batch loops.
    """
    found, ends = marks(path), spans(path)
    epochs = [m for m in found if m.role == "epoch loop"]
    batches = [m for m in found if m.role == "batch loop"]
    around = {}
    for batch in batches:
        outer = [e for e in epochs if e.file == batch.file and e.line < batch.line <= ends[e.file, e.line]]
        if outer:
            around[batch] = outer[-1]
    free_epochs = [e for e in epochs if e not in around.values()]
    free_batches = [b for b in batches if b not in around]
    result = [Phase(epoch, batch) for batch, epoch in around.items()]
    if not free_epochs:
        result += [Phase(None, batch) for batch in free_batches]
    elif len(free_epochs) == 1 or len(free_batches) == 1:
        result += [Phase(epoch, batch) for epoch in free_epochs for batch in free_batches]
    else:
        result += [Phase(epoch, batch) for epoch, batch in zip(free_epochs, free_batches, strict=True)]
    return sorted(result, key=lambda phase: (phase.batch, phase.epoch or phase.batch))
