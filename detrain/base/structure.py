"""The structure of a program: its training loops, and the file form `inst.info` (ours, and the original project's).

A structure comes from static analysis (detrain.instrument.find_loops), or from an `inst.info` of the user or a run; the
rewriter uses it.
"""

from __future__ import annotations

import ast
import linecache
import os
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from detrain.base.compiled_sources import parse
from detrain.base.errors import StructureInvalid

FORMAT_VERSION: Final = 1

AnyLoop = ast.For | ast.AsyncFor | ast.While


class Loop(msgspec.Struct, frozen=True):
    """A loop in a source file. `line` is one-based, `column` zero-based in bytes; `digest` is its `loop_digest`."""

    file: str
    line: int
    column: int
    kind: str
    """`for` or `while`."""
    function: str = ""
    digest: str = ""


class Nest(msgspec.Struct, frozen=True):
    """A batch loop, the epoch loop around it (if any), and the lines that load a batch and update weights."""

    batch_loop: Loop
    epoch_loop: Loop | None = None
    load_line: int | None = None
    """Line of the statement in the body that loads the batch; None if the loop's header loads it."""
    update_line: int | None = None
    loader: str = ""
    """The source text of the object from which the batches come."""
    evidence: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    """For each place with two possible readings: the chosen one, and the reason."""
    is_confirmed: bool = False
    """Whether a run has confirmed it: each turn of the batch loop updates weights, and the epoch loop repeats it."""


class FitCall(msgspec.Struct, frozen=True):
    """A call of Keras's `fit`; the loops inside `fit` carry the probes."""

    file: str
    line: int
    function: str
    """The source text of the called function: `model.fit`."""
    arguments: dict[str, str] = {}
    """The source text of the important arguments by name, also of those given by position."""
    epochs: int | None = None
    """The number of epochs in a run; None if no run has been watched."""
    batches: int | None = None
    """The number of batches in each epoch of that run; None if not known beforehand."""
    loader: str = ""
    """The kind of data from which the batches came in that run."""

    @property
    def place(self) -> str:
        """The place of the call: `file:line`, the file without its folder."""
        return f"{os.path.basename(self.file)}:{self.line}"


class Structure(msgspec.Struct, frozen=True):
    """The training loops of a program."""

    nests: tuple[Nest, ...]
    source: str
    """The origin of the structure: `static analysis`, or the path of an inst.info."""
    fits: tuple[FitCall, ...] = ()
    """Calls of `fit`: they are the training if there are no nests."""
    program: str = ""
    """Name of the program that was traced; empty in files written by hand."""
    sizes: dict[str, int] = {}
    """Sizes of the objects that the loops saw, by path; the one that changes with the dataset is the loader."""
    base: str = ""
    """The folder to which file names in the inst.info are relative, if a run wrote it."""
    format: int = FORMAT_VERSION


def loop_files(nests: Iterable[Nest]) -> set[str]:
    """Return the files that have these loops."""
    return {loop.file for nest in nests for loop in (nest.batch_loop, nest.epoch_loop) if loop is not None}


