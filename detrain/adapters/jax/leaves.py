"""JAX's arrays as immutable leaves of Python objects, together with keys, devices and forms of trees; and functions of
JAX's libraries that only compute (an activation, an initializer), which are found by name.

An array consists of its values and of facts that computations go by: whether its type is weak, whether it is committed
to its device, which device that is, and how its memory is laid out. `spread_arrays` has arrays over several devices.

Values that are read may be a view of the array's memory. JAX does not write into memory that NumPy still views, even if
a computation is allowed to (`donate_argnums`). But `jax.device_put` may let its result share the memory of its
argument, so values that must stay as they are have to be copied.
"""

from __future__ import annotations

import contextlib
import sys
from types import FunctionType, ModuleType
from typing import Any, Final

import jax
import numpy as np
from jax._src.array import ArrayImpl
from jax._src.random.prng import PRNGKeyArray
from jax.experimental.layout import Format, Layout
from jax.sharding import SingleDeviceSharding

from detrain.adapters.jax import jitted, settings, shardings, spread_arrays
from detrain.adapters.jax.trees import leaves_of
from detrain.adapters.jax.updates import GRADIENT_KIND, JaxUpdates
from detrain.base.digest import Array
from detrain.base.errors import FrameworkUnsupported
from detrain.python.inspect.hooks import ObjectRules, TensorLeaves
from detrain.python.inspect.names import class_name, static_name
from detrain.python.inspect.object_graph import ABSENT, Item

NAME: Final = "jax"
_KEY: Final = "jax.key"
_DELETED: Final = "jax.deleted"
_TREE: Final = "jax.tree"
_DEVICE: Final = "jax.device"
_STRUCT: Final = "jax.shape"
_PLACE: Final = 3
"""The place of the device in the form of an array."""
_TRACE: Final = "flax.trace"
_TRACES: Final = "flax.nnx.tracers:TraceState"
"""The class by which an nnx object knows the trace that it was made in; at a cut no trace is in progress."""
_OF_EARLIER: Final = 3
"""How many parts a deleted array has in checkpoints of earlier versions."""
_WIDE: Final = 8
"""JAX narrows arrays whose elements have so many bytes or more, unless `enable_x64` is on."""
_TREES: Final = type(jax.tree.structure(0))
_FUNCTION: Final = "jax.function"
_KINDS: Final = (FunctionType, type(jax.numpy.where), type(jax.nn.relu))
_COMPUTING: Final = (
    *("jax.nn", "jax.numpy", "jax.lax", "jax.random", "jax.scipy"),
    *("jax._src.nn", "jax._src.numpy", "jax._src.lax", "jax._src.random", "jax._src.scipy"),
    *("flax.linen", "flax.nnx.nn", "equinox.nn", "optax.losses"),
)
_OF_LIBRARIES: Final = ("jax", "flax", "equinox", "optax")


class JaxLeaves(TensorLeaves):
    """See `detrain.python.inspect.hooks.TensorLeaves`."""

    constant_type = ArrayImpl

    def __init__(self, updates: JaxUpdates) -> None:
        self._updates, self._functions = updates, FunctionNames()

    def to_array(self, value: object) -> Array | None:
        """Return the values of an array or of keys; None for any other object. An array over several processes gives
        the values of this process's shards.
        """
        if isinstance(value, PRNGKeyArray):
            value = value._base_array
        if not isinstance(value, ArrayImpl) or value.is_deleted():
            return None
        return spread_arrays.content(value) if spread_arrays.is_spread(value) else spread_arrays.read(value)

    def constant(self, value: object) -> Array | None:
        """Return the values of an array of one device, a view if its memory is the host's; None for any other object,
        and for an array whose memory a computation has taken.
        """
        is_one = isinstance(value, ArrayImpl) and not value.is_deleted() and not spread_arrays.is_spread(value)
        return spread_arrays.read(value) if is_one else None

    def form(self, value: object) -> list[Item] | None:
        """Return the adapter's name, whether an array's type is weak, whether the array is committed, its device, and
        its layout where that is not the device's own; None for objects of which `constant` returns None.
        """
        if not isinstance(value, ArrayImpl) or value.is_deleted() or spread_arrays.is_spread(value):
            return None
        (device,) = value.sharding.device_set
        memory = value.sharding.memory_kind
        place = settings.name_of(device) + ("" if memory in (None, device.default_memory().kind) else f" {memory}")
        return [NAME, bool(value.weak_type), bool(value._committed), place, *_layout(value, device)]

    def make_constant(self, array: Array, form: list[Item] | None = None) -> Any:
        """Return an array of these values, in memory of its own; None for another adapter's form."""
        if form is None or form[0] != NAME:
            return None
        _name, is_weak, is_committed, place, *layout = form
        name, _, memory = place.partition(" ")
        device = settings.device_named(name)
        if device is None:
            raise FrameworkUnsupported(
                f"there is no device {name!r} here, where an array of the checkpoint was", "resume where it is"
            )
        sharding = SingleDeviceSharding(device, **({"memory_kind": memory} if memory else {}))
        to: Any = Format(Layout(*layout), sharding) if layout else sharding
        with jax.enable_x64(True) if array.dtype.itemsize >= _WIDE else contextlib.nullcontext():  # else it would be narrowed
            made: Any = jax.device_put(np.array(array, copy=True, order="C"), to)
        aval = made.aval.update(weak_type=is_weak)
        return ArrayImpl(aval, made.sharding, made._arrays, committed=is_committed, _skip_checks=True)

    def _placed(self, shard: Any, device: Any) -> Any:
        """Return a copy of an array of one device, on another device of that kind."""
        form: Any = self.form(shard)
        form[_PLACE] = " ".join([settings.name_of(device), *form[_PLACE].split(" ")[1:]])
        return self.make_constant(spread_arrays.read(shard), form)

    def parts(self, value: Any) -> tuple[str, list[object]] | None:
        """Return the kind and the parts of an object that is made of arrays or compiled; None for any other object."""
        cls = type(value)
        if cls is FunctionType:
            return self._updates.parts(value) or self._functions.parts(value)
        if isinstance(value, PRNGKeyArray):
            return _KEY, [str(jax.random.key_impl(value)), spread_arrays.of_keys(value)]
        if cls is ArrayImpl:
            if not value.is_deleted():
                return spread_arrays.KIND, spread_arrays.parts(value)
            return _DELETED, spread_arrays.form(value)  # a computation has taken its memory
        if cls is _TREES:
            return _TREE, [value.unflatten(range(value.num_leaves))]
        if cls is jax.ShapeDtypeStruct and value.manual_axis_type is None and not value.is_ref:
            return _STRUCT, [list(value.shape), np.dtype(value.dtype), bool(value.weak_type), value.sharding]
        if isinstance(value, jax.Device):
            return _DEVICE, [settings.name_of(value)]
        if class_name(cls) == _TRACES and value.is_valid():
            return _TRACE, []
        return shardings.parts(value) or jitted.parts(value) or self._functions.parts(value)

    def remake(self, kind: str, parts: list[Any], current: Any) -> Any:
        """Return the object that such parts make: `current` if it is that one."""
        if kind == _KEY:
            if isinstance(current, PRNGKeyArray) and current._base_array is parts[1]:
                return current  # in this process, where keys never change
            return jax.random.wrap_key_data(parts[1], impl=parts[0])
        if kind == spread_arrays.KIND:
            return spread_arrays.remade(parts, current, self._placed)
        if kind == _DELETED:
            return _deleted(parts)
        if kind == _TREE:
            return jax.tree.structure(parts[0])
        if kind == _STRUCT:
            shape, dtype, is_weak, *sharding = parts  # checkpoints of earlier versions have no sharding
            return jax.ShapeDtypeStruct(tuple(shape), dtype, weak_type=is_weak, sharding=sharding[0] if sharding else None)
        if kind == _DEVICE:
            return settings.device_named(parts[0])
        if kind == _TRACE:
            is_one = current is not ABSENT and class_name(type(current)) == _TRACES and current.is_valid()
            return current if is_one else sys.modules["flax.nnx.tracers"].TraceState()
        if kind == GRADIENT_KIND:
            return self._updates.remake(parts, current)
        if kind == _FUNCTION:
            return find_function(parts[0])
        made = jitted.remake(kind, parts, current)
        return shardings.remake(kind, parts, current) if made is None else made


