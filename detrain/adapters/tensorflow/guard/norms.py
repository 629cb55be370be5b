"""The norms that the guard looks at, of variables and, if asked for, of gradients, and the small compiled functions
that compute them: which variables of TensorFlow and Keras hold the training's history, and which bounds theory gives
for their size (docs/explanation/guard.md).

Watched are weights, slots of optimizers, and moving statistics of layers. They are recognized by their holders, so that
only the names of moving statistics must be known; slots that a program makes by hand are recognized by their shapes.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import atomic_function
from tensorflow.python.framework import func_graph, ops
from tensorflow.python.ops import gen_resource_variable_ops

from detrain.adapters.api import ROUNDING, Watched, adam_constant, bounded
from detrain.adapters.stable_names import Births
from detrain.adapters.tensorflow.faults.graph_owners import replica_of
from detrain.adapters.tensorflow.guard.step_norms import Inside
from detrain.adapters.tensorflow.values.tensors import components_of, has_value, hidden_variable
from detrain.base.digest import Array
from detrain.base.in_place import in_place_of

_LOOKED_AT_AGAIN: Final = (5, 7, 11)
"""The looks at which watched variables are chosen anew: by then slots made by hand have values, and sums of gradients
some values below zero."""

_EXECUTOR: Final = "SINGLE_THREADED_EXECUTOR"
"""The executor for functions of many small ops: handing each to another thread takes longer than running it."""
_numbers: Final = itertools.count()

_MOVING: Final = {"moving_mean": 1, "moving_variance": 2}
_SQUARES: Final = ("velocit", "accumul", "_r", "_c", "_v", "rms")
"""Parts of the names of slots that hold squares of gradients."""
_NO_SQUARES: Final = ("_accumulated_gradients", "_model_variables_moving_average")
"""Slots that any of Keras's optimizers may have: sums of gradients, averages of weights."""
_ADAM_LIKE: Final = ("Adam", "AdamW", "Nadam", "Lamb")
"""Keras's optimizers whose `_momentums` and `_velocities` are means of the gradient and of its square."""


def find_watched(
    variables: Mapping[str, Any],
    births: Births,
    is_mask: Callable[[str, Any], bool],
    has_sign: Callable[[str, Any], bool] = lambda _key, _variable: False,
) -> list[Watched]:
    """Return the variables to watch among the living ones, by their keys.

    `is_mask` tells whether a weight, or a possible slot, is infinite by intent; `has_sign` whether it has had values
    below zero, and so holds no squares.
    """
    keys = {id(variable.handle): key for key, variable in variables.items()}
    found: dict[str, Watched] = {}
    scalars: set[str] = set()
    """Weights without axes that an optimizer trains: other variables without axes are rates and counts."""
    for owner, optimizer in _optimizers(births):
        for attribute, slots in _slots(optimizer):
            group, power = f"{owner} {attribute}", _power(optimizer, attribute)
            for component in (part for slot in slots for part in components_of(slot)):
                key = keys.get(id(component.handle))
                if key is not None:
                    found[key] = Watched(key, group, power, _limit(optimizer, attribute, power, component))
        _pair(optimizer, keys, found)
        trained = (part for weight in getattr(optimizer, "_trainable_variables", ()) for part in components_of(weight))
        scalars |= {key for part in trained if not part.shape.rank and (key := keys.get(id(part.handle))) is not None}
    shapes = {tuple(variable.shape) for variable in variables.values() if variable.trainable}
    for key, variable in variables.items():
        label = key.rpartition("/")[2].partition(".")[0]
        if key in found or not variable.dtype.is_floating or not (variable.shape.rank or key in scalars):
            continue
        if label in _MOVING:
            found[key] = Watched(key, label, _MOVING[label])
        elif not variable.trainable and (tuple(variable.shape) not in shapes or _is_of_metric(key, births)):
            continue
        elif not is_mask(key, variable) and variable.trainable:
            found[key] = Watched(key, "weights", 1)
        elif not is_mask(key, variable):
            found[key] = Watched(key, "sums made by hand", 1) if has_sign(key, variable) else Watched(key, "slots made by hand", 2)
    return list(found.values())


