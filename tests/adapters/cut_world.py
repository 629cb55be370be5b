"""A resume within one process, shared by the tests of all adapters with leaves: the state goes through bytes into the
objects of a training that was made anew, up to its loop.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from detrain.adapters.group import Adapters
from detrain.base.dtypes import dtype_name, named_dtype
from detrain.python.codec.baseline import Baseline
from detrain.python.codec.coders import Decoder, Encoder
from detrain.python.codec.graph_files import unpack
from detrain.python.inspect.object_graph import ABSENT, Encoded
from detrain.python.loaders.generator_replay import LoopGenerators
from detrain.python.outside.open_files import Files
from detrain.runtime.state.codec_hooks import ProgramHooks

BEFORE, AFTER = 3, 3
"""Steps before and after the cut."""

Training = Generator[None, int, None]
"""A training: it binds names up to its loop, and then takes one step for each turn's number sent to it."""


@dataclass(frozen=True)
class Case:
    """A training, and the expected result of its resume."""

    make: Callable[[Any], Training]
    """Begins the training; its argument takes the names that it binds."""
    lost: tuple[str, ...] = ()
    """Beginnings of the texts by which the checkpoint names objects that it does not hold."""
    is_refused: bool = False
    """True if the lost objects are needed: then no states are compared."""
    of_graphs: bool = True
    """True if the functions that computed a tensor are compared (PyTorch)."""


@dataclass
class Outcome:
    """The results of the resumed training and of the whole one."""

    lost: list[str]
    missing: list[str]
    at_cut: tuple[list[str], list[str]]
    at_end: tuple[list[str], list[str]]
    unread: list[str]
    """The end of a whole training in which no state was read."""
    is_held: bool
    """True if the checkpoint's contents did not change while the training went on."""
    versions: tuple[list[int], list[int]] = ([], [])
    """Version counters of all tensors, before and after they were read (PyTorch)."""


def made(tried: Case) -> tuple[Any, Callable[[int], None]]:
    """Return the names that a training has bound, and the function that takes its step of a turn."""
    names = SimpleNamespace()
    training = tried.make(names)
    next(training)
    return names, training.send


def cases() -> tuple[dict[str, Case], Callable[..., Callable[[Callable[[Any], Training]], Callable[[Any], Training]]]]:
    """Return an empty table of trainings, and a decorator that enters a training in it under its name."""
    table: dict[str, Case] = {}

    def case(**kinds: Any) -> Callable[[Callable[[Any], Training]], Callable[[Any], Training]]:
        def enter(make: Callable[[Any], Training]) -> Callable[[Any], Training]:
            assert make.__name__ not in table
            table[make.__name__] = Case(make, **kinds)
            return make

        return enter

    return table, case