def write_info(structure: Structure, path: Path, base: Path) -> None:
    """Write an inst.info atomically; file names in it are relative to `base`. Raises OSError."""
    plain: dict[str, Any] = msgspec.to_builtins(structure)
    loops = [loop for nest in plain["nests"] for loop in (nest["batch_loop"], nest["epoch_loop"]) if loop is not None]
    for placed in [*loops, *plain["fits"]]:
        placed["file"] = os.path.relpath(Path(placed["file"]).resolve(), base.resolve())
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(plain), indent=2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_info(path: Path, base: Path) -> Structure:
    """Read an inst.info in detrain's form or in that of the original project.

    File names in it are relative to `base`. Raises StructureInvalid.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise StructureInvalid(f"cannot read {str(path)!r}: {error}", "give a readable inst.info, or remove it") from error
    try:
        plain = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return _original(path, text, base)
    version = plain.get("format") if isinstance(plain, dict) else None
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise StructureInvalid(f"{str(path)!r} has format {version}; this detrain reads up to {FORMAT_VERSION}", "update detrain")
    try:
        structure = msgspec.convert(plain, Structure)
    except msgspec.ValidationError as error:
        raise StructureInvalid(f"{str(path)!r} is not an inst.info: {error}", "see docs/reference/inst-info.md") from error
    nests = tuple(_located(nest, path, base) for nest in structure.nests)
    fits = tuple(msgspec.structs.replace(fit, file=str((base / fit.file).resolve())) for fit in structure.fits)
    return msgspec.structs.replace(structure, nests=nests, fits=fits, source=str(path))


def loop_nodes(tree: ast.AST) -> dict[int, AnyLoop]:
    """Return the loops of a syntax tree by line."""
    return {node.lineno: node for node in ast.walk(tree) if isinstance(node, AnyLoop)}


def loop_digest(node: AnyLoop) -> str:
    """Return the digest of a loop's own source: its syntax tree, and the line of each statement relative to the loop.

    The loop's own place, comments at line ends and white space inside lines do not count. The lines count, because an
    inst.info names the load and the update by their lines.
    """
    from detrain.base.byte_digests import digest_bytes

    lines = [inner.lineno - node.lineno for inner in ast.walk(node) if isinstance(inner, ast.stmt)]
    return digest_bytes(f"{ast.dump(node)} {lines}".encode())


@lru_cache(maxsize=64)
def names_loaded_before(filename: str, line: int) -> tuple[str, ...]:
    """Return the names bound between the head of the loop and the probe at `line`, found in the source (for probes that
    were inserted by hand).
    """
    try:
        tree = parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):
        return ()
    loops = [node for node in loop_nodes(tree).values() if node.lineno <= line <= (node.end_lineno or node.lineno)]
    if not loops:
        return ()
    loop = max(loops, key=lambda node: node.lineno)
    before: list[ast.AST] = [] if isinstance(loop, ast.While) else [loop.target]
    before += [statement for statement in loop.body if (statement.end_lineno or 0) < line]
    return bound_names(before)


def bound_names(nodes: Iterable[ast.AST]) -> tuple[str, ...]:
    """Return the names that nodes bind, in order of appearance, without the names that functions and comprehensions
    inside them bind for themselves.
    """
    names: list[str] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node.id)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            for name, value in ast.iter_fields(node):
                if not (isinstance(node, ast.comprehension) and name == "target"):
                    for child in value if isinstance(value, list) else [value]:
                        if isinstance(child, ast.AST):
                            visit(child)

    for node in nodes:
        visit(node)
    return tuple(dict.fromkeys(names))


def _located(nest: Nest, path: Path, base: Path) -> Nest:
    batch_loop = _check(nest.batch_loop, path, base)
    epoch_loop = None if nest.epoch_loop is None else _check(nest.epoch_loop, path, base)
    moved = batch_loop.line - nest.batch_loop.line
    _refuse_inside(epoch_loop, batch_loop, path)
    return msgspec.structs.replace(
        nest,
        batch_loop=batch_loop,
        epoch_loop=epoch_loop,
        load_line=None if nest.load_line is None else nest.load_line + moved,
        update_line=None if nest.update_line is None else nest.update_line + moved,
    )


def _check(loop: Loop, path: Path, base: Path) -> Loop:
    """Find the loop that an inst.info names: at its line, or by its digest if the file was edited elsewhere."""
    file, nodes = _loops_of(base / loop.file, path)
    found = nodes.get(loop.line)
    if loop.digest and (found is None or loop_digest(found) != loop.digest):
        same = [node for node in nodes.values() if loop_digest(node) == loop.digest]
        if not same:
            raise StructureInvalid(
                f"the loop that {str(path)!r} names at {file.name}:{loop.line} was edited",
                "remove the inst.info to have the loops found anew, or correct it",
            )
        found = min(same, key=lambda node: abs(node.lineno - loop.line))
    if found is None:
        raise StructureInvalid(
            f"{str(path)!r} names a loop at {file.name}:{loop.line}; loops start at lines {sorted(nodes) or 'none'}",
            "correct the line, or remove the inst.info to have the loops found anew",
        )
    kind = "while" if isinstance(found, ast.While) else "for"
    return msgspec.structs.replace(
        loop, file=str(file), line=found.lineno, column=found.col_offset, kind=kind, digest=loop_digest(found)
    )


def _refuse_inside(epoch_loop: Loop | None, batch_loop: Loop, path: Path) -> None:
    """Refuse an epoch loop that is the batch loop or lies inside it."""
    if epoch_loop is None or epoch_loop.file != batch_loop.file:
        return
    file, nodes = _loops_of(Path(batch_loop.file), path)
    if batch_loop.line <= epoch_loop.line <= (nodes[batch_loop.line].end_lineno or 0):
        raise StructureInvalid(
            f"{str(path)!r} has an epoch loop, {file.name}:{epoch_loop.line}, that is not around the batch loop, {batch_loop.line}",
            "correct the lines, or leave epoch_loop out: the batch loop then counts as one epoch",
        )


def _loops_of(file: Path, path: Path) -> tuple[Path, dict[int, AnyLoop]]:
    try:
        resolved = file.resolve()
        return resolved, loop_nodes(parse(resolved.read_bytes()))
    except (OSError, SyntaxError, ValueError) as error:
        raise StructureInvalid(
            f"{str(path)!r} names {str(file)!r}, which cannot be read: {error}",
            "correct the file name in it, or remove it",
        ) from error


def _original(path: Path, text: str, base: Path) -> Structure:
    """Read the one-line Python dict of the original project. File names are relative to where that was started."""
    try:
        info = ast.literal_eval(text.strip())
        code = dict(info["code_info"])
        kind = info["loop_type"]["type"]
        loader = str(info.get("dataloader", {}).get("full_name", ""))
    except (SyntaxError, ValueError, LookupError, TypeError, AttributeError, MemoryError, RecursionError) as error:
        raise StructureInvalid(
            f"{str(path)!r} is neither JSON nor the original's dict: {error}", "see docs/reference/inst-info.md"
        ) from error
    if kind not in ("ON_CUSTOM", "ON_DATASET"):
        raise StructureInvalid(f"{str(path)!r} has loop type {kind!r}; known are 'ON_CUSTOM' and 'ON_DATASET'", "correct it")

    def loop(prefix: str) -> Loop | None:
        name, number = str(code.get(f"{prefix}_file_name") or ""), _line_number(code.get(f"{prefix}_line_no"))
        if not name:
            return None
        if number is None:
            raise StructureInvalid(f"{str(path)!r} lacks a line number: code_info.{prefix}_line_no", "correct it, or remove it")
        return _check(Loop(_nearest(name, base), number, 0, "for"), path, base)

    def line(prefix: str, inside: Loop) -> int | None:
        is_same_file = Path(str(code.get(f"{prefix}_file_name"))).name == Path(inside.file).name
        return _line_number(code.get(f"{prefix}_line_no")) if is_same_file else None

    batch_loop, epoch_loop = loop("loop"), loop("epoch")
    if batch_loop is None:
        raise StructureInvalid(f"{str(path)!r} names no batch loop (code_info.loop_file_name)", "correct it, or remove it")
    _refuse_inside(epoch_loop, batch_loop, path)
    load_line = line("dl_call", batch_loop)
    nest = Nest(batch_loop, epoch_loop, load_line, line("update_call", batch_loop), loader, (f"{path.name} of the original",))
    return Structure((nest,), str(path))


def _line_number(value: object) -> int | None:
    text = str(value)
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else None


def _nearest(name: str, base: Path) -> str:
    """Return the longest end of a file name that exists under `base`: the original was started in another folder."""
    parts = Path(name).parts
    for start in range(len(parts)):
        if (base / Path(*parts[start:])).is_file():
            return str(Path(*parts[start:]))
    return name
