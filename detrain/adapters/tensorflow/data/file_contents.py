"""Files that the program reads and writes through TensorFlow: `tf.io.gfile`, eager ops, and TensorFlow's own
checkpoints.

Files that the program appends to are set back like any log; files that it writes as a whole are put back. Its questions
about files outside of its loops get the first run's answers, also the question which of TensorFlow's own checkpoints is
the newest. Files that hold caches of tf.data are noted.
"""

from __future__ import annotations

import base64
import functools
import glob
import os
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.checkpoint import checkpoint, checkpoint_management
from tensorflow.python.data.ops import cache_op
from tensorflow.python.lib.io import file_io
from tensorflow.python.ops import gen_io_ops, io_ops
from tensorflow.python.training import py_checkpoint_reader
from tensorflow.python.training.checkpoint_state_pb2 import CheckpointState

from detrain.base.in_place import in_place_of
from detrain.python.outside.fs_answers import Answers
from detrain.python.outside.rewritten_files import Contents

_native: Any = file_io._pywrap_file_io


class _Writable(_native.WritableFile):  # type: ignore[misc]
    """TensorFlow's file in the form that detrain.python.outside.open_files expects: its position is always the end."""

    closed = False

    def close(self) -> None:
        self.closed = True
        super().close()

    def seek(self, _position: int) -> None:
        """Stay at the end."""


def watch_contents(contents: Contents) -> None:
    """Report to `contents` the files that are opened from here on."""
    _watch_gfile(contents)
    _watch_moves(contents)
    _watch_checkpoints(contents)
    _watch_ops(contents)
    _watch_records(contents)


def _watch_records(contents: Contents) -> None:
    """Watch `TFRecordWriter`, which has no way to write on in a file that is there."""
    cls, paths = tf.io.TFRecordWriter, weakref.WeakKeyDictionary[Any, str]()
    real_init, real_write, real_close, real_exit = cls.__init__, cls.write, cls.close, cls.__exit__

    @in_place_of(cls, "__init__")
    def init(self: Any, path: Any, *arguments: Any, **keywords: Any) -> None:
        known = os.path.abspath(os.fsdecode(path))
        contents.writes(known)
        real_init(self, path, *arguments, **keywords)
        paths[self] = known

    @in_place_of(cls, "write")
    def write(self: Any, record: Any) -> None:
        real_write(self, record)
        contents.writes_on(self, paths[self])

    @in_place_of(cls, "close")
    def close(self: Any) -> None:
        contents.closes(self)
        real_close(self)

    def leave(self: Any, *arguments: Any) -> Any:
        contents.closes(self)
        return real_exit(self, *arguments)

    cls.__exit__ = leave


def _watch_gfile(contents: Contents) -> None:
    real_input, real_init = _native.BufferedInputStream, file_io.FileIO.__init__

    @in_place_of(file_io.FileIO, "__init__")
    def init(self: Any, name: Any, mode: str, *arguments: Any, **keywords: Any) -> None:
        real_init(self, name, mode, *arguments, **keywords)
        if mode in ("w", "wb") and contents.counts_on(name):
            # TensorFlow would open, and so empty, the file only at its first write, which may come after the cut.
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


def _watch_moves(contents: Contents) -> None:
    rename, copy, remove, remove_tree = _native.RenameFile, _native.CopyFile, _native.DeleteFile, _native.DeleteRecursively

    @in_place_of(_native, "RenameFile")
    def rename_file(src: bytes, dst: bytes, *arguments: Any) -> None:
        contents.moves(src, dst, lambda: rename(src, dst, *arguments))

    @in_place_of(_native, "CopyFile")
    def copy_file(src: bytes, dst: bytes, *arguments: Any) -> None:
        contents.reads(os.path.abspath(os.fsdecode(src)))
        if not contents.counts_on(dst):
            contents.writes(os.path.abspath(os.fsdecode(dst)))
            copy(src, dst, *arguments)

    @in_place_of(_native, "DeleteFile")
    def delete_file(path: bytes) -> None:
        if not contents.counts_on(path):
            contents.takes(os.path.abspath(os.fsdecode(path)))
            remove(path)

    @in_place_of(_native, "DeleteRecursively")
    def delete_recursively(path: bytes) -> None:
        contents.takes_folder(os.path.abspath(os.fsdecode(path)), lambda: remove_tree(path))


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
    gen_io_ops.read_file = telling(contents.reads, gen_io_ops.read_file)  # `tf.io.read_file` calls it


