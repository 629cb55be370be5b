"""How a batch loop comes back to its cut: its loader is set to its position (seek), or the batches are loaded again
(forward).

A loader's position is state like any other: the framework has that of tf.data iterators, the codec that of built-in
iterators and of the program's own objects; objects of libraries may offer theirs (`get_state` and `set_state`, or
`state_dict` and `load_state_dict`). A seek is exact if loading moves only such state. If other state may have moved,
batches are loaded again, which is always right. Either way the digest of the next batch is compared.
"""

from __future__ import annotations

import ast
import builtins
import io
import operator
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from types import FrameType
from typing import Any, Final, Protocol

import numpy as np

from detrain.base import messages
from detrain.base.compiled_sources import by_file, parse, source_of, tree_of
from detrain.base.errors import CannotSeek
from detrain.base.framework_names import MODULES, has_native_loaders, runs_training
from detrain.base.libraries import said
from detrain.base.losses import OF_GRAPH
from detrain.base.options import Mode
from detrain.base.plain_types import is_iterator
from detrain.base.source_files import imported_in
from detrain.base.structure import bound_names, loop_nodes
from detrain.python.codec.recipes import describe
from detrain.python.inspect.frames import is_user_file, names_of
from detrain.python.inspect.names import is_own_class, is_user_module, module_of, type_name
from detrain.python.inspect.object_graph import Encoded
from detrain.python.inspect.progress import is_plain_iterator
from detrain.python.inspect.stored_attributes import is_of_framework
from detrain.python.loaders.loads_read import LoadsRead
from detrain.python.process import pool_jobs
from detrain.python.process.loading_threads import LoadingThreads

_PROTOCOLS: Final = (("get_state", "set_state"), ("state_dict", "load_state_dict"), ("tell", "seek"))
"""Methods by which an object offers its position. The last pair is for files that are only read: other files are set
back with their length."""
_FILES: Final = (io.TextIOWrapper, io.BufferedReader)
_CALLING: Final = frozenset({"map", "filter", "filterfalse", "starmap", "takewhile", "dropwhile", "accumulate"})
"""Iterators that call functions of the program."""
_STORES: Final = (list, tuple, range, str, bytes, dict, set, frozenset, np.ndarray, int, float, bool, type(None))
"""Types that iterators of built-in kinds go over without running any code."""
_BACKSTAGE: Final = frozenset(
    {
        *("threading", "_thread", "multiprocessing", "asyncio", "queue", "subprocess"),
        *("socket", "select", "selectors", "ssl", "http", "urllib", "ctypes", "mmap", "sqlite3", "dbm", "shelve"),
    }
)
"""Python's modules by which other activity can go on behind a program's loads."""
_KNOWN: Final = MODULES | {"detrain", "__future__"} | sys.stdlib_module_names - _BACKSTAGE
"""Modules that keep no state of their own behind a program's loads, except random streams, which are captured. The
table of libraries has further ones."""
_MOST_REASONS: Final = 3


class RunningLoop(Protocol):
    """A batch loop that is at the head of a turn, as far as the probes know it."""

    names: tuple[str, ...]
    """Names that a load statement in the body binds."""
    iterable: Any
    iterator: Any
    """The iterator that the loop's header draws from; None for a `while` loop."""
    is_fetched_in_body: bool
    """Whether a framework's own loop draws from a loader that it brings back itself."""
    iteration_id: object
    """Tells one run of a loop from another; None for a `while` loop, of which no probe sees the start."""


