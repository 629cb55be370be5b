"""Keras's `fit`, compiled anew from its own source with calls of the probes added and all line numbers kept.

detrain knows the loops of one version of Keras. It refuses a `fit` with other loops, and never guesses.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol

import numpy as np

from detrain.base.errors import FrameworkUnsupported
from detrain.python.inspect.frames import adopt

NAME: Final = "_detrain"
"""The name of the probes in the globals of Keras's module."""
_TRAIN: Final = "train_function("
"""The call by which `fit` runs a step."""
_VALIDATING: Final = "self._eval_epoch_iterator ="
VALIDATION: Final = ("val_x", "val_y", "val_sample_weight")
"""The local names of the validation data in Keras's `fit`."""


def instrumented(function: Any) -> Any:
    """Return `fit` with probes."""
    lines, first = inspect.getsourcelines(function)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    ast.increment_lineno(tree, first - 1)
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    loops = [
        (outer, inner)
        for outer in ast.walk(definition)
        if isinstance(outer, ast.For)
        for inner in ast.walk(outer)
        if isinstance(inner, ast.For) and inner is not outer
    ]
    match loops:
        case [
            (
                ast.For(target=ast.Name(id=epoch)) as outer,
                ast.For(target=ast.Tuple(elts=[ast.Name(id=begin), _, ast.Name(id=iterator)]), iter=ast.Name(id=steps)) as inner,
            )
        ]:
            pass
        case _:
            raise FrameworkUnsupported(
                "this Keras's fit has other loops than the one detrain knows (3.15)",
                "install the Keras that TensorFlow 2.21 asks for",
            )
    epochs = ast.unparse(outer.iter)
    _replace(outer, f"{NAME}.epoch_loop({NAME}.begin({steps}, x, {epochs}))", f"{NAME}.record_epoch({epoch})")
    skip = f"if not {NAME}.record_batch({begin}):\n    {NAME}.pull({iterator})\n    continue"
    _replace(inner, f"{NAME}.fetch_loop({NAME}.steps({steps}, x))", skip)
    [step] = [index for index, each in enumerate(inner.body) if isinstance(each, ast.Assign) and _TRAIN in ast.unparse(each.value)]
    [makes] = [each for each in ast.walk(outer) if isinstance(each, ast.If) and ast.unparse(each.body[0]).startswith(_VALIDATING)]
    makes.body.append(_at(inner, f"{NAME}.validates({', '.join(VALIDATION)})"))
    for index, name in ((step + 1, "end_step"), (step, "begin_step")):
        inner.body.insert(index, _at(inner, f"{NAME}.{name}()"))
    space: dict[str, Any] = {}
    exec(compile(tree, function.__code__.co_filename, "exec"), function.__globals__, space)
    made = space[definition.name]
    made.__kwdefaults__, made.__qualname__ = function.__kwdefaults__, function.__qualname__
    adopt(made.__code__)
    return made


def _replace(loop: ast.For, iterable: str, first: str) -> None:
    """Give a loop another iterable and a first statement, at the line of its header."""
    expression = _at(loop, iterable)
    assert isinstance(expression, ast.Expr)
    loop.body.insert(0, _at(loop, first))
    loop.iter = expression.value


def _at(loop: ast.For, text: str) -> ast.stmt:
    """Return a statement at the line of a loop's header."""
    [statement] = ast.parse(text).body
    for node in ast.walk(statement):
        if isinstance(node, ast.expr | ast.stmt):
            ast.copy_location(node, loop.iter)
    return statement


class Probes(Protocol):
    """The functions that the runtime gives to an adapter for a framework's own training loop: the probes, and those for
    a load inside of the body. So the adapter need not import the runtime.
    """

    def epoch_loop(self, iterable: Iterable[Any]) -> Iterator[Any]:
        """Wrap the iterable of an epoch loop."""

    def fetch_loop(self, iterable: Iterable[Any]) -> Iterator[Any]:
        """Wrap the iterable of a batch loop whose bodies load their batches."""

    def record_epoch(self, epoch: object = None) -> None:
        """Mark the start of an epoch."""

    def record_batch(self, batch: object = None) -> bool:
        """Mark that a body starts. Returns whether it is to be executed."""

    def note_fetched(self, parts: list[np.ndarray[Any, Any]], *, is_whole: bool) -> None:
        """Take the digest of the batch that the body has loaded, or of a part of it."""

    def is_in_phase(self) -> bool:
        """Return whether a loop with probes is running."""

    def is_resuming(self) -> bool:
        """Return whether the run is on its way to a checkpoint."""

    def note_all_streams(self) -> None:
        """Have the random streams recorded at each batch of this phase: its loader can only be replayed from
        the start.
        """

    def epoch(self) -> int:
        """Return the running epoch, -1 before the first."""

    def load_again(self, epoch: int, batch: int, load: Callable[[], None]) -> None:
        """Load a batch of this phase again, with the random streams of its first load, and compare the two."""

    def begin_fetch(self) -> None:
        """Record the random streams after callbacks, as Python is about to fetch the batch."""

    def end_fetch(self) -> None:
        """Record the fetched batch, before callbacks see it."""
