"""What a checkpoint holds: the state of a program at a cut, and what it says about the weights file that a framework
would write of a model: data alone, no framework is needed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from detrain.base.cursor import FileState

if TYPE_CHECKING:
    from detrain.base.digest import Array
    from detrain.store.atomic_file import Sink


class WeightsGroup(msgspec.Struct, frozen=True, array_like=True):
    """What one object of a model (a layer, an optimizer) stores: its path in the file, its name, the keys of its
    variables.
    """

    path: str
    name: str | None
    keys: tuple[str, ...]


class WeightsFile(msgspec.Struct, frozen=True):
    """The weights file of a model.

    Without groups the model was not built, or `refused` says why there can be no file.
    """

    name: str
    groups: tuple[WeightsGroup, ...] = ()
    refused: str = ""


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint says about itself. Times and process ids are not part of it: equal states give equal bytes."""

    phase: int
    epoch: int
    batch: int
    cut: str
    run: int
    program: str
    arguments: tuple[str, ...]
    sources: dict[str, str]
    """Digest of the syntax tree of each source file of the program, by its path relative to the program's folder."""
    environment: dict[str, str]
    seed: int
    batches_done: int
    """Batches done since the start of the run, over all phases and epochs."""
    journal_bytes: int
    """Length of the journal at this cut."""
    frameworks: dict[str, msgspec.Raw] = {}
    owners: dict[str, tuple[str, ...]] = {}
    """Keys of the variables of each adapter, by its name, where more than one has some; else all are of the same."""
    not_captured: tuple[str, ...] = ()
    gone_on_without: tuple[str, ...] = ()
    """What the run has lost at a resume, because the user allowed it."""
    item: str = ""
    """What the epoch loop goes over at this cut, where it is a number or text."""
    loop: str = ""
    """Where the program entered the loop of this phase: the file's name, the function's, and how many statements come
    before."""
    loader: str = ""
    """The name of the framework's iterator that the batch loop goes over, if it goes over one itself."""
    files: dict[str, FileState] = {}
    """Files that the program writes, by path."""
    databases: tuple[str, ...] = ()
    """SQLite databases that the run has written, by path: what is in them are the arrays `database00000` and so on."""
    forward: str = "an earlier version of detrain took it"
    """Why batches before this cut are loaded again when a run resumes here; empty if loaders are set to their
    positions."""
    loaders: tuple[str, ...] = ()
    """Keys of the loaders of frameworks whose positions are stored: the arrays `loader00000` and so on."""
    folders: tuple[str, ...] = ()
    """Folders that the program has made."""
    lacks_streams: bool = False
    """Whether the random streams at the batches of this epoch are not on record: they cannot be loaded again."""
    guard: dict[str, tuple[int, float]] = {}
    """What the guard has seen: steps, and the largest norm, by group of variables."""
    metric: float | None = None
    """The number by which `--keep-best` chooses."""
    outside: dict[str, list[str]] = {}
    """What the program has read of clock and randomness outside of its loops, by kind, in order."""
    weights: dict[str, WeightsFile] | None = None
    """The weights files of the models alive, by their keys; None if an earlier version of detrain took the
    checkpoint."""


class LargeArrays(Mapping[str, "Array"]):
    """Arrays, of which those that are large need not be in memory: they can be read to where they belong."""

    @abstractmethod
    def size_bytes(self, key: str) -> int:
        """Return how large an array is."""

    @abstractmethod
    def read_into(self, key: str, memory: Array) -> None:
        """Read an array into memory [byte] uint8 of its size. Raises CheckpointDamaged, with bytes of it in there that
        nobody may go on with."""


class LateArrays(Mapping[str, "Array"]):
    """Arrays of which some are still where a device has them: what has a `fetch`, which is called when one is first
    asked for, so by the thread that writes them.
    """

    def __init__(self, held: dict[str, Any]) -> None:
        self._held = held

    def __getitem__(self, name: str) -> Array:
        found = self._held[name]
        if hasattr(found, "fetch"):
            found = self._held[name] = found.fetch()
        return found  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    @property
    def are_here(self) -> bool:
        """Whether none is still on a device."""
        return not any(hasattr(each, "fetch") for each in self._held.values())

    @property
    def nbytes(self) -> int:
        """How large they are together, in bytes; fetches none."""
        return sum(each.nbytes for each in self._held.values())


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state at a cut: `meta`, framework tensors by key, packed random streams by name, the Python object graph.

    `python` is the codec's byte string, `arrays` the arrays it refers to by number.
    """

    meta: Meta
    tensors: Mapping[str, Array]
    rng: Mapping[str, bytes]
    python: bytes
    arrays: Mapping[str, Array] = field(default_factory=dict)
    writes: Callable[[Sink, Snapshot], str] | None = field(default=None, compare=False)
    """What writes it into its file; None: `hdf5_writer.write_into`."""

    @property
    def nbytes(self) -> int:
        """How large its arrays are together, in bytes."""
        arrays = self.arrays.nbytes if isinstance(self.arrays, LateArrays) else sum(each.nbytes for each in self.arrays.values())
        return arrays + sum(each.nbytes for each in self.tensors.values())
