"""The seam to a framework: small Protocols, one for each thing that an adapter can do.

`Adapter` has one attribute for each Protocol; the adapter contract suite (tests/adapters) tests their promises.
The Protocols about objects, which the codec asks, are in `detrain.python.inspect.hooks`.
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
    """The seed and the number of threads (which changes bits) that a run fixes in a framework, and its callbacks."""

    seed: int
    threads: int
    probes: Any = None
    """The probes (detrain.runtime.session.probes) for a framework's own loop (`Model.fit`); None: no probes."""
    on_update: Callable[[int], None] = lambda _what: None
    """Called when eager code updates weights, with a number that tells one updater from another."""
    on_assign: Callable[[int], None] = lambda _what: None
    """Called when a trainable variable is set other than by an update."""
    answers: Answers | None = None
    """The recorded answers of the file system to the program; None: the file system is asked each time."""
    contents: Contents | None = None
    """The recorder of the files that the program reads and writes, beside `answers`."""
    experiment: TakesInstruments | None = None
    """The experiment that this run carries out; None: the run is no experiment."""
    unchanged: Callable[[], AbstractContextManager[None]] = nullcontext
    """Undoes the changes that code inside makes to the program's Python state, except for objects that it builds."""
    moment: Callable[[], object] = lambda: None
    """Returns the run's position: a different value in each turn of a loop."""
    elements: Elements | None = None
    """Records the random streams that Python code finds when it makes elements for iterators."""
    ranks: Ranks | None = None
    """The rank of this process in its job; None: the process trains alone."""
    on_peer_error: Callable[[BaseException], None] | None = None
    """Called with an error of a collective, before the program sees it; does not return if a peer's death caused it."""
    on_unheld: Callable[[str], bool] | None = None
    """Called with the reason why just-in-time checkpoints are impossible from now on. Returns whether the user has
    asked for such checkpoints."""


class Watched(msgspec.Struct, frozen=True):
    """A variable that holds history of the training, and the bounds on its Euclidean norm that are known beforehand."""

    key: str
    group: str
    """The name of a group: its variables have values of one kind, and share a bound that is found by watching."""
    power: int
    """1 for a variable that grows like gradients or weights, 2 for one that grows like their squares."""
    limit: float = math.inf
    """The bound on the norm that holds in theory."""
    partner: str = ""
    """The key of the second moment: its norm n bounds this variable's norm by `factor * sqrt(n + unseen)`."""
    factor: float = 0.0
    unseen: float = 0.0


ROUNDING: Final = 1.01
"""Slack in theoretical bounds for the rounding of many updates."""
_UNSEEN: Final = 2e-19
"""Squares of values below this are lost in float32."""


def adam_constant(first: float, second: float) -> float:
    """Return the C for which |m| <= C sqrt(v) holds for each element of Adam's moments with these decays
    (docs/explanation/guard.md); infinity if there is no such bound.
    """
    if not 0 <= first * first < second < 1:
        return math.inf
    return (1 - first) / math.sqrt((1 - second) * (1 - first * first / second))


def bounded(watched: Watched, partner: str, constant: float, size: int) -> Watched:
    """Return a first moment of `size` elements with the bound by its second moment that `adam_constant` gives."""
    factor = ROUNDING * constant * size**0.25
    return msgspec.structs.replace(watched, partner=partner, factor=factor, unseen=math.sqrt(size) * _UNSEEN)


class VariableRegistry(Protocol):
    """All live variables, each by a key that is the same in every run of the program."""

    def tensors(self) -> dict[str, Array]:
        """Return the value of every live variable, by key.

        The arrays may share memory with the framework. It writes into no buffer that an array still holds, so the
        arrays stay as they are while the program goes on.
        """

    def new_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return a new, unfilled array in memory that `restore` can take over."""

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """Set variables. Those that do not exist yet (lazily created slots) get their value when they are created.

        `tensors` may read each array from a file on access: go over its items once. Arrays that `new_array` has made
        give their memory to the variables.
        """

    def unclaimed(self) -> list[str]:
        """Return the keys of variables that a resumed process has made again, but that have not got their values."""

    def describe_variable(self, value: object) -> list[str | bool] | None:
        """Return a variable's key and the other facts needed to make it anew; None for any other object."""

    def find_variable(self, described: list[str | bool], *, makes: bool) -> object | None:
        """Return the variable with a description. If it does not exist, make it if `makes` is set and it can be made,
        else return None.
        """


class NamedTensors(Protocol):
    """The tensors that training changes and no registry knows, each by the program's name for it, the same in every
    run.
    """

    def look(self) -> None:
        """Find the objects that the program's names lead to: names of modules, and live names of the calling frames."""

    def tensors(self) -> dict[str, Array]:
        """Return the values, by name, of the tensors that the last look has found and that are still alive."""


class RandomStreams(Protocol):
    """The framework's random streams."""

    def streams(self) -> dict[str, Stream]:
        """Return the framework's global random streams, by name."""

    def held_generator(self, value: object) -> Stream | None:
        """Return a framework's generator that the program holds, as a stream; None for any other object."""


