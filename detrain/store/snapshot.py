"""The contents of a checkpoint: the state of a program at a cut, and descriptions of the weights files that a framework
would write of the models. All of it is plain data: no framework is needed to read it.
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
    """One object of a model (a layer, an optimizer) in a weights file: its path in the file, its name, the keys of its
    variables.
    """

    path: str
    name: str | None
    keys: tuple[str, ...]


class WeightsFile(msgspec.Struct, frozen=True):
    """The weights file of a model.

    If there are no groups, the model was not built, or `refused` says why it can have no such file.
    """

    name: str
    groups: tuple[WeightsGroup, ...] = ()
    refused: str = ""


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a checkpoint. They hold no times and no process ids: equal states give equal bytes."""

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
    """Keys of each adapter's variables, by its name, if several adapters have some; empty if one adapter has all."""
    not_captured: tuple[str, ...] = ()
    gone_on_without: tuple[str, ...] = ()
    """Objects that the run lost at a resume because the user allowed it."""
    item: str = ""
    """The item of the epoch loop at this cut, if it is a number or text."""
    loop: str = ""
    """The place where the program entered the loop of this phase: the names of file and function, and the number of
    statements before."""
    loader: str = ""
    """The name of the framework's iterator that the batch loop runs over, if it runs over one directly."""
    files: dict[str, FileState] = {}
    """Files that the program writes, by path."""
    databases: tuple[str, ...] = ()
    """Paths of the SQLite databases that the run has written; the arrays `database00000` and so on hold their bytes."""
    forward: str = "an earlier version of detrain took it"
    """Why batches before this cut are loaded again when a run resumes here; empty if loaders are set to their
    positions."""
    loaders: tuple[str, ...] = ()
    """Keys of the framework loaders with stored positions; the arrays `loader00000` and so on hold these."""
    folders: tuple[str, ...] = ()
    """Folders that the program has made."""
    lacks_streams: bool = False
    """True if the random streams at this epoch's batches are not on record: the batches cannot be loaded again."""
    guard: dict[str, tuple[int, float]] = {}
    """The guard's observations: the number of steps and the largest norm, by group of variables."""
    metric: float | None = None
    """The number by which `--keep-best` chooses."""
    outside: dict[str, list[str]] = {}
    """The values of clock and system randomness that the program has read outside its loops, by kind, in order."""
    weights: dict[str, WeightsFile] | None = None
    """The weights files of the live models, by key; None if an earlier version of detrain took the checkpoint."""


class LargeArrays(Mapping[str, "Array"]):
    """Arrays by key. Large ones need not be in memory: they can be read directly into their destination."""

    @abstractmethod
    def size_bytes(self, key: str) -> int:
        """Return the size of an array in bytes."""

    @abstractmethod
    def read_into(self, key: str, memory: Array) -> None:
        """Read an array into memory [byte] uint8 of its size. If this raises CheckpointDamaged, the memory may hold
        wrong bytes, which must not be used."""


class LateArrays(Mapping[str, "Array"]):
    """Arrays by name, some of which are still on a device: a placeholder with a method `fetch` stands for each of
    these. The first access calls it, so the thread that writes the arrays does.
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
        """True if no array is still on a device."""
        return not any(hasattr(each, "fetch") for each in self._held.values())

    @property
    def nbytes(self) -> int:
        """The size in bytes of all arrays together; none is fetched for that."""
        return sum(each.nbytes for each in self._held.values())


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state at a cut: `meta`, framework tensors by key, packed random streams by name, the Python object graph.

    `python` is the codec's byte string, `arrays` holds the arrays that it refers to by number.
    """

    meta: Meta
    tensors: Mapping[str, Array]
    rng: Mapping[str, bytes]
    python: bytes
    arrays: Mapping[str, Array] = field(default_factory=dict)
    writes: Callable[[Sink, Snapshot], str] | None = field(default=None, compare=False)
    """The function that writes the snapshot into its file; None: `hdf5_writer.write_into`."""

    @property
    def nbytes(self) -> int:
        """The size in bytes of all its arrays together."""
        arrays = self.arrays.nbytes if isinstance(self.arrays, LateArrays) else sum(each.nbytes for each in self.arrays.values())
        return arrays + sum(each.nbytes for each in self.tensors.values())
