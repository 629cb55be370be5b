"""Settings of all of JAX that decide about bits: reported as environment, kept as state.

On a CPU, training repeats within a process and in another one. The number of processors that a process may use changes
sums and convolutions; only the process's own affinity sets this number. On a GPU, the launcher's
`--xla_gpu_deterministic_ops` (base/framework_names.py) makes training repeat.
"""

from __future__ import annotations

import collections
import os
import sys
from typing import Any, Final

import jax

_FLAGS: Final = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_disable_jit",
    "jax_debug_nans",
    "jax_debug_infs",
    "jax_enable_custom_prng",
    "jax_random_seed_offset",
    "jax_softmax_custom_jvp",
    "jax_high_dynamic_range_gumbel",
    "jax_allow_f16_reductions",
    "jax_disable_most_optimizations",
    "jax_default_device",
    "jax_use_shardy_partitioner",
    "jax_remove_size_one_mesh_axis_from_type",
)


def flags() -> dict[str, Any]:
    """Return the JAX flags with a value, of those that a program may set and its loop may change."""
    return {name: _written(value) for name in _FLAGS if (value := jax.config.values.get(name)) is not None}


def set_flags(was: dict[str, Any]) -> None:
    """Set the flags that `flags` returned."""
    now = flags()
    for name in _FLAGS:
        if was.get(name) != now.get(name):
            jax.config.update(name, _read(was.get(name)))


def count_of_modules() -> int:
    """Return the number of flax's newest module; flax takes two modules of one number for the same."""
    ids: Any = sys.modules.get("flax.ids")
    return 0 if ids is None else int(ids.uuid._id)


def set_count_of_modules(count: int) -> None:
    """Raise that number to `count`; modules that a resumed run made on the way to the cut have lower ones."""
    ids: Any = sys.modules.get("flax.ids")
    if ids is not None:
        ids.uuid._id = max(count, ids.uuid._id)


def environment() -> dict[str, str]:
    """Return the devices, and how many processors the process may use."""
    devices = jax.devices()
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    kinds = collections.Counter(f"{each.platform} {each.device_kind}" for each in devices)
    here = ", ".join(kind if number == 1 else f"{number} of {kind}" for kind, number in kinds.items())
    found = {"jax processors": str(count), "jax devices": here}
    version = devices[0].client.platform_version.partition("\n")[0]
    return found if devices[0].platform == "cpu" else {**found, "jax platform": version}


def device_named(name: str) -> Any:
    """Return the device with a name such as `cpu:0`; None if there is none here."""
    return devices_by_name(name).get(name)


def devices_by_name(name: str) -> dict[str, Any]:
    """Return all processes' devices of a platform, by their names; `name` is that of one device of the platform."""
    try:
        return {name_of(each): each for each in jax.devices(name.partition(":")[0])}
    except RuntimeError:  # there is no such platform
        return {}


def name_of(device: Any) -> str:
    """Return the name of a device, the same in each process."""
    return f"{device.platform}:{device.id}"


def _written(value: Any) -> Any:
    return (
        value if isinstance(value, bool | int | float | str) else ["device", name_of(value)] if hasattr(value, "platform") else None
    )


def _read(value: Any) -> Any:
    return device_named(value[1]) if isinstance(value, list) else value
