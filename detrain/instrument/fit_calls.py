"""Descriptions of calls of Keras's `fit`: their data, their length, and how detrain resumes inside them.

`fit` has probes of its own (in `keras.fit`), so no run depends on this module: its texts are for people.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from typing import Final

from detrain.base.framework_names import FRAMEWORKS, TENSORFLOW
from detrain.base.source_files import imported_in
from detrain.base.structure import FitCall
from detrain.instrument.syntax import called_name

_FIT: Final = frozenset({"fit", "fit_generator"})
_IN_ORDER: Final = ("x", "y", "batch_size", "epochs", "verbose", "callbacks", "validation_split", "validation_data", "shuffle")
"""The parameters of `Model.fit` that programs sometimes give by position."""
_TOLD: Final = (
    "x", "y", "epochs", "initial_epoch", "batch_size", "steps_per_epoch",
    "validation_data", "validation_split", "validation_freq", "callbacks", "shuffle",
)  # fmt: skip
"""The parameters that matter to a reader, in the order in which they are shown."""
_LONGEST: Final = 60


def has_keras(trees: Collection[ast.Module]) -> bool:
    """Return whether a call of `fit` in these sources may be Keras's: they import it, or no framework at all, so that a
    library may import it. Beside PyTorch or JAX alone, a `fit` is another library's, such as a scaler's.
    """
    imported = imported_in(trees)
    frameworks = {each.imported for each in FRAMEWORKS}
    return not imported.isdisjoint(TENSORFLOW.modules) or imported.isdisjoint(frameworks)


def fits_in(file: str, tree: ast.Module) -> Iterator[FitCall]:
    """Yield the calls of a method `fit` in a file. Only a run shows whether it is Keras's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called_name(node) in _FIT and isinstance(node.func, ast.Attribute):
            yield described(file, node)


def described(file: str, call: ast.Call) -> FitCall:
    """Return the description of a call of `fit` by its source."""
    given = dict(zip(_IN_ORDER, [None if isinstance(each, ast.Starred) else each for each in call.args], strict=False))
    given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    told = {name: _short(value) for name in _TOLD if (value := given.get(name)) is not None and not _is_none(value)}
    rest = [_short(keyword.value) for keyword in call.keywords if keyword.arg is None]
    if rest:
        told["more"] = "**" + ", **".join(rest)
    return FitCall(file, call.lineno, _short(call.func), told)


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _short(value: ast.expr) -> str:
    text = " ".join(ast.unparse(value).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def summary(fit: FitCall) -> str:
    """Return, as text, a call's epochs, batches and loader if a run has shown them, else its arguments."""
    if fit.epochs is None:
        told = [f"{name}={text}" for name, text in fit.arguments.items() if name in ("x", "epochs", "steps_per_epoch")]
        return f"{fit.function}({', '.join(told)}), not seen to train"
    epochs = f"{fit.epochs} epoch{'s' * (fit.epochs != 1)}"
    batches = "batches" if fit.batches is None else f"{fit.batches} batch{'es' * (fit.batches != 1)}"
    return f"{epochs} of {batches}" + (f", from {fit.loader}" if fit.loader else "")


def way_back(fit: FitCall) -> str:
    """Return, in words, how a run that was killed in this `fit` is resumed."""
    if fit.loader == "a generator":
        passed = "the generator is pulled again as often as it had been, and what it yields is not trained on"
    else:
        passed = "epochs before the checkpoint are passed over, in its own the loader is set to its position, or fetched from again"
    return f"{passed}; then weights, optimizer, callbacks and random streams are set"
