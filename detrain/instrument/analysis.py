"""Static analysis: find the training loops of a program from its source, without running it.

The update is recognised by the calls that change weights (`apply_gradients`, `train_on_batch`, ...), through the functions of the
program that make them. The batch loop is the innermost loop whose body updates; the epoch loop is the loop around it, in the same
function or in the one that calls it. What only a run can tell (which of two readings is right) is the tracer's business.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from detrain.structure import AnyLoop, Loop, Nest, Structure, bound_names, loop_digest

_UPDATES: Final = frozenset({"apply_gradients", "train_on_batch", "minimize", "train_step_on_batch"})
_OPTIMIZER_WORDS: Final = ("opt", "optim")
_FIT: Final = frozenset({"fit", "fit_generator"})
_OF_KERAS: Final = frozenset({"epochs", "batch_size", "verbose", "callbacks", "validation_data", "steps_per_epoch"})
_RUN: Final = frozenset({"run", "experimental_run_v2"})
_PASSING_ON: Final = frozenset(
    {"enumerate", "zip", "tqdm", "track", "iter", "list", "islice", "progress", "progressbar", "Progbar"}
)
_STAGES: Final = frozenset({"prefetch", "take", "skip", "batch", "shuffle", "repeat", "cache", "as_numpy_iterator", "with_options"})
_COUNTING: Final = frozenset({"range", "trange", "arange", "count"})
_COMPILED: Final = ("function",)
_LOADING_WORDS: Final = ("next", "batch", "load", "fetch", "read")
_GRADIENTS: Final = re.compile(r"(?<![a-z])grad(ient)?s?(?![a-z])|gradienttape|trainable_(variables|weights)")

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module
_Inner = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda


@dataclass(frozen=True, slots=True)
class _Scope:
    """A function, or a module's top level, with what is known of it."""

    file: str
    node: Function
    qualname: str
    references: frozenset[str]
    """How the program refers to it: `name`, and `.name` behind an object or a module."""
    is_compiled: bool
    calls: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Updates:
    """What updates weights: calls by their own nature, and references to functions of the program that make such calls."""

    direct: set[int]
    """`id` of the calls."""
    references: set[str]

    def calls(self, nodes: Iterable[ast.AST]) -> Iterator[ast.Call]:
        """Yield the calls that update, in the order of the source."""
        for root in nodes:
            for node in [root, *_own_nodes(root)]:
                if isinstance(node, ast.Call) and (id(node) in self.direct or _invoked(node) & self.references):
                    yield node


_Found = tuple[_Scope, AnyLoop, list[AnyLoop]]
"""A loop, where it stands, and the loops around it, outermost first."""


def analyse(entry: Path) -> Structure:
    """Return the structure of the program whose main file is `entry`; modules beside it that it imports are read too."""
    trees = dict(sources(entry))
    methods = {method.name for tree in trees.values() for method in _methods(tree)}
    wrapped = _compiled_references(trees.values())
    scopes = [scope for file, tree in trees.items() for scope in _scopes(file, tree, methods, wrapped)]
    scopes = _without_keras_steps(scopes)
    updates = _updates(trees.values(), scopes, methods)
    loops = [(scope, loop, parents) for scope in scopes if not scope.is_compiled for loop, parents in _loops(scope.node)]
    whole = {id(scope) for scope in scopes if _is_step_with_loops(scope, loops, updates)}
    loops = [found for found in loops if id(found[0]) not in whole]
    steps = _Updates(updates.direct, updates.references - _looping_references(scopes, loops, updates))
    chosen = {id(loop) for _scope, loop, _parents in loops if _is_batch_loop(loop, steps)}
    nests = [
        _with_calling_loop(_nest(scope, loop, parents, steps), scope, loops, scopes)
        for scope, loop, parents in loops
        if id(loop) in chosen and not any(id(parent) in chosen for parent in parents)
    ]
    fits = tuple(
        f"{Path(file).name}:{call.lineno}"
        for file, tree in trees.items()
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and _called_name(call) in _FIT and isinstance(call.func, ast.Attribute)
    )
    return Structure(tuple(nests), "static analysis", fits)