def _layout(value: Any, device: Any) -> list[Item]:
    now = value._pjrt_layout
    if now == device.client.get_default_layout(value.dtype, value.shape, device):
        return []
    found = Layout.from_pjrt_layout(now)
    tiling: Any = found.tiling
    return [list(found.major_to_minor), [list(each) for each in tiling], found.sub_byte_element_size_in_bits]


def _deleted(parts: list[Any]) -> Any:
    """Return an array that is deleted, which needs no memory."""
    if len(parts) == _OF_EARLIER:
        dtype, shape, (is_weak, is_committed, name) = parts
        sharding: Any = SingleDeviceSharding(shardings.devices_named([name], "an array")[0])
        parts = [sharding, shape, dtype, is_weak, is_committed]
    if parts[0] is None:
        return None
    empty = [jax.device_put(np.zeros(0, np.uint8), device) for device in parts[0]._addressable_device_assignment]
    gone = spread_arrays.made(parts, empty)
    gone.delete()
    return gone


class JaxRules(ObjectRules):
    """JAX has no objects whose attributes are state of the loop, and no containers around the program's values. No
    object tells that the loop made it, and an array that is spent is deleted, which can be seen. If an object of
    another library holds arrays and cannot be captured, weights are lost.
    """

    def holds_variables(self, value: Any) -> bool:
        """Return whether an object holds arrays: as leaves of a JAX tree, or as attributes."""
        own = getattr(value, "__dict__", None) or {}
        found = [*leaves_of(value), *(own.values() if isinstance(own, dict) else ())]
        return any(isinstance(each, jax.Array) and each is not value for each in found)


def _modules() -> list[tuple[str, ModuleType]]:
    found = [(name, module) for name, module in sys.modules.items() if name.startswith(_COMPUTING)]
    return sorted((name, module) for name, module in found if isinstance(module, ModuleType))


class FunctionNames:
    """The names of functions that only compute. All modules are searched once a function is met that its own name does
    not lead to.
    """

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._modules = 0

    def parts(self, value: Any) -> tuple[str, list[object]] | None:
        """Return the kind and the name of such a function; None for any other object."""
        if not isinstance(value, _KINDS) or str(getattr(value, "__module__", "")).partition(".")[0] not in _OF_LIBRARIES:
            return None
        name = static_name(value)
        if find_function(name) is value:
            return _FUNCTION, [name]
        modules = _modules()
        if len(modules) != self._modules:
            self._modules = len(modules)
            self._names = {
                id(item): f"{module}:{name}"
                for module, each in reversed(modules)
                for name, item in vars(each).items()
                if isinstance(item, _KINDS)
            }
        known = self._names.get(id(value))
        return None if known is None else (_FUNCTION, [known])


def find_function(name: str) -> object | None:
    """Return the function with a name; None if there is none, or if it may do more than compute."""
    module, _, attribute = name.partition(":")
    if not module.startswith(_COMPUTING):
        return None
    found = vars(sys.modules[module]).get(attribute) if module in sys.modules else None
    return found if isinstance(found, _KINDS) else None
