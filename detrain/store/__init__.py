"""The checkpoint store: one HDF5 file a checkpoint, data only, every byte under a digest. Knows no framework."""

from detrain.store.catalogue import Catalogue, Choice, Entry
from detrain.store.layout import FORMAT_VERSION, Meta, Snapshot, read, read_meta, verify, write

__all__ = ["FORMAT_VERSION", "Catalogue", "Choice", "Entry", "Meta", "Snapshot", "read", "read_meta", "verify", "write"]
