"""All adapters of a process as one: it asks each adapter that has an ability, and gives each its own state back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from detrain.adapters.api import Adapter, Norms, RandomStreams, Rollback, VariableRegistry, Watched
from detrain.base.digest import Array, ToArray
from detrain.base.options import Mode
from detrain.python.inspect.hooks import LoaderPositions, ObjectRules, SharedTensors, TensorLeaves
from detrain.python.inspect.object_graph import Graph
from detrain.python.process.random_streams import Stream
from detrain.store import Snapshot, opened
from detrain.store.snapshot import WeightsFile


class Adapters:
    """The adapters of the frameworks that the program has imported, in the order of import."""

    def __init__(self) -> None:
        self._all: list[Adapter] = []
        self._by_name: dict[str, Adapter] = {}
        self._to_array_of: dict[type, ToArray] = {}
        """For a type of tensors, the `to_array` of the adapter that knows the type."""
        self._watched: tuple[list[Sequence[Watched]], list[Watched]] = ([], [])

    def add(self, adapter: Adapter) -> None:
        """Take in the adapter of a framework that has been imported."""
        self._all.append(adapter)
        self._by_name[adapter.name] = adapter

    def __iter__(self) -> Iterator[Adapter]:
        return iter(self._all)

    # The parts (Protocols) of the adapters that have them.

    @property
    def leaves(self) -> list[TensorLeaves]:
        """The `leaves` of all adapters."""
        return [each.leaves for each in self._all]

    @property
    def shared(self) -> dict[str, SharedTensors]:
        """The `shared` of the adapters that have it, by the adapter's name."""
        return {each.name: each.shared for each in self._all if each.shared is not None}

    @property
    def rules(self) -> list[ObjectRules]:
        """The `rules` of the adapters that have them."""
        return [each.rules for each in self._all if each.rules is not None]

    @property
    def loaders(self) -> list[LoaderPositions]:
        """The `loaders` of the adapters that have them."""
        return [each.loaders for each in self._all if each.loaders is not None]

    @property
    def random(self) -> list[RandomStreams]:
        """The `random` of the adapters that have it."""
        return [each.random for each in self._all if each.random is not None]

    @property
    def rollback(self) -> list[Rollback]:
        """The `rollback` of the adapters that have it."""
        return [each.rollback for each in self._all if each.rollback is not None]

    def replicas(self) -> dict[int, str]:
        """Return the addresses of tensors that all ranks of a job hold alike, each with the tensor's name."""
        return {at: f"{each.name} {name}" for each in self._all if each.replicas for at, name in each.replicas.addresses().items()}

    # Tensors.

    @property
    def constant_types(self) -> tuple[type, ...]:
        """The types of immutable tensors."""
        return tuple(each.constant_type for each in self.leaves if each.constant_type is not None)

    def to_array(self, value: object) -> Array | None:
        """Return the value of a tensor or variable of one of the frameworks; None for any other object."""
        known = self._to_array_of.get(type(value))  # this is called for each batch
        if known is not None:
            return known(value)
        for each in self._all:
            if (array := each.leaves.to_array(value)) is not None:
                self._to_array_of[type(value)] = each.leaves.to_array
                return array
        return None

    def is_computed(self, value: object) -> bool:
        """Return True for a tensor that was computed from weights, as far as its framework can tell, and for a tuple
        with such a tensor.
        """
        parts = value if isinstance(value, tuple) else (value,)
        return any(each.shared.is_computed(part) for each in self._all if each.shared is not None for part in parts)

    def tensors(self) -> dict[str, Array]:
        """Return the values of all tensors that training changes, by key: variables, and tensors found by names."""
        named = [each.names.tensors() for each in self._all if each.names is not None]
        return {
            key: array for tensors in (*(found for _name, found in self._registered()), *named) for key, array in tensors.items()
        }

    def tensors_now(self) -> dict[str, Array]:
        """Return `tensors` after a new look at the program's names."""
        self.look_at_names()
        return self.tensors()

    def look_at_names(self) -> None:
        """Make each adapter look for the tensors that the program's names lead to."""
        for each in self._all:
            if each.names is not None:
                each.names.look()

    def owned(self) -> tuple[dict[str, Array], dict[str, tuple[str, ...]]]:
        """Return the values of variables by key, and the keys by the name of their adapter; the second is empty unless
        several adapters have variables.
        """
        found = self._registered()
        owners = {name: tuple(tensors) for name, tensors in found} if len(found) > 1 else {}
        return {key: array for _name, tensors in found for key, array in tensors.items()}, owners

    def restore(self, tensors: Mapping[str, Array], owners: Mapping[str, tuple[str, ...]]) -> None:
        """Give each adapter its own variables: all of them if `owners` is empty, as only one adapter had variables."""
        if not owners:
            for _name, registry in self._registries():
                registry.restore(tensors)
            return
        for name, registry in self._registries():
            registry.restore(Selected(tensors, owners.get(name, ())))

    def _new_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        for _name, registry in self._registries():
            return registry.new_array(shape, dtype)
        return np.empty(shape, dtype)

    def opened(self, path: Path, told: Callable[[int], None]) -> AbstractContextManager[Snapshot]:
        """Open a checkpoint. Its variables are read into memory that `restore` takes over if it can. `told` is called
        with the number of bytes read since its last call.
        """
        return opened(path, self._new_array, told)

    def unclaimed(self) -> list[str]:
        """Return the keys of variables that a resumed process has made again, but that have not got their values."""
        return [key for _name, registry in self._registries() for key in registry.unclaimed()]

    def describe_variable(self, value: object) -> list[Any] | None:
        """Return the name of a variable's adapter, and the variable's description; None for any other object."""
        for name, registry in self._registries():
            described = registry.describe_variable(value)
            if described is not None:
                return [name, *described]
        return None

    def find_variable(self, described: list[Any], *, makes: bool) -> object | None:
        """Return the variable with this description. If it does not exist, make it if `makes` is set and it can be
        made, else return None.
        """
        owner = self._by_name.get(described[0])
        registry = None if owner is None else owner.variables
        return None if registry is None else registry.find_variable(described[1:], makes=makes)

    # Norms for the guard.

    def watch_gradients(self) -> None:
        """Add the norms of gradients to `norms`."""
        for each in self._norms:
            each.watch_gradients()

    def norms(self) -> tuple[Sequence[Watched], Array]:
        """Return the variables watched for hardware faults, and their Euclidean norms [variable]; see
        `detrain.adapters.api.Norms`.
        """
        found = [each.norms() for each in self._norms]
        if len(found) == 1:
            return found[0]
        lists = [watched for watched, _norms in found]
        if len(lists) != len(self._watched[0]) or any(a is not b for a, b in zip(lists, self._watched[0], strict=True)):
            self._watched = lists, [each for watched in lists for each in watched]
        return self._watched[1], np.concatenate([norms for _watched, norms in found]) if found else np.zeros(0)

    def watched_value(self, key: str) -> Array | None:
        """Return the value of a watched variable; None if it has none."""
        return next((array for each in self._norms if (array := each.value(key)) is not None), None)

    @property
    def _norms(self) -> list[Norms]:
        return [each.norms for each in self._all if each.norms is not None]

    # All the rest.

    def streams(self) -> dict[str, Stream]:
        """Return the frameworks' global random streams, by name."""
        return {name: stream for each in self.random for name, stream in each.streams().items()}

    def held_generators(self, value: object) -> list[Stream]:
        """Return a generator that the program holds, as a stream in a list; an empty list for any other object."""
        return [held for each in self.random if (held := each.held_generator(value)) is not None]

    def positions(self, mode: Mode) -> tuple[dict[str, Array], list[str]]:
        """Return the positions of live loaders as data, by their keys, and the reasons why other loaders have none."""
        found = [each.positions(mode) for each in self.loaders]
        return (
            {key: array for positions, _why in found for key, array in positions.items()},
            [reason for _positions, why in found for reason in why],
        )

    def loader_key(self, loader: object) -> str:
        """Return a framework's name for a loader; an empty text if it has none."""
        return "".join(each.loader_key(loader) for each in self.loaders)

    def called(self) -> dict[str, object]:
        """Return the Python objects that pipelines call, each by a key that is the same in every run of the program."""
        return {key: value for each in self.loaders for key, value in each.called().items()}

    def state(self) -> dict[str, msgspec.Raw]:
        """Return the rest of the state, by the adapters' names."""
        return {each.name: msgspec.Raw(each.state()) for each in self._all}

    def set_state(self, states: Mapping[str, msgspec.Raw], positions: Mapping[str, Array], mode: Mode) -> None:
        """Restore in each adapter its part of the result of `state`."""
        for each in self._all:
            if each.name in states:
                each.set_state(bytes(states[each.name]), positions, mode)

    def build_made(self) -> None:
        """Build the parts that the first run had built through the loop's own objects, once these exist again."""
        for each in self._all:
            if each.building is not None:
                each.building.build_made()

    def weights_files(self) -> dict[str, WeightsFile]:
        """Return the content of the frameworks' own weights files, by a key of each model."""
        return {key: file for each in self._all if each.weights is not None for key, file in each.weights.files().items()}

    def environment(self) -> dict[str, str]:
        """Return the versions and settings that decide about the bits of results."""
        return {name: value for each in self._all for name, value in each.environment().items()}

    def uncaptured(self) -> list[str]:
        """Return a description of each piece of state that a checkpoint does not hold."""
        return [loss for each in self._all for loss in each.uncaptured()]

    def begin_phase(self) -> None:
        """Tell the adapters that the program is about to enter a training loop."""
        for each in self._all:
            each.begin_phase()

    def end_phase(self) -> None:
        """Tell the adapters that the program has left the training loop."""
        for each in self._all:
            each.end_phase()

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Inside, tensors that the frameworks keep in one of several forms are in the form that checkpoints hold."""
        with ExitStack() as stack:
            for each in self._all:
                stack.enter_context(each.at_rest())
            yield

    @contextmanager
    def copies_later(self) -> Iterator[None]:
        """Inside, held copies of a device's memory may still lie on the device: see `Devices`."""
        with ExitStack() as stack:
            for each in self._all:
                if each.devices is not None:
                    stack.enter_context(each.devices.copies_later())
            yield

    def mapped(self, graph: Graph) -> Graph:
        """Return a graph of Python state in the form in which it is put back on this machine's devices."""
        for each in self._all:
            graph = graph if each.devices is None else each.devices.mapped(graph)
        return graph

    def flush(self) -> None:
        """Flush all data that the program has written through the frameworks to its files."""
        for each in self._all:
            each.flush()

    def _registries(self) -> list[tuple[str, VariableRegistry]]:
        return [(each.name, each.variables) for each in self._all if each.variables is not None]

    def _registered(self) -> list[tuple[str, dict[str, Array]]]:
        return [(name, registry.tensors()) for name, registry in self._registries()]


class Selected(Mapping[str, Array]):
    """Some of the arrays of a file; each is read on access."""

    def __init__(self, arrays: Mapping[str, Array], keys: tuple[str, ...]) -> None:
        self._arrays, self._keys = arrays, dict.fromkeys(keys)

    def __getitem__(self, key: str) -> Array:
        if key not in self._keys:
            raise KeyError(key)
        return self._arrays[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)