def _optimizers(births: Births) -> Iterator[tuple[str, Any]]:
    keras: Any = sys.modules.get("keras")  # detrain must not import it where the program does not
    if keras is not None:
        yield from births.living(keras.optimizers.Optimizer)


def _is_of_metric(key: str, births: Births) -> bool:
    keras: Any = sys.modules.get("keras")
    return keras is not None and isinstance(births.find(key.rpartition("/")[0]), keras.metrics.Metric)


def _slots(optimizer: Any) -> Iterator[tuple[str, list[Any]]]:
    """Yield the lists of slots of a Keras optimizer, by attribute."""
    keras: Any = sys.modules["keras"]
    for name, value in vars(optimizer).items():
        if not isinstance(value, list) or name in ("_variables", "_trainable_variables"):
            continue
        slots = [item for item in value if isinstance(item, keras.Variable)]
        if slots:
            yield name, slots


def _power(optimizer: Any, attribute: str) -> int:
    if attribute in _NO_SQUARES or type(optimizer).__name__ in ("SGD", "Lion"):
        return 1
    return 2 if any(part in attribute for part in _SQUARES) else 1


def _is_of_keras(optimizer: Any, *names: str) -> bool:
    """Return whether an optimizer is of one of these classes of Keras: a program's class may have the same name, but
    other moments.
    """
    keras: Any = sys.modules["keras"]
    return type(optimizer) in [getattr(keras.optimizers, name) for name in names]


def _clip(optimizer: Any, size: int) -> float:
    """Return the largest Euclidean norm of a gradient of so many elements that the optimizer's clipping lets pass."""
    clips = [getattr(optimizer, name, None) for name in ("clipnorm", "global_clipnorm")]
    value = getattr(optimizer, "clipvalue", None)
    norms = [float(clip) for clip in clips if clip is not None] + ([math.sqrt(size) * float(value)] if value is not None else [])
    return min(norms, default=math.inf)


def _limit(optimizer: Any, attribute: str, power: int, variable: Any) -> float:
    """Return clipping's bound on the norm of a mean of gradients, or of their squares; infinity if there is none."""
    if not _is_of_keras(optimizer, *_ADAM_LIKE, "RMSprop") or attribute not in ("_momentums", "_velocities"):
        return math.inf
    if _is_of_keras(optimizer, "RMSprop") and attribute == "_momentums":
        return math.inf
    # The norm of the squares is at most the square of the norm.
    return ROUNDING * float(_clip(optimizer, int(variable.shape.num_elements() or 1)) ** power)


def _pair(optimizer: Any, keys: Mapping[int, str], found: dict[str, Watched]) -> None:
    """Bound each first moment of Adam by its second one: |m| <= C sqrt(v), by element (docs/explanation/guard.md)."""
    if not _is_of_keras(optimizer, *_ADAM_LIKE):
        return
    constant = adam_constant(float(optimizer.beta_1), float(optimizer.beta_2))
    if not math.isfinite(constant):
        return
    for m, v in zip(getattr(optimizer, "_momentums", ()), getattr(optimizer, "_velocities", ()), strict=False):
        for one, other in zip(components_of(m), components_of(v), strict=False):
            key, partner = keys.get(id(one.handle)), keys.get(id(other.handle))
            if key in found and partner in found:
                found[key] = bounded(found[key], partner, constant, int(one.shape.num_elements() or 1))


