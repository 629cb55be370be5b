"""The functions of a program that run only while a framework traces them, as far as the source shows it. Probes learn
of others as they run.
"""

from __future__ import annotations

import ast
from collections.abc import Collection
from typing import Final

from detrain.instrument.syntax import COMPILING, Function, Scope, arguments_of, called_name, own_nodes, reference_of

_TRANSFORMS: Final = frozenset(
    {
        *("jit", "filter_jit", "pmap", "filter_pmap", "vmap", "filter_vmap", "shard_map", "eval_shape", "make_jaxpr"),
        *("grad", "value_and_grad", "filter_grad", "filter_value_and_grad", "vjp", "jvp", "linearize", "hessian"),
        *("scan", "fori_loop", "while_loop", "cond", "switch", "checkpoint", "remat"),
    }
)
"""Functions of JAX, of its libraries and of PyTorch that trace or transform functions given to them."""


def traced(scopes: list[Scope]) -> set[int]:
    """Return the functions, by identity, that run only while JAX traces them: those that a decorator compiles, those
    that are named only where they are handed to JAX, those inside of one, and those that only such functions name.
    """
    handings = {id(scope): _Handed(scope.node) for scope in scopes}
    handed = set[str]().union(*(each.functions for each in handings.values()))
    bound_again = set[str]().union(*(each.bound_again for each in handings.values()))
    named = {id(scope): _references(scope.node, handings[id(scope)].nodes) for scope in scopes}
    made = _made_for(scopes, set[str]().union(*(each.makers for each in handings.values())), named)
    found = {id(scope) for scope in scopes if any(map(_compiles, getattr(scope.node, "decorator_list", ())))} | made
    found |= {id(scope) for scope in scopes if scope.references & bound_again}
    while True:
        inside = [f"{scope.file}:{scope.qualname}." for scope in scopes if id(scope) in found]
        more = set[int]()
        for scope in (scope for scope in scopes if id(scope) not in found):
            users = [id(each) for each in scopes if each is not scope and named[id(each)] & scope.references]
            is_used = users or scope.references & handed
            if f"{scope.file}:{scope.qualname}".startswith(tuple(inside)) or (is_used and found.issuperset(users)):
                more.add(id(scope))
        if not more:
            return found
        found |= more


class _Handed:
    """The functions that the code of a scope hands to JAX: `jax.jit(step)`, `jax.vmap(partial(step, 3))`."""

    def __init__(self, scope: Function) -> None:
        self.functions: set[str] = set()
        """References to them, and to those that a lambda calls in their place."""
        self.makers: set[str] = set()
        """References to the functions that make them: `jax.jit(make_step(config))`."""
        self.bound_again: set[str] = set()
        """References that mean the compiled function from there on: `step = jax.jit(step)`."""
        self.nodes: set[int] = set()
        """The `id` of each node of these expressions."""
        for node in own_nodes(scope):
            if isinstance(node, ast.Call) and _transforms(node):
                for argument in arguments_of(node):
                    self._take(argument)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _transforms(node.value):
                given = {reference_of(argument) for argument in arguments_of(node.value)}
                self.bound_again |= given & {reference_of(target) for target in node.targets} - {""}

    def _take(self, argument: ast.expr) -> None:
        while isinstance(argument, ast.Call) and called_name(argument) == "partial" and argument.args:
            argument = argument.args[0]
        inside = ast.walk(argument) if isinstance(argument, ast.Lambda) else [argument]
        self.functions |= {reference_of(node) for node in inside} - {""}
        if isinstance(argument, ast.Call) and not _transforms(argument):
            self.makers |= {reference_of(argument.func)} - {""}
            argument = argument.func
        self.nodes |= {id(node) for node in ast.walk(argument)}


def _transforms(call: ast.Call) -> bool:
    """Return True for a call that hands functions to JAX: `jax.jit(step)`, `partial(jax.jit, …)(step)`."""
    function = call.func
    if isinstance(function, ast.Call):
        is_decorator = called_name(function) in _TRANSFORMS and not function.args
        made = function.args[:1] if called_name(function) == "partial" else []
        return is_decorator or any(reference_of(each).lstrip(".") in _TRANSFORMS for each in made)
    return called_name(call) in _TRANSFORMS


def _references(scope: Function, without: Collection[int]) -> set[str]:
    return {reference_of(node) for node in own_nodes(scope) if id(node) not in without} - {""}


def _made_for(scopes: list[Scope], makers: set[str], named: dict[int, set[str]]) -> set[int]:
    """Return the functions that JAX alone is given by the functions that make them."""
    found = set[int]()
    for maker in scopes:
        is_called = any(named[id(each)] & maker.references for each in scopes if each is not maker)
        if maker.references & makers and not is_called:
            values = [node.value for node in own_nodes(maker.node) if isinstance(node, ast.Return)]
            inside = {f"{maker.qualname}.{value.id}" for value in values if isinstance(value, ast.Name)}
            found |= {id(scope) for scope in scopes if scope.file == maker.file and scope.qualname in inside}
    return found


def _compiles(decorator: ast.expr) -> bool:
    return any(reference_of(node).lstrip(".") in COMPILING for node in ast.walk(decorator))