def epoch_loop_among(parents: list[AnyLoop], loop: AnyLoop) -> tuple[AnyLoop | None, tuple[str, ...]]:
    """Return the epoch loop among the loops around a batch loop (outermost first), and what is to be said about the choice.

    It is the nearest, unless that goes over parts of the data (files, shards): its variable leads to what is loaded, and a loop
    that counts is around it.
    """
    if not parents:
        return None, ()
    nearest = parents[-1]
    if len(parents) > 1 and _counts(parents[-2]) and not _counts(nearest) and _leads_to(nearest, loop):
        what = f"line {nearest.lineno} goes over parts of the data: the loop around it counts the epochs, not this one"
        return parents[-2], (what,)
    return nearest, ()


def _counts(loop: AnyLoop) -> bool:
    return isinstance(loop, ast.While) or _is_counting(loop.iter)


def _leads_to(outer: AnyLoop, inner: AnyLoop) -> bool:
    """Return whether the variable of a loop, perhaps through other names, is read by the header of a loop inside it."""
    if isinstance(outer, ast.While) or isinstance(inner, ast.While):
        return False
    names = set(bound_names([outer.target]))
    for statement in outer.body:
        if any(node is inner for node in ast.walk(statement)):
            break
        if _read_names(statement) & names:
            names |= set(bound_names([statement]))
    return bool(_read_names(inner.iter) & names)


def observed_nest(file: str, tree: ast.Module, loop: AnyLoop, epoch: tuple[str, AnyLoop] | None, update: ast.Call | None) -> Nest:
    """Return the nest of a batch loop in which a run was seen to update weights, by the call `update` in its body."""
    load_line, loader = (None, "") if update is None else _load(loop, update)
    return Nest(
        _located(file, tree, loop),
        None if epoch is None else _located(epoch[0], _parsed(epoch[0], file, tree), epoch[1]),
        load_line,
        None if update is None else update.lineno,
        loader,
    )


def _load(loop: AnyLoop, update: ast.Call) -> tuple[int | None, str]:
    """Return the line of the call (or slice) that loads the batch, None where the header does; and what is loaded from."""
    statement = _load_statement(loop, update)
    is_counting = isinstance(loop, ast.While) or _is_counting(loop.iter)
    if statement is None and not is_counting:
        return None, ast.unparse(_unwrapped(loop.iter))  # type: ignore[union-attr]
    counters = set() if isinstance(loop, ast.While) else set(bound_names([loop.target]))
    loads = [
        node
        for part in ([statement] if statement is not None else _arguments(update))
        for node in ast.walk(part)
        if isinstance(node, ast.Call | ast.Subscript) and (statement is not None or _read_names(node) & counters)
    ]
    return (loads[0].lineno, ast.unparse(loads[0])) if loads else (None, "")


def _parsed(file: str, known: str, tree: ast.Module) -> ast.Module:
    return tree if file == known else ast.parse(Path(file).read_bytes())


def _located(file: str, tree: ast.Module, loop: AnyLoop) -> Loop:
    for scope in _scopes(file, tree, (), ()):
        if any(node.lineno == loop.lineno for node, _parents in _loops(scope.node)):
            return _loop(scope, loop)
    raise ValueError(f"{file}:{loop.lineno}: the loop is not in the tree")


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


def _without_keras_steps(scopes: list[_Scope]) -> list[_Scope]:
    """Take methods called `train_step` that the program itself never calls for compiled: `fit` calls them in a graph."""
    called = {name for scope in scopes for name in scope.calls}
    return [
        replace(scope, is_compiled=True)
        if scope.references == frozenset({".train_step"}) and ".train_step" not in called
        else scope
        for scope in scopes
    ]


def _methods(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from (child for child in node.body if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))


def _scopes(file: str, tree: ast.Module, methods: Collection[str], wrapped: Collection[str]) -> Iterator[_Scope]:
    def walk(node: ast.AST, prefix: str, is_compiled: bool) -> Iterator[_Scope]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                is_method = isinstance(node, ast.ClassDef)
                references = frozenset({f".{child.name}"}) if is_method else _references_to(child.name, methods)
                compiled = is_compiled or any(_decorator_name(d) in _COMPILED for d in child.decorator_list)
                compiled = compiled or not references.isdisjoint(wrapped)
                name = f"{prefix}{child.name}"
                yield _Scope(file, child, name, references, compiled, _calls(child))
                yield from walk(child, f"{name}.", compiled)
            elif isinstance(child, ast.ClassDef):
                yield from walk(child, f"{prefix}{child.name}.", is_compiled)
            else:
                yield from walk(child, prefix, is_compiled)

    yield _Scope(file, tree, "", frozenset(), False, _calls(tree))
    yield from walk(tree, "", False)


