"""The functions of a program: how it refers to each, what each calls, and which are compiled into graphs."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from detrain.instrument.syntax import (
    RUN,
    Function,
    arguments_of,
    called_name,
    counting_names,
    invoked_by,
    own_nodes,
    reference_of,
    trained_names,
)

_COMPILED: Final = ("function",)


@dataclass(frozen=True, slots=True)
class Scope:
    """A function, or a module's top level, with what is known of it."""

    file: str
    node: Function
    qualname: str
    references: frozenset[str]
    """How the program refers to it: `name`, and `.name` behind an object or a module."""
    is_compiled: bool
    calls: frozenset[str]
    counting: frozenset[str]
    trained: frozenset[str]
    """Names of the file that stand for ranges."""


def without_keras_steps(scopes: list[Scope]) -> list[Scope]:
    """Take methods called `train_step` that the program itself never calls for compiled:

    `fit` calls them in a graph.
    """
    called = {name for scope in scopes for name in scope.calls}
    return [
        replace(scope, is_compiled=True)
        if scope.references == frozenset({".train_step"}) and ".train_step" not in called
        else scope
        for scope in scopes
    ]


def methods_in(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the methods of the classes in a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from (child for child in node.body if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))


def scopes_in(file: str, tree: ast.Module, methods: Collection[str], wrapped: Collection[str]) -> Iterator[Scope]:
    """Yield the top level of a file, and its functions.

    `methods`, `wrapped`: names of methods, references compiled by calls.
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
    """Return the references that may mean a function: also `module.name`, where no method has that name."""
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


def aliases_in(trees: Iterable[ast.Module], methods: Collection[str]) -> list[tuple[frozenset[str], set[str]]]:
    """Return what is assigned from functions, and the functions: `step = tf.function(train_step)`."""
    found = []
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                name = reference_of(target)
                names = frozenset({name}) if name.startswith(".") else _references_to(name, methods)
                if name:
                    found.append((names, _passed_on(node.value)))
    return found


def _passed_on(value: ast.expr) -> set[str]:
    """Return what an expression may be a function made from. The result of a call that runs one is no function."""
    if isinstance(value, ast.IfExp):
        return _passed_on(value.body) | _passed_on(value.orelse)
    if isinstance(value, ast.Call):
        arguments = [] if called_name(value) in RUN else arguments_of(value)
        return {reference for argument in arguments for reference in _passed_on(argument)}
    return {reference_of(value)}
