"""Names that the program's generators read and its loop writes: pulled again from their start, the generators may yield
other values.

A name is followed in the source: a generator reads it, another function (or a loop at the level of the module) sets it
or changes its object. Its value at a cut shows whether that has happened.

A training loop may lie in a generator. A resumed run does not yield the first run's values again, so no code may count
them.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType, GeneratorType
from typing import Any, Final

from detrain.base.compiled_sources import by_file, parse, source_of
from detrain.base.errors import DetrainError
from detrain.base.losses import PULLED_SINCE
from detrain.instrument.loop_positions import SourceFile, position, read_source
from detrain.instrument.syntax import arguments_of
from detrain.python.inspect.frames import is_user_file, names_of

_CHANGING: Final = frozenset(
    {"append", "extend", "insert", "remove", "pop", "clear", "update", "add", "discard", "setdefault", "fill"}
)
"""Methods that change their own object."""
READS_AND_CHANGED: Final = "reads and the loop has changed"
_NUMBERS_ONLY: Final = (type(None), bool, int, float, str, bytes, list, dict, set, tuple)

COUNTED = "how much was drawn from"
"""The beginning of these losses' texts. A run that resumed in spite of such a loss would go on wrong."""


class GeneratorReads:
    """The names that the program's generators read and its loop writes, and whether their values have changed."""

    def __init__(self, digest: Callable[[object], str]) -> None:
        self._digest = digest
        self._at_start: dict[tuple[int, str], str] = {}
        self._changed_at: dict[tuple[int, str], object] = {}
        """The moment at which a change was first seen."""

    def begin(self, generators: Iterable[Any]) -> None:
        """Note the values as a training loop is entered: a resumed run has the same values here."""
        self._at_start, self._changed_at = {}, {}
        for generator in generators:
            for name, value in self._values(generator):
                self._at_start[id(generator), name] = value

    def changed(self, generators: Iterable[Any], moment: object) -> list[str]:
        """Return, in words, the names with changed values, and whether a change was first seen at another moment."""
        found = []
        for generator in generators:
            for name, value in self._values(generator):
                key = (id(generator), name)
                if self._at_start.get(key, value) != value:
                    is_since = self._changed_at.setdefault(key, moment) != moment
                    what = f"{name}, which {generator.gi_code.co_name}() {READS_AND_CHANGED}"
                    found.append(f"{what}{PULLED_SINCE}" if is_since else what)
        return found

    def _values(self, generator: Any) -> Iterator[tuple[str, str]]:
        """Yield the names that a generator reads and other code writes, with digests of their values."""
        frame = generator.gi_frame
        if frame is None:
            return
        for name in read_and_written(generator.gi_code):
            space = frame.f_locals if name in generator.gi_code.co_freevars else frame.f_globals
            value = space.get(name)
            if isinstance(value, _NUMBERS_ONLY) or hasattr(type(value), "__array__"):
                try:
                    yield name, self._digest(value)
                except (DetrainError, TypeError, ValueError, RecursionError):  # not data through and through
                    continue


def read_and_written(code: CodeType) -> list[str]:
    """Return the names that a function reads from outside of its body, and that other code writes as it trains."""
    try:
        written = names_written(code.co_filename)
    except (OSError, SyntaxError, ValueError):
        return []
    names = [*code.co_names, *code.co_freevars]
    return sorted({name for name in names if written.get(name, frozenset()) - {code.co_name}})


@by_file
def names_written(file: str) -> dict[str, frozenset[str]]:
    """Return the names in a source file that are written by functions that do not own them, or by loops of the module;
    with these functions' names (`<module>`: such a loop).
    """
    found: dict[str, set[str]] = {}
    _look(parse(source_of(file)), "<module>", found, is_in_loop=False, own=frozenset())
    return {name: frozenset(functions) for name, functions in found.items()}


def generators_that_read(tree: ast.Module, file: str) -> list[tuple[int, str, str, str]]:
    """Return (line, generator, name, writer) for each generator in a source that reads a name that others write."""
    written = names_written(file)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(isinstance(each, ast.Yield) for each in ast.walk(node)):
            own = _own_names(node)
            reads = {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)} - own
            for name in sorted(reads):
                writers = sorted(written.get(name, frozenset()) - {node.name})
                found += [(node.lineno, node.name, name, writers[0])] if writers else []
    return found