def _references_to(name: str, methods: Collection[str]) -> frozenset[str]:
    """Return the references that may mean a function: also `module.name`, where no method has that name."""
    return frozenset({name}) if name in methods else frozenset({name, f".{name}"})


def _reference(node: ast.AST) -> str:
    return f".{node.attr}" if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below, functions and classes defined there left out."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _Inner):
            yield child
            yield from _own_nodes(child)


def _calls(node: ast.AST) -> frozenset[str]:
    return frozenset(reference for child in _own_nodes(node) if isinstance(child, ast.Call) for reference in _invoked(child))


def _invoked(call: ast.Call) -> set[str]:
    """Return what a call refers to: the function, and that which it is told to run (`strategy.run(train_step, args=...)`)."""
    found = {_reference(call.func)}
    if _called_name(call) in _RUN:
        found |= {_reference(argument) for argument in _arguments(call)}
    return found - {""}


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _called_name(call: ast.Call) -> str:
    return _reference(call.func).removeprefix(".")


def _decorator_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return _decorator_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _compiled_references(trees: Iterable[ast.Module]) -> set[str]:
    """Return the references to functions that are compiled by a call: `tf.function(train_step)`."""
    calls = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {reference for call in calls if _called_name(call) in _COMPILED for reference in _passed_on(call)} - {""}


def _aliases(trees: Iterable[ast.Module], methods: Collection[str]) -> list[tuple[frozenset[str], set[str]]]:
    """Return what is assigned from functions, and the functions: `step = tf.function(train_step)`."""
    found = []
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                name = _reference(target)
                names = frozenset({name}) if name.startswith(".") else _references_to(name, methods)
                if name:
                    found.append((names, _passed_on(node.value)))
    return found


def _passed_on(value: ast.expr) -> set[str]:
    """Return what an expression may be a function made from. The result of a call that runs one is no function."""
    if isinstance(value, ast.IfExp):
        return _passed_on(value.body) | _passed_on(value.orelse)
    if isinstance(value, ast.Call):
        arguments = [] if _called_name(value) in _RUN else _arguments(value)
        return {reference for argument in arguments for reference in _passed_on(argument)}
    return {_reference(value)}


def _updates(trees: Collection[ast.Module], scopes: list[_Scope], methods: Collection[str]) -> _Updates:
    """Return what updates weights: the calls, and the functions of the program that make them, directly or through others."""
    updates = _Updates(_direct_updates(trees), set())
    aliases = _aliases(trees, methods)
    before = -1
    while before != len(updates.references):
        before = len(updates.references)
        for scope in scopes:
            if any(updates.calls([scope.node])):
                updates.references.update(scope.references)
        for names, functions in aliases:
            if functions & updates.references:
                updates.references.update(names)
    return updates


def _direct_updates(trees: Iterable[ast.Module]) -> set[int]:
    nodes = [node for tree in trees for node in ast.walk(tree)]
    gradients = {name for node in nodes for name in _gradients_bound(node)}
    return {id(node) for node in nodes if isinstance(node, ast.Call) and _is_direct_update(node, gradients)}


def _gradients_bound(node: ast.AST) -> tuple[str, ...]:
    if isinstance(node, ast.Assign):
        calls = (n for n in ast.walk(node.value) if isinstance(n, ast.Call))
        return bound_names(node.targets) if any(_called_name(call) == "gradient" for call in calls) else ()
    return bound_names([node.target]) if isinstance(node, ast.For) and _is_over_gradients(node) else ()


def _is_direct_update(call: ast.Call, gradients: set[str]) -> bool:
    name = _called_name(call)
    if name in _UPDATES or _is_fit_as_step(call):
        return True
    if not isinstance(call.func, ast.Attribute):
        return False
    if name == "assign_sub":  # gradient descent by hand
        return any(_read_names(argument) & gradients for argument in call.args)
    return name == "apply" and any(word in ast.unparse(call.func.value).lower() for word in _OPTIMIZER_WORDS)


def _is_fit_as_step(call: ast.Call) -> bool:
    """Return whether a call of Keras's `fit` trains for one epoch: in a loop that is a step, not a training of its own.

    An argument that only Keras's has tells it from the `fit` of a scaler or a classifier.
    """
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    epochs = given.get("epochs", ast.Constant(1))
    is_one = isinstance(epochs, ast.Constant) and epochs.value == 1
    return _called_name(call) == "fit" and isinstance(call.func, ast.Attribute) and is_one and not _OF_KERAS.isdisjoint(given)


