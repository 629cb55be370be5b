"""The chronicle: what the processes of one run have to say of it, as lines of JSON that are only added, beside its
checkpoints.

When its processes started and ended, and when they took checkpoints; and the text of the program's source, which nobody
runs from there. A line that is torn, or of a kind that a later
version writes, is passed over: nothing that a run does rests on this file.
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
    """Its path relative to the folder of the entry."""
    digest: str
    """As checkpoints have it, of the syntax tree."""
    text: str
    """What it held; of bytes that are no UTF-8, each as Latin-1 has it."""
    is_utf8: bool = True

    @classmethod
    def of(cls, name: str, digest: str, data: bytes) -> Source:
        """Return what there is to keep of a file."""
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
    """Seconds since 1970, as in all that follow."""
    pid: int
    host: str
    since: str = ""
    """The checkpoint that it goes on from, by the file's name; empty: it starts anew."""
    environment: dict[str, str] = {}
    """Versions and settings that decide about bits."""


class Saved(msgspec.Struct, frozen=True, tag="checkpoint", tag_field="kind", omit_defaults=True):
    """A checkpoint is written."""

    at: float
    name: str
    """Of its file."""
    size_bytes: int
    took_s: float
    """To write it; what large ones take, training does not wait for."""
    batches_done: int
    loss: float | None = None
    """What the program had under the name `loss`, if that was a number."""


class Ended(msgspec.Struct, frozen=True, tag="end", tag_field="kind", omit_defaults=True):
    """A process ends by itself. One that is killed leaves no such line."""

    at: float
    pid: int
    how: str = ""
    """Empty: with the program's last line; else by which exception, signal or error of detrain's."""


class Timed(msgspec.Struct, frozen=True, tag="timing", tag_field="kind"):
    """The first new step is done, and `--timing` asks what the start took."""

    at: float
    pid: int
    parts_s: dict[str, tuple[float, float]]
    """Seconds by wall clock, and of processor time, of each part of the start."""


Event = Source | Started | Timed | Saved | Ended
now = functools.partial(time.clock_gettime, time.CLOCK_REALTIME)
"""The time: the program may be told another one."""
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
        """Return what is on record, in order; nothing where there is no such file. Raises StoreError."""
        found = []
        for line in read_regular(self.path, "chronicle").splitlines():
            try:
                found.append(_EVENT.decode(line))
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue
        return found

    def keep_sources(self, files: Mapping[str, tuple[str, bytes]]) -> None:
        """Keep source files: their digests and bytes, by name. Those that are there are not added again.

        Raises StoreError.
        """
        known = {(each.name, each.digest) for each in self.events() if isinstance(each, Source)}
        for name, (digest, data) in files.items():
            if (name, digest) not in known:
                self.add(Source.of(name, digest, data))

    def sources(self, digests: Mapping[str, str]) -> dict[str, bytes]:
        """Return the bytes of source files, by name, of those of these digests that are on record, and whole."""
        kept = {(each.name, each.digest): each.data for each in self.events() if isinstance(each, Source)}
        found = {name: kept[name, digest] for name, digest in digests.items() if (name, digest) in kept}
        return {name: data for name, data in found.items() if digest_source(data) == digests[name]}