class Entered:
    """The runs of batch loops that an epoch has seen. A seek goes from the first run's start to a cut in that run."""

    def __init__(self, threads: LoadingThreads, *, foresees_end: bool = False) -> None:
        """`foresees_end`: loaders are asked how many batches they have, for `is_behind_last`."""
        self.threads = threads
        """The threads that load ahead."""
        self._foresees_end = foresees_end
        self.reads = LoadsRead()
        self._epoch_frame, self._epoch_line = 0, 0
        self._last: object = None
        self._count = 0
        self._first, self._length = 0, -1
        """The number of the last run's first batch, and its number of batches; -1: the loader does not tell."""
        self._lengths: dict[int, int] = {}
        """The number of batches in each run of the last epoch, by the run's number (1, 2, …)."""
        self.is_at_first = False
        """Whether no body of the last run has begun."""
        self._has_ended = True
        """Whether the last run of a `for` loop has gone on to its end."""
        self.is_new = False
        """Whether a run after the first has loaded no batch yet: it is at the end of the run before it, which a resumed
        run finds first."""
        self.written_between = ""
        """A file that code between two runs has written. A run that resumes behind it would write the file before the
        training."""
        self.is_behind_break = False
        """Whether a run was left before its end. A resumed run behind it passes over the body that has left it."""

    def begin(self, frame: FrameType | None) -> None:
        """Begin an epoch, in this frame; None: the batch loop has no epoch loop around it."""
        self._epoch_frame, self._epoch_line = (id(frame), frame.f_lineno) if frame is not None else (0, 0)
        self._last, self._count, self._has_ended, self.is_new = None, 0, True, False
        self.written_between, self.is_behind_break = "", False
        self.threads.begin_epoch()
        self.reads.begin_epoch()

    def note(self, loop: RunningLoop, frame: FrameType, batch: int, written: str = "") -> None:
        """Note that a loop is at the head of a turn, before this batch of the epoch.

        `written`: a file that was written since the loop's run before this one ended.
        """
        now = loop.iteration_id if loop.iteration_id is not None else (id(frame), frame.f_lasti)
        self.is_new = now != self._last and self._count > 0
        if self.is_new:
            self.written_between = self.written_between or written
            self.is_behind_break |= not self._has_ended
        if now != self._last:
            self._last = now
            self._count += 1
            self._first, self._length = batch, _length_of(loop) if self._foresees_end else -1
            self.is_at_first = True
            self.threads.look()
        else:
            self.begin_body()  # the body before may have been passed over
        self._has_ended = loop.iteration_id is None

    def begin_body(self) -> None:
        """Note that a batch is loaded."""
        if self.is_at_first:
            self.is_at_first = False
            self.threads.look()
        self.threads.begin_body()

    def is_behind_last(self, batch: int) -> bool:
        """Return whether the run has no batch with this number, by the length of the loader, or else by the same run of
        the epoch before. It may be wrong.
        """
        length = self._length if self._length >= 0 else self._lengths.get(self._count, -1)
        return length > 0 and batch - self._first == length

    def end(self, batch: int) -> None:
        """Note that the loop has run out, and has no batch with this number."""
        self._has_ended = True
        self._lengths[self._count] = batch - self._first
        self.threads.end_loop()

    def is_first(self, loop: RunningLoop, frame: FrameType) -> bool:
        """Return whether a loop is the only one that the epoch has entered, and was entered only once."""
        if self._count != 1:
            return False
        if loop.iteration_id is not None:
            return True
        if runs_training(frame.f_code.co_filename, frame.f_code.co_qualname):
            return True  # a library's loop, which it runs once in an epoch
        # For a `while` loop the source decides: it must be in the epoch loop's frame, with no other loop around it.
        around = _loops_around(frame.f_code.co_filename, frame.f_lineno)
        if self._epoch_frame:
            return id(frame) == self._epoch_frame and around - 1 == _loops_around(frame.f_code.co_filename, self._epoch_line)
        return frame.f_code.co_name == "<module>" and around == 1


def _length_of(loop: RunningLoop) -> int:
    """Return the number of batches of a loop that has drawn none, by its iterator's length, or its iterable's if the
    iterator has none; -1: neither has one. The program's own objects are not asked: their code would run.
    """
    cls = type(loop.iterator)
    says = describe(loop.iterator) is not None or hasattr(cls, "__len__") or hasattr(cls, "__length_hint__")
    return _length(loop.iterator if says else loop.iterable)


def _length(source: Any) -> int:
    described = describe(source)
    if described is not None and described[0].rpartition(".")[2] in ("enumerate", "zip", "map"):
        parts = (item for part in described[1] for item in _flat(part))
        return min((_length(item) for item in parts if is_iterator(item)), default=-1)
    if is_own_class(type(source)):
        return -1
    try:
        return operator.length_hint(source, -1)
    except Exception:  # an edge: the code of a library, which may need absent objects
        return -1