def _is_over_gradients(loop: AnyLoop) -> bool:
    """Return whether a loop goes over the gradients of one update: it is a part of that, no loop over batches."""
    return not isinstance(loop, ast.While) and _GRADIENTS.search(ast.unparse(loop.iter).lower()) is not None


def _is_step_with_loops(scope: _Scope, loops: list[_Found], updates: _Updates) -> bool:
    """Return whether a function is one training step although it updates in a loop: the critic of a WGAN, trained several times.

    It then updates beside that loop too, the loop only counts and loads nothing, and a loop of the program calls the function.
    """
    own = [(loop, parents) for inside, loop, parents in loops if inside is scope and any(updates.calls(loop.body))]
    if not own or not scope.references or any(parents or not _only_repeats(loop, updates) for loop, parents in own):
        return False
    inside = {id(node) for loop, _parents in own for node in ast.walk(loop)}
    if all(id(call) in inside for call in updates.calls([scope.node])):
        return False
    calls = (
        node for other, loop, _parents in loops if other is not scope for node in _own_nodes(loop) if isinstance(node, ast.Call)
    )
    return any(_invoked(call) & scope.references for call in calls)


def _only_repeats(loop: AnyLoop, updates: _Updates) -> bool:
    if isinstance(loop, ast.While) or not _is_counting(loop.iter):
        return False
    counters = set(bound_names([loop.target]))
    reads = {name for call in updates.calls(loop.body) for name in _read_names(call)}
    return not counters & reads and not any(_surely_loads(statement, counters) for statement in loop.body)


def _looping_references(scopes: list[_Scope], loops: list[_Found], updates: _Updates) -> set[str]:
    """Return the references to functions that update in a loop of their own, or call one that does: these are no steps."""
    found = {reference for scope, loop, _parents in loops if any(updates.calls(loop.body)) for reference in scope.references}
    while True:
        calling = (scope for scope in scopes if not scope.is_compiled and scope.calls & found)
        more = {reference for scope in calling for reference in scope.references} - found
        if not more:
            return found
        found |= more


def _loops(function: Function) -> Iterator[tuple[AnyLoop, list[AnyLoop]]]:
    """Yield each loop of a function with the loops around it, outermost first."""

    def walk(node: ast.AST, parents: list[AnyLoop]) -> Iterator[tuple[AnyLoop, list[AnyLoop]]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, AnyLoop) and not _is_over_gradients(child):
                yield child, parents
                yield from walk(child, [*parents, child])
            elif not isinstance(child, _Inner):
                yield from walk(child, parents)

    yield from walk(function, [])


def _inner_nodes(loop: AnyLoop) -> set[int]:
    """Return the `id` of all that stands in the loops inside a loop."""
    inner = (child for child in _own_nodes(loop) if isinstance(child, AnyLoop) and not _is_over_gradients(child))
    return {id(node) for child in inner for node in ast.walk(child)}


def _is_batch_loop(loop: AnyLoop, updates: _Updates) -> bool:
    """Return whether a loop's body updates weights outside of inner loops (an inner loop that also does is a part of the body)."""
    inner = _inner_nodes(loop)
    return any(id(call) not in inner for call in updates.calls(loop.body))


def _nest(scope: _Scope, loop: AnyLoop, parents: list[AnyLoop], updates: _Updates) -> Nest:
    update = next(updates.calls(loop.body))
    load_line, loader = _load(loop, update)
    evidence = (f"line {update.lineno}: {ast.unparse(update)[:60]} updates weights",)
    around, remarks = epoch_loop_among(parents, loop)
    epoch_loop = None if around is None else _loop(scope, around)
    return Nest(_loop(scope, loop), epoch_loop, load_line, update.lineno, loader, evidence, remarks)


def _loop(scope: _Scope, loop: AnyLoop) -> Loop:
    kind = "while" if isinstance(loop, ast.While) else "for"
    return Loop(scope.file, loop.lineno, loop.col_offset, kind, scope.qualname, loop_digest(loop))


