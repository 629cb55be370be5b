"""The codec's hooks for its walk through a program's objects: they ask the adapters, the follower of files and the
replayer of generators.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from detrain.adapters.group import Adapters
from detrain.python.inspect.code_reads import names_ahead
from detrain.python.inspect.frames import user_frames
from detrain.python.inspect.hooks import Hooks
from detrain.python.inspect.named import user_modules
from detrain.python.inspect.object_graph import Item
from detrain.python.inspect.stored_attributes import stores
from detrain.python.loaders.generator_replay import LoopGenerators
from detrain.python.loaders.strategy import read_offered, set_state
from detrain.python.outside.open_files import Files


class ProgramHooks(Hooks):
    """See `Hooks`. Made anew for each walk, as it looks up the program's modules only once."""

    def __init__(self, adapters: Adapters, files: Files, pulls: LoopGenerators) -> None:
        super().__init__(adapters.leaves, adapters.shared, adapters.rules, adapters.loaders)
        self._adapters, self._files, self._pulls = adapters, files, pulls
        self._sources = [module.__file__ or "" for module in user_modules().values()]
        self.stored_outside = frozenset().union(*(stores(file).outside for file in self._sources))

    def files(self) -> Sequence[str]:
        return self._sources

    def names_ahead(self) -> frozenset[str]:
        return names_ahead(user_frames(sys._getframe()), self._sources)

    def is_generator(self, value: object) -> bool:
        return any(each is not None for each in self._adapters.held_generators(value))

    def variable(self, value: object) -> list[Item] | None:
        return self._adapters.describe_variable(value)

    def find_variable(self, described: list[Item], makes: bool) -> object | None:
        return self._adapters.find_variable(described, makes=makes)

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
