"""Where a mirror can lie: a folder, a server of S3, one of SFTP. Each keeps the same promises."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from detrain.base.errors import MirrorFailed, UsageError
from detrain.store.mirror import remote as remotes
from detrain.store.mirror.remote import Remote, programs_at
from tests.store.servers import S3Server, SilentServer, SshServer


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.slow), "ssh"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return f"file://{tmp_path}/mirror"
    server: S3Server | SshServer = request.getfixturevalue(f"{request.param}_server")
    return server.url


def test_what_is_put_is_there_and_what_is_removed_is_not(place: str) -> None:
    remote = Remote(place, "train")
    assert remote.get("states/1") is None
    assert remote.sizes("states") == {}
    assert remote.folders() == []
    assert programs_at(place) == []

    remote.put("states/1", b"one")
    remote.put("states/1", b"other")
    remote.put("states/deep/er", b"")
    Remote(place, "train/rank-0").put("lease.json", b"0")

    assert remote.get("states/1") == b"other"
    assert remote.sizes("states") == {"1": 5, "deep/er": 0}
    assert programs_at(place) == ["train/rank-0"]
    remote.remove("states/1")
    remote.remove("states/1")
    assert Remote(place, "train").sizes("states") == {"deep/er": 0}


def test_of_many_that_put_a_new_file_at_once_one_does(place: str) -> None:
    for turn in range(3):
        found: dict[int, bool] = {}
        start = threading.Barrier(6)

        def put(number: int, name: str = f"lease-{turn}", found: dict[int, bool] = found, start: threading.Barrier = start) -> None:
            remote = Remote(place, "train")
            remote.get(name)
            start.wait()
            found[number] = remote.put_new(name, b"%d" % number)

        threads = [threading.Thread(target=put, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        (winner,) = [number for number, is_mine in found.items() if is_mine]
        assert len(found) == 6
        assert Remote(place, "train").get(f"lease-{turn}") == b"%d" % winner


@pytest.mark.parametrize("name", [pytest.param("s3", marks=pytest.mark.slow), "ssh"])
def test_a_server_that_was_away_is_reached_again(request: pytest.FixtureRequest, name: str) -> None:
    server: S3Server | SshServer = request.getfixturevalue(f"{name}_server")
    remote = Remote(server.url, "train")
    remote.put("a", b"1")
    server.stop()
    with pytest.raises(MirrorFailed, match="cannot be used"):
        remote.put("a", b"2")
    with pytest.raises(MirrorFailed, match="cannot be used"):
        Remote(server.url, "train").get("a")
    server.begin()

    assert remote.get("a") == b"1"


@pytest.mark.parametrize("name", ["s3", "ssh"])
def test_a_server_that_does_not_answer_is_waited_for_so_long_and_no_longer(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """By themselves its packages wait for more than six minutes (S3), or for ever (SFTP that has answered once)."""
    server: S3Server | SshServer = request.getfixturevalue(f"{name}_server")
    monkeypatch.setattr(remotes, "_ANSWER_S", 2.0)
    monkeypatch.setattr(remotes, "_SLOWEST_S", 2.0)
    remote, silent = Remote(server.url, "train"), SilentServer()
    if isinstance(server, S3Server):
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.port}")
    else:
        remote.put("a", b"1")
        server.pause()
    since = time.monotonic()
    for _ in range(2):
        with pytest.raises(MirrorFailed, match="no answer for 2 s"):
            remote.put("a", b"2")
    assert time.monotonic() - since < 8
    silent.stop()
    if isinstance(server, S3Server):
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.port}")
    else:
        server.go_on()
    monkeypatch.setattr(remotes, "_ANSWER_S", 60.0)

    remote.put("a", b"3")
    assert remote.get("a") == b"3"


@pytest.mark.parametrize("url", ["nowhere://bucket", "s4://bucket"])
def test_an_address_of_no_kind_that_is_known_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is no address"):
        Remote(url, "train").get("a")
