"""The search for the place where a loop gets its batch: the iterable of its header, or a statement of its body whose
value reaches the update.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from typing import Final

from detrain.base.structure import AnyLoop, bound_names
from detrain.instrument.syntax import GRADIENTS, arguments_of, called_name, loop_counts, read_names

_BACKWARD: Final = frozenset({"backward", "grad", "manual_backward"})
"""Calls that compute gradients and store them, for an optimizer's `step` to find."""
_PASSING_ON: Final = frozenset(
    {"enumerate", "zip", "tqdm", "track", "iter", "list", "islice", "progress", "progressbar", "Progbar"}
)
_STAGES: Final = frozenset({"prefetch", "take", "skip", "batch", "shuffle", "repeat", "cache", "as_numpy_iterator", "with_options"})
_NOISE: Final = frozenset(
    {"normal", "uniform", "truncated_normal", "randn", "rand", "standard_normal", "stateless_normal", "stateless_uniform"}
)
_KEYS: Final = frozenset({"split", "fold_in"})
"""Functions by which JAX makes random keys of a key for a step: their results are no batch."""
_RANDOM: Final = re.compile(r"\b(random|rng|generator)\b")
_MODELS: Final = frozenset({"model", "net", "network", "forward"})
"""Names called for a forward pass. If all data are one batch, that call is the first one on the way to the update."""
LOADING_WORDS: Final = ("next", "batch", "load", "fetch", "read")


def find_load(loop: AnyLoop, update: ast.Call, counting: Collection[str], trained: Collection[str] = ()) -> tuple[int | None, str]:
    """Return the line of the call (or slice) that loads the batch, None if the header does; and the loading expression,
    or the header's iterable, as text.

    `counting`: names of the file that stand for ranges; `trained`: names of models and weights.
    """
    statement = _load_statement(loop, update, counting, {*trained, *_MODELS})
    if statement is None and not loop_counts(loop, counting):
        return None, ast.unparse(_unwrapped(loop.iter))  # type: ignore[union-attr]
    counters = set() if isinstance(loop, ast.While) else set(bound_names([loop.target]))
    loads = [
        node
        for part in ([statement] if statement is not None else arguments_of(update))
        for node in ast.walk(part)
        if isinstance(node, ast.Call | ast.Subscript)
        and (statement is not None or read_names(node) & counters or _is_called_a_load(node))
    ]
    return (loads[0].lineno, ast.unparse(loads[0])) if loads else (None, "")


def _unwrapped(iterable: ast.expr) -> ast.expr:
    """Return the expression from which an iterable takes its elements:

    `data` for `enumerate(tqdm(data.prefetch(2)))` and for `data[:100]`.
    """
    while True:
        if isinstance(iterable, ast.Subscript) and isinstance(iterable.slice, ast.Slice):
            iterable = iterable.value
        elif isinstance(iterable, ast.Call) and called_name(iterable) in _PASSING_ON and iterable.args:
            if called_name(iterable) == "zip" and len(iterable.args) > 1:
                return ast.Tuple([_unwrapped(argument) for argument in iterable.args], ast.Load())
            iterable = iterable.args[0]
        elif isinstance(iterable, ast.Call) and isinstance(iterable.func, ast.Attribute) and iterable.func.attr in _STAGES:
            iterable = iterable.func.value
        else:
            return iterable


def _load_statement(loop: AnyLoop, update: ast.Call, counting: Collection[str], models: Collection[str]) -> ast.stmt | None:
    """Return the last statement before the update that loads a batch: it binds names whose values reach the update, and
    does not compute them from values that the loop has already loaded. A statement that draws noise counts only if
    there is no other. None if the loop's header loads everything."""
    before: list[ast.stmt] = []
    wanted = read_names(update)
    for statement in loop.body:
        if any(node is update for node in ast.walk(statement)):
            if isinstance(statement, AnyLoop | ast.With):  # a loop over optimizers, or a tape's block: it takes gradients itself
                wanted |= read_names(statement)
            break
        before.append(statement)
    # By names, the values from which a loss is computed reach its `backward()`, but not `optimizer.step()`.
    calls = [node for statement in before for node in ast.walk(statement) if isinstance(node, ast.Call)]
    wanted |= {name for call in calls if called_name(call) in _BACKWARD for name in read_names(call)}
    named = {name for call in calls if called_name(call) in _BACKWARD for name in _losses_of(call)}
    header = set() if isinstance(loop, ast.While) or loop_counts(loop, counting) else set(bound_names([loop.target]))
    losses = {_owner_of(call) for call in calls if called_name(call) in _BACKWARD} - {""}
    for statement in reversed(before):
        defined = {statement.name} if isinstance(statement, ast.FunctionDef) else set()  # a closure that the step calls
        if wanted & {*bound_names([statement]), *defined} or losses & _attributes_bound(statement):
            wanted |= read_names(statement)
    accumulated = {name for inner in before if isinstance(inner, AnyLoop) for name in bound_names([inner])}
    loaded = set(header)
    found: ast.stmt | None = None
    noise: ast.stmt | None = None
    for statement in before:
        bound = set(bound_names([statement]))
        is_from_loaded = bool(read_names(statement, with_index=False) & loaded)
        takes_gradients = GRADIENTS.search(ast.unparse(statement).lower())
        is_computed = isinstance(statement, AnyLoop | ast.AugAssign) or takes_gradients or _runs_forward(statement, models)
        is_computed = is_computed or _makes_keys(statement) or _resets(statement, loop.body)
        # If the batch is indexed where it is used, `loss = loss_of(net(x[i : i + 8]), y[i])`, no statement loads it.
        is_computed = is_computed or (bool(bound & named) and _calls(statement) and not _has_load(statement))
        if is_computed or (is_from_loaded and not _takes_next(statement)):
            loaded |= bound
        elif _loads(statement) and not bound <= accumulated:
            if bound & wanted and (not header & wanted or surely_loads(statement, loaded)):
                if _draws_noise(statement):
                    noise = statement
                else:
                    found = statement
            loaded |= bound
    return found or noise


