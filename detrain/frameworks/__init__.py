"""One adapter a framework, behind one Protocol. Nothing outside this package imports a framework.

An adapter is made when the program itself has imported the framework, never before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from detrain.runtime.digest import Array
from detrain.runtime.rng import Stream, Streams


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run fixes in a framework: the seed, and the number of threads (which changes bits)."""

    seed: int
    threads: int
    probes: Any = None
    """The probes (detrain.runtime.probes) for a training loop of the framework's own (`Model.fit`); None: it gets none."""
    on_update: Callable[[int], None] = lambda _what: None
    """Called when weights are updated from eager code, with a number that tells one updater from another."""
    on_assign: Callable[[int], None] = lambda _what: None
    """Called when a trainable variable is set outside of updates."""


class Framework(Protocol):
    """State of one framework: every variable alive, its random streams, and what of its loaders can be set."""

    name: str
    constant_type: type
    """The type of immutable tensors."""

    def streams(self) -> dict[str, Stream]:
        """Return the framework's global random streams, by name."""

    def tensors(self) -> dict[str, Array]:
        """Return the value of every variable alive, by a key that is the same in every run of the program.

        The arrays may share memory with the framework: they are valid until the program goes on.
        """

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """Set variables. Those that do not exist yet (lazily created slots) get their value when they are created."""

    def unclaimed(self) -> list[str]:
        """Return the variables that a resumed process has made for those of the first run, but without their values."""

    def counters(self) -> bytes:
        """Return, as JSON, the counts that name things and the positions of loaders."""

    def set_counters(self, counters: bytes) -> None:
        """Set what `counters` returned; loaders are advanced to their positions."""

    def to_array(self, value: object) -> Array | None:
        """Return a tensor's or variable's value, or None for anything else."""

    def constant(self, value: object) -> Array | None:
        """Return the value of an immutable tensor, or None for anything else."""

    def make_constant(self, array: Array) -> object:
        """Return an immutable tensor of a value."""

    def describe_variable(self, value: object) -> list[str | bool] | None:
        """Return a variable's key and what else is needed to make it anew, or None for anything else."""

    def find_variable(self, described: list[str | bool]) -> object | None:
        """Return the variable with a description; one that does not exist is made, where that is possible, else None."""

    def is_holder(self, value: object) -> bool:
        """Return whether the attributes of an object of the framework's own class are state of the loop (a callback)."""

    def is_loader(self, value: object) -> bool:
        """Return whether an object is one whose position `set_counters` brings back."""

    def is_container(self, value: object) -> bool:
        """Return whether an object is a list, dict or set of the framework's around what the program put there."""

    def not_captured(self) -> list[str]:
        """Return what state there is that `tensors` does not hold, in words."""

    def flush(self) -> None:
        """Have what the program has written through the framework reach its files: a kill after the cut must not lose it."""

    def on_import(self, module: str) -> None:
        """Called when a module of `FOLLOWED` has been imported."""

    def environment(self) -> dict[str, str]:
        """Return versions and settings that decide about bits."""


def _tensorflow(settings: Settings, streams: Streams) -> Framework:
    from detrain.frameworks.tensorflow import TensorFlow

    return TensorFlow(settings, streams)


ADAPTERS: Final[dict[str, Callable[[Settings, Streams], Framework]]] = {"tensorflow": _tensorflow}
"""Adapter makers, by the top-level module whose import brings the framework in."""

FOLLOWED: Final = ("keras",)
"""Other top-level modules of whose import the adapters are told."""
