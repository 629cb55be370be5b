"""The manifest of a run: the names and digests of the checkpoints that it has committed, in order.

Each has a line of text, appended once the checkpoint lies under its name for good. Each line carries its own checksum,
so that a line torn by a crash, or damaged, is passed over and spoils no other. Documented in docs/reference/format.md.

The manifest shows two things that the digests inside the files do not: that an undamaged file is not the one that this
run wrote under its name (it is of another run, or an older copy), and that a checkpoint has gone. A checkpoint without
a line is as good as its own digests: the process may have been killed just before it wrote the line.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec
import xxhash

from detrain.base.errors import CheckpointTooNew, StoreError
from detrain.store.atomic_file import append_line, open_regular, read_regular, way_out

MANIFEST_VERSION: Final = 1


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line: the head of the file (`version`), a commit (`name` and `digest`), or a name that is withdrawn (`name`
    alone).
    """

    version: int = 0
    name: str = ""
    digest: str = ""


class Manifest:
    """The manifest at a path, which need not exist yet.

    Only the process that holds the home's lock writes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def digests(self) -> dict[str, str]:
        """Return the digest of each checkpoint that stands committed, by name, in order.

        Raises StoreError, CheckpointTooNew.
        """
        found: dict[str, str] = {}
        for line in self._lines():
            found.pop(line.name, None)  # committed again, it comes last
            if line.digest:
                found[line.name] = line.digest
        return found

    def commit(self, name: str, digest: str) -> None:
        """Add a checkpoint. Raises StoreError.

        The line is not flushed by itself: if a power cut takes it, the checkpoint is confirmed by its own digests.
        """
        self._append(_Line(name=name, digest=digest), is_flushed=False)

    def withdraw(self, name: str) -> None:
        """Take a name off the list: another checkpoint is about to take it, or its file was put aside. Raises
        StoreError.

        The line is flushed: if a power cut took it, the old line would contradict the new file.
        """
        if name in self.digests():
            self._append(_Line(name=name), is_flushed=True)

    def illegible(self) -> int:
        """Return the number of lines that are damaged or torn by a crash. Raises StoreError."""
        return sum(_parsed(line) is None for line in read_regular(self.path, "manifest").split(b"\n") if line)

    def require_file(self) -> None:
        """Check that lines can be appended, or that there is no manifest yet. Raises StoreError."""
        try:
            os.close(open_regular(self.path, os.O_RDWR))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self._cannot_write(error) from error

    def _lines(self) -> list[_Line]:
        lines = [line for line in map(_parsed, read_regular(self.path, "manifest").split(b"\n")) if line is not None]
        for line in lines:
            if line.version > MANIFEST_VERSION:
                raise CheckpointTooNew(
                    f"manifest {str(self.path)!r} has format {line.version}; this detrain reads up to {MANIFEST_VERSION}",
                    "update detrain, or give another folder with --ckpt DIR; the file is left as it is",
                )
        return [line for line in lines if line.name]

    def _append(self, line: _Line, *, is_flushed: bool) -> None:
        try:
            append_line(self.path, _formatted(line), _formatted(_Line(version=MANIFEST_VERSION)), is_flushed=is_flushed)
        except OSError as error:
            raise self._cannot_write(error) from error

    def _cannot_write(self, error: OSError) -> StoreError:
        return StoreError(f"cannot write manifest {str(self.path)!r}: {error.strerror or error}", way_out(error))


def _formatted(line: _Line) -> bytes:
    text = msgspec.json.encode(line)
    return f"{xxhash.xxh3_64_hexdigest(text)} ".encode() + text + b"\n"


def _parsed(line: bytes) -> _Line | None:
    """Return a parsed line, or None if it is not whole."""
    checksum, _, text = line.partition(b" ")
    if xxhash.xxh3_64_hexdigest(text).encode() != checksum:
        return None
    try:
        return msgspec.json.decode(text, type=_Line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
