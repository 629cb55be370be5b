"""The checkpoint store: one HDF5 file a checkpoint, data only, every byte under a digest. Knows no framework."""

from detrain.store.catalogue import Catalogue, Choice, Entry
from detrain.store.hdf5_writer import write
from detrain.store.reader import opened, read, read_meta, verify
from detrain.store.snapshot import LateArrays, Meta, Snapshot
from detrain.store.trailer import FORMAT_VERSION

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
