"""Probes around values: in every generator of the program, and around values that the line of an update loads itself.
In memory only.

The position of a generator is the number of its yields, which Python does not report. `yield value` becomes `yield
_detrain_yield((value)); _detrain_begun()`, and `_detrain_begun()` goes before the generator's first statement: it
reports that the next value was asked for. The value of a generator expression that is assigned or returned gets the
first probe only. A generator expression that is used up where it stands has no position to keep and stays as fast as it
is. `yield from values` becomes `yield from _detrain_pass_on((values))`, an iterator that reports both. A generator that
uses the value of a `yield` gets no probes: the values sent to it cannot be sent again.

In `model.train_on_batch(*loader.get())` no statement before the update binds a batch, and the loop's header only
counts, so no other probe sees the batch: `loader.get()` becomes `_detrain_fetch((loader.get()))`. The digest of its
value is recorded like that of an element that a body fetches.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from detrain.base.compiled_sources import parse
from detrain.base.structure import AnyLoop, Nest, loop_nodes
from detrain.instrument.find_loads import LOADING_WORDS
from detrain.instrument.syntax import GRADIENTS, arguments_of, called_name, counting_names, loop_counts
from detrain.instrument.text_edits import Edit, around, decode_source, line_starts

YIELD: Final = "_detrain_yield"
BEGUN: Final = "_detrain_begun"
PASS_ON: Final = "_detrain_pass_on"
"""The names of the probes of generators: a run puts them among the built-ins."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef

FETCH: Final = "_detrain_fetch"
"""The name of the probe of a load: a run puts it among the built-ins."""
_BY_GRADIENTS: Final = frozenset({"apply", "apply_gradients", "minimize", "assign", "assign_add", "assign_sub", "set_weights"})
"""Updates that take gradients or weights, not a batch."""
_LOADING: Final = (*LOADING_WORDS, "get", "sample", "draw", "pop", "result", "take", "data", "item")
"""Parts of names of functions that return a batch. Other arguments of an update may depend on its weights, which a
fault changes."""
_COLLECTING: Final = frozenset({"append", "extend", "add"})
"""Methods that store the result of a step."""


def edits_for_yields(source: bytes) -> list[Edit]:
    """Return the insertions for a source file; none if it is no Python."""
    try:
        tree = parse(source)
        text = decode_source(source)[0].encode()
    except (SyntaxError, ValueError):
        return []
    starts = line_starts(text)
    edits: list[Edit] = []
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        yields = list(_own_yields(function))
        alone = {id(node.value): node for node in ast.walk(function) if isinstance(node, ast.Expr)}
        if not yields or any(id(node) not in alone for node in yields):
            continue
        edits += _at_start(function.body, starts)
        for node in yields:
            if isinstance(node, ast.YieldFrom):
                edits += around(node.value, starts, PASS_ON)
                continue
            if node.value is not None:
                edits += around(node.value, starts, YIELD)
            elif node.end_lineno is not None and node.end_col_offset is not None:
                place = starts[node.end_lineno - 1] + node.end_col_offset
                edits.append((place, place, f" {YIELD}(None)"))
            place = _end(alone[id(node)], starts)
            edits.append((place, place, f"; {BEGUN}()"))
    for statement in ast.walk(tree):
        kept = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign | ast.Return) else None
        if isinstance(kept, ast.GeneratorExp) and not _is_async(kept):
            edits += around(kept.elt, starts, YIELD)
    return edits


def _at_start(body: list[ast.stmt], starts: list[int]) -> list[Edit]:
    """Return the insertions that call the probe before a function's first statement; none before a definition in it."""
    first = next((each for each in body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))), body[-1])
    if isinstance(first, ast.Try):
        return _at_start(first.body, starts)
    for kinds, part in _HEADS:
        if isinstance(first, kinds):
            return around(part(first), starts, BEGUN)
    if isinstance(first, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.AsyncFor | ast.AsyncWith | ast.TryStar):
        return []
    place = starts[first.lineno - 1] + first.col_offset
    return [(place, place, f"{BEGUN}(); ")]