class TensorFlowNorms:
    """See `detrain.adapters.api.Norms`."""

    reads_ranks = False

    def __init__(self, births: Births, alive: Callable[[], dict[str, Any]]) -> None:
        self._births, self._alive = births, alive
        self.inside = Inside(half_of_squares)
        self._generation = 0
        """A number that goes up with each variable that is made or dropped."""
        self._watched: tuple[int, list[Watched], CompiledNorms] | None = None
        self._norms: Array | None = None
        """The norms of the watched variables at the last look; None if the watched variables have changed since."""
        self._masks: dict[str, bool] = {}
        """True for each variable that was infinite by intent when it was first looked at."""
        self._signed: set[str] = set()
        self._looks = 0
        self._gradients: Gradients | None = None
        self._has_keras = False
        self._together: tuple[object, list[Watched]] = (None, [])
        """The watched variables of the last look, and these with the watched gradients after them."""

    def on_change(self, _reference: object = None) -> None:
        """Note that a variable has been made or dropped."""
        self._generation += 1

    @property
    def has_gradients(self) -> bool:
        """True if norms of gradients are put into traces."""
        return self._gradients is not None

    def watch_gradients(self) -> None:
        """Have the norms of gradients watched, too."""
        self._gradients = Gradients(self._births)
        if self._has_keras:
            self._gradients.on_keras()

    def on_keras(self) -> None:
        """Note that Keras has been imported, whose optimizers take the gradients."""
        self._has_keras = True
        if self._gradients is not None:
            self._gradients.on_keras()

    def norms(self) -> tuple[Sequence[Watched], Array]:
        """Return the variables and gradients watched for hardware faults, and their Euclidean norms [variable]."""
        watched, found = self._of_variables()
        if self._gradients is None or not self._gradients.watched:
            return watched, found
        before, together = self._together
        if before is not watched or len(together) != len(watched) + len(self._gradients.watched):
            self._together = watched, [*watched, *self._gradients.watched]
        return self._together[1], np.concatenate([found, self._gradients.norms()])

    def _of_variables(self) -> tuple[Sequence[Watched], Array]:
        """Return the watched variables and their norms [variable], from where steps have ended, or by one function call
        a device.
        """
        self._looks += 1
        if self._watched is None or self._watched[0] != self._generation or self._looks in _LOOKED_AT_AGAIN:
            alive = {key: variable for key, variable in self._alive().items() if has_value(variable)}
            watched = {each.key: each for each in find_watched(alive, self._births, self._is_mask, self._has_sign)}
            before = self._watched if self._watched is not None and self._watched[0] == self._generation else None
            if before is None or watched != {each.key: each for each in before[1]}:
                compiled = CompiledNorms({key: alive[key] for key in watched}, sums_of_squares)
                self._watched, self._norms = (self._generation, [watched[key] for key in compiled.keys], compiled), None
                self.inside.watch({key: alive[key] for key in compiled.keys})
        assert self._watched is not None
        known = self._norms if self.inside.is_complete else None
        found = self.inside.take()
        if known is None:
            self._norms = norms(self._watched[2]())
        elif len(found) == 1 and found[0][0] is None:  # the usual case
            self._norms = norms([[found[0][1]]])
        elif found:
            self._norms = known.copy()
            for numbers, sums in found:
                self._norms[numbers] = norms([[sums]])
        assert self._norms is not None
        return self._watched[1], self._norms

    def value(self, key: str) -> Array | None:
        """Return the value of a living variable; None for any other key."""
        variable = self._alive().get(key)
        return None if variable is None else np.asarray(variable.numpy())

    def _is_mask(self, key: str, variable: Any) -> bool:
        """Return whether a variable had infinities, but no NaN (nobody intends that), when it was first looked at.

        A weight made after the very first look is never a mask: a faulty step may have made its values infinite.
        """
        if self._watched is not None and variable.trainable:
            return self._masks.get(key, False)
        if key not in self._masks:
            values = variable.numpy()
            self._masks[key] = bool(np.isinf(values).any() and not np.isnan(values).any())
        return self._masks[key]

    def _has_sign(self, key: str, variable: Any) -> bool:
        """Return whether a look has ever found a value below zero in a variable."""
        if key not in self._signed and (variable.numpy() < 0).any():
            self._signed.add(key)
        return key in self._signed


