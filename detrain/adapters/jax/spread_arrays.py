"""Arrays over several devices, or over a mesh of one. Their shards are arrays of one device, and leaves like any other.

Each shard of this process is kept once. Shards at one place of the whole (replicas) are kept once if they are equal;
else each is kept, as its device has it. Nothing is gathered, and no other process is asked.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from jax._src import core
from jax._src.array import ArrayImpl
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from detrain.adapters.jax import settings
from detrain.base.digest import Array, digest_array

KIND: Final = "jax.spread"
_OF_JAX: Final = "addressable_shards"
"""The attribute that JAX itself notes on an array."""
_others: Final[dict[int, tuple[Callable[[], Any], Any]]] = {}
"""By the identity of an array: a weak reference to it, and another array object over its memory."""
_shardings: Final[dict[Any, Any]] = {}
"""One object for all equal shardings: how many objects JAX makes of them is no state."""


def is_spread(value: Any) -> bool:
    """Return whether an object is an array with another sharding than that of a single device; it may be deleted."""
    return type(value) is ArrayImpl and type(value.sharding) is not SingleDeviceSharding


def of_keys(value: Any) -> Any:
    """Return the array of numbers under keys. It has one more axis than the keys. Over several devices, its sharding
    may mention that axis or not, as earlier compilations decide; no program sees which. So it gets the keys' spec.
    """
    base = value._base_array
    if not is_spread(base) or type(base.sharding) is not NamedSharding or base.is_deleted():
        return base
    sharding = base.sharding.update(spec=value.sharding.spec)
    return _another(base, lambda: made([sharding, *form(base)[1:]], [shard for _device, shard in _shards(base)]))


def _another(value: Any, make: Callable[[], Any]) -> Any:
    """Return another array object over an array's memory: the same one each time, as long as the array lives."""
    number = id(value)
    known, other = _others.get(number, (lambda: None, None))
    if known() is not value:
        other = make()
        _others[number] = weakref.ref(value, lambda _: _others.pop(number, None)), other
    return other


def _shards(value: Any) -> list[tuple[Any, Any]]:
    """Return the devices and shards of this process, each shard as an array of a single device."""
    return [(device, _alone(each, device)) for each in value._arrays for device in each.sharding.addressable_devices]


def _alone(shard: Any, device: Any) -> Any:
    """Return a shard as an array of a single device. An array is its own shard if it was computed over a mesh of one
    device, or if JAX has put it, as replicas, on devices of which this process has one.
    """
    if not is_spread(shard):
        return shard
    if len(shard.sharding.device_set) > 1:
        return _another(shard, lambda: shard.addressable_data(0))
    sharding: Any = SingleDeviceSharding(device, memory_kind=shard.sharding.memory_kind)
    return _another(shard, lambda: made([sharding, *form(shard)[1:]], [shard]))


def content(value: Any) -> Array:
    """Return the values of an array. If other processes have parts of it, or it is still to be summed over devices,
    return the values of this process's shards [element], one behind the other.
    """
    sharding = value.sharding
    is_here = sharding.is_fully_addressable or (sharding.is_fully_replicated and value._arrays)
    if is_here and not _unreduced(sharding):
        return np.asarray(value)
    shards = [read(each).reshape(-1) for each in value._arrays]
    return np.concatenate(shards) if shards else np.zeros(0, value.dtype)


def read(value: Any) -> Array:
    """Return the values of an array of one device; a view, if its memory is the host's."""
    found: Any = value._npy_value
    if found is None:  # `np.asarray` would leave a view with the array, which keeps its memory from being donated
        found, _is_copy = value._single_device_array_to_np_array_did_copy()
    return np.asarray(found)


def parts(value: Any) -> list[object]:
    """Return the parts of such an array: its form, its shards, each shard's start in the whole (None if they are still
    to be summed), the number of each device's shard by the device's name, and its attributes.
    """
    sharding = value.sharding
    is_whole = not _unreduced(sharding)
    lies = sharding if is_whole else sharding.update(spec=PartitionSpec(*sharding.spec.partitions))  # JAX gives no places otherwise
    places = {
        device: [each.start or 0 for each in index] for device, index in lies.addressable_devices_indices_map(value.shape).items()
    }
    known: dict[tuple[Any, ...], int] = {}
    shards: list[Any] = []
    starts: list[int] = []
    numbers: dict[str, int] = {}
    are_replicas = len({tuple(each) for each in places.values()}) < len(places)
    for device, shard in _shards(value):
        start = places[device]
        key = (*start, digest_array(read(shard)) if are_replicas else "")
        if key not in known:
            known[key] = len(shards)
            shards.append(shard)
            starts += start
        numbers[settings.name_of(device)] = known[key]
    return [
        *form(value),
        shards,
        starts if is_whole else None,
        numbers,
        {name: each for name, each in vars(value).items() if name != _OF_JAX},
    ]


def _unreduced(sharding: Any) -> bool:
    return type(sharding) is NamedSharding and bool(sharding.spec.unreduced)


def form(value: Any) -> list[object]:
    """Return an array's sharding, shape, dtype, and whether its type is weak and it is committed; it may be deleted."""
    sharding = _shardings.setdefault(value.sharding, value.sharding)
    return [sharding, list(value.shape), np.dtype(value.dtype), bool(value.weak_type), bool(value._committed)]


def made(known: list[Any], shards: list[Any]) -> Any:
    """Return the array of a form and of shards, which come in the order of its sharding's devices."""
    sharding, shape, dtype, is_weak, is_committed = known
    aval = core.update_aval_with_sharding(core.ShapedArray(tuple(shape), dtype, weak_type=is_weak), sharding)
    return ArrayImpl(aval, sharding, shards, committed=is_committed, _skip_checks=True)


def remade(inside: list[Any], current: Any, placed: Any) -> Any:
    """Return the array that such parts make, None if one is missing; `current` if it has these parts. `placed(shard,
    device)` returns a copy of a shard on a device.
    """
    *known, shards, _starts, numbers, attributes = inside
    sharding = known[0]
    if sharding is None or None in shards:
        return None
    devices = sharding._addressable_device_assignment
    in_order = [shards[numbers[settings.name_of(device)]] for device in devices]
    if _is_made_of(current, known, inside):
        found = current
    else:
        found = made(known, [placed(shard, device) for shard, device in zip(in_order, devices, strict=True)])
    own = vars(found)
    for name in own.keys() - attributes.keys() - {_OF_JAX}:
        del own[name]
    own.update(attributes)
    return found


def _is_made_of(current: Any, known: list[Any], inside: list[Any]) -> bool:
    if not is_spread(current) or current.is_deleted() or form(current) != known:
        return False
    now = parts(current)
    return now[7] == inside[7] and all(one is other for one, other in zip(now[5], inside[5], strict=True))  # type: ignore[call-overload]
