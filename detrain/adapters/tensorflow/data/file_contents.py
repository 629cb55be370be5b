"""Files that the program reads and writes through TensorFlow: `tf.io.gfile`, eager ops, and checkpoints of TensorFlow's
own.

What it appends to is set back like any other log; what it writes as a whole is put back.
"""

from __future__ import annotations

import functools
import glob
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.checkpoint import checkpoint
from tensorflow.python.lib.io import file_io
from tensorflow.python.ops import gen_io_ops, io_ops
from tensorflow.python.training import py_checkpoint_reader

from detrain.base.in_place import in_place_of
from detrain.python.outside.rewritten_files import Contents

_native: Any = file_io._pywrap_file_io


class _Writable(_native.WritableFile):  # type: ignore[misc]
    """TensorFlow's file, as detrain.python.outside.open_files looks at one: it is always at its end."""

    closed = False

    def close(self) -> None:
        self.closed = True
        super().close()

    def seek(self, _position: int) -> None:
        """Stay at the end."""


def watch_contents(contents: Contents) -> None:
    """Hear of the files that are opened from here on."""
    _watch_gfile(contents)
    _watch_checkpoints(contents)
    _watch_ops(contents)


def _watch_gfile(contents: Contents) -> None:
    real_input, real_init = _native.BufferedInputStream, file_io.FileIO.__init__

    @in_place_of(file_io.FileIO, "__init__")
    def init(self: Any, name: Any, mode: str, *arguments: Any, **keywords: Any) -> None:
        real_init(self, name, mode, *arguments, **keywords)
        if mode in ("w", "wb") and contents.counts_on(name):
            # It opens the file at its first write, which is only behind the cut: that would empty it.
            self._prewrite_check()

    def open_writable(path: Any, mode: Any, *arguments: Any) -> Any:
        name, letters = os.path.abspath(os.fsdecode(path)), tf.compat.as_str(mode).replace("b", "")
        if letters in ("w", "a"):
            return contents.opens_to_write(name, letters, lambda wanted: _Writable(path, wanted.encode(), *arguments))
        contents.changes(name)
        return _Writable(path, mode, *arguments)

    @in_place_of(_native, "BufferedInputStream")
    def open_input(path: Any, *arguments: Any) -> Any:
        contents.reads(os.path.abspath(os.fsdecode(path)))
        return real_input(path, *arguments)

    _native.WritableFile = open_writable


def _watch_checkpoints(contents: Contents) -> None:
    real_save, real_reader = checkpoint.TrackableSaver.save, py_checkpoint_reader.NewCheckpointReader

    @in_place_of(checkpoint.TrackableSaver, "save")
    def save(self: Any, file_prefix: Any, *arguments: Any, **keywords: Any) -> Any:
        prefix = tf.get_static_value(file_prefix) if tf.is_tensor(file_prefix) else file_prefix
        if prefix is not None:
            for path in _files(prefix):
                contents.writes(path)
        return real_save(self, file_prefix, *arguments, **keywords)

    @in_place_of(py_checkpoint_reader, "NewCheckpointReader", tf.train, tf.compat.v1.train)
    def read(filepattern: Any) -> Any:
        contents.reads(_index(filepattern))
        return real_reader(filepattern)


def _watch_ops(contents: Contents) -> None:
    def telling(hear: Callable[[str], None], real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def op(filename: Any, *arguments: Any, **keywords: Any) -> Any:
            name = tf.get_static_value(filename) if tf.is_tensor(filename) else filename
            if tf.executing_eagerly() and isinstance(name, str | bytes | os.PathLike):
                hear(os.path.abspath(os.fsdecode(name)))
            return real(filename, *arguments, **keywords)

        return op

    write = telling(contents.writes, gen_io_ops.write_file)
    for module in (gen_io_ops, io_ops, tf.io):
        module.write_file = write
    gen_io_ops.read_file = telling(contents.reads, gen_io_ops.read_file)  # which `tf.io.read_file` calls


def _files(prefix: Any) -> set[str]:
    """Return the files of a checkpoint that is about to be written, and those that are there."""
    index = _index(prefix)
    shards = index.removesuffix(".index") + ".data-"
    return {index, f"{shards}00000-of-00001", *glob.glob(f"{glob.escape(shards)}*")}


def _index(prefix: Any) -> str:
    """Return the file that is there, and new, wherever a checkpoint has been written."""
    return os.path.abspath(f"{tf.compat.as_str_any(prefix)}.index")
