"""The seam to a framework: small Protocols, one for each thing that an adapter can do.

`Adapter` has one attribute for each of them; the adapter contract suite (tests/adapters) says what they promise.
Those of objects, which the codec asks, are in `detrain.python.inspect.hooks`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Literal, Protocol

import msgspec
import numpy as np

from detrain.adapters.instruments import TakesInstruments
from detrain.base.config import Ranks
from detrain.base.digest import Array
from detrain.base.options import Mode
from detrain.python.inspect.hooks import LoaderPositions, ObjectRules, SharedTensors, TensorLeaves
from detrain.python.inspect.object_graph import Graph
from detrain.python.loaders.generator_replay import Elements
from detrain.python.outside.fs_answers import Answers
from detrain.python.outside.rewritten_files import Contents
from detrain.python.process.random_streams import Stream
from detrain.store.snapshot import WeightsFile


class Settings(msgspec.Struct, frozen=True):
    """What a run fixes in a framework: the seed, and the number of threads (which changes bits)."""

    seed: int
    threads: int
    probes: Any = None
    """The probes (detrain.runtime.session.probes) for a training loop of the framework's own (`Model.fit`); None: it
    gets none."""
    on_update: Callable[[int], None] = lambda _what: None
    """Called when weights are updated from eager code, with a number that tells one updater from another."""
    on_assign: Callable[[int], None] = lambda _what: None
    """Called when a trainable variable is set outside of updates."""
    answers: Answers | None = None
    """What the file system has told the program; None: it is asked each time."""
    contents: Contents | None = None
    """Hears which files the program reads and writes, beside `answers`."""
    experiment: TakesInstruments | None = None
    """The experiment that this run is, if it is one."""
    unchanged: Callable[[], AbstractContextManager[None]] = nullcontext
    """Puts back what the code inside changes of the program's Python state, but for what it builds."""
    moment: Callable[[], object] = lambda: None
    """Returns how far the run is: another value in each turn of a loop."""
    elements: Elements | None = None
    """Hears of elements that iterators have Python make."""
    ranks: Ranks | None = None
    """Which process of a job this is; None: it is alone."""
    on_peer_error: Callable[[BaseException], None] | None = None
    """Called with an error of a collective, before the program sees it; does not return where a peer's death is its
    cause."""
    on_unheld: Callable[[str], bool] | None = None
    """From here on no state can be held just in time, for this reason. Returns whether the user has asked for it."""


class Watched(msgspec.Struct, frozen=True):
    """A variable that holds history of the training: what is known beforehand of its Euclidean norm."""

    key: str
    group: str
    """Variables of one group have values of one kind, and share a bound that is found by watching."""
    power: int
    """1 for what grows like gradients or weights, 2 for what grows like their squares."""
    limit: float = math.inf
    """Bound on the norm that holds in theory."""
    partner: str = ""
    """Key of the variable (the second moment) whose norm n bounds this one's: by `factor * sqrt(n + unseen)`."""
    factor: float = 0.0
    unseen: float = 0.0


ROUNDING: Final = 1.01
"""Slack in bounds of theory for the rounding of many updates."""
_UNSEEN: Final = 2e-19
"""Squares of values below this are lost in float32."""


def adam_constant(first: float, second: float) -> float:
    """Return C of |m| <= C sqrt(v), by element, for the moments of Adam with these decays (docs/explanation/guard.md);
    infinity if there is no such bound.
    """
    if not 0 <= first * first < second < 1:
        return math.inf
    return (1 - first) / math.sqrt((1 - second) * (1 - first * first / second))


def bounded(watched: Watched, partner: str, constant: float, size: int) -> Watched:
    """Return a first moment of so many elements bounded by its second one, by such a constant."""
    factor = ROUNDING * constant * size**0.25
    return msgspec.structs.replace(watched, partner=partner, factor=factor, unseen=math.sqrt(size) * _UNSEEN)


class VariableRegistry(Protocol):
    """Every variable alive, by a key that is the same in every run of the program."""

    def tensors(self) -> dict[str, Array]:
        """Return the value of every variable alive, by key.

        The arrays may share memory with the framework, which writes into no buffer that an array still holds: they stay
        as they are while the program goes on.
        """

    def new_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return a new array, to be filled, in memory that `restore` can take over."""

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """Set variables. Those that do not exist yet (lazily created slots) get their value when they are created.

        `tensors` may be read from a file as they are asked for: go over its items once. The memory of arrays
        that `new_array` has made is taken over.
        """

    def unclaimed(self) -> list[str]:
        """Return the variables that a resumed process has made for those of the first run, but without their values."""

    def describe_variable(self, value: object) -> list[str | bool] | None:
        """Return a variable's key and what else is needed to make it anew, or None for anything else."""

    def find_variable(self, described: list[str | bool], *, makes: bool) -> object | None:
        """Return the variable with a description; one that does not exist is made, if `makes`
        and it can be, else None.
        """


class NamedTensors(Protocol):
    """What training changes where no registry knows it: by the names that lead to it in the program, the same in every
    run.
    """

    def look(self) -> None:
        """Look what names lead to, from the program's frames that call this, as far as they are still read."""

    def tensors(self) -> dict[str, Array]:
        """Return the values, by name, of what the last look has found and is still there."""


class RandomStreams(Protocol):
    """The framework's random streams."""

    def streams(self) -> dict[str, Stream]:
        """Return the framework's global random streams, by name."""

    def held_generator(self, value: object) -> Stream | None:
        """Return a generator of the framework's that the program holds as a stream, None for any other object."""


