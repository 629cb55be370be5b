"""Who sends to a mirror: one at a time, what is missing there, and no faster than is asked for."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detrain.base.errors import HomeInUse, MirrorFailed
from detrain.store.catalogue import Catalogue
from detrain.store.mirror import lease as leases
from detrain.store.mirror import remote as remotes
from detrain.store.mirror import sender as senders
from detrain.store.mirror import states
from detrain.store.mirror.lease import Lease
from detrain.store.mirror.remote import Remote
from detrain.store.mirror.restore import bring_back
from detrain.store.mirror.sender import _Sender, main
from detrain.store.mirror.states import State, get_state, state_names
from tests.store.homes import Run
from tests.store.mirrors import home_with, is_whole, order_for, send, sender_of, size_at
from tests.store.servers import S3Server, SilentServer


def test_of_two_that_take_a_mirror_at_once_one_gets_it(remote: Remote) -> None:
    found: list[Lease | HomeInUse] = []

    def take() -> None:
        try:
            found.append(Lease(remote, os.getpid()))
        except HomeInUse as error:
            found.append(error)

    threads = [threading.Thread(target=take) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(each, Lease) for each in found) == 1
    assert sum(isinstance(each, HomeInUse) for each in found) == 5


def test_a_mirror_whose_process_here_is_gone_is_taken_over_and_its_term_is_the_next(remote: Remote, tmp_path: Path) -> None:
    holds = """if True:
        import os, sys
        from detrain.store.mirror.lease import Lease
        from detrain.store.mirror.remote import Remote
        Lease(Remote(sys.argv[1], "train"), os.getpid())
    """
    subprocess.run([sys.executable, "-c", holds, remote.url], check=True)

    lease = Lease(remote, os.getpid())
    assert lease.term == 2
    assert lease.renew()
    lease.give_back()
    assert not lease.renew()


def test_threads_that_renew_a_lease_at_once_find_it_theirs(remote: Remote) -> None:
    """One looks while the other writes: the file of a folder is empty for a moment."""
    lease, found = Lease(remote, os.getpid()), list[bool]()
    threads = [threading.Thread(target=lambda: found.extend(lease.renew() for _ in range(100))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 200


@pytest.mark.parametrize("is_there", [True, False])
def test_another_machine_is_listened_for_and_no_clock_is_compared(
    remote: Remote, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    monkeypatch.setattr(leases, "BEAT_S", 1.0)
    monkeypatch.setattr(leases, "_machine", lambda: "another")
    before = Lease(remote, 1)
    monkeypatch.setattr(leases, "_machine", lambda: "this")
    over = threading.Event()

    def beat() -> None:
        while not over.wait(0.5):
            before.renew()

    thread = threading.Thread(target=beat)
    if is_there:
        thread.start()
        with pytest.raises(HomeInUse, match="being written by process 1"):
            Lease(remote, os.getpid())
        over.set()
        thread.join()
    else:
        assert Lease(remote, os.getpid()).term == 2
        assert not before.renew()  # and so it knows


def test_states_and_their_parts_go_when_newer_ones_are_there(tmp_path: Path, remote: Remote) -> None:
    home = home_with(tmp_path / "ckpt", 10)
    sender = sender_of(home, remote)
    for epoch in (20, 30, 40):
        home_with(home, epoch)
        sender._send_state()

    names = state_names(remote)
    assert [int(name[-14:-5]) for name in names] == [1, 2]
    needed = set().union(*(get_state(remote, name).parts for name in names))
    assert set(states.part_names(remote)) == needed
    sender._lost.set()
    assert np.all([size_at(remote, part) == states.size_of(part) for part in needed])


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_mirror_that_comes_later_is_not_written_over_by_a_run_that_is_behind_it(
    tmp_path: Path, remote: Remote, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], is_ahead: bool
) -> None:
    """The run has begun without it, with an empty home."""
    theirs = send(remote, home_with(tmp_path / "there", 20))
    home = tmp_path / "here"
    sender = _Sender(order_for(home, remote, may_come_later=True), socket.socketpair()[0], Path.cwd())
    with monkeypatch.context() as patch:
        patch.setattr(Remote, "get", lambda *_: (_ for _ in ()).throw(MirrorFailed("it does not answer")))
        sender.begin()
    home_with(home, 30 if is_ahead else 1)
    sender._is_begun = True

    assert sender._until_done(sender._send_state) == is_ahead
    newest = get_state(remote, state_names(remote)[-1])
    assert (newest == theirs) != is_ahead
    assert ("from which this run has not gone on" in capfd.readouterr().err) != is_ahead
    sender._lost.set()


def test_who_has_lost_a_mirror_removes_nothing_from_it(tmp_path: Path, remote: Remote) -> None:
    home = home_with(tmp_path / "ckpt", 10)
    sender = sender_of(home, remote)
    for epoch in (20, 30):
        home_with(home, epoch)
        sender._send_state()
    remote.put("lease.json", (remote.get("lease.json") or b"").replace(b'"token":"', b'"token":"other'))
    before = {*state_names(remote), *states.part_names(remote)}
    home_with(home, 40)
    sender._send_state()

    assert before <= {*state_names(remote), *states.part_names(remote)}
    assert sender._lost.is_set()


@pytest.mark.parametrize("lost", ["all", "one part", "one part is cut off"])
def test_what_a_mirror_loses_meanwhile_is_sent_again_and_the_lease_is_taken_again(
    tmp_path: Path, remote: Remote, lost: str
) -> None:
    home = home_with(tmp_path / "ckpt", 10, 20)
    sender = sender_of(home, remote)
    sender._send_state()
    for part in states.part_names(remote):
        if lost == "one part is cut off":
            remote.put(part, b"0")
        elif lost == "all" or part == min(states.part_names(remote)):
            remote.remove(part)
    if lost == "all":
        for name in ("lease.json", *state_names(remote)):
            remote.remove(name)

    home_with(home, 30)
    sender._send_state()

    assert sender._lease is not None
    assert sender._lease.renew()
    assert is_whole(remote, get_state(remote, state_names(remote)[-1]))
    sender._lease.give_back()
    sender._lost.set()


def test_what_a_mirror_loses_while_a_state_is_sent_is_sent_before_that(
    tmp_path: Path, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is emptied when all but the state is there."""
    sender, made = sender_of(home_with(tmp_path / "ckpt", 10, 20), remote), list[State]()
    original = sender._gatherer.state

    def state(*arguments: Any) -> State | None:
        found = original(*arguments)
        if found is not None and not made:
            for part in found.parts:
                remote.remove(part)
            made.append(found)
        return found

    monkeypatch.setattr(sender._gatherer, "state", state)
    assert sender._until_done(sender._send_state)

    assert is_whole(remote, get_state(remote, state_names(remote)[-1]))
    sender._lost.set()


