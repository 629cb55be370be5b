"""Static analysis: find the training loops of a program from its source, without running it.

The update is recognised by the calls that change weights (`apply_gradients`, `train_on_batch`, ...), through the
functions of the program that make them. The batch loop is the innermost loop whose body updates; the epoch loop is the
loop around it, in the same function or in the one that calls it. The tracer decides questions that only a run can
answer (which of two readings is right).
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from detrain.base.compiled_sources import parse
from detrain.base.errors import CannotRewrite
from detrain.base.framework_names import LIBRARY_TRAININGS, LibraryTraining
from detrain.base.source_files import sources
from detrain.base.structure import AnyLoop, Loop, Nest, Structure, bound_names, loop_digest
from detrain.instrument.find_loads import find_load, surely_loads
from detrain.instrument.find_updates import UpdateCalls, find_updates
from detrain.instrument.fit_calls import fits_in, has_keras
from detrain.instrument.syntax import (
    Scope,
    called_name,
    counting_names,
    inner_nodes,
    invoked_by,
    loop_counts,
    loops_in,
    methods_in,
    own_nodes,
    read_names,
    references_compiled_in,
    scopes_in,
    traced,
    trained_names,
    without_keras_steps,
)

_Found = tuple[Scope, AnyLoop, list[AnyLoop]]
"""The scope of a loop, the loop, and the loops around it, outermost first."""


def analyse(entry: Path) -> Structure:
    """Return the structure of the program with the main file `entry`; imported modules beside it are read, too."""
    trees = dict(sources(entry))
    methods = {method.name for tree in trees.values() for method in methods_in(tree)}
    wrapped = references_compiled_in(trees.values())
    scopes = [scope for file, tree in trees.items() for scope in scopes_in(file, tree, methods, wrapped)]
    scopes = without_keras_steps(scopes)
    updates = find_updates(trees.values(), scopes, methods)
    inside = traced(scopes)
    plain = [scope for scope in scopes if not scope.is_compiled and id(scope) not in inside]
    loops = [(scope, loop, parents) for scope in plain for loop, parents in loops_in(scope.node)]
    whole = {id(scope) for scope in scopes if _is_step_with_loops(scope, loops, updates)}
    loops = [found for found in loops if id(found[0]) not in whole]
    steps = replace(updates, references=updates.references - _looping_references(scopes, loops, updates))
    chosen = {id(loop) for _scope, loop, _parents in loops if _is_batch_loop(loop, steps)}
    nests = [
        nest
        for scope, loop, parents in loops
        if id(loop) in chosen and not any(id(parent) in chosen for parent in parents)
        for nest in _with_calling_loops(_nest(scope, loop, parents, steps), scope, loops, scopes, updates)
    ]
    fits = tuple(fit for file, tree in trees.items() for fit in fits_in(file, tree)) if has_keras(trees.values()) else ()
    return Structure(tuple(nests), "static analysis", fits)


def epoch_loop_among(parents: list[AnyLoop], loop: AnyLoop, counting: Collection[str]) -> tuple[AnyLoop | None, tuple[str, ...]]:
    """Return the epoch loop among the loops around a batch loop (outermost first), and remarks about the choice.

    It is the nearest, unless that goes over parts of the data (files, shards): then its variable is used to load the
    batches, and a loop that counts is around it. `counting`: names of the file that stand for ranges.
    """
    if not parents:
        return None, ()
    nearest = parents[-1]
    is_over_parts = not loop_counts(nearest, counting) and _leads_to(nearest, loop)
    if len(parents) > 1 and loop_counts(parents[-2], counting) and is_over_parts:
        what = f"line {nearest.lineno} goes over parts of the data: the loop around it counts the epochs, not this one"
        return parents[-2], (what,)
    return nearest, ()


def _leads_to(outer: AnyLoop, inner: AnyLoop) -> bool:
    """Return True if the header of an inner loop reads the variable of an outer one, perhaps through other names."""
    if isinstance(outer, ast.While) or isinstance(inner, ast.While):
        return False
    names = set(bound_names([outer.target]))
    for statement in outer.body:
        if any(node is inner for node in ast.walk(statement)):
            break
        if read_names(statement) & names:
            names |= set(bound_names([statement]))
    return bool(read_names(inner.iter) & names)


def observed_nest(file: str, tree: ast.Module, loop: AnyLoop, epoch: tuple[str, AnyLoop] | None, update: ast.Call | None) -> Nest:
    """Return the nest of a batch loop in which a traced run updated weights, by the call `update` in its body."""
    load_line, loader = (None, "") if update is None else find_load(loop, update, counting_names(tree), trained_names(tree))
    return Nest(
        _located(file, tree, loop),
        None if epoch is None else _located(epoch[0], _parsed(epoch[0], file, tree), epoch[1]),
        load_line,
        None if update is None else update.lineno,
        loader,
    )


def _parsed(file: str, known: str, tree: ast.Module) -> ast.Module:
    return tree if file == known else parse(Path(file).read_bytes())


def _located(file: str, tree: ast.Module, loop: AnyLoop) -> Loop:
    for scope in scopes_in(file, tree, (), ()):
        if any(isinstance(node, AnyLoop) and node.lineno == loop.lineno for node in own_nodes(scope.node)):
            return _loop(scope, loop)
    raise CannotRewrite(f"{file}:{loop.lineno}: the loop is in the body of a class", "put it into a function, or at the top level")


def _is_step_with_loops(scope: Scope, loops: list[_Found], updates: UpdateCalls) -> bool:
    """Return True if a function is one training step although it updates in a loop: a WGAN, for example, trains its
    critic several times in a step.

    Such a function also updates outside that loop, the loop only counts and loads nothing, and a loop of the program
    calls the function.
    """
    own = [(loop, parents) for inside, loop, parents in loops if inside is scope and any(updates.calls_in(loop))]
    if not own or not scope.references or any(parents or not _only_repeats(loop, updates, scope.counting) for loop, parents in own):
        return False
    inside = {id(node) for loop, _parents in own for node in ast.walk(loop)}
    if all(id(call) in inside for call in updates.calls([scope.node])):
        return False
    calls = (
        node for other, loop, _parents in loops if other is not scope for node in own_nodes(loop) if isinstance(node, ast.Call)
    )
    return any(invoked_by(call) & scope.references for call in calls)


def _only_repeats(loop: AnyLoop, updates: UpdateCalls, counting: Collection[str]) -> bool:
    if isinstance(loop, ast.While) or not loop_counts(loop, counting):
        return False
    counters = set(bound_names([loop.target]))
    reads = {name for call in updates.calls_in(loop) for name in read_names(call)}
    return not counters & reads and not any(surely_loads(statement, counters) for statement in loop.body)


def _looping_references(scopes: list[Scope], loops: list[_Found], updates: UpdateCalls) -> set[str]:
    """Return the references to functions that update in a loop of their own or call such a one: they are no steps."""
    found = {reference for scope, loop, _parents in loops if any(updates.calls_in(loop)) for reference in scope.references}
    while True:
        found = updates.with_aliases(found)
        calling = (scope for scope in scopes if not scope.is_compiled and scope.calls & found)
        more = {reference for scope in calling for reference in scope.references} - found
        if not more:
            return found
        found |= more


def _is_batch_loop(loop: AnyLoop, updates: UpdateCalls) -> bool:
    """Return True if a loop's body updates weights outside its inner loops (an inner loop that also updates is then a
    part of the body).
    """
    inner = inner_nodes(loop)
    return any(id(call) not in inner for call in updates.calls_in(loop))


def _nest(scope: Scope, loop: AnyLoop, parents: list[AnyLoop], updates: UpdateCalls) -> Nest:
    update = next(updates.calls_in(loop))
    load_line, loader = find_load(loop, update, scope.counting, scope.trained)
    evidence = (f"line {update.lineno}: {ast.unparse(update)[:60]} updates weights",)
    around, remarks = epoch_loop_among(parents, loop, scope.counting)
    epoch_loop = None if around is None else _loop(scope, around)
    return Nest(_loop(scope, loop), epoch_loop, load_line, update.lineno, loader, evidence, remarks)


def _loop(scope: Scope, loop: AnyLoop) -> Loop:
    kind = "while" if isinstance(loop, ast.While) else "for"
    return Loop(scope.file, loop.lineno, loop.col_offset, kind, scope.qualname, loop_digest(loop))


def _with_calling_loops(nest: Nest, scope: Scope, loops: list[_Found], scopes: list[Scope], updates: UpdateCalls) -> list[Nest]:
    """Return the nest alone if it has an epoch loop; else one nest for each loop that calls the function that holds it.

    All these loops stand in one function: methods are known by their names alone, and a call in another function may
    mean a method of another class.
    """
    names, seen = updates.with_aliases(scope.references), set[str]()
    while nest.epoch_loop is None and names - seen:
        seen |= names
        around = [(calling, _loop(calling, loop)) for calling, loop, _parents in loops if _calls(loop, names)]
        around = [(calling, loop) for calling, loop in around if loop != nest.batch_loop]
        if around:
            return [msgspec.structs.replace(nest, epoch_loop=loop) for calling, loop in around if calling is around[0][0]]
        names = updates.with_aliases({reference for other in scopes if other.calls & names for reference in other.references})
    return [nest]


def _calls(loop: AnyLoop, names: Collection[str]) -> bool:
    """Return True if the body of a loop, outside inner loops, calls one of the functions.

    A call in the header of a `for` does not count: it runs once, and a generator made there trains between two turns of
    the loop.
    """
    inner = inner_nodes(loop)
    if isinstance(loop, ast.For | ast.AsyncFor):
        inner |= {id(node) for node in ast.walk(loop.iter)}
    calls = (node for node in own_nodes(loop) if isinstance(node, ast.Call) and id(node) not in inner)
    return any(not invoked_by(call).isdisjoint(names) for call in calls)


# Loops inside libraries.


def library_nests(imported: Collection[str], backend: str) -> tuple[Nest, ...]:
    """Return the nests of libraries among these top-level modules that run the training loop for a program.

    `backend`: the module that Keras computes with in this program.
    """
    known = [each for each in LIBRARY_TRAININGS if each.package.partition(".")[0] in imported and each.backend in ("", backend)]
    return tuple(nest for each in known for nest in _nests(each))


def _nests(training: LibraryTraining) -> Iterator[Nest]:
    top, _, inside = training.package.partition(".")
    spec = importlib.util.find_spec(top)
    for place in (spec.submodule_search_locations if spec is not None else None) or ():
        folder = Path(place, *inside.split("."))
        (file, batches), around = training.batches, training.epochs
        path = folder / file
        loops = _library_loops(path, batches, training.update)
        epoch_file, outer = path, loops[:0]
        if around == training.batches:
            outer, loops = loops[:1], loops[1:]
        elif around is not None:
            epoch_file = folder / around[0]
            outer = _library_loops(epoch_file, around[1], batches.rpartition(".")[2])
        if loops and (outer or around is None):
            epoch = (str(epoch_file), outer[0]) if outer else None
            update = _call(loops[0], training.update)
            yield observed_nest(str(path), parse(path.read_bytes()), loops[0], epoch, update)


def _library_loops(file: Path, function: str, called: str) -> list[AnyLoop]:
    """Return the loops of a function around a call, outermost first; if a method makes the call, the only loop."""
    try:
        node: ast.AST | None = parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):  # another version of the library: the run will show its loops
        return []
    for name in function.split("."):
        kinds = ast.ClassDef | ast.FunctionDef
        node = next((each for each in getattr(node, "body", ()) if isinstance(each, kinds) and each.name == name), None)
    if node is None:
        return []
    loops = [each for each in ast.walk(node) if isinstance(each, AnyLoop)]
    return [each for each in loops if _call(each, called) is not None] or (loops if len(loops) == 1 else [])


def _call(loop: AnyLoop, called: str) -> ast.Call | None:
    calls = (each for each in ast.walk(loop) if isinstance(each, ast.Call))
    return next((each for each in calls if called_name(each) == called), None)
