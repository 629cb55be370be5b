"""Lookup tables that change: captured by export, put back by removing and inserting entries.

Tables that are filled once and never change (`StaticHashTable`, most of Keras's vocabularies) are no state. Entries are
stored in the order of their keys, along with the order in which the table exports them, on which sums over an export
depend. TensorFlow's hash table puts a new entry before all others (`std::unordered_map`, as long as it does not grow):
so entries are inserted in reverse order, into a table that has already grown. A warning is given if the order still
differs.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.ops import lookup_ops

from detrain.adapters.stable_names import Births
from detrain.base import messages
from detrain.base.digest import Array
from detrain.base.in_place import in_place_of

_TEXT: Final = "bytes of "
_LENGTHS: Final = "lengths of "


class Tables:
    """All living mutable tables, by key."""

    def __init__(self, births: Births) -> None:
        self._births = births
        self._tables: dict[str, weakref.ref[Any]] = {}
        self._pending: dict[str, Array] = {}
        for cls in (lookup_ops.MutableHashTable, lookup_ops.DenseHashTable):
            self._watch(cls)

    def arrays(self) -> dict[str, Array]:
        """Return the tables' entries, in the order of their keys; text as its bytes and their lengths."""
        found = dict(self._pending)
        for name, reference in self._tables.items():
            table = reference()
            if table is not None:
                keys, values = _exported(table)
                order = np.argsort(keys, kind="stable") if keys.ndim == 1 else np.lexsort(keys.T[::-1])
                found.update(_packed(f"{name}/keys", keys[order]))
                found.update(_packed(f"{name}/values", values[order]))
                found[f"{name}/order"] = np.argsort(order)
        return found

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Fill the tables; entries of a table that does not exist yet wait for it."""
        self._pending = dict(arrays)
        for name in list(self._tables):
            self._claim(name)

    def _claim(self, name: str) -> None:
        table = self._tables[name]()
        keys, values = (_unpacked(f"{name}/{part}", self._pending) for part in ("keys", "values"))
        if table is None or keys is None or values is None:
            return
        order = self._pending.get(f"{name}/order", np.arange(len(keys)))
        keys, values = keys[order], values[order]
        with tf.init_scope():
            table.remove(tf.constant(_exported(table)[0], table.key_dtype))
            table.insert(tf.constant(keys, table.key_dtype), tf.constant(values, table.value_dtype))
            table.remove(tf.constant(keys, table.key_dtype))
            table.insert(tf.constant(keys[::-1], table.key_dtype), tf.constant(values[::-1], table.value_dtype))
        if f"{name}/order" in self._pending and not np.array_equal(_exported(table)[0], keys):
            messages.warn(f"the entries of {name} are in another order than they were: what takes them from `export()` may differ")
        self._pending = {
            key: array
            for key, array in self._pending.items()
            if key.removeprefix(_TEXT).removeprefix(_LENGTHS) not in (f"{name}/keys", f"{name}/values", f"{name}/order")
        }

    def _watch(self, cls: Any) -> None:
        original = cls.__init__

        @in_place_of(cls, "__init__")
        def made(table: Any, *args: Any, **kwargs: Any) -> None:
            original(table, *args, **kwargs)
            if context.executing_eagerly():
                name = self._births.register(table, "table", sys._getframe(1))
                self._tables[name] = weakref.ref(table)
                self._claim(name)


def _exported(table: Any) -> tuple[Array, Array]:
    """Return the keys and values of a table.

    The empty places of a dense table, exported under keys that no entry may have, are left out.
    """
    with tf.init_scope():
        keys, values = (np.asarray(part.numpy()) for part in table.export())
        for name in ("_empty_key", "_deleted_key"):
            if hasattr(table, name):
                is_entry = np.any(keys != np.asarray(getattr(table, name)), axis=tuple(range(1, keys.ndim)))
                keys, values = keys[is_entry], values[is_entry]
    return keys, values


def is_of_table(name: str) -> bool:
    """Return whether an array's name is that of a table's keys, their order, or its values."""
    owner, _, part = name.rpartition("/")
    return part in ("keys", "values", "order") and owner.rpartition("/")[2].partition(".")[0] in (
        "table",
        f"{_TEXT}table",
        f"{_LENGTHS}table",
    )


def _packed(name: str, array: Array) -> dict[str, Array]:
    if array.dtype != object:
        return {name: array}
    flat = [bytes(item) for item in array.reshape(-1)]
    lengths = np.array([len(item) for item in flat], np.int64).reshape(array.shape)
    return {f"{_TEXT}{name}": np.frombuffer(b"".join(flat), np.uint8), f"{_LENGTHS}{name}": lengths}


def _unpacked(name: str, arrays: Mapping[str, Array]) -> Array | None:
    if name in arrays or f"{_LENGTHS}{name}" not in arrays:
        return arrays.get(name)
    lengths, data = arrays[f"{_LENGTHS}{name}"], arrays[f"{_TEXT}{name}"].tobytes()
    ends = np.cumsum(lengths.reshape(-1))
    flat = [data[end - length : end] for end, length in zip(ends.tolist(), lengths.reshape(-1).tolist(), strict=True)]
    made = np.empty(len(flat), object)
    made[:] = flat
    return made.reshape(lengths.shape)
