"""The connections between ranks: whole messages, ends of connections, and no call that waits for a peer.

Bytes that a stopped peer does not take stay in a buffer. A missing connection is made when there is a message to send.
Forked children of the program close their copies of the connections: these would keep a dead rank's connections open.
"""

from __future__ import annotations

import errno
import select
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import msgspec

from detrain.base.errors import RanksApart
from detrain.runtime.ranks.rendezvous import Peer, Store, Table, gather
from detrain.runtime.ranks.wire import Message, pack, unpack

_CHUNK_BYTES: Final = 1 << 20
_HELLO: Final = msgspec.msgpack.Encoder()


class _Hello(msgspec.Struct, frozen=True, array_like=True):
    incarnation: bytes
    rank: int


class _Connection(msgspec.Struct):
    socket: socket.socket
    rank: int | None
    """The peer; None until it has sent its greeting."""
    received: bytearray = msgspec.field(default_factory=bytearray)
    unsent: bytearray = msgspec.field(default_factory=bytearray)


class ConnectionEnded(msgspec.Struct, frozen=True):
    """A connection has ended."""

    why: str


class Mesh:
    """All connections of one rank. `poll` is for the watcher's thread; `send` for any."""

    def __init__(self, me: Peer, listener: socket.socket, table: Table) -> None:
        self.table, self._me, self._listener = table, me, listener
        self._lock = threading.Lock()
        self._by_fd: dict[int, _Connection] = {}
        self._by_rank: dict[int, _Connection] = {}
        self._dropped: set[int] = set()
        self._early: list[tuple[int, Message | ConnectionEnded]] = []
        """For the next `poll`: messages that came while connections were made, and connections that failed."""
        listener.setblocking(False)
        self._epoll = select.epoll()
        self._epoll.register(listener, select.EPOLLIN)

    def watch(self, descriptor: int) -> None:
        """Have `poll` also return when there are bytes to read from another descriptor."""
        self._epoll.register(descriptor, select.EPOLLIN)

    def connect(self, ranks: Iterable[int], timeout_s: float) -> None:
        """Make the connections to these ranks. Of each two ranks, the higher one calls. Raises RanksApart."""
        ranks = set(ranks)
        for rank in sorted(rank for rank in ranks if rank < self._me.rank):
            with self._lock:
                self._call(rank)
        deadline = time.monotonic() + timeout_s
        early: list[tuple[int, Message | ConnectionEnded]] = []
        while (missing := ranks - self._by_rank.keys()) or any(each.unsent for each in list(self._by_fd.values())):
            if time.monotonic() > deadline:
                raise RanksApart(f"ranks {sorted(missing)} have not come to rank {self._me.rank} in time")
            items = self.poll(0.05)
            if lost := [f"rank {rank} ({item.why})" for rank, item in items if isinstance(item, ConnectionEnded) and rank in ranks]:
                raise RanksApart(f"rank {self._me.rank} has lost {lost[0]} at the start")
            early += items
        self._early += early

    def send(self, rank: int, message: Message) -> None:
        """Send as many bytes as possible at once, and the rest later. If the connection ends, `poll` reports it."""
        data = pack(message)
        with self._lock:
            if rank in self._dropped:
                return
            connection = self._by_rank.get(rank) or self._call(rank)
            if connection is not None:
                self._put(connection, data)

    def poll(self, timeout_s: float) -> list[tuple[int, Message | ConnectionEnded]]:
        """Return the messages and ends of connections that have come, each with its rank."""
        events = self._epoll.poll(timeout_s)
        with self._lock:
            items, self._early = self._early, []
            for descriptor, what in events:
                if descriptor == self._listener.fileno():
                    self._accept()
                elif descriptor in self._by_fd:
                    self._serve(self._by_fd[descriptor], what, items)
        return items

    def drop(self, rank: int) -> None:
        """End the connections to a rank, and make no new ones."""
        with self._lock:
            self._dropped.add(rank)
            for connection in [each for each in self._by_fd.values() if each.rank == rank]:
                self._close(connection)

    def flush(self, timeout_s: float) -> None:
        """Wait until everything is sent, or the time is up."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and any(connection.unsent for connection in list(self._by_fd.values())):
            self.poll(0.01)

    def close(self) -> None:
        """End all connections."""
        with self._lock:
            for connection in list(self._by_fd.values()):
                self._close(connection)
        self.forget()

    def forget(self) -> None:
        """In a forked child, close the descriptors that it shares with the parent, without ending the connections."""
        for connection in self._by_fd.values():
            connection.socket.close()
        self._by_fd.clear()
        self._by_rank.clear()
        self._listener.close()
        self._epoll.close()

    # The methods below need the lock.

    def _call(self, rank: int) -> _Connection | None:
        peer = self.table.peers[rank]
        try:
            family, kind, _, _, address = socket.getaddrinfo(peer.host, peer.port, type=socket.SOCK_STREAM)[0]
            made = socket.socket(family, kind)
        except OSError as error:
            self._early.append((rank, ConnectionEnded(f"no connection: {error.strerror or error}")))
            return None
        made.setblocking(False)
        if (code := made.connect_ex(address)) not in {0, errno.EINPROGRESS}:
            made.close()
            self._early.append((rank, ConnectionEnded(f"no connection: {errno.errorcode.get(code, code)}")))
            return None
        connection = self._add(made, rank)
        hello = _HELLO.encode(_Hello(self.table.incarnation, self._me.rank))
        connection.unsent += len(hello).to_bytes(4, "big") + hello  # goes out when the connection stands
        self._epoll.modify(made, select.EPOLLIN | select.EPOLLOUT)
        return connection

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            while True:
                try:
                    made, _ = self._listener.accept()
                except BlockingIOError:
                    raise
                except OSError:
                    return  # the other side is gone again, or there are no descriptors left
                made.setblocking(False)
                self._add(made, None)

    def _add(self, made: socket.socket, rank: int | None) -> _Connection:
        with suppress(OSError):
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(made, rank)
        self._by_fd[made.fileno()] = connection
        if rank is not None:
            self._by_rank.setdefault(rank, connection)
        self._epoll.register(made, select.EPOLLIN)
        return connection

    def _put(self, connection: _Connection, data: bytes) -> None:
        sent = 0
        if not connection.unsent:
            try:
                sent = connection.socket.send(data, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                pass
            except OSError:
                return  # `poll` reports the error
        if sent < len(data):
            connection.unsent += data[sent:]
            self._epoll.modify(connection.socket, select.EPOLLIN | select.EPOLLOUT)

    def _serve(self, connection: _Connection, what: int, items: list[tuple[int, Message | ConnectionEnded]]) -> None:
        why = None
        if what & select.EPOLLOUT and connection.unsent:
            try:
                del connection.unsent[: connection.socket.send(connection.unsent[:_CHUNK_BYTES], socket.MSG_NOSIGNAL)]
            except BlockingIOError:
                pass
            except OSError as error:
                why = error.strerror or str(error)
            if not connection.unsent:
                self._epoll.modify(connection.socket, select.EPOLLIN)
        if what & ~select.EPOLLOUT:
            try:
                data = connection.socket.recv(_CHUNK_BYTES)
                why = None if data else "the connection has ended"
                connection.received += data
            except BlockingIOError:
                pass
            except OSError as error:
                why = error.strerror or str(error)
        try:
            if connection.rank is None and not self._identified(connection):
                return self._close(connection) if why else None
            assert connection.rank is not None
            items.extend((connection.rank, message) for message in unpack(connection.received))
        except ValueError as error:
            why = f"it does not speak as a rank: {error}"
        if why is not None:
            rank = connection.rank
            self._close(connection)
            if rank is not None:
                items.append((rank, ConnectionEnded(why)))
        return None

    def _identified(self, connection: _Connection) -> bool:
        """Read the peer's rank from its greeting; return False if that is incomplete. Raises ValueError for others."""
        received = connection.received
        size = int.from_bytes(received[:4], "big")
        if size > 256:
            raise ValueError("no greeting")
        if len(received) < 4 or len(received) < 4 + size:
            return False
        hello = msgspec.msgpack.decode(bytes(received[4 : 4 + size]), type=_Hello)
        if hello.incarnation != self.table.incarnation or not 0 <= hello.rank < self._me.world or hello.rank in self._dropped:
            raise ValueError("a rank of another run")
        del received[: 4 + size]
        connection.rank = hello.rank
        self._by_rank.setdefault(hello.rank, connection)
        return True

    def _close(self, connection: _Connection) -> None:
        self._by_fd.pop(connection.socket.fileno(), None)
        if connection.rank is not None and self._by_rank.get(connection.rank) is connection:
            del self._by_rank[connection.rank]
        with suppress(OSError):
            self._epoll.unregister(connection.socket)
        with suppress(OSError):
            connection.socket.shutdown(socket.SHUT_RDWR)
        connection.socket.close()


def join(me: Peer, listener: socket.socket, store: Store, key: str, timeout_s: float) -> Mesh:
    """Meet the other ranks. Raises RanksApart."""
    return Mesh(me, listener, gather(listener, me, store, key, timeout_s))
