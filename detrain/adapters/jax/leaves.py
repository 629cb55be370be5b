"""JAX's arrays as immutable leaves of Python objects, and what is made of them: keys, devices, forms of trees.

An array is its value, and what computations go by besides: whether its type is weak, whether it is committed to its
device, and which device that is. What is read may be a view of its memory. JAX writes into no memory that NumPy still
looks at, also where a computation is given it to write into (`donate_argnums`); but two that `jax.device_put` has been
given may be one, so what is to stay as it is has to be copied.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

import jax
import numpy as np
from jax._src.array import ArrayImpl
from jax._src.random.prng import PRNGKeyArray
from jax.sharding import SingleDeviceSharding

from detrain.adapters.jax import functions, jitted, settings
from detrain.adapters.jax.functions import FunctionNames
from detrain.adapters.jax.updates import GRADIENT_KIND, JaxUpdates
from detrain.base.digest import Array
from detrain.base.errors import FrameworkUnsupported
from detrain.python.inspect.graph import Item
from detrain.python.inspect.names import class_name
from detrain.python.inspect.object_graph import ABSENT

NAME: Final = "jax"
_KEY: Final = "jax.key"
_DELETED: Final = "jax.deleted"
_TREE: Final = "jax.tree"
_DEVICE: Final = "jax.device"
_PLACE: Final = "jax.placed"
_STRUCT: Final = "jax.shape"
_TRACE: Final = "flax.trace"
_TRACES: Final = "flax.nnx.tracers:TraceState"
"""Which trace an object of nnx was made in: at a cut none goes on."""
_TREES: Final = type(jax.tree.structure(0))


class JaxLeaves:
    """See `detrain.adapters.api.TensorLeaves`."""

    constant_type = ArrayImpl

    def __init__(self, updates: JaxUpdates, fail: Callable[[Exception], object]) -> None:
        self._updates, self._fail, self._functions = updates, fail, FunctionNames()

    def to_array(self, value: object) -> Array | None:
        """Return the value of an array or of keys; else None."""
        if isinstance(value, PRNGKeyArray):
            value = jax.random.key_data(value)
        return self.constant(value)

    def constant(self, value: object) -> Array | None:
        """Return the value of an array, a view of its memory where that is the host's; None for anything else, and for
        an array whose memory a computation has taken.
        """
        if not isinstance(value, ArrayImpl) or value.is_deleted():
            return None
        if len(value.sharding.device_set) > 1:
            self._refuse(value)
        found: Any = value._npy_value
        if found is None:  # `np.asarray` would leave a view with the array, which keeps its memory from being donated
            found, _is_copy = value._single_device_array_to_np_array_did_copy()
        return np.asarray(found)

    def form(self, value: object) -> list[Item] | None:
        """Return an array's type, whether it is weak, and the device that it is at, or committed to."""
        if not isinstance(value, ArrayImpl) or value.is_deleted():
            return None
        sharding: Any = value.sharding
        place = "" if sharding.memory_kind in (None, _default_memory(value)) else f" {sharding.memory_kind}"
        return [NAME, bool(value.weak_type), bool(value._committed), settings.name_of(next(iter(sharding.device_set))) + place]

    def make_constant(self, array: Array, form: list[Item] | None = None) -> Any:
        """Return an array, in memory that nobody else has."""
        if form is None or form[0] != NAME:
            return None
        _name, is_weak, is_committed, place = form
        name, _, memory = place.partition(" ")
        device = settings.device_named(name)
        if device is None:
            raise FrameworkUnsupported(
                f"there is no device {name!r} here, where an array of the checkpoint was", "resume where it is"
            )
        sharding = SingleDeviceSharding(device, **({"memory_kind": memory} if memory else {}))
        made: Any = jax.device_put(np.array(array, copy=True, order="C"), sharding)
        aval = made.aval.update(weak_type=is_weak)
        return ArrayImpl(aval, made.sharding, made._arrays, committed=is_committed, _skip_checks=True)

    def parts(self, value: Any) -> tuple[str, list[object]] | None:
        """Return the kind of what is made of arrays or compiled, and its parts; None for anything else."""
        cls = type(value)
        if cls is FunctionType:
            return self._updates.parts(value) or self._functions.parts(value)
        if isinstance(value, PRNGKeyArray):
            return _KEY, [str(jax.random.key_impl(value)), value._base_array]
        if cls is ArrayImpl:  # its memory is a computation's now
            return _DELETED, [np.dtype(value.dtype), list(value.shape), self._form_of_deleted(value)]
        if cls is _TREES:
            return _TREE, [value.unflatten(range(value.num_leaves))]
        if cls is jax.ShapeDtypeStruct and value.sharding is None:
            return _STRUCT, [list(value.shape), np.dtype(value.dtype), bool(value.weak_type)]
        if cls is SingleDeviceSharding:
            return _PLACE, [settings.name_of(next(iter(value.device_set))), value.memory_kind]
        if isinstance(value, jax.Device):
            return _DEVICE, [settings.name_of(value)]
        if class_name(cls) == _TRACES and value.is_valid():
            return _TRACE, []
        return jitted.parts(value) or self._functions.parts(value)

    def parts_of_new(self, _value: object) -> None:
        """JAX has no iterators."""

    def remake(self, kind: str, parts: list[Any], current: Any) -> Any:
        """Return what `parts` described."""
        if kind == _KEY:
            if isinstance(current, PRNGKeyArray) and current._base_array is parts[1]:
                return current  # in this process, where keys never change
            return jax.random.wrap_key_data(parts[1], impl=parts[0])
        if kind == _DELETED:
            gone: Any = self.make_constant(np.zeros(parts[1], parts[0]), [NAME, *parts[2]])
            gone.delete()
            return gone
        if kind == _TREE:
            return jax.tree.structure(parts[0])
        if kind == _STRUCT:
            return jax.ShapeDtypeStruct(tuple(parts[0]), parts[1], weak_type=parts[2])
        if kind == _PLACE:
            device = settings.device_named(parts[0])
            return None if device is None else SingleDeviceSharding(device, memory_kind=parts[1])
        if kind == _DEVICE:
            return settings.device_named(parts[0])
        if kind == _TRACE:
            is_one = current is not ABSENT and class_name(type(current)) == _TRACES and current.is_valid()
            return current if is_one else sys.modules["flax.nnx.tracers"].TraceState()
        if kind == GRADIENT_KIND:
            return self._updates.remake(parts, current)
        if kind == functions.KIND:
            return functions.find(parts[0])
        if kind == jitted.KIND:
            return jitted.remake(parts, current)
        return None

    def _form_of_deleted(self, value: Any) -> list[Item]:
        return [bool(value.weak_type), bool(value._committed), settings.name_of(next(iter(value.sharding.device_set)))]

    def _refuse(self, value: Any) -> None:
        self._fail(
            FrameworkUnsupported(
                f"an array of the program is spread over {len(value.sharding.device_set)} devices, which no checkpoint holds yet",
                "train on one device, or run it with --bare: deterministic settings, no checkpoints",
            )
        )


def _default_memory(value: Any) -> str | None:
    device = next(iter(value.sharding.device_set))
    found: str | None = device.default_memory().kind
    return found