class LazyBuild(Protocol):
    """What was built in the loop, and is built ahead in a resumed process. `Adapter.set_state` builds what it can."""

    def build_made(self) -> None:
        """Build what the first run had built by what the loop had made, once that is there again."""


class CannotGoBackError(Exception):
    """The way back to a moment in memory is not exact. The text says why."""


PutBack = Callable[[], None]
"""Puts a held state back, as often as it is called. Raises CannotGoBackError, with nothing done, where that is not
exact."""
Again = Callable[[object, Sequence[list[Array]]], object | None]
"""Called when the batch of a load is about to be handed out again, with it and what its body has fetched. Returns the
step of a framework's own loop that fetches that again; None: there is none. Raises CannotGoBackError where the load did
more than that."""


class Rollback(Protocol):
    """A moment of the framework's state, held in memory and put back."""

    def hold(self, *, on_host: bool) -> PutBack:
        """Hold the state of the framework at this moment; return what puts it back. While that is kept, what iterators
        hand out is, too.

        It shares memory, copied on write; `on_host`: it is a copy in the host's memory, and takes none of the device's.
        """

    def irreversible(self) -> list[str]:
        """Return, in words, what steps move on that no held state can put back."""
        return []

    def begin_load(self) -> Callable[[], Again]:
        """The load of a batch loop begins, whose batch is kept elsewhere. Call what is returned when it is over."""

    def way_of(self, loader: object) -> Literal["put back", "handed out", ""]:
        """Return how the batches of an iterator come again.

        put back: it is an iterator of the framework's that comes to where it was with the state, and loads them again.
        handed out: it runs no Python of the program, so that they can be kept. Empty: it is none of these.
        """
        return ""


class Norms(Protocol):
    """What the guard looks at."""

    def watch_gradients(self) -> None:
        """Have the norms of the gradients that optimizers are given among `norms`: of functions that are traced from
        now on.
        """

    def norms(self) -> tuple[Sequence[Watched], Array]:
        """Return what is watched for hardware faults, and the Euclidean norms [variable]; not a number where one is in
        it.

        The sequence is the same object until another is to be watched.
        """

    def value(self, key: str) -> Array | None:
        """Return the value of what is watched; None for what has none."""


class WeightsExport(Protocol):
    """The framework's own file of weights."""

    def files(self) -> dict[str, WeightsFile]:
        """Return what the framework's own weights file of each model alive would hold, by a key of the model."""


class Replicas(Protocol):
    """What all ranks of a job hold alike: weights, and what optimizers keep of them."""

    def addresses(self) -> dict[int, str]:
        """Return where such tensors lie now in the host's memory, each with a name that it has on all ranks."""


class Devices(Protocol):
    """Devices beside the host's processors, where tensors may be."""

    def missing(self, state: bytes) -> list[str]:
        """Return the devices of a checkpoint's tensors that are not here. `state` is what `Adapter.state` has said."""

    def others(self) -> int:
        """Return how many such devices are here."""

    def map_to_cpu(self) -> None:
        """Have `mapped` put on the CPU what was on such devices."""

    def mapped(self, graph: Graph) -> Graph:
        """Return a graph of Python state as it is to be put back."""

    def copies_later(self) -> AbstractContextManager[None]:
        """Inside, `SharedTensors.read` may return, of what it holds, something whose
        `fetch()` returns the bytes (once, on any thread), and which has `nbytes`.
        """


class Adapter(Protocol):
    """What knows one framework. What one cannot do is None: an adapter that derives from this says what it can.

    An adapter is made when the program itself has imported the framework, never before. It takes part in experiments by
    handing `Instruments` to `Settings.experiment`, and gives probes to loops of the framework's own by
    `Settings.probes`.
    """

    name: str
    leaves: TensorLeaves
    shared: SharedTensors | None = None
    variables: VariableRegistry | None = None
    names: NamedTensors | None = None
    rules: ObjectRules | None = None
    random: RandomStreams | None = None
    loaders: LoaderPositions | None = None
    building: LazyBuild | None = None
    rollback: Rollback | None = None
    norms: Norms | None = None
    replicas: Replicas | None = None
    devices: Devices | None = None

    @property
    def weights(self) -> WeightsExport | None:
        """The files of weights, once the library that writes them is there."""
        return None

    def state(self) -> bytes:
        """Return, as JSON, what else is state: counts that name things, how often loaders were drawn from, settings."""
        return b"{}"

    def set_state(self, state: bytes, positions: Mapping[str, Array], mode: Mode) -> None:
        """Set what `state` returned; loaders are set to their positions, those without one
        drawn from as often again.
        """

    def environment(self) -> dict[str, str]:
        """Return versions and settings that decide about bits."""
        return {}

    def on_import(self, module: str) -> None:
        """Called when a module of `registry.FOLLOWED` has been imported."""

    def begin_phase(self) -> None:
        """Called when a training loop is about to be entered: what changes from here on is the loop's."""

    def end_phase(self) -> None:
        """Called when it has been left."""

    def uncaptured(self) -> list[str]:
        """Return what state there is that a checkpoint does not hold, in words."""
        return []

    def at_rest(self) -> AbstractContextManager[None]:
        """Inside, what the framework keeps in one of several forms is in the one that checkpoints hold."""
        return nullcontext()

    def flush(self) -> None:
        """Have what the program has written through the framework reach its files: a kill after the cut must not lose
        it.
        """