def samplers_that_hold(tree: ast.Module, file: str) -> list[tuple[int, str, str, str]]:
    """Return (line, class, name, writer) for each call that makes a sampler or an iterable data set of the program's
    classes with a name that others write.
    """
    written = names_written(file)
    bases = {node.name: [ast.unparse(base) for base in node.bases] for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    drawing = {name for name, each in bases.items() if any(base.endswith(("Sampler", "IterableDataset")) for base in each)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in drawing:
            given = {each.id for each in arguments_of(node) if isinstance(each, ast.Name)}
            found += [(node.lineno, node.func.id, name, min(written[name])) for name in sorted(given) if written.get(name)]
    return found


def _own_names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> frozenset[str]:
    """Return the names that are local to a function."""
    given = {name for each in ast.walk(function) if isinstance(each, ast.Global | ast.Nonlocal) for name in each.names}
    arguments = function.args
    named = {each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    named |= {each.arg for each in (arguments.vararg, arguments.kwarg) if each is not None}
    stored = {each.id for each in ast.walk(function) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    return frozenset((named | stored) - given)


def _look(node: ast.AST, function: str, found: dict[str, set[str]], *, is_in_loop: bool, own: frozenset[str]) -> None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            _look(child, child.name, found, is_in_loop=True, own=own | _own_names(child))
            continue
        if is_in_loop:
            for name in _written_by(child) - own:
                found.setdefault(name, set()).add(function)
        _look(child, function, found, is_in_loop=is_in_loop or isinstance(child, ast.For | ast.While), own=own)


def _written_by(node: ast.AST) -> set[str]:
    """Return the names that a node sets, and those whose objects it changes."""
    match node:
        case ast.Name(id, ast.Store()):
            return {id}
        case ast.Subscript(ast.Name(id), _, ast.Store() | ast.Del()):
            return {id}
        case ast.Call(ast.Attribute(ast.Name(id), method)) if method in _CHANGING:
            return {id}
    return set()


def counted_draws(frame: FrameType) -> list[str]:
    """Name the generators that a loop trains in, if other objects count the values that they yield.

    All objects between the generator and the statement that draws from it do so (`enumerate`, `zip`, a progress bar,
    `list`), and so does a `for` around `next`: their positions have no names. A `for` over the generator itself has no
    position of its own.
    """
    found = []
    inner: FrameType | None = frame
    while inner is not None:
        outer = inner.f_back
        is_generator = bool(inner.f_code.co_flags & inspect.CO_GENERATOR) and is_user_file(inner.f_code.co_filename)
        if is_generator and outer is not None and not _draws_uncounted(inner, outer):
            found.append(f"{COUNTED} {inner.f_code.co_name}(), which trains")
        inner = outer
    return found


def _draws_uncounted(generator: FrameType, frame: FrameType) -> bool:
    source = read_source(frame.f_code.co_filename) if is_user_file(frame.f_code.co_filename) else None
    if source is None:
        return False
    place = position(frame)
    loops = (node for node in ast.walk(source.tree) if isinstance(node, ast.For))
    heads = ((loop, loop if sys.version_info < (3, 13) else loop.iter) for loop in loops)
    drawing = next((loop for loop, head in heads if (head.lineno, head.col_offset) == place.start), None)
    if drawing is not None:
        return _is_itself(drawing.iter, generator, frame)
    around = source.loops_around(place.line, place.column)
    return _is_next(source, frame) and not any(isinstance(loop, ast.For) for loop in around)


def _is_next(source: SourceFile, frame: FrameType) -> bool:
    call = next(iter(source.calls_at(position(frame))), None)
    return call is not None and isinstance(call.func, ast.Name) and call.func.id == "next"


def _is_itself(header: ast.expr, generator: FrameType, frame: FrameType) -> bool:
    """Return whether a loop's header goes over the generator of a frame itself."""
    if isinstance(header, ast.Call):
        called = header.func
        return generator.f_code.co_name in (getattr(called, "id", None), getattr(called, "attr", None))
    value = names_of(frame).get(header.id) if isinstance(header, ast.Name) else None
    return isinstance(value, GeneratorType) and value.gi_frame is generator
