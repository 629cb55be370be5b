"""The connections between ranks: who finds whom, and what arrives."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detrain.base.errors import RanksApart
from detrain.runtime.ranks import processes
from detrain.runtime.ranks.mesh import ConnectionEnded, Mesh, join
from detrain.runtime.ranks.rendezvous import FolderStore, Peer
from detrain.runtime.ranks.vote import StatePoint
from detrain.runtime.ranks.wire import Beat, Call, Ready, Small, View, pack, unpack
from detrain.store.mirror import link


def _meshes(tmp_path: Path, world: int) -> list[Mesh]:
    meshes: dict[int, Mesh] = {}

    def come(rank: int) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        me = Peer(rank, world, "127.0.0.1", listener.getsockname()[1], "node", processes.this_process())
        meshes[rank] = join(me, listener, FolderStore(tmp_path, 0.5), "key", 30.0)
        meshes[rank].connect(set(range(world)) - {rank}, 30.0)

    threads = [threading.Thread(target=come, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [meshes[rank] for rank in range(world)]


def _heard(mesh: Mesh, count: int) -> list[tuple[int, Any]]:
    items: list[tuple[int, Any]] = []
    while len(items) < count:
        items += mesh.poll(0.05)
    return items


def test_ranks_find_each_other_by_a_store_that_an_earlier_run_has_left(tmp_path: Path) -> None:
    stale = socket.create_server(("127.0.0.1", 0))
    FolderStore(tmp_path).set("key", msgspec.msgpack.encode(stale.getsockname()))
    stale.close()

    meshes = _meshes(tmp_path, 4)
    for mesh in meshes[1:]:
        mesh.send(0, Call(View((3,)), "why"))

    assert sorted(_heard(meshes[0], 3), key=lambda item: item[0]) == [(rank, Call(View((3,)), "why")) for rank in (1, 2, 3)]
    assert len({mesh.table.incarnation for mesh in meshes}) == 1
    meshes[2].close()
    ((rank, item),) = _heard(meshes[1], 1)
    assert (rank, type(item)) == (2, ConnectionEnded)
    for mesh in (meshes[0], meshes[1], meshes[3]):
        mesh.close()


def test_a_large_message_arrives_whole_and_a_peer_that_does_not_read_stops_nobody(tmp_path: Path) -> None:
    one, other = _meshes(tmp_path, 2)
    state = os.urandom(5_000_000)
    for number in range(4):
        one.send(1, Small(StatePoint(number, number, "c"), state))  # more than a socket's buffer, and nobody reads
    items: list[tuple[int, Any]] = []
    while len(items) < 4:
        one.poll(0.01)
        items += other.poll(0.01)

    assert [(message.point.steps, message.state == state) for _, message in items] == [(number, True) for number in range(4)]
    one.close()
    other.close()


def test_a_program_that_a_broken_pipe_ends_outlives_its_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGPIPE, lambda number, _frame: came.append(number))
    try:
        mine, other = _meshes(tmp_path, 2)
        other.close()
        for _ in range(10):
            mine.send(1, Beat())
            time.sleep(0.01)
        socket_of_mirror, its = socket.socketpair()
        its.close()
        monkeypatch.setenv(link.VARIABLE, f"{os.getpid()}:{socket_of_mirror.detach()}:1")
        link.finish()
    finally:
        signal.signal(signal.SIGPIPE, before)
    assert came == []


def test_a_stranger_is_not_heard(tmp_path: Path) -> None:
    one, other = _meshes(tmp_path, 2)
    peer = one.table.peers[0]
    for greeting in (b"GET / HTTP/1.1\r\n\r\n", msgspec.msgpack.encode((bytes(16), 1)), b"\xff" * 300):
        with socket.create_connection((peer.host, peer.port)) as stranger:
            stranger.sendall(len(greeting).to_bytes(4, "big") + greeting + pack(Ready(1, 1)))
            stranger.settimeout(0.01)
            while True:
                assert one.poll(0.01) == []
                try:
                    if not stranger.recv(1):
                        break
                except TimeoutError:
                    continue
                except ConnectionError:
                    break
    other.send(0, Beat())
    assert _heard(one, 1) == [(1, Beat())]
    one.close()
    other.close()


def test_who_does_not_come_is_named(tmp_path: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    me = Peer(0, 3, "127.0.0.1", listener.getsockname()[1], "node", processes.this_process())

    with pytest.raises(RanksApart, match=r"ranks \[1, 2\] of 3 have not come to rank 0 at 127\.0\.0\.1:\d+ in time"):
        join(me, listener, FolderStore(tmp_path, 0.1), "key", 0.2)
    with pytest.raises(RanksApart, match="rank 1 has not reached rank 0 in time: no 'other'"):
        join(Peer(1, 3, "127.0.0.1", 1, "node", me.process), listener, FolderStore(tmp_path, 0.1), "other", 0.2)
    listener.close()


@given(
    st.lists(st.sampled_from([Beat(), Ready(3, 1), Call(View((1, 2), (3,)), "why"), Small(StatePoint(1, 2, "d"), b"x" * 300)])),
    st.data(),
)
def test_messages_are_read_whole_however_they_arrive(messages: list[Any], data: st.DataObject) -> None:
    stream, buffer, read = b"".join(map(pack, messages)), bytearray(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        buffer += stream[:size]
        stream = stream[size:]
        read += unpack(buffer)

    assert read == messages
    assert not buffer
