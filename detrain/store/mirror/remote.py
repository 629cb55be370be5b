"""The place of a mirror: a folder in an object store, on another machine or on this one, by its address (fsspec)."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, Final, ParamSpec, TypeVar

from detrain.base.errors import MirrorFailed, UsageError

_TRIES: Final = 8
_ANSWER_S: Final = 60.0
"""The longest wait for an answer."""
_SLOWEST_S: Final = 300.0
"""The same for a mirror that has answered on this connection: a slow one may take 8 MiB at 28 kB a second."""
P = ParamSpec("P")
T = TypeVar("T")


def _or_fails(act: Callable[P, T]) -> Callable[P, T]:
    """Decorate a method so that it raises MirrorFailed for any error of a file system: each kind has its own errors."""

    @functools.wraps(act)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        remote: Any = args[0]
        remote.load()
        try:
            found = within(_SLOWEST_S if remote.has_answered else _ANSWER_S, lambda: act(*args, **kwargs))
        except (MirrorFailed, UsageError):
            raise
        except Exception as error:
            remote.forget()  # else a broken connection would stay in use
            said = " ".join(str(error).split()) or type(error).__name__
            raise MirrorFailed(f"the mirror {remote.url!r} cannot be used: {said[:300]}") from error
        remote.has_answered = True
        return found

    return call


def within(limit_s: float, act: Callable[[], T]) -> T:
    """Return the result of `act`, or raise its error. Raises TimeoutError after `limit_s`: `act` then goes on alone."""
    done = Future[T]()

    def do() -> None:
        try:
            done.set_result(act())
        except BaseException as error:  # raised in the waiting thread
            done.set_exception(error)

    threading.Thread(target=do, daemon=True).start()
    if not wait([done], limit_s).done:
        raise TimeoutError(f"no answer for {limit_s:g} s")
    return done.result()


def programs_at(url: str) -> list[str]:
    """Return the names of the programs with states in a mirror; a job gives one for each rank: `train/rank-0`. Raises
    UsageError, MirrorFailed.
    """
    found = []
    for name in Remote(url, "").folders():
        ranks = [each for each in Remote(url, name).folders() if each.startswith("rank-")]
        found += [f"{name}/{each}" for each in ranks] or [name]
    return found


class Remote:
    """The folder of one program in a mirror, or of one rank of a job (`train/rank-0`). Names are relative to it, with
    `/` between their parts.

    Raises UsageError for an address of an unknown kind, MirrorFailed if the file system fails.
    """

    def __init__(self, url: str, program: str) -> None:
        self.url, self._program = url, program
        self._found: tuple[Any, str] | None = None
        self.has_answered = False

    def _reached(self) -> tuple[Any, str]:
        """Return the file system, connected if it has connections, and the folder in it."""
        if self._found is None:
            try:
                import fsspec

                files, root = fsspec.core.url_to_fs(self.url, skip_instance_cache=True)
            except ImportError as error:
                todo = "install it: pip install 'detrain[mirror]', and for s3:// s3fs, gs:// gcsfs, az:// adlfs, sftp:// paramiko"
                raise UsageError(f"--mirror {self.url!r} needs a package that is not here: {error}", todo) from error
            except ValueError as error:
                todo = "give one as s3://bucket/folder, gs://…, az://…, sftp://host/folder, or a path"
                raise UsageError(f"--mirror {self.url!r} is no address: {error}", todo) from error
            self._found = files, f"{str(root).rstrip('/')}/{self._program}"
        return self._found

    def load(self) -> None:
        """Import the packages for this kind of address. This may take long, and does not count as waiting."""
        with contextlib.suppress(ImportError, ValueError):  # `_reached` raises it as a UsageError
            import fsspec

            fsspec.get_filesystem_class(self.url.partition("://")[0] if "://" in self.url else "file")

    @property
    def _files(self) -> Any:
        return self._reached()[0]

    def forget(self) -> None:
        """Drop the connection, so that the next call connects anew."""
        found, self._found, self.has_answered = self._found, None, False
        if found is not None and "sftp" in found[0].protocol:
            found[0].client.close()  # else a thread that still waits for an answer would wait for ever

    def _path(self, name: str) -> str:
        return f"{self._reached()[1]}/{name}"

    @_or_fails
    def put(self, name: str, content: bytes) -> None:
        """Write a file, replacing one of that name."""
        self._with_folder(name, lambda: self._files.pipe_file(self._path(name), content))

    @_or_fails
    def put_new(self, name: str, content: bytes) -> bool:
        """Write a file if it is not there yet, and return True if this was so. If two processes do this at once, one of
        them gets False.
        """
        try:
            self._with_folder(name, lambda: self._create(self._path(name), content))
        except FileExistsError:
            return False
        return True

    @property
    def _is_store(self) -> bool:
        """True if the mirror is in a store of objects."""
        from fsspec.asyn import AsyncFileSystem

        return isinstance(self._files, AsyncFileSystem)

    def _create(self, path: str, content: bytes) -> None:
        if self._is_store:  # the store itself checks that the object is new
            self._files.pipe_file(path, content, mode="create")
            return
        mode = "wxb" if "sftp" in self._files.protocol else "xb"  # paramiko's x does not say that it writes
        try:
            with self._files.open(path, mode) as file:
                file.write(content)
        except FileNotFoundError:
            raise
        except OSError as error:  # SFTP's answer has no reason
            if not self._files.exists(path):
                raise
            raise FileExistsError(path) from error

    def _with_folder(self, name: str, write: Callable[[], object]) -> None:
        for _ in range(_TRIES):
            try:
                write()
                return
            except FileNotFoundError:
                if self._is_store:  # it has no folders: `makedirs` would make a bucket
                    raise
            with contextlib.suppress(OSError):  # another process may make them, too
                self._files.makedirs(self._path(name).rpartition("/")[0], exist_ok=True)
        write()

    @_or_fails
    def get(self, name: str) -> bytes | None:
        """Return the bytes of a file; None if it is not there."""
        try:
            return bytes(self._files.cat_file(self._path(name)))
        except FileNotFoundError:
            return None

    @_or_fails
    def sizes(self, folder: str) -> dict[str, int]:
        """Return the sizes in bytes of all files below a folder, by their names relative to it."""
        self._files.invalidate_cache()
        start = f"{self._path(folder)}/".lstrip("/")
        try:
            found = self._files.find(self._path(folder), detail=True)
        except FileNotFoundError:
            return {}
        return {str(path).lstrip("/").removeprefix(start): int(each["size"]) for path, each in found.items()}

    @_or_fails
    def folders(self) -> list[str]:
        """Return the names of the folders in this one, in order."""
        self._files.invalidate_cache()
        try:
            found = self._files.ls(self._reached()[1], detail=True)
        except FileNotFoundError:
            return []
        return sorted(each["name"].rstrip("/").rpartition("/")[2] for each in found if each["type"] == "directory")

    @_or_fails
    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))