def reasons_to_load(
    loop: RunningLoop | None,
    encoded: Encoded,
    files: Iterable[str],
    frame: FrameType | None = None,
    *,
    is_first: bool,
    has_threads: bool = False,
) -> list[str]:
    """Return why the batches before a cut must be loaded again when a run resumes there; empty if a seek is exact.

    `is_first`: the loop is the only one that its epoch has entered so far; `frame`: the frame of the loop;
    `has_threads`: the epoch has started threads that load ahead.
    """
    if loop is None:
        return ["the loop has no loop wrapper around what it goes over (probes by hand)"]
    if has_threads:
        return ["threads load ahead of it"]
    if not is_first:
        return ["the batch loop has run before in this epoch, or other loops have"]
    lost = [loss for loss in encoded.not_captured if not loss.endswith(f"{OF_GRAPH})")]  # loading does not bring these back
    reasons = [*lost, *encoded.moved, *pool_jobs.living()]
    if _runs_code(loop, frame):
        # A library that no code has imported yet, as behind `if args.amp:`, has no state.
        foreign = sorted({name for file in files for name in _foreign_modules(file) if name in sys.modules})
        if foreign:
            reasons.append(f"the program loads batches by code of its own and imports {', '.join(foreign)}, which may keep a state")
    return reasons


def reason_to_load(reasons: list[str], mode: Mode) -> str:
    """Return the reasons as one text, empty to seek. Raises CannotSeek if a seek was asked for and is not exact."""
    if mode == "forward":
        return "--loader forward"
    reasons = list(dict.fromkeys(reasons))
    if not reasons:
        return ""
    more = f" and {len(reasons) - _MOST_REASONS} more" if len(reasons) > _MOST_REASONS else ""
    text = "; ".join(reasons[:_MOST_REASONS]) + more
    if mode == "seek":
        raise cannot_seek(text)
    return text


def cannot_seek(why: str) -> CannotSeek:
    """Return the error for a seek that was asked for and would not be exact."""
    return CannotSeek(
        f"--loader seek would not be exact: {why}",
        "leave it out: the batches are then loaded again, which is exact",
    )


def read_offered(value: object) -> tuple[int, object] | None:
    """Return (number of the protocol, state) of a library's object that offers its position; else None."""
    if not _offers(value):
        return None
    for number, pair in enumerate(_PROTOCOLS):
        if _has(type(value), pair):
            try:
                return number, getattr(value, pair[0])()
            except Exception:  # an edge: a stranger's method; without a state batches are loaded again
                return None
    return None


def set_state(value: object, which: int, state: object) -> bool:
    """Restore the state that `read_offered` returned; return whether that could be done."""
    setter = getattr(value, _PROTOCOLS[which][1], None) if which in range(len(_PROTOCOLS)) else None
    if setter is None:
        return False
    try:
        setter(state)
    except Exception as error:  # an edge: a library looks at the state, and takes only one that fits its data
        messages.warn(f"{type_name(value)} does not take its position: {str(error).partition(chr(10))[0]}")
        return False
    return True


def offers_position(loop: RunningLoop | None) -> bool:
    """Return whether a library's object offers the position of a loop, and can be set to it."""
    return loop is not None and (_offers(loop.iterator) or _offers(loop.iterable))


def is_made_anew(loop: RunningLoop) -> bool:
    """Return whether a loop's iterable offers a position, for the next iterator that is made from it, and its iterator
    offers none.
    """
    return not _offers(loop.iterator) and _offers(loop.iterable)


def _offers(value: Any) -> bool:
    cls = type(value)
    if cls in _FILES:
        return not value.closed and not value.writable() and value.seekable()
    is_library = not is_of_framework(cls) and not is_own_class(cls)  # the program's own objects are captured whole
    return is_library and any(_has(cls, pair) for pair in _PROTOCOLS[:-1])


def _has(cls: type, pair: tuple[str, str]) -> bool:
    return all(callable(getattr(cls, name, None)) for name in pair)


def runs_no_code(loop: RunningLoop | None) -> bool:
    """Return whether the loads of a loop only count, so that bodies alone can move objects on."""
    if loop is None or loop.names or loop.is_fetched_in_body:
        return False
    return loop.iteration_id is None or is_plain_iterator(loop.iterator)


def _runs_code(loop: RunningLoop, frame: FrameType | None) -> bool:
    """Return whether loading runs code of the program, so that it may change state that the codec cannot see."""
    if loop.is_fetched_in_body:
        return False
    is_header_plain = _is_plain(loop.iterator) or is_made_anew(loop)
    return not is_header_plain or (bool(loop.names) and not _only_draws(loop.names, frame))


def _only_draws(names: tuple[str, ...], frame: FrameType | None) -> bool:
    """Return whether a loop's body does nothing before its probe but draw from iterators: `x, y = next(iterator)`."""
    if frame is None:
        return False
    statements = _statements_of_loop(frame.f_code.co_filename, frame.f_lineno)
    last = max((place for place, each in enumerate(statements) if bound_names([each]) == names), default=-1)
    if last < 0:
        return False
    space = {**vars(builtins), **frame.f_globals, **names_of(frame)}
    return all(_is_plain_code(part, space) for statement in statements[: last + 1] for part in _parts_of(statement))


