"""The search for updates of weights: calls that change weights, and functions of the program that make such calls."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from detrain.base.framework_names import JAX
from detrain.base.source_files import imported_in
from detrain.base.structure import AnyLoop, bound_names
from detrain.instrument.syntax import (
    Inner,
    Makers,
    Scope,
    aliases_in,
    arguments_of,
    called_name,
    invoked_by,
    is_over_gradients,
    made_by,
    makers_in,
    own_nodes,
    read_names,
    reference_of,
)

_UPDATES: Final = frozenset({"apply_gradients", "apply_updates", "train_on_batch", "minimize", "train_step_on_batch"})
_BY_GRADIENT: Final = frozenset({"GradientTape", "gradient", "gradients", "fit", "fit_generator", "compile"})
"""Calls of programs that train by gradients, themselves or through Keras."""
_SETTERS: Final = frozenset({"assign", "assign_add", "assign_sub", "set_weights"})
_OPTIMIZER_WORDS: Final = ("opt", "optim")
_STEPPERS_OF_JAX: Final = (*_OPTIMIZER_WORDS, "svi")
"""Parts of names of optimizers in JAX programs; `svi` is the usual name for numpyro's variational inference."""
_SCALER_WORDS: Final = ("scaler",)
_NO_OPTIMIZER: Final = ("sched", "lr_")
"""Parts of names of schedules of learning rates, which have a `step`, too."""
_TAKING: Final = frozenset({"grad", "value_and_grad", "filter_grad", "filter_value_and_grad", "vjp"})
"""JAX's functions that take gradients, or make functions that do."""
_OF_KERAS: Final = frozenset({"epochs", "batch_size", "verbose", "callbacks", "validation_data", "steps_per_epoch"})


@dataclass(frozen=True, slots=True)
class UpdateCalls:
    """The updates of weights: calls that change weights, and references to functions of the program that make such
    calls.
    """

    direct: set[int]
    """The `id` of each such call."""
    references: set[str]
    makers: Makers
    """The program's functions that make functions."""
    aliases: list[tuple[frozenset[str], set[str]]]
    """Names assigned from functions, and these functions."""

    def calls(self, nodes: Iterable[ast.AST]) -> Iterator[ast.Call]:
        """Yield the calls that update, in the order of the source."""
        for root in nodes:
            for node in [root, *own_nodes(root)]:
                if isinstance(node, ast.Call) and (id(node) in self.direct or self._run_by(node) & self.references):
                    yield node

    def _run_by(self, call: ast.Call) -> set[str]:
        """Return the references to the functions that a call runs, also by `make_step(optimizer)(state)`."""
        return invoked_by(call) | (made_by(call.func, self.makers) if isinstance(call.func, ast.Call) else set())

    def with_aliases(self, references: Collection[str]) -> set[str]:
        """Return references to functions, with the names that the program assigns from these functions."""
        found = set(references)
        before = -1
        while before != len(found):
            before = len(found)
            found.update(*(names for names, functions in self.aliases if functions & found))
        return found

    def calls_in(self, loop: AnyLoop) -> Iterator[ast.Call]:
        """Yield the updating calls in a loop's body, without those in functions defined there: these run elsewhere."""
        yield from self.calls(statement for statement in loop.body if not isinstance(statement, Inner))


def find_updates(trees: Collection[ast.Module], scopes: list[Scope], methods: Collection[str]) -> UpdateCalls:
    """Return the updates of weights: the calls, and the functions of the program that make them, directly or through
    other functions.
    """
    of_jax = [tree for tree in trees if imported_in([tree]) & JAX.modules]
    found = _direct_updates(trees) | _steps_of_jax(of_jax)
    makers = makers_in(scopes)
    updates = UpdateCalls(
        found or _gradients_of_jax(of_jax) or _tells(of_jax) or _settings(trees), set(), makers, aliases_in(trees, methods, makers)
    )
    before = -1
    while before != len(updates.references):
        before = len(updates.references)
        for scope in scopes:
            if any(updates.calls([scope.node])):
                updates.references.update(scope.references)
        updates.references.update(updates.with_aliases(updates.references))
    return updates


def _direct_updates(trees: Iterable[ast.Module]) -> set[int]:
    nodes = [node for tree in trees for node in ast.walk(tree)]
    gradients = {name for node in nodes for name in _gradients_bound(node)}
    taken = [node for node in nodes if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("optim")]
    classes = {alias.asname or alias.name for node in taken for alias in node.names}
    optimizers = {name for node in nodes if isinstance(node, ast.Assign) for name in _optimizers_bound(node, classes)}
    return {id(node) for node in nodes if isinstance(node, ast.Call) and _is_direct_update(node, gradients, optimizers)}


def _optimizers_bound(node: ast.Assign, classes: Collection[str]) -> Iterator[str]:
    """Yield the references (`name`, `.attribute`) that an assignment binds to new optimizers: instances of the given
    classes, or of a class written with its module, `torch.optim.SGD`.
    """
    for target in node.targets:
        pairs = [(target, node.value)]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = list(zip(target.elts, node.value.elts, strict=False))
        for bound, value in pairs:
            text = ast.unparse(value.func) if isinstance(value, ast.Call) else ""
            is_got = text.startswith("getattr(") and "optim," in text
            if is_got or text in classes or text.rpartition(".")[0].endswith("optim"):
                yield reference_of(bound)