def test_a_part_that_is_found_damaged_is_sent_again(tmp_path: Path, remote: Remote) -> None:
    home = home_with(tmp_path / "ckpt", 10)
    made = send(remote, home)
    for part in made.parts:
        remote.put(part, b"0" * states.size_of(part))

    with pytest.raises(MirrorFailed, match="no state of the mirror"):
        sender_of(tmp_path / "there", remote)
    sender = sender_of(home, remote)
    sender._send_state()

    assert bring_back(remote, tmp_path / "elsewhere", "train", tmp_path) is not None
    sender._lost.set()


@pytest.mark.parametrize("text", [b"", b'{"token":"9f'])
def test_a_lease_that_was_being_written_when_its_machine_vanished_is_taken_over(
    remote: Remote, monkeypatch: pytest.MonkeyPatch, text: bytes
) -> None:
    monkeypatch.setattr(leases, "BEAT_S", 0.2)
    remote.put("lease.json", text)
    assert Lease(remote, os.getpid()).term == 1


@pytest.mark.parametrize("is_gone_before", [True, False])
def test_a_run_that_is_killed_while_its_mirror_is_taken_leaves_it_free(
    tmp_path: Path, remote: Remote, monkeypatch: pytest.MonkeyPatch, is_gone_before: bool
) -> None:
    run = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    order = order_for(tmp_path / "ckpt", remote, run_pid=run.pid)
    mine, its = socket.socketpair()
    begin = _Sender.begin

    def begin_and_kill(sender: _Sender) -> None:
        begin(sender)
        kill()

    def kill() -> None:
        run.kill()
        run.wait()
        mine.close()

    if is_gone_before:
        kill()
    monkeypatch.setattr(_Sender, "begin", begin_and_kill)
    monkeypatch.setattr(os, "nice", lambda _by: 0)  # it is the process of the tests here
    main(order, its)

    assert remote.get("lease.json") is None


