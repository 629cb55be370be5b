"""The seam to a framework: small Protocols, one for each thing that an adapter can do.

`Adapter` has one attribute for each of them; the adapter contract suite (tests/adapters) says what they promise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol

import numpy as np

from detrain.adapters.instruments import TakesInstruments
from detrain.base.config import Ranks
from detrain.base.digest import Array
from detrain.base.options import Mode
from detrain.python.inspect.object_graph import Graph, Item, SharedTensor
from detrain.python.loaders.generator_replay import Elements
from detrain.python.outside.fs_answers import Answers
from detrain.python.outside.rewritten_files import Contents
from detrain.python.process.random_streams import Stream
from detrain.store.weights_file import WeightsFile


@dataclass(frozen=True, slots=True)
class Settings:
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


@dataclass(frozen=True, slots=True)
class Watched:
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
    return replace(watched, partner=partner, factor=factor, unseen=math.sqrt(size) * _UNSEEN)


class TensorLeaves(Protocol):
    """A framework's tensors as leaves of Python objects: how one is read, and how one is made. A framework has none of
    what is not written out.
    """

    constant_type: type | None = None
    """The type of immutable tensors; None: the framework has none."""

    def to_array(self, value: object) -> Array | None:
        """Return a tensor's or variable's value, or None for anything else. It may share memory."""
        return None

    def constant(self, value: object) -> Array | None:
        """Return the value of an immutable tensor, or None for anything else. It may share memory."""
        return None

    def form(self, value: object) -> list[Item] | None:
        """Return, as data, what tells an immutable tensor from another one of the same value, begun by the adapter's
        name; None: nothing does, or it is anything else.
        """
        return None

    def make_constant(self, array: Array, form: list[Item] | None = None) -> object | None:
        """Return an immutable tensor of a value and a form; None if the form is another adapter's."""
        return None

    def parts(self, value: object) -> tuple[str, list[object]] | None:
        """Return the kind of a tensor of several parts and these, or None for anything else."""
        return None

    def parts_of_new(self, value: object) -> tuple[str, list[object]] | None:
        """Like `parts`, of what stays as the process has it unless the loop has made it: an iterator over a dataset."""
        return None

    def remake(self, kind: str, parts: list[Any], current: object) -> object | None:
        """Return the tensor of a kind with these parts, `current` if it is that or can become it;

        None for other kinds.
        """
        return None


class SharedTensors(Protocol):
    """Tensors that are changed in place, and may share their memory with others: leaves of Python objects, which are
    put back in place, so that whoever holds one sees it.
    """

    def is_shared(self, value: object) -> bool:
        """Return whether an object is such a tensor."""

    def is_computed(self, value: object) -> bool:
        """Return whether an object is such a tensor that weights went into: gradients would go back through it."""

    def look(self, value: object) -> SharedTensor | None:
        """Return what such a tensor is, or None for anything else."""

    def read(self, memory: Any, *, holds: bool) -> Array:
        """Return the bytes [byte] uint8 of a memory, in the host's, to be read at once; with `holds` they stay as they
        are while the program goes on.
        """

    def fill(self, memory: Any, size_bytes: int, write: Callable[[Array], None]) -> bool:
        """Have so many bytes written into a memory, by `write` (into an array [byte] uint8); or return that they do not
        fit."""

    def new_memory(self, size_bytes: int, write: Callable[[Array], None], form: list[Item]) -> object:
        """Return a memory with so many bytes, by `write`, where a tensor of this form has its own."""

    def span(self, memory: Any) -> tuple[int, int]:
        """Return the address of a memory and its size in bytes; no size if it is not in the host's."""

    def array_of(self, memory: Any) -> Array:
        """Return an array [byte] uint8 that lies in a memory, and keeps it alive."""

    def memory_in(self, array: Array) -> object:
        """Return a memory that lies in an array [byte] uint8."""

    def put(self, form: list[Item], memory: Any, current: object, base: object) -> object:
        """Return the tensor of a form at a memory, a view of `base` if that is not None: `current` if it is that, or
        can become it, else a new one. Raises ValueError where none can be made.
        """

    def set_parts(self, tensor: Any, parts: list[Any]) -> None:
        """Give a tensor the parts that `look` told."""


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


class ObjectRules(Protocol):
    """What the framework's own classes mean for the state of a program's objects. A framework that has no such objects
    says nothing of them.
    """

    on_functions: frozenset[str] = frozenset()
    """Names of attributes that the framework stores on functions of the program for itself: they are no state."""

    def is_holder(self, value: object) -> bool:
        """Return whether the attributes of an object of the framework's own class are state of
        the loop (a callback).
        """
        return False

    def is_container(self, value: object) -> bool:
        """Return whether an object is a list, dict or set of the framework's around what the program put there."""
        return False

    def holds_variables(self, value: object) -> bool:
        """Return whether an object holds variables: one that the loop has made cannot be put back."""
        return False

    def is_of_loop(self, value: object) -> bool:
        """Return whether the loop has made an object with variables, not as it built something lazily: none makes it
        again.
        """
        return False

    def is_spent(self, value: object) -> bool:
        """Return whether an object has served its time, so that nothing can be read from it any more."""
        return False


class RandomStreams(Protocol):
    """The framework's random streams."""

    def streams(self) -> dict[str, Stream]:
        """Return the framework's global random streams, by name."""

    def held_generator(self, value: object) -> Stream | None:
        """Return a generator of the framework's that the program holds as a stream, None for any other object."""


class LoaderPositions(Protocol):
    """How far the framework's loaders are. `Adapter.set_state` brings them back."""

    def positions(self, mode: Mode) -> tuple[dict[str, Array], list[str]]:
        """Return the positions of loaders alive, as data by their keys, and why others have none.

        With `forward` only of those that cannot be drawn from again, with `seek` of any size.
        """

    def is_loader(self, value: object) -> bool:
        """Return whether an object is one whose position `Adapter.set_state` brings back."""

    def no_position(self, value: object) -> str:
        """Return why such an object, if it lives on from an epoch to the next, cannot be put where it is; empty if it
        can be.
        """
        return ""

    def loader_key(self, loader: object) -> str:
        """Return the name of a loader of the framework's that has a position of its own; empty for any other object."""

    def called(self) -> Mapping[str, object]:
        """Return the Python objects that pipelines alive call, by keys that are the same in
        every run of the program.
        """
        return {}


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