def _files(prefix: Any) -> set[str]:
    """Return the files of a checkpoint that is about to be written, together with its files that exist already."""
    index = _index(prefix)
    shards = index.removesuffix(".index") + ".data-"
    return {index, f"{shards}00000-of-00001", *glob.glob(f"{glob.escape(shards)}*")}


def _index(prefix: Any) -> str:
    """Return the path of a checkpoint's index, which every save writes anew."""
    return os.path.abspath(f"{tf.compat.as_str_any(prefix)}.index")


def watch_files(answers: Answers) -> None:
    """Answer questions about files with the recorded answers instead of the real ones."""
    native = file_io._pywrap_file_io
    for name in ("FileExists", "IsDirectory"):
        setattr(native, name, _asking(answers, name, getattr(native, name)))
    for name in ("GetChildren", "GetMatchingFiles"):
        setattr(native, name, _listing(answers, name, getattr(native, name)))
    for name in ("DeleteFile", "DeleteRecursively", "RenameFile"):
        setattr(native, name, _clearing(answers, name, getattr(native, name)))
    copy = native.CopyFile

    @in_place_of(native, "CopyFile")
    def copy_file(src: bytes, dst: bytes, overwrite: bool) -> None:
        copy(src, dst, overwrite or not answers.was_there(os.fsdecode(dst)))  # an earlier process has made it

    _watch_newest(answers)
    _watch_caches(answers)


def _asking(answers: Answers, question: str, real: Any) -> Any:
    """Wrap a question that TensorFlow answers by NotFoundError where a path does not exist."""

    @functools.wraps(real)
    def ask(path: Any, *arguments: Any) -> Any:
        found: list[Any] = []

        def is_there() -> bool:
            try:
                found.append(real(path, *arguments))
            except tf.errors.NotFoundError:
                return False
            return found[0] is not False

        if not answers.is_so(question, path, is_there):
            if found:
                return found[0]
            raise tf.errors.NotFoundError(None, None, f"{tf.compat.as_str_any(path)}; No such file or directory")
        return found[0] if found else True

    return ask


def _clearing(answers: Answers, question: str, real: Any) -> Any:
    @functools.wraps(real)
    def clear(path: bytes, *arguments: Any) -> None:
        def done() -> None:
            try:
                real(path, *arguments)
            except tf.errors.NotFoundError as error:
                raise FileNotFoundError(error.message) from error

        try:
            answers.clear(question, os.fsdecode(path), done, *arguments[:1])
        except FileNotFoundError as error:
            raise tf.errors.NotFoundError(None, None, f"{os.fsdecode(path)}; No such file or directory") from error

    return clear


def _listing(answers: Answers, question: str, real: Any) -> Any:
    @functools.wraps(real)
    def list_files(path: Any, *arguments: Any) -> Any:
        return answers.among(question, path, real(path, *arguments), tf.compat.as_str_any)

    return list_files


def _watch_caches(answers: Answers) -> None:
    """Note the files that a `cache()` of tf.data fills: its lock keeps other iterators out, for ever after a kill."""
    real = cache_op.CacheDataset.__init__

    @in_place_of(cache_op.CacheDataset, "__init__")
    def make(self: Any, input_dataset: Any, filename: Any, *arguments: Any, **keywords: Any) -> None:
        prefix = tf.get_static_value(filename) if tf.is_tensor(filename) else filename
        if isinstance(prefix, str | bytes) and prefix:
            answers.fill(tf.compat.as_str(prefix))
        real(self, input_dataset, filename, *arguments, **keywords)


def _watch_newest(answers: Answers) -> None:
    """Have `get_checkpoint_state`, which names TensorFlow's newest checkpoint, return its answer of the first run."""
    real = checkpoint_management.get_checkpoint_state

    @in_place_of(checkpoint_management, "get_checkpoint_state", tf.train, tf.compat.v1.train, tf.compat.v2.train)
    def get_checkpoint_state(checkpoint_dir: Any, latest_filename: Any = None) -> Any:
        def read() -> str:
            state = real(checkpoint_dir, latest_filename)
            return "" if state is None else base64.b64encode(state.SerializeToString()).decode()

        told = answers.told("get_checkpoint_state", f"{checkpoint_dir}/{latest_filename or 'checkpoint'}", read)
        return CheckpointState.FromString(base64.b64decode(told)) if told else None
