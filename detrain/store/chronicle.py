"""The chronicle: the record that the processes of one run keep beside its checkpoints, as lines of JSON that are only
appended.

It says when the processes started and ended and when they took checkpoints, and keeps the text of the program's source
for readers. A torn line, or one of a kind that a later version writes, is passed over: no run depends on this file.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from detrain.base.byte_digests import digest_source
from detrain.base.errors import StoreError
from detrain.store.atomic_file import append_line, read_regular, way_out


class Source(msgspec.Struct, frozen=True, tag="source", tag_field="kind"):
    """A source file of the program, as it was executed."""

    name: str
    """Its path relative to the folder of the program's main file."""
    digest: str
    """The digest of its syntax tree, as in checkpoints."""
    text: str
    """Its text; bytes that are no UTF-8 are decoded as Latin-1."""
    is_utf8: bool = True

    @classmethod
    def of(cls, name: str, digest: str, data: bytes) -> Source:
        """Return the record of a source file with these bytes."""
        try:
            return cls(name, digest, data.decode())
        except UnicodeDecodeError:
            return cls(name, digest, data.decode("latin-1"), is_utf8=False)

    @property
    def data(self) -> bytes:
        """The bytes of the file."""
        return self.text.encode("utf-8" if self.is_utf8 else "latin-1")


class Started(msgspec.Struct, frozen=True, tag="start", tag_field="kind", omit_defaults=True):
    """A process begins to run the program."""

    at: float
    """Seconds since 1970, as in the other kinds of lines."""
    pid: int
    host: str
    since: str = ""
    """File name of the checkpoint from which it resumes; empty: it starts anew."""
    environment: dict[str, str] = {}
    """Versions and settings that can change a result's bits."""


class CheckpointSaved(msgspec.Struct, frozen=True, tag="checkpoint", tag_field="kind", omit_defaults=True):
    """A checkpoint has been written."""

    at: float
    name: str
    """The name of its file."""
    size_bytes: int
    took_s: float
    """Seconds to write it; training does not wait while a large one is written."""
    batches_done: int
    loss: float | None = None
    """The value of the program's variable `loss`, if that was a number."""


class Ended(msgspec.Struct, frozen=True, tag="end", tag_field="kind", omit_defaults=True):
    """A process ends by itself. A killed process leaves no such line."""

    at: float
    pid: int
    how: str = ""
    """Empty if the program ran to its last line, else the exception, signal or error of detrain that ended it."""


class Timed(msgspec.Struct, frozen=True, tag="timing", tag_field="kind"):
    """The first new step is done, and `--timing` asked for the seconds of the start."""

    at: float
    pid: int
    parts_s: dict[str, tuple[float, float]]
    """For each part of the start: its seconds by wall clock, and of processor time."""


Event = Source | Started | Timed | CheckpointSaved | Ended
now = functools.partial(time.clock_gettime, time.CLOCK_REALTIME)
"""The real time: detrain may give the program another one."""
_EVENT = msgspec.json.Decoder(Event)


class Chronicle:
    """The chronicle of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, event: Event) -> None:
        """Add a line. Raises StoreError."""
        try:
            append_line(self.path, msgspec.json.encode(event) + b"\n")
        except OSError as error:
            raise StoreError(f"cannot write {str(self.path)!r}: {error.strerror or error}", way_out(error)) from error

    def events(self) -> list[Event]:
        """Return all events on record, in order; none if the file is not there. Raises StoreError."""
        found = []
        for line in read_regular(self.path, "chronicle").splitlines():
            try:
                found.append(_EVENT.decode(line))
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue
        return found

    def keep_sources(self, files: Mapping[str, tuple[str, bytes]]) -> None:
        """Add source files, given as digest and bytes by name, that are not on record yet.

        Raises StoreError.
        """
        known = {(each.name, each.digest) for each in self.events() if isinstance(each, Source)}
        for name, (digest, data) in files.items():
            if (name, digest) not in known:
                self.add(Source.of(name, digest, data))

    def sources(self, digests: Mapping[str, str]) -> dict[str, bytes]:
        """Return the bytes, by name, of the source files with these digests that are on record and whole."""
        kept = {(each.name, each.digest): each.data for each in self.events() if isinstance(each, Source)}
        found = {name: kept[name, digest] for name, digest in digests.items() if (name, digest) in kept}
        return {name: data for name, data in found.items() if digest_source(data) == digests[name]}
