"""Facts of syntax trees for the search for training loops: calls, reads and loops; references to a program's functions,
the calls in each of them, and the functions that are compiled into graphs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from detrain.base.structure import AnyLoop, bound_names

RUN: Final = frozenset({"run", "experimental_run_v2", "scan", "fori_loop"})
"""Functions that run a function given to them."""
_COMPILING: Final = frozenset({"jit", "filter_jit", "function"})
_COUNTING: Final = frozenset({"range", "trange", "arange", "count"})
GRADIENTS: Final = re.compile(r"(?<![a-z])grad(ient)?s?(?![a-z]|_acc)|gradienttape|trainable_(variables|weights)")
_OPTIMIZER: Final = re.compile(r"^(opt|.*optim.*|.*_opt)$", re.IGNORECASE)
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module
Inner = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda

_COMPILED: Final = ("function",)


def reference_of(node: ast.AST) -> str:
    """Return the reference to a name or an attribute: `name`, `.attribute`; the empty string for other nodes."""
    return f".{node.attr}" if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below a node, without functions and classes defined there."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Inner):
            yield child
            yield from own_nodes(child)


def invoked_by(call: ast.Call) -> set[str]:
    """Return the references to the functions that a call runs: the called one, and one given to it to run
    (`strategy.run(train_step, args=...)`).

    The `run` of a TensorFlow strategy is left out: a function `run` of the program, which trains, is not meant.
    """
    is_strategy = isinstance(call.func, ast.Attribute) and "strateg" in ast.unparse(call.func.value).lower()
    found = set() if is_strategy else {reference_of(call.func)}
    if called_name(call) in RUN:
        found |= {reference_of(argument) for argument in arguments_of(call)}
    if isinstance(call.func, ast.Call) and called_name(call.func) in _COMPILING:  # `jax.jit(train_step)(state, batch)`
        found |= {reference_of(argument) for argument in arguments_of(call.func)}
    return found - {""}


def arguments_of(call: ast.Call) -> list[ast.expr]:
    """Return the arguments of a call, those with a keyword last."""
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def called_name(call: ast.Call) -> str:
    """Return the name of the function or method that is called."""
    return reference_of(call.func).removeprefix(".")


def is_over_gradients(loop: AnyLoop) -> bool:
    """Return True if a loop goes over the gradients of one update: it is part of that, not a loop over batches."""
    return not isinstance(loop, ast.While) and GRADIENTS.search(ast.unparse(loop.iter).lower()) is not None


def _is_in_update(loop: AnyLoop) -> bool:
    """Return True if a loop is part of one update: it goes over the gradients, or takes them from a tape opened outside
    it.

    The latter is a loop over optimizers, each for its own layers, with a persistent tape.
    """
    if isinstance(loop, ast.While) or is_over_gradients(loop):
        return not isinstance(loop, ast.While)
    withs = (item.context_expr for n in own_nodes(loop) if isinstance(n, ast.With) for item in n.items)
    own = {*bound_names(loop.body), *(entered.id for entered in withs if isinstance(entered, ast.Name))}
    asked = (
        n.func.value
        for n in own_nodes(loop)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "gradient"
    )
    return any(isinstance(tape, ast.Name) and tape.id not in own for tape in asked)


def _goes_over_optimizers(loop: AnyLoop) -> bool:
    """Return True if a loop calls `step` of each of several optimizers, `for net, opt in zip(nets, optimizers)`: inside
    another loop it is part of one update.
    """
    if isinstance(loop, ast.While):
        return False
    targets = set(bound_names([loop.target]))
    named = {name for name in targets if _OPTIMIZER.search(name)}
    if not named and "opt" not in ast.unparse(loop.iter).lower():
        return False
    deeper = {id(node) for child in own_nodes(loop) if isinstance(child, AnyLoop) for node in ast.walk(child)}
    steps = [n for n in own_nodes(loop) if isinstance(n, ast.Call) and called_name(n) == "step" and id(n) not in deeper]
    stepped = {n.func.value.id for n in steps if isinstance(n.func, ast.Attribute) and isinstance(n.func.value, ast.Name)}
    scaled = {argument.id for n in steps for argument in n.args if isinstance(argument, ast.Name)}  # `scaler.step(optimizer)`
    return bool(targets & stepped or named & scaled)


def loops_in(function: Function) -> Iterator[tuple[AnyLoop, list[AnyLoop]]]:
    """Yield each loop of a function with the loops around it, outermost first."""

    def walk(node: ast.AST, parents: list[AnyLoop]) -> Iterator[tuple[AnyLoop, list[AnyLoop]]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, AnyLoop) and not (_is_in_update(child) or (parents and _goes_over_optimizers(child))):
                yield child, parents
                yield from walk(child, [*parents, child])
            elif not isinstance(child, Inner):
                yield from walk(child, parents)

    yield from walk(function, [])


def inner_nodes(loop: AnyLoop) -> set[int]:
    """Return the `id` of each node in the loops inside a loop."""
    loops = (child for child in own_nodes(loop) if isinstance(child, AnyLoop))
    inner = (child for child in loops if not _is_in_update(child) and not _goes_over_optimizers(child))
    return {id(node) for child in inner for node in ast.walk(child)}


def read_names(node: ast.AST, *, with_index: bool = True) -> set[str]:
    """Return the names that a node reads; without `with_index`, `data[i]` counts as reading `data` alone."""
    if isinstance(node, ast.Name):
        return {node.id} if isinstance(node.ctx, ast.Load) else set()
    children = [node.value] if isinstance(node, ast.Subscript) and not with_index else ast.iter_child_nodes(node)
    return {name for child in children for name in read_names(child, with_index=with_index)}


def only_counts(iterable: ast.expr, counting: Collection[str] = ()) -> bool:
    """Return True if an iterable only counts:

    `range(n)`, also inside `enumerate`, `tqdm` and the like, or a name for such an iterable.
    """
    if isinstance(iterable, ast.Name):
        return iterable.id in counting
    if isinstance(iterable, ast.Call):
        among = iterable.args if called_name(iterable) == "zip" else iterable.args[:1]
        is_counted = bool(among) and all(only_counts(argument, counting) for argument in among)
        return called_name(iterable) in _COUNTING or is_counted
    return False


def loop_counts(loop: AnyLoop, counting: Collection[str]) -> bool:
    """Return True if a loop goes over no data that could be trained on."""
    return isinstance(loop, ast.While) or only_counts(loop.iter, counting)


_OF_MODELS: Final = frozenset({"parameters", "named_parameters", "train", "eval"})


def trained_names(tree: ast.Module) -> frozenset[str]:
    """Return the names of models and weights in a file: objects on which it calls a method of models
    (`net.parameters()`, `self.actor.train()`), and tensors that it makes to take gradients.
    """
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _OF_MODELS:
            found.add(reference_of(node.func.value).removeprefix("."))
        elif isinstance(node, ast.Assign) and any(map(_takes_gradients, ast.walk(node.value))):
            found.update(bound_names([node]))
    return frozenset(found - {""})


def _takes_gradients(node: ast.AST) -> bool:
    """Return True if a node is a call that makes a tensor that takes gradients."""
    if not isinstance(node, ast.Call):
        return False
    return called_name(node) in ("requires_grad_", "Parameter") or any(each.arg == "requires_grad" for each in node.keywords)


def counting_names(tree: ast.Module) -> frozenset[str]:
    """Return the names that a file binds only to iterables that count: `epochs = range(10)`."""
    counting: set[str] = set()
    others: set[str] = set()
    known: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and only_counts(node.value):
            named = [target for target in node.targets if isinstance(target, ast.Name)]
            counting.update(name.id for name in named)
            known.update(map(id, named))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and id(node) not in known:
            others.add(node.id)
        elif isinstance(node, ast.arg):
            others.add(node.arg)
    return frozenset(counting - others)


@dataclass(frozen=True, slots=True)
class Scope:
    """A function, or a module's top level, with facts about it."""

    file: str
    node: Function
    qualname: str
    references: frozenset[str]
    """The references by which the program names it: `name`, and `.name` after an object or a module."""
    is_compiled: bool
    calls: frozenset[str]
    """References to the functions that it calls."""
    counting: frozenset[str]
    """Names of the file that stand for ranges."""
    trained: frozenset[str]
    """Names of the file that stand for models and weights."""