def _losses_of(call: ast.Call) -> set[str]:
    """Return the names of which a call takes gradients: `loss` for `loss.backward()`, `scaler.scale(loss).backward()`
    and `accelerator.backward(loss)`.
    """
    given = [*([call.func.value] if isinstance(call.func, ast.Attribute) else []), *call.args[:1]]
    given += [argument for each in given if isinstance(each, ast.Call) and called_name(each) == "scale" for argument in each.args]
    return {each.id for each in given if isinstance(each, ast.Name)}


def _owner_of(call: ast.Call) -> str:
    """Return, as text, the attribute that has the called method: `self.loss` for `self.loss.backward()`."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    return ast.unparse(owner) if isinstance(owner, ast.Attribute) else ""


def _attributes_bound(statement: ast.stmt) -> set[str]:
    """Return, as text, the attributes that a statement binds: `self.loss`."""
    nodes = (node for node in ast.walk(statement) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    return {ast.unparse(node) for node in nodes}


def _runs_forward(statement: ast.stmt, models: Collection[str]) -> bool:
    """Return True if a statement computes with a model or weights, and calls no function that loads a batch."""

    def computes(node: ast.AST) -> bool:
        is_called = isinstance(node, ast.Call) and called_name(node) in models
        return is_called or (isinstance(node, ast.BinOp) and bool(read_names(node) & set(models)))

    return any(map(computes, ast.walk(statement))) and not _has_load(statement)


def _calls(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Call) for node in ast.walk(statement))


def _has_load(statement: ast.stmt) -> bool:
    return any(map(_is_called_a_load, ast.walk(statement)))


def _loads(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Call | ast.Subscript | ast.Await) for node in ast.walk(statement))


def _draws_noise(statement: ast.stmt) -> bool:
    calls = (node for node in ast.walk(statement) if isinstance(node, ast.Call))
    return any(called_name(call) in _NOISE and _RANDOM.search(ast.unparse(call.func)) for call in calls)


def _makes_keys(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Assign) else None
    return isinstance(value, ast.Call) and called_name(value) in _KEYS and _RANDOM.search(ast.unparse(value.func)) is not None


def _resets(statement: ast.stmt, body: list[ast.stmt]) -> bool:
    """Return True if a statement loads nothing and, under a condition, resets a value that each turn passes on:
    `if step == 200: state = init(weights)`, where the step takes and returns `state`.
    """
    takes = any(isinstance(node, ast.Subscript) or _is_called_a_load(node) for node in ast.walk(statement))
    if takes or not isinstance(statement, ast.If):
        return False
    others = (other for other in body if other is not statement)
    return any(set(bound_names([other])) & read_names(other) & set(bound_names([statement])) for other in others)


def _takes_next(statement: ast.stmt) -> bool:
    calls = (node for node in ast.walk(statement) if isinstance(node, ast.Call))
    return any(called_name(call).strip("_").startswith(("next", "get_next")) for call in calls)


def surely_loads(statement: ast.stmt, loaded: set[str]) -> bool:
    """Return True if a statement surely loads: by a call named like a load, or by a `loaded` name as index."""
    return any(
        _is_called_a_load(node) or (isinstance(node, ast.Subscript) and bool(read_names(node.slice) & loaded))
        for node in ast.walk(statement)
    )


def _is_called_a_load(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and any(word in called_name(node).lower() for word in LOADING_WORDS)
