"""The messages between ranks. They are data (msgpack with a fixed list of types): nothing in them is run."""

from __future__ import annotations

from typing import Final

import msgspec
import xxhash

from detrain.runtime.ranks.vote import Decision, StatePoint, Vote

_LONGEST_NAME: Final = 80


class View(msgspec.Struct, frozen=True, array_like=True):
    """The subject of a round of votes. Both parts only grow; two views are joined, so that all ranks come to one."""

    dead: tuple[int, ...] = ()
    unable: tuple[int, ...] = ()
    """Ranks that live and have a failed disk."""

    def joined(self, other: View) -> View:
        """Return the view with the ranks of both."""
        return View(_union(self.dead, other.dead), _union(self.unable, other.unable))

    def without(self, *ranks: int) -> View:
        """Return the view in which these ranks are dead, too."""
        return View(_union(self.dead, ranks), self.unable)

    def failing(self, rank: int) -> View:
        """Return the view in which this rank cannot write."""
        return View(self.dead, _union(self.unable, (rank,)))

    @property
    def name(self) -> str:
        """The name of the round's folder, unique in its incarnation."""
        name = "-".join(["lost", *map(str, self.dead)] + (["failed", *map(str, self.unable)] if self.unable else []))
        if len(name) <= _LONGEST_NAME:
            return name
        return f"lost-{len(self.dead)}-of-{xxhash.xxh3_64_hexdigest(name.encode())}"


def _union(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return one if one == other else tuple(sorted({*one, *other}))


class File(msgspec.Struct, frozen=True, array_like=True):
    """A file that was written: its path from the incarnation's folder, its size, and its xxh3-128."""

    path: str
    size_bytes: int
    digest: bytes


class Beat(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The sender lives."""


class Call(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The receiver must come to rest, and vote on this view."""

    view: View
    why: str


class Ballot(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A vote, for the chief."""

    view: View
    why: str
    vote: Vote


class Decided(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The chief's decision from the votes of all."""

    view: View
    decision: Decision


class Written(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The sender's part is on the disk."""

    view: View
    files: tuple[File, ...]


class Over(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The end: the committed round, or None, and the reason."""

    committed: str | None
    text: str


class Bye(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """The sender has done its work, and ends."""


class Small(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """A small state of the sender, for its buddy."""

    point: StatePoint
    state: bytes


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """A message of the gate between nodes: the sender's node and all nodes that it knows of by this round are at this
    step. `number` is the greatest that they have brought.
    """

    step: int
    round: int
    number: int = 1


Agreeing = Beat | Call | Ballot | Decided | Written | Over | Bye
"""The messages that the machine gets."""
Message = Beat | Call | Ballot | Decided | Written | Over | Bye | Small | Ready

MAX_BYTES: Final = 1 << 30
"""No message may be longer; a small state takes kilobytes."""
HEAD_BYTES: Final = 4
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[Message]] = msgspec.msgpack.Decoder(Message)


def pack(message: Message) -> bytes:
    """Return a message with its length before it. Raises ValueError if it is too long."""
    body = _encoder.encode(message)
    if len(body) > MAX_BYTES:
        raise ValueError(f"a message of {len(body)} bytes; at most {MAX_BYTES} can be sent")
    return len(body).to_bytes(HEAD_BYTES, "big") + body


def unpack(buffer: bytearray) -> list[Message]:
    """Remove the complete messages from the front of a buffer and return them. Raises ValueError for other bytes."""
    messages, start = [], 0
    while len(buffer) - start >= HEAD_BYTES:
        end = start + HEAD_BYTES + (size := int.from_bytes(buffer[start : start + HEAD_BYTES], "big"))
        if size > MAX_BYTES:
            raise ValueError(f"a message of {size} bytes")
        if len(buffer) < end:
            break
        messages.append(_decoder.decode(bytes(buffer[start + HEAD_BYTES : end])))
        start = end
    del buffer[:start]
    return messages
