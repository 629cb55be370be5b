"""A probe around what the line of an update loads itself: `model.train_on_batch(*loader.get())`.

No statement before the update binds such a batch, and the loop's header only counts, so nothing else tells what is
trained on: `loader.get()` becomes `_detrain_fetch((loader.get()))`, in memory only. Its digest is recorded as that of
what a body fetches.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from detrain.base.compiled_sources import parse
from detrain.base.structure import AnyLoop, Nest, loop_nodes
from detrain.instrument.find_loads import LOADING_WORDS
from detrain.instrument.syntax import GRADIENTS, called_name, counting_names, loop_counts
from detrain.instrument.text_edits import Edit, around, decode_source, line_starts

PROBE: Final = "_detrain_fetch"
"""A name among the built-ins, where a run puts it."""
_BY_GRADIENTS: Final = frozenset({"apply", "apply_gradients", "minimize", "assign", "assign_add", "assign_sub", "set_weights"})
"""Updates that are given gradients or weights, not a batch."""
_LOADING: Final = (*LOADING_WORDS, "get", "sample", "draw", "pop", "result", "take", "data", "item")
"""Parts of names of what gives a batch. What else is given to an update may hang on its weights, which a fault
changes."""
_COLLECTING: Final = frozenset({"append", "extend", "add"})
"""Methods that keep what a step has returned."""


def edits_for_fetches(source: bytes, nests: Iterable[Nest], file: str) -> list[Edit]:
    """Return the insertions for a source file whose loops these are; none where a statement or the header loads."""
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
            edits += [edit for value in _loads(loop, nest.update_line or 0) for edit in around(value, starts, PROBE)]
    return sorted(set(edits))


def _loads(loop: AnyLoop, line: int) -> Sequence[ast.expr]:
    """Return the calls among the arguments of the update at a line."""
    statements = [node for node in ast.walk(loop) if isinstance(node, ast.stmt) and not hasattr(node, "body")]
    here = [each for each in statements if each.lineno <= line <= (each.end_lineno or each.lineno)]
    update = next(filter(None, map(_update, here)), None)
    if update is None or called_name(update) in _BY_GRADIENTS:
        return []
    given = [*update.args, *(keyword.value for keyword in update.keywords)]
    found = [call for argument in given for call in _outermost(argument)]
    return [call for call in found if _loads_by_name(call) and not GRADIENTS.search(ast.unparse(call).lower())]


def _update(statement: ast.stmt) -> ast.Call | None:
    """Return the outermost call of a statement that is none of Python's own:

    `losses.append(float(step(x)))` trains by `step`.
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
    """Return whether a call is one of Python's own functions, but for those that take something from somewhere."""
    return isinstance(call.func, ast.Name) and hasattr(builtins, call.func.id) and call.func.id not in ("next", "__import__")
