"""The checkpoint store: one HDF5 file a checkpoint, data only, every byte under a digest. Knows no framework."""

from typing import TYPE_CHECKING, Any

from detrain.store.catalogue import Catalogue, Choice, Entry
from detrain.store.reader import opened, read, read_meta, verify
from detrain.store.snapshot import LateArrays, Meta, Snapshot
from detrain.store.trailer import FORMAT_VERSION

if TYPE_CHECKING:
    from detrain.store.hdf5_writer import write

__all__ = [
    "FORMAT_VERSION",
    "Catalogue",
    "Choice",
    "Entry",
    "LateArrays",
    "Meta",
    "Snapshot",
    "opened",
    "read",
    "read_meta",
    "verify",
    "write",
]


def __getattr__(name: str) -> Any:
    """Import `write` when it is first asked for: the command does without the writer, and so without NumPy."""
    if name != "write":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from detrain.store.hdf5_writer import write

    return write