class Gradients:
    """Half the sum of squares of all gradients, noted for each of Keras's optimizers and each replica within the step:
    one small sum in its graph.

    The guard puts nothing else into a program's graph, and this only if it is asked for.
    """

    def __init__(self, births: Births) -> None:
        self._births = births
        self._sums: dict[str, Any] = {}
        self.watched: list[Watched] = []

    def on_keras(self) -> None:
        """Watch the optimizers of Keras, which has been imported."""
        import keras

        original = keras.optimizers.Optimizer.apply

        @in_place_of(keras.optimizers.Optimizer, "apply")
        def apply(optimizer: Any, grads: Any, *args: Any, **kwargs: Any) -> Any:
            # Scaled gradients may overflow, and Keras skips such a step; the optimizer inside gets unscaled ones.
            if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
                self._note(optimizer, grads)
            return original(optimizer, grads, *args, **kwargs)

    def _note(self, optimizer: Any, grads: Sequence[Any]) -> None:
        owner = next((key for key, each in self._births.living(type(optimizer)) if each is optimizer), type(optimizer).__name__)
        replica = replica_of(ops.get_default_graph())
        key = f"gradients for {owner}" + (f", replica {replica}" if replica else "")
        dense = [gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient for gradient in grads]
        parts = [tf.cast(tf.nn.l2_loss(wide(part)), tf.float32) for part in dense if part is not None and part.dtype.is_floating]
        if not parts:
            return
        if key not in self._sums:
            self._sums[key] = hidden_variable(0.0, tf.float32)
            self.watched = [*self.watched, Watched(key, f"gradients for {owner}", 1)]
        self._sums[key].assign(tf.add_n(parts), read_value=False)

    def norms(self) -> Array:
        """Return the norms [optimizer and replica] of the gradients of the last update."""
        return norms([[tf.stack([variable.read_value() for variable in self._sums.values()])]]) if self._sums else np.zeros(0)


class CompiledNorms:
    """A function over variables, one call a device. `make` takes a device's variables and returns a list of tensors."""

    def __init__(self, variables: Mapping[str, Any], make: Callable[[list[Any]], list[Any]]) -> None:
        by_device: dict[str, dict[str, Any]] = {}
        for key, variable in variables.items():
            by_device.setdefault(variable.handle.device, {})[key] = variable
        self.keys = [key for group in by_device.values() for key in group]
        self._calls: list[tuple[str, tuple[Any, list[Any], int]]] = []
        for device, group in by_device.items():
            self._calls.append((device, _compiled(device, list(group.values()), make)))

    def __call__(self) -> list[list[Any]]:
        """Return the tensors of each device."""
        runtime = context.context()
        # With several devices the single thread of that executor would wait for itself.
        with context.function_executor_type(_EXECUTOR if len(self._calls) == 1 else None):
            found = []
            for device, (function, captures, count) in self._calls:
                with tf.device(device):
                    found.append(runtime.call_function(function.name, captures, count))
            return found


def _compiled(device: str, variables: list[Any], make: Callable[[list[Any]], list[Any]]) -> tuple[Any, list[Any], int]:
    def body() -> list[Any]:
        with tf.device(device):
            return make(variables)

    with tf.init_scope():
        graph = func_graph.func_graph_from_py_func("detrain_own", body, (), {})
        function = atomic_function.from_func_graph(f"__detrain_{next(_numbers)}", graph, {})
        return function, [outer for outer, _inner in graph.captures], len(graph.outputs)


def sums_of_squares(variables: list[Any]) -> list[Any]:
    """Return a list of one tensor: half the sum of squares of each variable, NaN if the variable has a NaN."""
    return [tf.stack([half_of_squares(variable) for variable in variables])]


def half_of_squares(variable: Any) -> Any:
    """Return half the sum of the squares of a variable, or of an object with `handle` and `dtype` in its place."""
    return tf.cast(tf.nn.l2_loss(wide(gen_resource_variable_ops.read_variable_op(variable.handle, variable.dtype))), tf.float32)


def wide(value: Any) -> Any:
    """Return a tensor in a dtype in which the squares of sound values do not overflow."""
    return tf.cast(value, tf.float32) if value.dtype in (tf.float16, tf.bfloat16) else value


def norms(sums: list[list[Any]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the Euclidean norms [variable] for the sums that `sums_of_squares` returned."""
    parts = [np.asarray(tensors[0]._numpy(), np.float64) for tensors in sums]
    return np.sqrt(2.0 * (np.concatenate(parts) if len(parts) != 1 else parts[0])) if parts else np.zeros(0)
