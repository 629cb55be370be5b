"""Meshes, shardings, partition specs and layouts as values: the parts of each, with devices by their names.

JAX returns the same mesh and the same spec for the same parts, so one that is made again is the object that is there.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, Final

import jax
import msgspec
import numpy as np
from jax._src import mesh as meshes
from jax._src.lib import xla_client
from jax._src.mesh import AbstractDevice
from jax._src.partition_spec import UnconstrainedSingleton
from jax._src.sharding_impls import GSPMDSharding
from jax._src.xla_bridge import backends_are_initialized
from jax.experimental.layout import Format, Layout
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from detrain.adapters.jax import settings
from detrain.base.errors import Diverged, FrameworkUnsupported


class _Kind(msgspec.Struct, frozen=True):
    name: str
    parts: Callable[[Any], list[object]]
    make: Callable[..., object]


def devices_named(names: list[str], of: str) -> list[Any]:
    """Return the devices of these names; `of`: the object over them. Raises FrameworkUnsupported if one is not here."""
    here = settings.devices_by_name(names[0]) if names else {}
    gone = [name for name in names if name not in here]
    if gone:
        raise FrameworkUnsupported(
            f"{of} of the checkpoint lies over {len(names)} devices, of which {', '.join(gone)} are not here",
            f"resume with {len(names)} devices, as it was, or start anew with --fresh",
        )
    return [here[name] for name in names]


def _mesh(shape: list[int], devices: list[str], names: list[Any], types: list[str]) -> Mesh:
    found = devices_named(devices, f"a mesh ({_axes(names, shape)})")
    return Mesh(np.array(found, object).reshape(shape), tuple(names), _types(types))


def _abstract(sizes: list[int], names: list[Any], types: list[str], device: list[Any] | None) -> AbstractMesh:
    return AbstractMesh(
        tuple(sizes), tuple(names), _types(types), abstract_device=None if device is None else AbstractDevice(*device)
    )


def _parts_of_abstract(mesh: AbstractMesh) -> list[object]:
    device: Any = mesh.abstract_device
    parts = None if device is None else [device.device_kind, device.num_cores, device.platform]
    return [[*mesh.axis_sizes], [*mesh.axis_names], [each.name for each in mesh.axis_types], parts]


def _gspmd(devices: list[str], content: bytes, memory: str | None) -> GSPMDSharding:
    proto: Any = xla_client.OpSharding()
    proto.ParseFromString(content)
    return GSPMDSharding(devices_named(devices, "a GSPMDSharding"), proto, memory_kind=memory)


def _single(device: str, memory: str | None) -> SingleDeviceSharding:
    return SingleDeviceSharding(devices_named([device], "an array")[0], memory_kind=memory)


def _listed(value: Any) -> Any:
    """Return tuples as lists: JAX makes the tuples, and which places share one is no state."""
    return [_listed(each) for each in value] if type(value) is tuple else value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if type(value) is list else value


def _types(names: list[str]) -> tuple[AxisType, ...]:
    return tuple(AxisType[name] for name in names)


def _axes(names: Any, sizes: Any) -> str:
    return ", ".join(f"{name}: {size}" for name, size in zip(names, sizes, strict=True))


def _parts_of_spec(spec: Any) -> list[object]:
    parts = [_listed(spec.partitions), sorted(spec.unreduced, key=str), sorted(spec.reduced, key=str)]
    how = getattr(spec, "unreduced_kind", None)  # of JAX 0.11 and later: their sum, or the largest or smallest of them
    return parts if how is None else [*parts, how.name]


def _spec(axes: list[Any], unreduced: list[Any], reduced: list[Any], how: str | None = None) -> PartitionSpec:
    given = {} if how is None else {"unreduced_kind": jax.sharding.UnreducedKind[how]}
    return PartitionSpec(*_tuples(axes), unreduced={*unreduced}, reduced={*reduced}, **given)


_KINDS: Final[dict[type, _Kind]] = {
    Mesh: _Kind(
        "jax.mesh",
        lambda mesh: [
            list(mesh.devices.shape),
            [settings.name_of(each) for each in mesh.devices.flat],
            [*mesh.axis_names],
            [each.name for each in mesh.axis_types],
        ],
        _mesh,
    ),
    AbstractMesh: _Kind("jax.mesh.abstract", _parts_of_abstract, _abstract),
    PartitionSpec: _Kind("jax.spec", _parts_of_spec, _spec),
    UnconstrainedSingleton: _Kind("jax.spec.unconstrained", lambda _value: [], lambda: PartitionSpec.UNCONSTRAINED),
    NamedSharding: _Kind(
        "jax.sharding",
        lambda value: [value.mesh, value.spec, value.memory_kind, _listed(value._logical_device_ids)],
        lambda mesh, spec, memory, ids: NamedSharding(mesh, spec, memory_kind=memory, _logical_device_ids=_tuples(ids)),
    ),
    GSPMDSharding: _Kind(
        "jax.sharding.gspmd",
        lambda value: [
            [settings.name_of(each) for each in value._device_assignment],
            value._hlo_sharding.to_proto().SerializeToString(),
            value.memory_kind,
        ],
        _gspmd,
    ),
    SingleDeviceSharding: _Kind(
        "jax.placed", lambda value: [settings.name_of(value._device_assignment[0]), value.memory_kind], _single
    ),
    Layout: _Kind(
        "jax.layout",
        lambda value: [_listed(value.major_to_minor), _listed(value.tiling), value.sub_byte_element_size_in_bits],
        Layout,
    ),
    type(Layout.AUTO): _Kind("jax.layout.auto", lambda _value: [], lambda: Layout.AUTO),
    Format: _Kind("jax.format", lambda value: [value.layout, value.sharding], Format),
}
_BY_NAME: Final = {kind.name: kind for kind in _KINDS.values()}


def parts(value: object) -> tuple[str, list[object]] | None:
    """Return the kind and the parts of such a value; None for any other object."""
    kind = _KINDS.get(type(value))
    return None if kind is None else (kind.name, kind.parts(value))


def remake(kind: str, inside: list[Any], current: object) -> object | None:
    """Return the value that such parts make: `current` if it is equal; None for other kinds."""
    found = _BY_NAME.get(kind)
    if found is None:
        return None
    made = found.make(*inside)
    return current if type(current) is type(made) and current == made else made


def described(mesh: Mesh) -> str:
    """Return a mesh in words, the same in each process: `data: 4, model: 2 of cpu:0-7`."""
    kinds = {each.name for each in mesh.axis_types}
    runs: list[list[int]] = []
    for number in (each.id for each in mesh.devices.flat):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    how = f" ({', '.join(each.name for each in mesh.axis_types)})" if kinds != {"Auto"} else ""
    return f"{_axes(mesh.axis_names, mesh.devices.shape)}{how} of {mesh.devices.flat[0].platform}:{shown}"


def contexts() -> list[list[Any]]:
    """Return, as data, the mesh that `jax.set_mesh` has set, then those that `with mesh:` has entered, in order."""
    entered = [each.physical_mesh for each in meshes.thread_resources.stack if not each.physical_mesh.empty]
    return [_context(each) for each in (jax.sharding.get_mesh(), *entered)]


def set_contexts(was: list[list[Any]]) -> None:
    """Set the mesh that was set. Raises Diverged if the program is inside of other `with mesh:` than the first run."""
    now = contexts()
    if was[1:] != now[1:]:
        raise Diverged(
            f"the program is inside of {len(now) - 1} `with mesh:`, where the first run was inside of {len(was) - 1}, or of others",
            "enter a mesh around the loop or in its body, or use `jax.set_mesh`",
        )
    if was[0] != now[0]:
        jax.set_mesh(_mesh(*was[0]) if was[0] else None)


def _context(mesh: Mesh) -> list[Any]:
    if mesh.empty:
        return []
    shape, devices, names, types = _KINDS[Mesh].parts(mesh)
    return [shape, devices, [*map(str, names)], types]  # type: ignore[call-overload]


def in_use() -> str:
    """Return, in words, the program's meshes of several devices, or "none"; empty where there is one device only."""
    if not backends_are_initialized() or jax.device_count() == 1:  # a program may import JAX, and not use it
        return ""
    gc.collect()
    return "; ".join(sorted({described(each) for each in gc.get_objects() if type(each) is Mesh and each.size > 1})) or "none"