def _parts_of(statement: ast.stmt) -> Iterator[ast.AST | None]:
    """Yield the expressions of a statement; None for one of a kind that may do anything."""
    match statement:
        case ast.Assign(targets, value):
            yield from (*targets, value)
        case ast.AugAssign(target, _operator, value):
            yield from (ast.Name(target.id, ast.Load()) if isinstance(target, ast.Name) else None, value)
        case ast.Expr(value):
            yield value
        case ast.If(test, body, orelse):
            yield test
            for inner in (*body, *orelse):
                yield from _parts_of(inner)
        case ast.Pass() | ast.Break() | ast.Continue():
            return
        case _:
            yield None


def _is_plain_code(node: ast.AST | None, space: Mapping[str, object]) -> bool:
    """Return whether an expression computes with numbers, or draws from iterators that run no code of the program."""
    match node:
        case ast.Constant():
            return True
        case ast.Name(name, ast.Store()):
            return True
        case ast.Name(name):
            return type(space.get(name, node)) in _STORES
        case ast.Tuple(parts, ast.Store()) | ast.List(parts, ast.Store()):
            return all(_is_plain_code(part, space) for part in parts)
        case ast.Compare(left, _operators, others):
            return all(_is_plain_code(part, space) for part in (left, *others))
        case ast.BinOp(left, _operator, right):
            return _is_plain_code(left, space) and _is_plain_code(right, space)
        case ast.BoolOp(_operator, parts):
            return all(_is_plain_code(part, space) for part in parts)
        case ast.UnaryOp(_operator, part):
            return _is_plain_code(part, space)
        case ast.Call(ast.Name("next"), [ast.Name(name), *default], []):
            return (
                space.get("next") is next and _is_plain(space.get(name)) and all(isinstance(each, ast.Constant) for each in default)
            )
        case ast.Call(ast.Attribute(ast.Name(name), "get_next" | "next"), [], []):
            return has_native_loaders(module_of(type(space.get(name))))
    return False


@lru_cache(maxsize=64)
def _statements_of_loop(file: str, line: int) -> list[ast.stmt]:
    """Return the body of the innermost loop around a line of a source file."""
    nodes = loop_nodes(tree_of(file)).values()
    around = [node for node in nodes if node.lineno <= line <= (node.end_lineno or node.lineno)]
    return max(around, key=lambda node: node.lineno).body if around else []


def _is_plain(value: Any) -> bool:
    """Return whether drawing from an iterator runs only code of Python, of a framework, or of objects that offer their
    position.
    """
    described = describe(value)
    if described is None:
        return type(value) in _STORES or has_native_loaders(module_of(type(value))) or _offers(value)
    kind, items = described
    return kind.rpartition(".")[2] not in _CALLING and all(_is_plain(item) for part in items for item in _flat(part))


def _flat(value: object) -> Iterator[object]:
    """Yield the arguments of a maker one by one."""
    if type(value) is tuple:
        yield from value
    else:
        yield value


@lru_cache(maxsize=64)
def _loops_around(file: str, line: int) -> int:
    """Return how many loops are around a line of a source file."""
    try:
        nodes = loop_nodes(parse(source_of(file))).values()
    except (OSError, SyntaxError, ValueError):
        return -1
    return sum(node.lineno <= line <= (node.end_lineno or node.lineno) for node in nodes)


@by_file
def _foreign_modules(file: str) -> frozenset[str]:
    """Return the libraries that a source file imports, except the known ones."""
    tops = imported_in([tree_of(file)]) - _KNOWN
    return frozenset(top for top in tops if not said(top, "stateless") and not _is_of_program(top))


def _is_of_program(top: str) -> bool:
    module = sys.modules.get(top)
    folders = getattr(module, "__path__", ()) if getattr(module, "__file__", None) is None else ()
    # A folder of modules without an `__init__.py` has no file of its own.
    return is_user_module(module) or any(is_user_file(os.path.join(folder, "__init__.py")) for folder in folders)


class WhileLoop:
    """A `while` loop over batches: it has no iterator; its position is in the names that the program changes."""

    iterable = iterator = iteration_id = None
    is_fetched_in_body = False

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
