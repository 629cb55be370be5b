"""Variables of TensorFlow and Keras as places in memory whose bits faults change between steps."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from detrain.adapters.stable_names import Births
from detrain.adapters.tensorflow.faults.live_outputs import First
from detrain.adapters.tensorflow.values.tensors import components_of
from detrain.base.digest import Array
from detrain.faults.bits import little_endian
from detrain.faults.experiment import BITS, Firing, Injection
from detrain.faults.sites import MEMORY, Access, MemoryKind, Site, memory_site


class _Registry(Protocol):
    def alive(self) -> dict[str, Any]: ...
    def tensors(self) -> dict[str, Array]: ...
    def set_value(self, key: str, array: Array) -> None: ...


class VariableMemory:
    """The living variables, by their keys in checkpoints."""

    def __init__(self, variables: _Registry, births: Births) -> None:
        self._variables, self._births = variables, births
        self._count = 0

    def forget(self) -> None:
        """Set the count of faults back to 0 for a newly chosen injection."""
        self._count = 0

    def sites(self, accesses: Mapping[int, First] | None = None) -> list[Site]:
        """Return, as sites, the living variables whose bits can be hit.

        `accesses`: a step's first access to each variable, by the numbers of the handles; None: not known.
        """
        slots = self._slots()
        return [
            memory_site(
                key,
                _kind(variable, is_slot=id(variable.handle) in slots),
                tuple(variable.shape),
                variable.dtype.name,
                _access(variable, accesses),
            )
            for key, variable in self._variables.alive().items()
            if variable.dtype.name in BITS and variable.shape.is_fully_defined()
        ]

    def strike(self, injection: Injection) -> Firing | None:
        """Change the bits of a variable; None if there is none with its name, shape and dtype."""
        key = injection.site.removeprefix(MEMORY)
        variable = self._variables.alive().get(key)
        value = self._variables.tensors().get(key) if variable is not None else None
        if variable is None or value is None or (variable.dtype.name, value.shape) != (injection.dtype, injection.shape):
            return None
        changed = np.array(value)
        golden, after = injection.put_into(changed.reshape(-1).view(BITS[injection.dtype]))
        self._variables.set_value(key, changed)
        self._count += 1
        return Firing(self._count, little_endian(golden), little_endian(after))

    def _slots(self) -> set[int]:
        keras: Any = sys.modules.get("keras")  # detrain must not import it where the program does not
        if keras is None:
            return set()
        optimizers: Any = [each for _key, each in self._births.living(keras.optimizers.Optimizer)]
        held = (part for each in optimizers for variable in each.variables for part in components_of(variable))
        return {id(part.handle) for part in held}


def _kind(variable: Any, *, is_slot: bool) -> MemoryKind:
    if is_slot:
        return "slot"
    if variable.trainable:
        return "weight"
    return "stream" if variable.dtype.is_integer and variable.shape.rank else "statistic"


def _access(variable: Any, accesses: Mapping[int, First] | None) -> Access | None:
    number = getattr(variable.handle, "_id", None)
    if accesses is None or number is None:
        return None
    first, count = accesses.get(number, ""), variable.shape.num_elements()
    return Access(*(count if first == each else 0 for each in ("read", "overwritten", "")))