def without_keras_steps(scopes: list[Scope]) -> list[Scope]:
    """Return the scopes with methods `train_step` that the program itself never calls marked as compiled:

    Keras's `fit` calls them in a graph.
    """
    called = {name for scope in scopes for name in scope.calls}
    return [
        replace(scope, is_compiled=True)
        if scope.references == frozenset({".train_step"}) and ".train_step" not in called
        else scope
        for scope in scopes
    ]


def traced(scopes: list[Scope]) -> set[int]:
    """Return the functions, by identity, that run only while a framework traces them, as far as decorators show it:

    those that a decorator compiles, those inside of one, and those that only such functions name. The run finds others.
    """
    named = {id(scope): {reference_of(node) for node in own_nodes(scope.node)} - {""} for scope in scopes}
    found = {id(scope) for scope in scopes if any(map(_compiles, getattr(scope.node, "decorator_list", ())))}
    while True:
        inside = [f"{scope.file}:{scope.qualname}." for scope in scopes if id(scope) in found]
        more = set[int]()
        for scope in (scope for scope in scopes if id(scope) not in found):
            users = [id(each) for each in scopes if each is not scope and named[id(each)] & scope.references]
            if f"{scope.file}:{scope.qualname}".startswith(tuple(inside)) or (users and found.issuperset(users)):
                more.add(id(scope))
        if not more:
            return found
        found |= more