class World:
    """The codec's hooks with an adapter, as a session has them."""

    def __init__(self, adapter: Any) -> None:
        self._adapters = Adapters()
        self._adapters.add(adapter)
        self.files, self.pulls = Files(), LoopGenerators(lambda: (0, 0, 0), str, lambda _old, _new: None, None)  # type: ignore[arg-type, return-value]

    def hooks(self) -> ProgramHooks:
        """Return new hooks, as a session makes them for each walk."""
        return ProgramHooks(self._adapters, self.files, self.pulls)

    def baseline(self, names: dict[str, Any]) -> Baseline:
        """Return the baseline of the names bound when the loop is entered."""
        found = Baseline()
        encoder = Encoder(self.hooks(), found, is_baseline=True)
        for name, value in names.items():
            found.bind(name, value)
            encoder.encode(value, name)
        return found

    def encode(self, names: dict[str, Any], baseline: Baseline) -> Encoded:
        """Return the state at a cut."""
        encoder = Encoder(self.hooks(), baseline)
        return encoder.finish({name: encoder.encode(value, name) for name, value in names.items()})

    def restore(self, file: bytes, names: dict[str, Any], baseline: Baseline) -> list[str]:
        """Put a state back; return the names of the values that could not be."""
        graph, arrays = unpacked(file)
        decoder = Decoder(unpack(graph, arrays), arrays, self.hooks(), baseline)
        decoder.hold_cells({})
        for name, item in decoder.roots.items():
            value = decoder.decode(item, names.get(name, ABSENT), name)
            if value is ABSENT:
                decoder.missing.append(name)
            elif not name.startswith("class|"):
                names[name] = value
        return decoder.finish()

    # What tells a framework's trainings apart.

    def as_a_process(self) -> AbstractContextManager[None]:
        """Inside, the framework is as in a process that starts."""
        return nullcontext()

    def describe(self, names: Mapping[str, Any], tried: Case) -> list[str]:
        """Return the objects that names lead to, as lines, as the framework itself reads them."""
        raise NotImplementedError

    def versions(self, _names: Mapping[str, Any]) -> list[int]:
        """Return the version counters of all tensors."""
        return []

    def rest(self) -> Any:
        """Return the state at a cut that no name leads to."""

    @contextmanager
    def resumed(self, _rest: Any) -> Iterator[None]:
        """Inside, names are put back; the rest of the state is, too."""
        yield

    def run(self, tried: Case) -> Outcome:
        """Run a training as a whole, and once more from its cut."""
        with self.as_a_process():
            names, step = made(tried)
            for turn in range(BEFORE + AFTER):
                step(turn)
            unread = self.describe(vars(names), tried)
        with self.as_a_process():
            names, step = made(tried)
            baseline = self.baseline(vars(names))
            for turn in range(BEFORE):
                step(turn)
            versions = self.versions(vars(names))
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                encoded = self.encode(vars(names), baseline)
            read = self.versions(vars(names))
            file, rest = packed(encoded), self.rest()
            whole_at_cut = self.describe(vars(names), tried)
            for turn in range(BEFORE, BEFORE + AFTER):
                step(turn)
            whole = self.describe(vars(names), tried)
            is_held = packed(encoded) == file
        with self.as_a_process():
            names, step = made(tried)
            baseline = self.baseline(vars(names))
            with self.resumed(rest):
                missing = self.restore(file, vars(names), baseline)
            if tried.is_refused:
                return Outcome(encoded.not_captured, missing, ([], []), ([], whole), unread, is_held, (read, versions))
            at_cut = self.describe(vars(names), tried)
            for turn in range(BEFORE, BEFORE + AFTER):
                step(turn)
            at_end = self.describe(vars(names), tried)
        return Outcome(encoded.not_captured, missing, (at_cut, whole_at_cut), (at_end, whole), unread, is_held, (read, versions))


def assert_exact(outcome: Outcome, tried: Case) -> None:
    """Assert that the resumed training went on as the whole one, or that the checkpoint names what it does not hold."""
    assert outcome.versions[0] == outcome.versions[1], "reading has moved a version counter"
    assert outcome.is_held, "what is held has changed"
    assert [each for each in outcome.lost if not tried.lost or not each.startswith(tried.lost)] == []
    assert [each for each in tried.lost if not any(loss.startswith(each) for loss in outcome.lost)] == []
    if tried.is_refused:
        return
    assert _first_difference(outcome.at_end[1], outcome.unread) is None, "reading has changed the training"
    assert outcome.missing == []
    assert _first_difference(*outcome.at_cut) is None
    assert _first_difference(*outcome.at_end) is None


def _first_difference(one: list[str], other: list[str]) -> str | None:
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            return f"{mine[:300]} | not | {theirs[:300]}"
    return None if len(one) == len(other) else f"{len(one)} lines, not {len(other)}"


def packed(encoded: Encoded) -> bytes:
    """Return a state as one piece of bytes."""
    arrays = {name: (dtype_name(array.dtype), array.shape, array.tobytes()) for name, array in encoded.arrays.items()}
    return msgspec.msgpack.encode((encoded.graph, arrays))


def unpacked(file: bytes) -> tuple[bytes, dict[str, Any]]:
    """Return the graph and the arrays, which are read-only."""
    graph, arrays = msgspec.msgpack.decode(file)
    return graph, {
        name: np.frombuffer(content, named_dtype(dtype)).reshape(shape) if content else np.zeros(shape, named_dtype(dtype))
        for name, (dtype, shape, content) in arrays.items()
    }