_HEADS: Final[tuple[tuple[type[ast.stmt], Callable[[Any], ast.expr]], ...]] = (
    (ast.For, lambda node: node.iter),
    (ast.While, lambda node: node.test),
    (ast.If, lambda node: node.test),
    (ast.With, lambda node: node.items[0].context_expr),
    (ast.Match, lambda node: node.subject),
)
"""Statements before which no other can stand on their line, and for each its expression that is evaluated first."""


def _end(node: ast.stmt, starts: list[int]) -> int:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return starts[node.end_lineno - 1] + node.end_col_offset


def _is_async(node: ast.GeneratorExp) -> bool:
    return any(isinstance(each, ast.Await) or (isinstance(each, ast.comprehension) and each.is_async) for each in ast.walk(node))


def _own_yields(node: ast.AST) -> Iterator[ast.Yield | ast.YieldFrom]:
    """Yield the `yield`s of a function itself, without those of inner functions, innermost last."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Yield | ast.YieldFrom):
            yield child
        if not isinstance(child, _Function | ast.Lambda | ast.ClassDef):
            yield from _own_yields(child)


def edits_for_fetches(source: bytes, nests: Iterable[Nest], file: str) -> list[Edit]:
    """Return the insertions for a source file with these nests; none for a loop whose header or statement loads."""
    try:
        tree = parse(source)
        starts = line_starts(decode_source(source)[0].encode())
    except (SyntaxError, ValueError):
        return []
    loops, counting = loop_nodes(tree), counting_names(tree)
    edits: list[Edit] = []
    for nest in nests:
        loop = loops.get(nest.batch_loop.line)
        is_here = nest.update_line is not None and Path(nest.batch_loop.file) == Path(file)
        if loop is not None and is_here and nest.load_line in (None, nest.update_line) and loop_counts(loop, counting):
            edits += [edit for value in _loads(loop, nest.update_line or 0) for edit in around(value, starts, FETCH)]
    return sorted(set(edits))


def _loads(loop: AnyLoop, line: int) -> Sequence[ast.expr]:
    """Return the calls that load a batch among the arguments of the update at a line."""
    statements = [node for node in ast.walk(loop) if isinstance(node, ast.stmt) and not hasattr(node, "body")]
    here = [each for each in statements if each.lineno <= line <= (each.end_lineno or each.lineno)]
    update = next(filter(None, map(_update, here)), None)
    if update is None or called_name(update) in _BY_GRADIENTS:
        return []
    found = [call for argument in arguments_of(update) for call in _outermost(argument)]
    return [call for call in found if _loads_by_name(call) and not GRADIENTS.search(ast.unparse(call).lower())]


def _update(statement: ast.stmt) -> ast.Call | None:
    """Return the outermost call of a statement that is no built-in's and does not only store a result:

    in `losses.append(float(step(x)))`, the call of `step`.
    """
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.Call) and not _is_built_in(node) and called_name(node) not in _COLLECTING:
            return node
        waiting += ast.iter_child_nodes(node)
    return None


def _outermost(value: ast.AST) -> Iterator[ast.Call]:
    if isinstance(value, ast.Call):
        yield value
    elif not isinstance(value, ast.Lambda | ast.GeneratorExp | ast.ListComp | ast.SetComp | ast.DictComp):
        for child in ast.iter_child_nodes(value):
            yield from _outermost(child)


def _loads_by_name(call: ast.Call) -> bool:
    return not _is_built_in(call) and any(word in called_name(call).lower() for word in _LOADING)


def _is_built_in(call: ast.Call) -> bool:
    """Return True if a call is of a built-in function, except `next` and `__import__`, which may load a batch."""
    return isinstance(call.func, ast.Name) and hasattr(builtins, call.func.id) and call.func.id not in ("next", "__import__")
