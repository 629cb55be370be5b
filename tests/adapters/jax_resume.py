"""Small trainings of JAX that are cut after three steps, and resumed in the same process: the state goes through bytes
into the objects of a training that was made anew, as in a process that has reached the loop.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import equinox as eqx
import jax
import numpy as np
import optax
from jax._src import pjit
from jax._src.interpreters import partial_eval

from detrain.adapters.api import Settings
from detrain.adapters.jax.adapter import Jax
from detrain.python.process.random_streams import Streams
from tests.adapters import cut_world
from tests.adapters.cut_world import Case, cases

CASES, case = cases()


class World(cut_world.World):
    """The codec's hooks with the adapter, as a session has them. The adapter changes JAX for the whole process."""

    def __init__(self) -> None:
        self.updates: list[int] = []
        self.adapter = Jax(Settings(seed=0, threads=1, on_update=self.updates.append), Streams())
        super().__init__(self.adapter)

    def describe(self, names: Mapping[str, object], _tried: Case) -> list[str]:
        """See `cut_world.World`."""
        return describe(names)

    def rest(self) -> dict[str, Any]:
        """Return the adapter's state."""
        state: dict[str, Any] = json.loads(self.adapter.state())
        state["traces"] = {"counts": {}, "found": {}}  # functions of one name are numbered by process
        return state

    @contextmanager
    def resumed(self, rest: dict[str, Any]) -> Iterator[None]:
        """Set the adapter's state; names are put back behind it."""
        self.adapter.set_state(json.dumps(rest).encode(), {}, "auto")
        yield


@contextmanager
def jax_put_back() -> Iterator[None]:
    """Restore, at the end, the attributes of JAX that an adapter replaces."""
    owners: list[Any] = [jax, jax.lax, optax, optax._src.update, eqx, eqx._update, pjit, partial_eval]
    before = [dict(vars(owner)) for owner in owners]
    yield
    for owner, held in zip(owners, before, strict=True):
        vars(owner).update(held)


def describe(names: Mapping[str, object]) -> list[str]:
    """Return the objects that names lead to, as lines: values as JAX itself reads them, and which objects are one."""
    return list(_Description().lines(dict(names), ""))


_SHOWN = (
    *("PyTreeDef", "CpuDevice", "Device", "SingleDeviceSharding", "NamedSharding", "GSPMDSharding", "Mesh", "AbstractMesh"),
    *("PartitionSpec", "Layout", "Format", "ShapeDtypeStruct"),
)
_PLAIN = (int, float, complex, str, bytes, bool, type(None), np.dtype, range, slice)


class _Description:
    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._alive: list[object] = []

    def lines(self, value: Any, path: str) -> Iterator[str]:
        if isinstance(value, _PLAIN) or value is Ellipsis:
            yield f"{path} {value!r}"
            return
        if id(value) in self._seen:
            yield f"{path} is {self._seen[id(value)]}"
            return
        self._seen[id(value)] = len(self._seen)
        self._alive.append(value)
        if isinstance(value, jax.Array):
            yield f"{path} {self._array(value)}"
        elif isinstance(value, np.ndarray):
            yield f"{path} numpy {value.dtype} {value.shape} {value.flags.writeable} {value.tobytes().hex()}"
        elif isinstance(value, types.FunctionType | types.BuiltinFunctionType | type | types.ModuleType):
            yield f"{path} {value.__module__ if hasattr(value, '__module__') else ''} {getattr(value, '__qualname__', '')}"
        elif isinstance(value, Mapping):
            yield f"{path} {type(value).__qualname__} {len(value)}"
            for key, item in value.items():
                yield from self.lines(item, f"{path}[{key if isinstance(key, _PLAIN) else type(key).__qualname__}]")
        elif isinstance(value, list | tuple | set | frozenset) or type(value).__name__ == "deque":
            yield f"{path} {type(value).__qualname__} {len(value)}"
            for number, item in enumerate(value):
                yield from self.lines(item, f"{path}[{number}]")
        elif type(value).__name__ == "FlaxId":  # counted through the process
            yield f"{path} an identity"
        elif type(value).__name__ == "TraceState":
            yield f"{path} valid {value.is_valid()}"
        else:
            own = dict(getattr(value, "__dict__", {}))
            own |= {name: getattr(value, name) for name in getattr(type(value), "__slots__", ()) if hasattr(value, name)}
            shown = repr(value) if type(value).__name__ in _SHOWN else ""
            yield f"{path} {type(value).__module__}.{type(value).__qualname__} {shown}"
            if type(value).__module__.partition(".")[0] not in ("jax", "jaxlib", "detrain"):
                for name, item in own.items():
                    yield from self.lines(item, f"{path}.{name}")

    @staticmethod
    def _array(value: Any) -> str:
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            content = "deleted" if value.is_deleted() else [np.asarray(each.data) for each in value._base_array.addressable_shards]
            return f"key {jax.random.key_impl(value)} {value.shape} {value.sharding} {value.committed} {content}"
        sharding = f"{type(value.sharding).__name__} {value.sharding}"
        typed = jax.typeof(value).sharding if isinstance(value.sharding, jax.NamedSharding) else ""  # else as it was traced
        form = f"{value.aval} {typed} {value.weak_type} {value.committed} {sharding}"
        own = {name: held for name, held in vars(value).items() if name != "addressable_shards"}
        if value.is_deleted():
            return f"deleted {form}"
        shards = {str(each.device): np.asarray(each.data).tobytes().hex() for each in value.addressable_shards}
        return f"{form} {value.format} {own} {shards}"