def _compiles(decorator: ast.expr) -> bool:
    return any(reference_of(node).lstrip(".") in _COMPILING for node in ast.walk(decorator))


def methods_in(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the methods of the classes in a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from (child for child in node.body if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))


def scopes_in(file: str, tree: ast.Module, methods: Collection[str], wrapped: Collection[str]) -> Iterator[Scope]:
    """Yield the top level of a file, and its functions.

    `methods`: the names of all methods; `wrapped`: the references to functions that calls compile.
    """

    def walk(node: ast.AST, prefix: str, is_compiled: bool) -> Iterator[Scope]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                is_method = isinstance(node, ast.ClassDef)
                references = frozenset({f".{child.name}"}) if is_method else _references_to(child.name, methods)
                compiled = is_compiled or any(_decorator_name(d) in _COMPILED for d in child.decorator_list)
                compiled = compiled or not references.isdisjoint(wrapped)
                name = f"{prefix}{child.name}"
                yield Scope(file, child, name, references, compiled, _calls(child), counting, trained)
                yield from walk(child, f"{name}.", compiled)
            elif isinstance(child, ast.ClassDef):
                yield from walk(child, f"{prefix}{child.name}.", is_compiled)
            else:
                yield from walk(child, prefix, is_compiled)

    counting, trained = counting_names(tree), trained_names(tree)
    yield Scope(file, tree, "", frozenset(), False, _calls(tree), counting, trained)
    yield from walk(tree, "", False)


def _references_to(name: str, methods: Collection[str]) -> frozenset[str]:
    """Return the references that may mean a function: `name`, and `.name` of a module if no method has that name."""
    return frozenset({name}) if name in methods else frozenset({name, f".{name}"})


def _calls(node: ast.AST) -> frozenset[str]:
    return frozenset(reference for child in own_nodes(node) if isinstance(child, ast.Call) for reference in invoked_by(child))


def _decorator_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return _decorator_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def references_compiled_in(trees: Iterable[ast.Module]) -> set[str]:
    """Return the references to functions that are compiled by a call: `tf.function(train_step)`."""
    calls = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {reference for call in calls if called_name(call) in _COMPILED for reference in _passed_on(call)} - {""}


Makers = dict[str, list[set[str]]]
"""For each reference to a function that makes functions, the references to what it returns: one set for each element of
a tuple, else one.
"""


def makers_in(scopes: Collection[Scope]) -> Makers:
    """Return the functions that return functions defined in them, `make_step(optimizer)`, with what they return."""
    inner: dict[tuple[str, str], dict[str, frozenset[str]]] = {}
    for scope in scopes:
        around, _, name = scope.qualname.rpartition(".")
        inner.setdefault((scope.file, around), {})[name] = scope.references
    found: Makers = {}
    for scope in scopes:
        own = inner.get((scope.file, scope.qualname), {}) if scope.qualname else {}
        returned = [node.value for node in own_nodes(scope.node) if isinstance(node, ast.Return) and node.value is not None]
        for value in returned if own else ():
            parts = [_passed_on(part) for part in (value.elts if isinstance(value, ast.Tuple) else [value])]
            made = [{reference for name in part for reference in own.get(name, ())} for part in parts]
            if any(made):
                found.update(dict.fromkeys(scope.references, made))
    return found


def made_by(call: ast.Call, makers: Makers) -> set[str]:
    """Return the references to the function that a call makes: `make_step(optimizer)`."""
    made = makers.get(reference_of(call.func), [])
    return made[0] if len(made) == 1 else set()


def aliases_in(trees: Iterable[ast.Module], methods: Collection[str], makers: Makers) -> list[tuple[frozenset[str], set[str]]]:
    """Return the names assigned from functions, and these functions: `step = tf.function(train_step)`."""
    found = []
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for bound, functions in _bound(target, node.value, makers):
                    name = reference_of(bound)
                    names = frozenset({name}) if name.startswith(".") else _references_to(name, methods)
                    if name:
                        found.append((names, functions))
    return found


def _bound(target: ast.expr, value: ast.expr, makers: Makers) -> list[tuple[ast.expr, set[str]]]:
    """Return what an assignment binds, each with the functions from which it may be made."""
    if not isinstance(target, ast.Tuple):
        return [(target, _passed_on(value, makers))]
    made = makers.get(reference_of(value.func), []) if isinstance(value, ast.Call) else []
    return list(zip(target.elts, made, strict=True)) if len(made) == len(target.elts) else []


def _passed_on(value: ast.expr, makers: Makers | None = None) -> set[str]:
    """Return the functions from which an expression may make a function. The result of running one is no function."""
    if isinstance(value, ast.IfExp):
        return _passed_on(value.body, makers) | _passed_on(value.orelse, makers)
    if isinstance(value, ast.Call):
        arguments = [] if called_name(value) in RUN else arguments_of(value)
        return made_by(value, makers or {}).union(*(_passed_on(argument, makers) for argument in arguments))
    return {reference_of(value)}