def _steps_of_jax(trees: Iterable[ast.Module]) -> set[int]:
    """Return the calls `optimizer.update(...)` with two arguments or more: `update` of a dict takes only one."""
    nodes = (node for tree in trees for node in ast.walk(tree))
    return {id(node) for node in nodes if isinstance(node, ast.Call) and _is_step_of_jax(node)}


def _is_step_of_jax(call: ast.Call) -> bool:
    if (
        called_name(call) not in ("update", "stable_update")
        or not isinstance(call.func, ast.Attribute)
        or len(arguments_of(call)) < 2
    ):
        return False
    text = ast.unparse(call.func.value).lower()
    return any(word in text for word in _STEPPERS_OF_JAX) or text in ("tx", "self.tx")


def _gradients_of_jax(trees: Iterable[ast.Module]) -> set[int]:
    """Return the calls that take gradients, for a program that has no optimizer and updates its weights by hand: calls
    of the function that `jax.grad(loss)` makes, directly or by a name.
    """
    nodes = [node for tree in trees for node in ast.walk(tree)]
    assigned = [node for node in nodes if isinstance(node, ast.Assign) and _makes_gradients(node.value)]
    names = {reference_of(target) for node in assigned for target in node.targets} - {""}
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    taken = [call for call in calls if isinstance(call.func, ast.Call) and called_name(call.func) in _TAKING]
    taken += [call for call in calls if called_name(call) == "vjp" or reference_of(call.func) in names]
    return set(map(id, taken))


def _makes_gradients(value: ast.expr) -> bool:
    """Return True if an expression makes a function that computes gradients: `jax.jit(jax.value_and_grad(loss))`."""
    if not isinstance(value, ast.Call):
        return False
    return called_name(value) in _TAKING - {"vjp"} or any(_makes_gradients(argument) for argument in value.args)


def _tells(trees: Iterable[ast.Module]) -> set[int]:
    """Return the calls that tell a search without gradients how good its candidates are: `tell` of an object that the
    program also asks for candidates, as in evosax and evojax.
    """
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    asked = {_owner_of(call) for call in calls if called_name(call) == "ask"} - {""}
    return {id(call) for call in calls if called_name(call) == "tell" and _owner_of(call) in asked}


def _owner_of(call: ast.Call) -> str:
    return reference_of(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def _settings(trees: Iterable[ast.Module]) -> set[int]:
    """Return the calls that set weights, for a program that takes no gradients: k-means, an evolution strategy.

    Calls on objects that a loop around them goes over or looks up are left out: they restore saved weights, one layer
    after another.
    """
    nodes = [node for tree in trees for node in ast.walk(tree)]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    if any(called_name(call) in _BY_GRADIENT for call in calls):
        return set()
    loops = [node for node in nodes if isinstance(node, ast.For)]
    restoring = {
        id(node)
        for loop in loops
        for node in ast.walk(loop)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_of(loop, node.func.value)
    }
    return {id(call) for call in calls if called_name(call) in _SETTERS and isinstance(call.func, ast.Attribute)} - restoring


def _is_of(loop: ast.For, value: ast.expr) -> bool:
    """Return True if a loop, by its target or in its body, binds the name from which a value is taken."""
    return not read_names(value, with_index=False).isdisjoint(bound_names([loop]))


def _gradients_bound(node: ast.AST) -> tuple[str, ...]:
    if isinstance(node, ast.Assign):
        calls = (n for n in ast.walk(node.value) if isinstance(n, ast.Call))
        return bound_names(node.targets) if any(called_name(call) == "gradient" for call in calls) else ()
    return bound_names([node.target]) if isinstance(node, ast.For) and is_over_gradients(node) else ()


def _is_direct_update(call: ast.Call, gradients: set[str], optimizers: set[str]) -> bool:
    name = called_name(call)
    if name in _UPDATES or _is_fit_as_step(call):
        return True
    if not isinstance(call.func, ast.Attribute):
        return False
    if name == "assign_sub":  # gradient descent by hand
        return any(read_names(argument) & gradients for argument in call.args)
    if name == "step" and not isinstance(call.func.value, ast.Constant):
        text = ast.unparse(call.func.value).lower()
        is_so_called = any(word in text for word in (*_OPTIMIZER_WORDS, *_SCALER_WORDS))
        return (is_so_called or reference_of(call.func.value) in optimizers) and not any(word in text for word in _NO_OPTIMIZER)
    return name == "apply" and any(word in ast.unparse(call.func.value).lower() for word in _OPTIMIZER_WORDS)


def _is_fit_as_step(call: ast.Call) -> bool:
    """Return True if a call of Keras's `fit` trains for one epoch: in a loop, such a call is a step, not a training.

    An argument that only Keras's `fit` has distinguishes it from the `fit` of a scaler or a classifier.
    """
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    epochs = given.get("epochs", ast.Constant(1))
    is_one = isinstance(epochs, ast.Constant) and epochs.value == 1
    return called_name(call) == "fit" and isinstance(call.func, ast.Attribute) and is_one and not _OF_KERAS.isdisjoint(given)
