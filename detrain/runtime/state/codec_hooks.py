"""What the codec asks while it goes through a program's objects: the adapters, what follows files, what repeats
generators.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from detrain.adapters.api import SharedTensors
from detrain.adapters.group import Adapters
from detrain.base.digest import Array
from detrain.python.inspect.frames import user_frames
from detrain.python.inspect.names_ahead import names_ahead
from detrain.python.inspect.object_graph import Hooks, Item, SharedTensor
from detrain.python.inspect.stored_attributes import stores
from detrain.python.inspect.user_modules import user_modules
from detrain.python.loaders.generator_replay import LoopGenerators
from detrain.python.loaders.strategy import read_offered, set_state
from detrain.python.outside.open_files import Files

_UNREAD: Final = np.empty(0)


class ProgramHooks(Hooks):
    """See `Hooks`. Made anew for each walk: which modules the program has is looked up once."""

    def __init__(self, adapters: Adapters, files: Files, pulls: LoopGenerators) -> None:
        self._adapters, self._files, self._pulls = adapters, files, pulls
        self._leaves, self._rules, self._loaders = adapters.leaves, adapters.rules, adapters.loaders
        self._constants, self._reads = adapters.constant_types, True
        self._shared = adapters.shared
        self._sources = [module.__file__ or "" for module in user_modules().values()]
        self.stored_outside = frozenset().union(*(stores(file).outside for file in self._sources))
        self.on_functions = frozenset().union(*(rules.on_functions for rules in self._rules))

    def files(self) -> Sequence[str]:
        return self._sources

    def names_ahead(self) -> frozenset[str]:
        return names_ahead(user_frames(sys._getframe()), self._sources)

    # Tensors.

    def tensor(self, value: object) -> Array | None:
        if not self._reads:
            return _UNREAD if isinstance(value, self._constants) else None
        return next((array for each in self._leaves if (array := each.constant(value)) is not None), None)

    def is_shared(self, value: object) -> bool:
        return any(each.is_shared(value) for each in self._shared.values())

    def shared(self, value: object) -> SharedTensor | None:
        return next((found for each in self._shared.values() if (found := each.look(value)) is not None), None)

    def tensors_of(self, owner: str) -> SharedTensors | None:
        return self._shared.get(owner)

    def unread(self) -> ProgramHooks:
        found = copy.copy(self)
        found._reads = False
        return found

    def is_generator(self, value: object) -> bool:
        return any(each is not None for each in self._adapters.held_generators(value))

    def tensor_form(self, value: object) -> list[Item] | None:
        return next((form for each in self._leaves if (form := each.form(value)) is not None), None)

    def make_tensor(self, array: Array, form: list[Item] | None = None) -> object:
        found = sorted(self._leaves, key=lambda each: each.constant_type is None)  # those come first that have such tensors
        return next((made for each in found if (made := each.make_constant(array, form)) is not None), array)

    def parts(self, value: object) -> tuple[str, list[object]] | None:
        return next((found for each in self._leaves if (found := each.parts(value)) is not None), None)

    def parts_of_new(self, value: object) -> tuple[str, list[object]] | None:
        return next((found for each in self._leaves if (found := each.parts_of_new(value)) is not None), None)

    def remake(self, kind: str, parts: list[Any], current: object) -> object | None:
        return next((made for each in self._leaves if (made := each.remake(kind, parts, current)) is not None), None)

    def variable(self, value: object) -> list[Item] | None:
        return self._adapters.describe_variable(value)

    def find_variable(self, described: list[Item], makes: bool) -> object | None:
        return self._adapters.find_variable(described, makes=makes)

    # Objects of frameworks.

    def is_holder(self, value: object) -> bool:
        return any(rules.is_holder(value) for rules in self._rules)

    def is_container(self, value: object) -> bool:
        return any(rules.is_container(value) for rules in self._rules)

    def holds_variables(self, value: object) -> bool:
        return any(rules.holds_variables(value) for rules in self._rules)

    def is_of_loop(self, value: object) -> bool:
        return any(rules.is_of_loop(value) for rules in self._rules)

    def is_loader(self, value: object) -> bool:
        return any(loaders.is_loader(value) for loaders in self._loaders)

    def no_position(self, value: object) -> str:
        return next((reason for each in self._loaders if (reason := each.no_position(value))), "")

    # What others bring back.

    loader_state = staticmethod(read_offered)
    set_loader = staticmethod(set_state)

    def is_known_file(self, value: object) -> bool:
        return self._files.is_known(value)

    def follow(self, value: object) -> None:
        self._pulls.follow(value)

    def pulled(self, value: object) -> list[Item] | None:
        return self._pulls.state(value)

    def is_drawn_by_bodies(self, value: object) -> bool:
        return self._pulls.is_drawn_by_bodies(value)

    def replay(self, value: object, state: list[Item]) -> bool:
        return self._pulls.replay(value, state)
