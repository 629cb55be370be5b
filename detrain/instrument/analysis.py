"""Static analysis: find the training loops of a program from its source, without running it.

The update is recognised by the calls that change weights (`apply_gradients`, `train_on_batch`, ...), through the functions of the
program that make them. The batch loop is the innermost loop whose body updates; the epoch loop is the loop around it, in the same
function or in the one that calls it. What only a run can tell (which of two readings is right) is the tracer's business.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from detrain.structure import Loop, Nest, Structure, bound_names, loop_digest

_UPDATES: Final = frozenset({"apply_gradients", "train_on_batch", "minimize", "train_step_on_batch"})
_OPTIMIZER_WORDS: Final = ("opt", "optim")
_FIT: Final = frozenset({"fit", "fit_generator"})
_COUNTING: Final = frozenset({"range", "count"})
_COMPILED: Final = ("function",)

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module
AnyLoop = ast.For | ast.While


@dataclass(slots=True)
class _Scope:
    """A function, or a module's top level, with what is known of it."""

    file: str
    node: Function
    qualname: str
    is_compiled: bool = False
    calls: set[str] = field(default_factory=set)
    updates: bool = False

    @property
    def name(self) -> str:
        return self.qualname.rpartition(".")[2]


def analyse(entry: Path) -> Structure:
    """Return the structure of the program whose main file is `entry`; modules beside it that it imports are read too."""
    trees = dict(sources(entry))
    scopes = [scope for file, tree in trees.items() for scope in _scopes(file, tree)]
    aliases = _aliases(trees.values())
    updating = _updating_names(scopes, aliases)
    loops = [(scope, loop, parents) for scope in scopes if not scope.is_compiled for loop, parents in _loops(scope.node)]
    steps = updating - _looping_names(scopes, loops, updating)
    chosen = {id(loop) for _scope, loop, _parents in loops if _is_batch_loop(loop, steps)}
    nests = [
        _nest(scope, loop, parents, steps)
        for scope, loop, parents in loops
        if id(loop) in chosen and not any(id(parent) in chosen for parent in parents)
    ]
    nests = [_with_calling_loop(nest, loops, scopes) for nest in nests]
    fits = tuple(
        f"{Path(file).name}:{call.lineno}"
        for file, tree in trees.items()
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and _called_name(call) in _FIT and isinstance(call.func, ast.Attribute)
    )
    return Structure(tuple(nests), "static analysis", fits)