def _unwrapped(iterable: ast.expr) -> ast.expr:
    """Return what an iterable takes its elements from: `data` of `enumerate(tqdm(data.prefetch(2)))` and of `data[:100]`."""
    while True:
        if isinstance(iterable, ast.Subscript) and isinstance(iterable.slice, ast.Slice):
            iterable = iterable.value
        elif isinstance(iterable, ast.Call) and _called_name(iterable) in _PASSING_ON and iterable.args:
            if _called_name(iterable) == "zip" and len(iterable.args) > 1:
                return ast.Tuple([_unwrapped(argument) for argument in iterable.args], ast.Load())
            iterable = iterable.args[0]
        elif isinstance(iterable, ast.Call) and isinstance(iterable.func, ast.Attribute) and iterable.func.attr in _STAGES:
            iterable = iterable.func.value
        else:
            return iterable


def _load_statement(loop: AnyLoop, update: ast.Call) -> ast.stmt | None:
    """Return the last statement before the update that brings a batch in: it binds names that flow into the update, and takes
    them from something other than what the loop has already loaded. None if the loop's header does it all."""
    before: list[ast.stmt] = []
    for statement in loop.body:
        if any(node is update for node in ast.walk(statement)):
            break
        before.append(statement)
    header = set() if isinstance(loop, ast.While) or _is_counting(loop.iter) else set(bound_names([loop.target]))
    wanted = _read_names(update)
    for statement in reversed(before):
        if wanted & set(bound_names([statement])):
            wanted |= _read_names(statement)
    accumulated = {name for inner in before if isinstance(inner, AnyLoop) for name in bound_names([inner])}
    loaded = set(header)
    found: ast.stmt | None = None
    for statement in before:
        bound = set(bound_names([statement]))
        is_from_loaded = bool(_read_names(statement, with_index=False) & loaded)
        is_computed = isinstance(statement, AnyLoop | ast.AugAssign) or _GRADIENTS.search(ast.unparse(statement).lower())
        if is_computed or (is_from_loaded and not _takes_next(statement)):
            loaded |= bound
        elif _loads(statement) and not bound <= accumulated:
            if bound & wanted and (not header & wanted or _surely_loads(statement, loaded)):
                found = statement
            loaded |= bound
    return found


def _loads(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Call | ast.Subscript | ast.Await) for node in ast.walk(statement))


def _takes_next(statement: ast.stmt) -> bool:
    calls = (node for node in ast.walk(statement) if isinstance(node, ast.Call))
    return any(_called_name(call).strip("_").startswith(("next", "get_next")) for call in calls)


def _surely_loads(statement: ast.stmt, loaded: set[str]) -> bool:
    """Return whether a statement loads although the header already brings in what is trained on: `x = data[i]`."""
    return any(
        (isinstance(node, ast.Call) and any(word in _called_name(node).lower() for word in _LOADING_WORDS))
        or (isinstance(node, ast.Subscript) and bool(_read_names(node.slice) & loaded))
        for node in ast.walk(statement)
    )


def _read_names(node: ast.AST, *, with_index: bool = True) -> set[str]:
    """Return the names that a node reads; without the index, `data[i]` reads `data` alone."""
    if isinstance(node, ast.Name):
        return {node.id} if isinstance(node.ctx, ast.Load) else set()
    children = [node.value] if isinstance(node, ast.Subscript) and not with_index else ast.iter_child_nodes(node)
    return {name for child in children for name in _read_names(child, with_index=with_index)}


def _is_counting(iterable: ast.expr) -> bool:
    """Return whether an iterable only counts: `range(n)`, also through `enumerate`, `tqdm` and the like."""
    if isinstance(iterable, ast.Call):
        among = iterable.args if _called_name(iterable) == "zip" else iterable.args[:1]
        return _called_name(iterable) in _COUNTING or (bool(among) and all(_is_counting(argument) for argument in among))
    return False


def _with_calling_loop(nest: Nest, scope: _Scope, loops: list[_Found], scopes: list[_Scope]) -> Nest:
    """If a nest has no epoch loop of its own, take the loop that calls the function which holds it."""
    names, seen = set(scope.references), set[str]()
    while nest.epoch_loop is None and names - seen:
        seen |= names
        for calling, loop, _parents in loops:
            inner = _inner_nodes(loop)
            calls = (n for n in _own_nodes(loop) if isinstance(n, ast.Call) and id(n) not in inner)
            is_same = calling.file == nest.batch_loop.file and loop.lineno == nest.batch_loop.line
            if not is_same and any(_invoked(call) & names for call in calls):
                return msgspec.structs.replace(nest, epoch_loop=_loop(calling, loop))
        names = {reference for other in scopes if other.calls & names for reference in other.references}
    return nest
