"""The adapters of a process together: each is asked for what it can do, and gets back what is its own."""

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
    """The adapters of the frameworks that the program has imported, in that order. It is filled as they come."""

    def __init__(self) -> None:
        self._all: list[Adapter] = []
        self._by_name: dict[str, Adapter] = {}
        self._to_array_of: dict[type, ToArray] = {}
        """What the adapter has that knows tensors of this type."""
        self._watched: tuple[list[Sequence[Watched]], list[Watched]] = ([], [])

    def add(self, adapter: Adapter) -> None:
        """Take in the adapter of a framework that has been imported."""
        self._all.append(adapter)
        self._by_name[adapter.name] = adapter

    def __iter__(self) -> Iterator[Adapter]:
        return iter(self._all)

    # What those answer that have such a part.

    @property
    def leaves(self) -> list[TensorLeaves]:
        """Those of all."""
        return [each.leaves for each in self._all]

    @property
    def shared(self) -> dict[str, SharedTensors]:
        """Those of the adapters that have some, by name."""
        return {each.name: each.shared for each in self._all if each.shared is not None}

    @property
    def rules(self) -> list[ObjectRules]:
        """Those of the adapters that have some."""
        return [each.rules for each in self._all if each.rules is not None]

    @property
    def loaders(self) -> list[LoaderPositions]:
        """Those of the adapters that have some."""
        return [each.loaders for each in self._all if each.loaders is not None]

    @property
    def random(self) -> list[RandomStreams]:
        """Those of the adapters that have some."""
        return [each.random for each in self._all if each.random is not None]

    @property
    def rollback(self) -> list[Rollback]:
        """Those of the adapters that have one."""
        return [each.rollback for each in self._all if each.rollback is not None]

    def replicas(self) -> dict[int, str]:
        """Return where tensors lie that all ranks of a job hold alike, by their names."""
        return {at: f"{each.name} {name}" for each in self._all if each.replicas for at, name in each.replicas.addresses().items()}

    # Tensors.

    @property
    def constant_types(self) -> tuple[type, ...]:
        """The types of immutable tensors."""
        return tuple(each.constant_type for each in self.leaves if each.constant_type is not None)

    def to_array(self, value: object) -> Array | None:
        """Return the value of a tensor or variable of one of the frameworks, or None for anything else."""
        known = self._to_array_of.get(type(value))  # asked of each batch
        if known is not None:
            return known(value)
        for each in self._all:
            if (array := each.leaves.to_array(value)) is not None:
                self._to_array_of[type(value)] = each.leaves.to_array
                return array
        return None

    def is_computed(self, value: object) -> bool:
        """Return whether an object is a tensor that weights went into, as far as its framework tells, or a tuple with
        one.
        """
        parts = value if isinstance(value, tuple) else (value,)
        return any(each.shared.is_computed(part) for each in self._all if each.shared is not None for part in parts)

    def tensors(self) -> dict[str, Array]:
        """Return the values of what training changes, by key: of variables, and of what names lead to."""
        named = [each.names.tensors() for each in self._all if each.names is not None]
        return {
            key: array for tensors in (*(found for _name, found in self._registered()), *named) for key, array in tensors.items()
        }

    def tensors_now(self) -> dict[str, Array]:
        """Return `tensors`, of what names lead to now."""
        self.look_at_names()
        return self.tensors()

    def look_at_names(self) -> None:
        """Have looked what names lead to."""
        for each in self._all:
            if each.names is not None:
                each.names.look()

    def owned(self) -> tuple[dict[str, Array], dict[str, tuple[str, ...]]]:
        """Return `tensors`, and whose they are: keys by the adapter's name, where there is more than one with
        variables.
        """
        found = self._registered()
        owners = {name: tuple(tensors) for name, tensors in found} if len(found) > 1 else {}
        return {key: array for _name, tensors in found for key, array in tensors.items()}, owners

    def restore(self, tensors: Mapping[str, Array], owners: Mapping[str, tuple[str, ...]]) -> None:
        """Give each adapter its own variables: all, where `owners` is empty, as only one had some."""
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
        """Open a checkpoint, whose variables are read into memory that `restore` takes over if it can. `told`: called
        with how many bytes have been read since the last time.
        """
        return opened(path, self._new_array, told)

    def unclaimed(self) -> list[str]:
        """Return the variables that a resumed process has made for those of the first run, but without their values."""
        return [key for _name, registry in self._registries() for key in registry.unclaimed()]

    def describe_variable(self, value: object) -> list[Any] | None:
        """Return whose a variable is, and its description; None for anything else."""
        for name, registry in self._registries():
            described = registry.describe_variable(value)
            if described is not None:
                return [name, *described]
        return None

    def find_variable(self, described: list[Any], *, makes: bool) -> object | None:
        """Return the variable with such a description; one that does not exist is made, if `makes` and it can be."""
        owner = self._by_name.get(described[0])
        registry = None if owner is None else owner.variables
        return None if registry is None else registry.find_variable(described[1:], makes=makes)

    # What the guard looks at.

    def watch_gradients(self) -> None:
        """Have the norms of gradients among `norms`."""
        for each in self._norms:
            each.watch_gradients()

    def norms(self) -> tuple[Sequence[Watched], Array]:
        """Return what is watched for hardware faults, and the Euclidean norms [variable]; see
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
        """Return the value of what is watched; None for what has none."""
        return next((array for each in self._norms if (array := each.value(key)) is not None), None)

    @property
    def _norms(self) -> list[Norms]:
        return [each.norms for each in self._all if each.norms is not None]

    # All the rest.

    def streams(self) -> dict[str, Stream]:
        """Return the frameworks' global random streams, by name."""
        return {name: stream for each in self.random for name, stream in each.streams().items()}

    def held_generators(self, value: object) -> list[Stream]:
        """Return a generator that the program holds as a stream."""
        return [held for each in self.random if (held := each.held_generator(value)) is not None]

    def positions(self, mode: Mode) -> tuple[dict[str, Array], list[str]]:
        """Return the positions of loaders alive, as data by their keys, and why others have none."""
        found = [each.positions(mode) for each in self.loaders]
        return (
            {key: array for positions, _why in found for key, array in positions.items()},
            [reason for _positions, why in found for reason in why],
        )

    def loader_key(self, loader: object) -> str:
        """Return a framework's name of a loader; empty if it has none."""
        return "".join(each.loader_key(loader) for each in self.loaders)

    def called(self) -> dict[str, object]:
        """Return the Python objects that pipelines call, by keys that are the same in every run of the program."""
        return {key: value for each in self.loaders for key, value in each.called().items()}

    def state(self) -> dict[str, msgspec.Raw]:
        """Return what else is state, by the adapters' names."""
        return {each.name: msgspec.Raw(each.state()) for each in self._all}

    def set_state(self, states: Mapping[str, msgspec.Raw], positions: Mapping[str, Array], mode: Mode) -> None:
        """Set what `state` returned, each adapter's own."""
        for each in self._all:
            if each.name in states:
                each.set_state(bytes(states[each.name]), positions, mode)

    def build_made(self) -> None:
        """Build what the first run had built by what the loop had made, once that is there again."""
        for each in self._all:
            if each.building is not None:
                each.building.build_made()

    def weights_files(self) -> dict[str, WeightsFile]:
        """Return what the frameworks' own files of weights would hold, by a key of each model."""
        return {key: file for each in self._all if each.weights is not None for key, file in each.weights.files().items()}

    def environment(self) -> dict[str, str]:
        """Return versions and settings that decide about bits."""
        return {name: value for each in self._all for name, value in each.environment().items()}

    def uncaptured(self) -> list[str]:
        """Return what state there is that a checkpoint does not hold, in words."""
        return [loss for each in self._all for loss in each.uncaptured()]

    def begin_phase(self) -> None:
        """A training loop is about to be entered."""
        for each in self._all:
            each.begin_phase()

    def end_phase(self) -> None:
        """It has been left."""
        for each in self._all:
            each.end_phase()

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Inside, what the frameworks keep in one of several forms is in the one that checkpoints hold."""
        with ExitStack() as stack:
            for each in self._all:
                stack.enter_context(each.at_rest())
            yield

    @contextmanager
    def copies_later(self) -> Iterator[None]:
        """Inside, what is held of devices may still be there: see `Devices`."""
        with ExitStack() as stack:
            for each in self._all:
                if each.devices is not None:
                    stack.enter_context(each.devices.copies_later())
            yield

    def mapped(self, graph: Graph) -> Graph:
        """Return a graph of Python state as it is to be put back, on the devices that are here."""
        for each in self._all:
            graph = graph if each.devices is None else each.devices.mapped(graph)
        return graph

    def flush(self) -> None:
        """Have what the program has written through the frameworks reach its files."""
        for each in self._all:
            each.flush()

    def _registries(self) -> list[tuple[str, VariableRegistry]]:
        return [(each.name, each.variables) for each in self._all if each.variables is not None]

    def _registered(self) -> list[tuple[str, dict[str, Array]]]:
        return [(name, registry.tensors()) for name, registry in self._registries()]


class Selected(Mapping[str, Array]):
    """Some of the arrays of a file, which are read as they are asked for."""

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