def sources(entry: Path) -> Iterator[tuple[str, ast.Module]]:
    """Yield the parsed entry, and the modules it imports that lie beside it."""
    waiting, seen = [entry.resolve()], set()
    folders = _import_folders(entry.resolve())
    while waiting:
        path = waiting.pop()
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        try:
            tree = ast.parse(path.read_bytes(), str(path))
        except (SyntaxError, ValueError):
            continue
        yield str(path), tree
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                places, names = folders, [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                places = folders
                if node.level:
                    places = [path.parents[node.level - 1]] if node.level <= len(path.parents) else []
                module = node.module or ""
                names = [module, *(f"{module}.{alias.name}".strip(".") for alias in node.names)]
            else:
                continue
            waiting += [file for place in places for name in names for file in _files(place, name)]


def _import_folders(entry: Path) -> list[Path]:
    """Return the folders that absolute imports start from: the entry's, and that of the package it is part of."""
    folders = [entry.parent]
    while (folders[-1] / "__init__.py").is_file():
        folders.append(folders[-1].parent)
    return folders


def _files(folder: Path, name: str) -> list[Path]:
    base = folder.joinpath(*name.split("."))
    return [base.with_suffix(".py"), base / "__init__.py"] if name else []


def _scopes(file: str, tree: ast.Module) -> Iterator[_Scope]:
    def walk(node: ast.AST, prefix: str, is_compiled: bool) -> Iterator[_Scope]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                compiled = is_compiled or any(_decorator_name(d) in _COMPILED for d in child.decorator_list)
                name = f"{prefix}{child.name}"
                yield _Scope(file, child, name, compiled, _calls(child))
                yield from walk(child, f"{name}.", compiled)
            elif isinstance(child, ast.ClassDef):
                yield from walk(child, f"{prefix}{child.name}.", is_compiled)
            else:
                yield from walk(child, prefix, is_compiled)

    yield _Scope(file, tree, "", False, _calls(tree))
    yield from walk(tree, "", False)


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below, functions and classes defined there left out."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield child
            yield from _own_nodes(child)


def _calls(node: ast.AST) -> set[str]:
    return {_called_name(child) for child in _own_nodes(node) if isinstance(child, ast.Call)}


def _called_name(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _decorator_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return _decorator_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _aliases(trees: object) -> dict[str, set[str]]:
    """Return names assigned from an expression that mentions functions: `step = tf.function(train_step)`."""
    found: dict[str, set[str]] = {}
    for tree in trees:  # type: ignore[attr-defined]
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                mentioned = {n.id for argument in node.value.args for n in ast.walk(argument) if isinstance(n, ast.Name)}
                for target in node.targets:
                    name = target.id if isinstance(target, ast.Name) else target.attr if isinstance(target, ast.Attribute) else ""
                    if name and mentioned:
                        found.setdefault(name, set()).update(mentioned)
    return found


def _is_direct_update(call: ast.Call) -> bool:
    name = _called_name(call)
    if name in _UPDATES:
        return True
    if name == "apply" and isinstance(call.func, ast.Attribute):
        return any(word in ast.unparse(call.func.value).lower() for word in _OPTIMIZER_WORDS)
    return False


def _updating_names(scopes: list[_Scope], aliases: dict[str, set[str]]) -> set[str]:
    """Return the names of the program's functions that update weights, directly or through others."""
    names: set[str] = set()
    for scope in scopes:
        scope.updates = any(isinstance(node, ast.Call) and _is_direct_update(node) for node in _own_nodes(scope.node))
    changed = True
    while changed:
        before = len(names)
        for scope in scopes:
            if scope.updates or scope.calls & names or _mentions(scope.node, names):
                scope.updates = True
                if scope.name:
                    names.add(scope.name)
        names.update(name for name, mentioned in aliases.items() if mentioned & names)
        changed = len(names) != before
    return names


def _looping_names(scopes: list[_Scope], loops: list[tuple[_Scope, AnyLoop, list[AnyLoop]]], updating: set[str]) -> set[str]:
    """Return the names of functions that update in a loop of their own, or call one that does: they train, they are no step."""
    names = {scope.name for scope, loop, _parents in loops if any(_update_calls(loop.body, updating))} - {""}
    while True:
        more = {scope.name for scope in scopes if not scope.is_compiled and scope.calls & names} - names - {""}
        if not more:
            return names
        names |= more


def _mentions(node: ast.AST, names: set[str]) -> bool:
    """Return whether a call passes one of the functions on: `strategy.run(train_step, args=...)`."""
    return any(
        isinstance(call, ast.Call)
        and _called_name(call) == "run"
        and any(isinstance(a, ast.Name) and a.id in names for a in call.args)
        for call in _own_nodes(node)
    )


def _loops(function: Function) -> Iterator[tuple[AnyLoop, list[AnyLoop]]]:
    """Yield each loop of a function with the loops around it, outermost first."""

    def walk(node: ast.AST, parents: list[AnyLoop]) -> Iterator[tuple[AnyLoop, list[AnyLoop]]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
                continue
            if isinstance(child, ast.For | ast.While):
                yield child, parents
                yield from walk(child, [*parents, child])
            else:
                yield from walk(child, parents)

    yield from walk(function, [])


def _update_calls(nodes: list[ast.stmt], updating: set[str]) -> Iterator[ast.Call]:
    for statement in nodes:
        for node in [statement, *_own_nodes(statement)]:
            if isinstance(node, ast.Call) and (
                _is_direct_update(node) or _called_name(node) in updating or _mentions(ast.Expr(node), updating)
            ):
                yield node


def _is_batch_loop(loop: AnyLoop, updating: set[str]) -> bool:
    """Return whether a loop's body updates weights outside of inner loops (an inner loop that also does is a part of the body)."""
    inner = {id(call) for child in _own_nodes(loop) if isinstance(child, ast.For | ast.While) for call in ast.walk(child)}
    return any(id(call) not in inner for call in _update_calls(loop.body, updating))


def _nest(scope: _Scope, loop: AnyLoop, parents: list[AnyLoop], updating: set[str]) -> Nest:
    update = next(_update_calls(loop.body, updating))
    load = _load_statement(loop, update)
    loader = ast.unparse(loop.iter) if isinstance(loop, ast.For) and load is None else ""
    if load is not None:
        loader = next((ast.unparse(n) for n in ast.walk(load) if isinstance(n, ast.Call | ast.Subscript)), "")
    evidence = (f"line {update.lineno}: {ast.unparse(update)[:60]} updates weights",)
    epoch_loop = _loop(scope, parents[-1]) if parents else None
    return Nest(_loop(scope, loop), epoch_loop, load.lineno if load else None, update.lineno, loader, evidence)


def _loop(scope: _Scope, loop: AnyLoop) -> Loop:
    kind = "for" if isinstance(loop, ast.For) else "while"
    return Loop(scope.file, loop.lineno, loop.col_offset, kind, scope.qualname, loop_digest(loop))


def _load_statement(loop: AnyLoop, update: ast.Call) -> ast.stmt | None:
    """Return the last statement before the update that brings a batch in: it binds names that flow into the update, and takes
    them from something other than what the loop has already loaded. None if the loop's header does it all."""
    before = []
    for statement in loop.body:
        if any(node is update for node in ast.walk(statement)):
            break
        before.append(statement)
    else:
        return None
    header = set(bound_names([loop.target])) if isinstance(loop, ast.For) and not _is_counting(loop.iter) else set()
    wanted = _read_names(update)
    found: ast.stmt | None = None
    for statement in reversed(before):
        bound = set(bound_names([statement]))
        if bound & wanted and not isinstance(statement, ast.AugAssign):
            read = _read_names(statement) - bound
            loaded_above = {name for s in before if s.lineno < statement.lineno for name in bound_names([s])} | header
            if not read & loaded_above and found is None and _loads(statement):
                found = statement
            wanted |= read
    return found


def _loads(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Call | ast.Subscript | ast.Await) for node in ast.walk(statement))


def _read_names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _is_counting(iterable: ast.expr) -> bool:
    """Return whether an iterable only counts: `range(n)`, also through `enumerate`, `tqdm` and the like."""
    if isinstance(iterable, ast.Call):
        return _called_name(iterable) in _COUNTING or any(_is_counting(argument) for argument in iterable.args[:1])
    return False


def _with_calling_loop(nest: Nest, loops: list[tuple[_Scope, AnyLoop, list[AnyLoop]]], scopes: list[_Scope]) -> Nest:
    """If a nest has no epoch loop of its own, take the loop that calls the function which holds it."""
    names, seen = {nest.batch_loop.function.rpartition(".")[2]} - {""}, set[str]()
    while nest.epoch_loop is None and names - seen:
        seen |= names
        for scope, loop, _parents in loops:
            inner = {id(n) for child in _own_nodes(loop) if isinstance(child, ast.For | ast.While) for n in ast.walk(child)}
            calls = (n for n in _own_nodes(loop) if isinstance(n, ast.Call) and id(n) not in inner)
            is_same = scope.file == nest.batch_loop.file and loop.lineno == nest.batch_loop.line
            if not is_same and any(_called_name(call) in names for call in calls):
                found = _loop(scope, loop)
                return Nest(nest.batch_loop, found, nest.load_line, nest.update_line, nest.loader, nest.evidence)
        names = {scope.name for scope in scopes if scope.calls & names} - {""}
    return nest