@pytest.mark.parametrize("answers", [True, False])
def test_a_sender_whose_run_is_killed_ends_though_its_server_does_not_answer(
    tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    monkeypatch.setattr(remotes, "_ANSWER_S", 2.0)
    monkeypatch.setattr(senders, "_LONGEST_LEFT_S", 3.0)
    monkeypatch.setattr(os, "nice", lambda _by: 0)
    run, (mine, its) = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE), socket.socketpair()
    remote, silent = Remote(s3_server.url, "train"), SilentServer()
    order = order_for(home_with(tmp_path / "ckpt", 1), remote, run_pid=run.pid)
    sends = threading.Thread(target=main, args=(order, its), daemon=True)
    begin = _Sender.run

    def begin_alone(sender: _Sender) -> None:
        if not answers:
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.port}")
            sender._remote.forget()
        begin(sender)

    monkeypatch.setattr(_Sender, "run", begin_alone)
    sends.start()
    assert mine.recv(1) == b"+"
    run.kill()
    run.wait()

    sends.join(60)
    assert not sends.is_alive()
    silent.stop()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{s3_server.port}")
    monkeypatch.setattr(remotes, "_ANSWER_S", 60.0)
    assert len(state_names(Remote(s3_server.url, "train"))) == answers


class Clock:
    """Time that goes on where somebody sleeps, or sends: the mirror takes 1 MB a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.slow
def test_a_bandwidth_is_kept_to_in_each_second_and_a_newer_checkpoint_takes_the_place_of_those_that_wait(
    tmp_path: Path, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    bandwidth, clock, sent = 100_000, Clock(), list[tuple[float, int]]()
    Catalogue(tmp_path / "ckpt").create()
    run = Run(tmp_path / "ckpt", keep=2)
    sender = sender_of(tmp_path / "ckpt", remote, bandwidth=bandwidth)
    epochs, waiting, original = iter(range(1, 100)), list[str](), Remote.put

    def put(self: Remote, name: str, content: bytes) -> None:
        original(self, name, content)
        if name.startswith("parts/"):
            sent.append((clock.now, len(content)))
            clock.now += len(content) / 1e6
            run.save(next(epochs), size=50_000)  # a checkpoint of 200 kB: the run is faster than its mirror

    with monkeypatch.context() as patch:
        patch.setattr("detrain.store.mirror.sender.time", clock)
        patch.setattr(Remote, "put", put)
        run.save(next(epochs), size=50_000)
        for _ in range(3):
            found = sender._gatherer.committed()
            assert found is not None
            waiting.append(found[1])
            sender._send_state()
    sender._lost.set()
    run.journal.close()

    assert [get_state(remote, name).checkpoint for name in state_names(remote)] == waiting[-2:]
    assert max(size for _, size in sent) <= bandwidth
    total = sum(size for _, size in sent)
    assert total > 5 * bandwidth
    for start, _ in sent:  # in no two seconds more than in two, and the part that is under way
        assert sum(size for at, size in sent if start <= at < start + 2) <= 3 * bandwidth
    assert clock.now == pytest.approx(total / bandwidth, rel=0.25)


def test_a_mirror_that_is_full_is_cleared_of_what_was_sent_in_vain(
    tmp_path: Path, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is room for three states and a half; of each second one the parts go in, and the state does not."""
    Catalogue(tmp_path / "ckpt").create()
    run, original = Run(tmp_path / "ckpt", keep=1), Remote.put
    run.save(10, size=20_000)
    sender = sender_of(tmp_path / "ckpt", remote)
    sender._send_state()
    room = 3.5 * sum(states.part_names(remote).values())

    def put(self: Remote, name: str, content: bytes) -> None:
        if sum(states.part_names(remote).values()) + len(content) > room or (is_odd and name.startswith("states")):
            raise MirrorFailed("no space left")
        original(self, name, content)

    monkeypatch.setattr(Remote, "put", put)
    for epoch in range(11, 18):
        is_odd = epoch % 2 == 1
        run.save(epoch, size=20_000)
        try:
            sender._send_state()
        except MirrorFailed as error:
            sender._note(error=error.what)
            assert is_odd, epoch
    sender._lost.set()
    run.journal.close()
    assert get_state(remote, state_names(remote)[-1]).checkpoint == "train-r1-p0-e00016-e000000.h5"
