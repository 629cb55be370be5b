"""How the ranks of a job find each other: through one key of a store, which may be older than the job.

Rank 0 listens, and puts its address under the key. The others connect to it. It greets each at once, and sends each the
table of all ranks when the last has come. An address left by an earlier run refuses or does not answer: then the rank
reads the key again, until the time is up.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import msgspec

from detrain.base.errors import RanksApart
from detrain.runtime.ranks.processes import Process

_GREETING: Final = b"detrain-ranks-1\n"
_ANSWER_S: Final = 5.0
_PAUSE_S: Final = 0.05
_MAX_BYTES: Final = 1 << 24


class Store(Protocol):
    """A store of keys that all ranks reach, such as those of `torch.distributed`."""

    def set(self, key: str, value: bytes, /) -> object:
        """Put a value."""

    def get(self, key: str, /) -> bytes:
        """Return a value. Wait for it as long as the store allows, then raise an exception."""


class FolderStore:
    """A store in a folder."""

    def __init__(self, folder: Path, timeout_s: float = 60.0) -> None:
        self._folder, self._timeout_s = folder, timeout_s

    def set(self, key: str, value: bytes, /) -> None:
        """Put a value: other ranks see all of it, or none."""
        with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
            file.write(value)
        Path(file.name).replace(self._folder / key.replace("/", "%"))

    def get(self, key: str, /) -> bytes:
        """Return a value. Raises TimeoutError."""
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline:
            with suppress(FileNotFoundError):
                return (self._folder / key.replace("/", "%")).read_bytes()
            time.sleep(0.01)
        raise TimeoutError(f"no {key!r} in {self._folder} after {self._timeout_s} s")


class Peer(msgspec.Struct, frozen=True, array_like=True):
    """The address and the process of a rank."""

    rank: int
    world: int
    host: str
    port: int
    node: str
    process: Process


class Table(msgspec.Struct, frozen=True, array_like=True):
    """All ranks of an incarnation, in their order."""

    incarnation: bytes
    peers: tuple[Peer, ...]

    def nodes(self) -> list[list[int]]:
        """Return the ranks of each node, nodes and ranks in the order of ranks."""
        nodes: dict[str, list[int]] = {}
        for peer in self.peers:
            nodes.setdefault(peer.node, []).append(peer.rank)
        return list(nodes.values())


def host_towards(host: str, port: int) -> str:
    """Return this machine's address on the way to `host`. This sends no packet."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def gather(listener: socket.socket, me: Peer, store: Store, key: str, timeout_s: float) -> Table:
    """Return the table of all ranks. Raises RanksApart when the time is up."""
    deadline = time.monotonic() + timeout_s
    return _receive_all(listener, me, store, key, deadline) if me.rank == 0 else _go_to_first(me, store, key, deadline)


def _receive_all(listener: socket.socket, me: Peer, store: Store, key: str, deadline: float) -> Table:
    store.set(key, msgspec.msgpack.encode((me.host, me.port)))
    peers = {0: me}
    connections: dict[int, socket.socket] = {}
    try:
        while len(peers) < me.world:
            missing = sorted(set(range(me.world)) - peers.keys())
            listener.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                connection, _ = listener.accept()
            except TimeoutError as error:
                raise RanksApart(
                    f"ranks {missing} of {me.world} have not come to rank 0 at {me.host}:{me.port} in time",
                    "see what they say; give the ranks an address at which they reach each other, or run with --no-jit",
                ) from error
            connection.settimeout(_ANSWER_S)
            try:
                connection.sendall(_GREETING)
                peer = msgspec.msgpack.decode(_receive(connection), type=Peer)
            except (OSError, ValueError):
                connection.close()  # not a rank of detrain
                continue
            if peer.world != me.world or not 0 < peer.rank < me.world:
                connection.close()
                continue
            if peer.rank in connections:
                connections[peer.rank].close()
            peers[peer.rank], connections[peer.rank] = peer, connection
        table = Table(os.urandom(16), tuple(peers[rank] for rank in range(me.world)))
        for connection in connections.values():
            with suppress(OSError):
                _send(connection, msgspec.msgpack.encode(table))
        return table
    finally:
        for connection in connections.values():
            connection.close()


def _go_to_first(me: Peer, store: Store, key: str, deadline: float) -> Table:
    last: object = "the store has no address"
    while time.monotonic() < deadline:
        try:
            host, port = msgspec.msgpack.decode(store.get(key), type=tuple[str, int])
            with socket.create_connection((host, port), _ANSWER_S) as connection:
                if _exactly(connection, len(_GREETING)) != _GREETING:
                    raise ConnectionError(f"{host}:{port} is no rank of detrain")
                _send(connection, msgspec.msgpack.encode(me))
                connection.settimeout(max(0.001, deadline - time.monotonic()))
                return msgspec.msgpack.decode(_receive(connection), type=Table)
        except Exception as error:  # a store may raise any exception
            last = error
            time.sleep(_PAUSE_S)
    raise RanksApart(
        f"rank {me.rank} has not reached rank 0 in time: {last}",
        "give the ranks an address at which they reach each other, or run with --no-jit",
    )


def _send(connection: socket.socket, data: bytes) -> None:
    connection.sendall(len(data).to_bytes(4, "big") + data)


def _receive(connection: socket.socket) -> bytes:
    size = int.from_bytes(_exactly(connection, 4), "big")
    if size > _MAX_BYTES:
        raise ConnectionError(f"a message of {size} bytes")
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise ConnectionError("the connection has ended")
        data += chunk
    return bytes(data)