class LazyBuild(Protocol):
    """Parts (traces, layers) that the loop built, and that a resumed process builds ahead. `Adapter.set_state` builds
    all that it can.
    """

    def build_made(self) -> None:
        """Build the parts that the first run had built through the loop's own objects, once these exist again."""


class CannotGoBackError(Exception):
    """The way back to a moment in memory is not exact. The text says why."""


PutBack = Callable[[], None]
"""Puts a held state back; may be called several times. Raises CannotGoBackError, and changes nothing, if the way back
is not exact."""
Again = Callable[[object, Sequence[list[Array]]], object | None]
"""Called when the batch of a load is about to be handed out again, with the batch and the arrays that its body has
fetched. Returns the step of a framework's own loop that fetches these again; None: there is none. Raises
CannotGoBackError if the load did more than that."""


class Rollback(Protocol):
    """Holds moments of the framework's state in memory, and puts them back."""

    def hold(self, *, on_host: bool) -> PutBack:
        """Hold the state of the framework at this moment; return a function that puts it back. As long as the caller
        keeps that function, the elements that iterators hand out are kept, too.

        The held state shares memory, copied on write; `on_host`: it is a copy in the host's memory, and takes none of
        the device's.
        """

    def irreversible(self) -> list[str]:
        """Return a description of each thing that steps advance and that no held state can put back."""
        return []

    def begin_load(self) -> Callable[[], Again]:
        """Note that a batch loop begins to load a batch, which is kept elsewhere. Call the returned function when the
        load is over.
        """

    def way_of(self, loader: object) -> Literal["put back", "handed out", ""]:
        """Return the way in which an iterator's batches come again.

        put back: it is the framework's iterator, which goes back with the state and loads the batches again.
        handed out: it runs no Python of the program, so its batches can be kept. Empty: neither of these.
        """
        return ""


class Norms(Protocol):
    """The norms of the variables that the guard watches."""

    reads_ranks: bool
    """Whether a rank of a job can read the norms of what it has itself."""

    def watch_gradients(self) -> None:
        """Add the norms of gradients that optimizers are given to `norms`: in functions that are traced from now on."""

    def norms(self) -> tuple[Sequence[Watched], Array]:
        """Return the variables watched for hardware faults, and their Euclidean norms [variable]; a variable that holds
        a NaN has the norm NaN.

        The sequence is the same object until other variables are to be watched.
        """

    def value(self, key: str) -> Array | None:
        """Return the value of a watched variable; None if it has none."""


class WeightsExport(Protocol):
    """The framework's own file of weights."""

    def files(self) -> dict[str, WeightsFile]:
        """Return the content of the framework's own weights file for each live model, by a key of the model."""


class Replicas(Protocol):
    """The tensors that all ranks of a job hold alike: weights, and the state that optimizers keep for them."""

    def addresses(self) -> dict[int, str]:
        """Return the addresses of such tensors in the host's memory now, each with the tensor's name on all ranks."""


class Devices(Protocol):
    """Devices other than the host's processors that may hold tensors."""

    def missing(self, state: bytes) -> list[str]:
        """Return the devices that a checkpoint's tensors need and this machine lacks. `state`: from `Adapter.state`."""

    def others(self) -> int:
        """Return how many such devices this machine has."""

    def map_to_cpu(self) -> None:
        """Make `mapped` put on the CPU all tensors and devices that were on such devices."""

    def mapped(self, graph: Graph) -> Graph:
        """Return a graph of Python state in the form in which it is put back on this machine's devices."""

    def copies_later(self) -> AbstractContextManager[None]:
        """Inside, `SharedTensors.read` with `holds` may return an object with `nbytes` in place of an array: its
        `fetch()` returns the bytes (once, on any thread).
        """


class Adapter(Protocol):
    """The code that knows one framework. Each ability is an attribute; it is None where the adapter lacks the ability.

    An adapter is made when the program itself has imported the framework, never before. It takes part in experiments by
    handing `Instruments` to `Settings.experiment`, and puts `Settings.probes` into the framework's own loops.
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
        """The export of weights files, once the program has imported the library that writes them."""
        return None

    def state(self) -> bytes:
        """Return the rest of the state as JSON: counts that name objects, counts of draws from loaders, settings."""
        return b"{}"

    def set_state(self, state: bytes, positions: Mapping[str, Array], mode: Mode) -> None:
        """Restore the result of `state`. Set loaders to their positions; draw as often again from those without one."""

    def environment(self) -> dict[str, str]:
        """Return the versions and settings that decide about the bits of results."""
        return {}

    def on_import(self, module: str) -> None:
        """Note that a module of `registry.FOLLOWED` has been imported."""

    def begin_phase(self) -> None:
        """Note that the program is about to enter a training loop: changes from here on belong to the loop."""

    def end_phase(self) -> None:
        """Note that the program has left the training loop."""

    def uncaptured(self) -> list[str]:
        """Return a description of each piece of state that a checkpoint does not hold."""
        return []

    def at_rest(self) -> AbstractContextManager[None]:
        """Inside, tensors that the framework keeps in one of several forms are in the form that checkpoints hold."""
        return nullcontext()

    def flush(self) -> None:
        """Flush all data that the program has written through the framework to its files: a kill after the cut must not
        lose it.
        """
