"""A mirror of a home: what comes back is what was there, of the newest whole state; and one writes at a time."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detrain.base.errors import HomeInUse, MirrorFailed
from detrain.reports.mirrors import list_states
from detrain.store.catalogue import Catalogue
from detrain.store.mirror import lease as leases
from detrain.store.mirror import states
from detrain.store.mirror.lease import Lease
from detrain.store.mirror.link import Order
from detrain.store.mirror.remote import Remote
from detrain.store.mirror.restore import bring_back, read_sent
from detrain.store.mirror.sender import _Sender, main
from detrain.store.mirror.states import Gatherer, MirroredFile, State, get_state, put_state, state_names
from tests.store.homes import Run, newest


@pytest.fixture
def remote(tmp_path: Path) -> Remote:
    return Remote(f"file://{tmp_path}/mirror", "train")


def home_with(folder: Path, *epochs: int) -> Path:
    Catalogue(folder).create()
    run = Run(folder, keep=9)
    for each in epochs:
        run.save(each)
    run.journal.close()
    return folder


def send(remote: Remote, home: Path, *, term: int = 1, number: int = 0, patterns: tuple[str, ...] = ()) -> State:
    made = Gatherer(home, "train", patterns, home.parent).state(term, number, set(), remote.put)
    assert made is not None
    put_state(remote, made)
    return made


def size_at(remote: Remote, name: str) -> int:
    return len(remote.get(name) or b"")


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")}


def test_a_home_comes_back_as_it_was_with_files_of_the_program(
    tmp_path: Path, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "PART_BYTES", 1000)
    home = home_with(tmp_path / "here" / "ckpt", 10, 20)
    (tmp_path / "here" / "out").mkdir()
    (tmp_path / "here" / "out" / "log.txt").write_bytes(b"x" * 2500)
    made = send(remote, home, patterns=("out/**/*",))

    back = bring_back(remote, tmp_path / "there" / "ckpt", "train", tmp_path / "there")

    assert back == made
    assert files_in(tmp_path / "there" / "ckpt") == files_in(home)
    assert (tmp_path / "there" / "out" / "log.txt").read_bytes() == b"x" * 2500
    assert (choice := newest(Catalogue(tmp_path / "there" / "ckpt"), "train")) is not None
    assert choice.entry.cursor.epoch == 20
    assert bring_back(remote, tmp_path / "there" / "ckpt", "train", tmp_path / "there") is None


@pytest.mark.parametrize("harm", ["a part is gone", "a part has other bytes", "the state has other bytes"])
def test_a_state_that_is_not_whole_is_passed_over_and_none_at_all_is_an_error(tmp_path: Path, remote: Remote, harm: str) -> None:
    home = home_with(tmp_path / "ckpt", 10)
    first = send(remote, home)
    second = send(remote, home_with(home, 20), number=1)
    for state, other in ((second, first), (first, second)):
        name = state.name if harm.startswith("the state") else sorted(state.parts - other.parts)[0]
        if harm.endswith("gone"):
            remote.remove(name)
        else:
            remote.put(name, b"0" * (size_at(remote, name) or 0))
        if state == second:
            assert bring_back(remote, tmp_path / "there", "train", tmp_path) == first
        else:
            with pytest.raises(MirrorFailed, match="no state of the mirror"):
                bring_back(remote, tmp_path / "nowhere", "train", tmp_path)
            assert not list((tmp_path / "nowhere").glob("*"))


def test_a_home_that_is_behind_is_put_aside_and_one_that_is_ahead_stays(tmp_path: Path, remote: Remote) -> None:
    behind = home_with(tmp_path / "behind", 10)
    ahead = home_with(tmp_path / "ahead", 10, 30)
    send(remote, home_with(tmp_path / "ckpt", 10, 20))
    before, kept = files_in(behind), files_in(ahead)

    assert bring_back(remote, ahead, "train", tmp_path) is None
    assert files_in(ahead) == kept

    assert bring_back(remote, behind, "train", tmp_path) is not None
    assert files_in(behind) == files_in(tmp_path / "ckpt")
    assert files_in(behind / "before-the-mirror-1") == before


def test_what_a_run_writes_that_was_taken_for_gone_counts_less(tmp_path: Path, remote: Remote) -> None:
    newer = send(remote, home_with(tmp_path / "newer", 10), term=2)
    send(remote, home_with(tmp_path / "older", 50), term=1, number=9)

    assert bring_back(remote, tmp_path / "there", "train", tmp_path) == newer


def test_a_home_knows_that_another_machine_has_gone_on_from_its_mirror(tmp_path: Path, remote: Remote) -> None:
    home = tmp_path / "there"
    send(remote, home_with(tmp_path / "one", 10, 50))
    assert bring_back(remote, home, "train", tmp_path) is not None
    assert (sent := read_sent(home, "train")) is not None
    assert (sent.term, sent.number) == (1, 0)

    other = send(remote, home_with(tmp_path / "two", 20), term=2)  # begun anew there
    assert bring_back(remote, home, "train", tmp_path) == other


@pytest.mark.parametrize("path", ["../escaped", "/tmp/escaped", "a/../../escaped"])
def test_a_state_cannot_lead_out_of_its_folders(tmp_path: Path, remote: Remote, path: str) -> None:
    made = send(remote, home_with(tmp_path / "ckpt", 10))
    put_state(remote, msgspec.structs.replace(made, files=(MirroredFile(path, 0, ()),)))

    with pytest.raises(MirrorFailed, match="leads out"):
        bring_back(remote, tmp_path / "there", "train", tmp_path)


def test_a_file_that_is_none_of_a_home_does_not_come_into_it(tmp_path: Path, remote: Remote) -> None:
    made = send(remote, home_with(tmp_path / "ckpt", 10))
    put_state(remote, msgspec.structs.replace(made, home=(*made.home, MirroredFile("sitecustomize.py", 0, ()))))

    with pytest.raises(MirrorFailed, match="no file of a checkpoint home"):
        bring_back(remote, tmp_path / "there", "train", tmp_path)


@given(content=st.binary(max_size=400), size=st.integers(1, 60))
@settings(max_examples=40, deadline=None)
def test_parts_make_the_file_again_whatever_is_in_it(content: bytes, size: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("mirror")
    home = home_with(folder / "ckpt", 10)
    Catalogue(home).journal("train", 1).write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(states, "PART_BYTES", size * 100)
        remote = Remote(str(folder / "mirror"), "train")
        send(remote, home)
        bring_back(remote, folder / "there", "train", folder)
    assert files_in(folder / "there") == files_in(home)


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
    order = Order(
        url=remote.url, home=str(home), program="train", patterns=(), run_pid=os.getpid(), is_fresh=False, may_come_later=False
    )
    sender = _Sender(order, socket.socketpair()[0], Path.cwd())
    sender.begin()
    for epoch in (20, 30, 40):
        home_with(home, epoch)
        sender._send_state()

    names = state_names(remote)
    assert [int(name[-14:-5]) for name in names] == [1, 2]
    needed = set().union(*(get_state(remote, name).parts for name in names))
    assert set(states.part_names(remote)) == needed
    sender._is_lost = True
    assert np.all([size_at(remote, part) == states.size_of(part) for part in needed])


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_mirror_that_comes_later_is_not_written_over_by_a_run_that_is_behind_it(
    tmp_path: Path, remote: Remote, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], is_ahead: bool
) -> None:
    """The run has begun without it, with an empty home."""
    theirs = send(remote, home_with(tmp_path / "there", 20))
    home = tmp_path / "here"
    order = Order(
        url=remote.url, home=str(home), program="train", patterns=(), run_pid=os.getpid(), is_fresh=False, may_come_later=True
    )
    sender = _Sender(order, socket.socketpair()[0], Path.cwd())
    with monkeypatch.context() as patch:
        patch.setattr(Remote, "get", lambda *_: (_ for _ in ()).throw(MirrorFailed("it does not answer")))
        sender.begin()
    home_with(home, 30 if is_ahead else 1)
    sender._is_begun = True

    assert sender._until_done(sender._send_state) == is_ahead
    newest = get_state(remote, state_names(remote)[-1])
    assert (newest == theirs) != is_ahead
    assert ("from which this run has not gone on" in capfd.readouterr().err) != is_ahead
    sender._is_lost = True


def test_a_mirror_that_stops_answering_is_no_damage_and_no_older_state_comes_back(
    tmp_path: Path, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = send(remote, home_with(tmp_path / "ckpt", 10))
    second = send(remote, home_with(tmp_path / "ckpt", 20), number=1)
    (own,) = [part for part in second.parts - first.parts if part in second.home[1].parts]
    get = Remote.get

    def broken(self: Remote, name: str) -> bytes | None:
        if name == own:
            raise MirrorFailed("it does not answer")
        return get(self, name)

    monkeypatch.setattr(Remote, "get", broken)
    with pytest.raises(MirrorFailed, match="does not answer"):
        bring_back(remote, tmp_path / "there", "train", tmp_path)
    assert not list((tmp_path / "there").glob("*"))


def test_who_has_lost_a_mirror_removes_nothing_from_it(tmp_path: Path, remote: Remote) -> None:
    home = home_with(tmp_path / "ckpt", 10)
    order = Order(
        url=remote.url, home=str(home), program="train", patterns=(), run_pid=os.getpid(), is_fresh=False, may_come_later=False
    )
    sender = _Sender(order, socket.socketpair()[0], Path.cwd())
    sender.begin()
    for epoch in (20, 30):
        home_with(home, epoch)
        sender._send_state()
    remote.put("lease.json", (remote.get("lease.json") or b"").replace(b'"token":"', b'"token":"other'))
    before = {*state_names(remote), *states.part_names(remote)}
    home_with(home, 40)
    sender._send_state()

    assert before <= {*state_names(remote), *states.part_names(remote)}
    assert sender._is_lost


def sender_of(home: Path, remote: Remote, *, bandwidth: int | None = None) -> _Sender:
    order = Order(
        url=remote.url,
        home=str(home),
        program="train",
        patterns=(),
        run_pid=os.getpid(),
        is_fresh=False,
        may_come_later=False,
        bandwidth=bandwidth,
    )
    made = _Sender(order, socket.socketpair()[0], Path.cwd())
    made.begin()
    return made


def is_whole(remote: Remote, state: State) -> bool:
    """Whether each part of a state is there, and the newest checkpoint among its files."""
    return state.checkpoint in state.checkpoints and all(size_at(remote, part) == states.size_of(part) for part in state.parts)


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
    sender._is_lost = True


def test_a_checkpoint_that_is_kept_no_longer_while_it_is_sent_is_sent_to_its_end(tmp_path: Path, remote: Remote) -> None:
    """The mirror is slow: while it takes a part, the run commits another checkpoint and removes the one before."""
    Catalogue(tmp_path / "ckpt").create()
    run = Run(tmp_path / "ckpt", keep=1)
    run.save(1)
    epochs = iter(range(2, 1000))

    def send(part: str, content: bytes) -> None:
        run.save(next(epochs))
        remote.put(part, content)

    made = Gatherer(tmp_path / "ckpt", "train").state(1, 0, set(), send)
    assert made is not None
    assert is_whole(remote, made)
    put_state(remote, made)
    run.journal.close()

    assert bring_back(remote, tmp_path / "there", "train", tmp_path) == made
    assert (choice := newest(Catalogue(tmp_path / "there"), "train")) is not None
    assert choice.entry.path.name == made.checkpoint


@pytest.mark.parametrize("has_older", [False, True])
def test_a_machine_that_vanishes_while_its_home_comes_back_leaves_none_that_counts(
    tmp_path: Path, remote: Remote, monkeypatch: pytest.MonkeyPatch, has_older: bool
) -> None:
    """Before each name that a file gets, the home is copied: these are what a kill leaves."""
    made = send(remote, home_with(tmp_path / "ckpt", 10, 20))
    home, left = tmp_path / "there", list[Path]()
    if has_older:
        home_with(home, 5)
    replace = Path.replace

    def copied_first(path: Path, target: Path) -> Path:
        left.append(tmp_path / f"left-{len(left)}")
        shutil.copytree(home, left[-1])
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", copied_first)
        bring_back(remote, home, "train", tmp_path)
    assert len(left) >= 5

    for each in left:
        back = bring_back(remote, each, "train", tmp_path)
        assert files_in(each) == files_in(tmp_path / "ckpt"), sorted(path.name for path in each.iterdir())
        assert back in (made, None)


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
    sender._is_lost = True


@pytest.mark.parametrize("text", [b"", b'{"token":"9f'])
def test_a_lease_that_was_being_written_when_its_machine_vanished_is_taken_over(
    remote: Remote, monkeypatch: pytest.MonkeyPatch, text: bytes
) -> None:
    monkeypatch.setattr(leases, "BEAT_S", 0.2)
    remote.put("lease.json", text)
    assert Lease(remote, os.getpid()).term == 1


def test_a_connection_that_is_broken_is_made_anew(tmp_path: Path) -> None:
    remote = Remote(str(tmp_path / "mirror"), "train")
    remote.put("a", b"1")
    broken = remote._files
    broken.cat_file = lambda _path: (_ for _ in ()).throw(OSError("connection reset"))
    with pytest.raises(MirrorFailed, match="connection reset"):
        remote.get("a")
    assert remote.get("a") == b"1"


@pytest.mark.parametrize("is_gone_before", [True, False])
def test_a_run_that_is_killed_while_its_mirror_is_taken_leaves_it_free(
    tmp_path: Path, remote: Remote, monkeypatch: pytest.MonkeyPatch, is_gone_before: bool
) -> None:
    run = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    order = Order(
        url=remote.url,
        home=str(tmp_path / "ckpt"),
        program="train",
        patterns=(),
        run_pid=run.pid,
        is_fresh=False,
        may_come_later=False,
    )
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
    main(order, its)

    assert remote.get("lease.json") is None


class Clock:
    """Time that goes on where somebody sleeps, or sends: the mirror takes 1 MB a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


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
    sender._is_lost = True
    run.journal.close()

    assert [get_state(remote, name).checkpoint for name in state_names(remote)] == waiting[-2:]
    assert max(size for _, size in sent) <= bandwidth
    total = sum(size for _, size in sent)
    assert total > 5 * bandwidth
    for start, _ in sent:  # in no two seconds more than in two, and the part that is under way
        assert sum(size for at, size in sent if start <= at < start + 2) <= 3 * bandwidth
    assert clock.now == pytest.approx(total / bandwidth, rel=0.25)


@pytest.mark.parametrize("begins_at", range(12))
def test_a_file_that_is_written_anew_while_a_state_is_sent_is_what_it_was_at_the_cut(
    tmp_path: Path, remote: Remote, begins_at: int
) -> None:
    """From one of the parts on that are sent, the loop writes it anew: a line, what it was, and then the new. What it
    was two turns before is removed.
    """
    home = home_with(tmp_path / "ckpt", 10)
    file, kept, changes = tmp_path / "best.txt", home / "train-r1.kept", home / "train-r1.changes"
    kept.mkdir()
    (kept / "000099.taken").touch()  # what it was is kept no longer
    file.write_text("0")
    for number in range(5):
        (tmp_path / f"more-{number}.txt").write_text(f"of another {number}")
    changes.write_text("\n")
    calls: list[str] = []

    def send(part: str, content: bytes) -> None:
        remote.put(part, content)
        calls.append(part)
        if len(calls) <= begins_at:
            return
        now = int(file.read_text())
        (kept / f"{now:06d}.taken").touch()
        changes.write_text(f"{changes.read_text()}{now:06d}\n")
        (kept / f"{now:06d}").write_text(str(now))
        file.write_text(str(now + 1))
        for name in (f"{now - 2:06d}", f"{now - 2:06d}.taken"):
            (kept / name).unlink(missing_ok=True)

    made = Gatherer(home, "train", ("*.txt",), tmp_path).state(1, 0, set(), send)
    assert made is not None
    put_state(remote, made)
    bring_back(remote, tmp_path / "there" / "ckpt", "train", tmp_path / "there")

    there = tmp_path / "there" / "ckpt"
    lines = (there / "train-r1.changes").read_text().split()
    at_cut = there / "train-r1.kept" / lines[0] if lines else tmp_path / "there" / "best.txt"
    assert at_cut.read_text() == "0"
    assert not lines or at_cut.with_name(f"{at_cut.name}.taken").read_bytes() == b""
    assert not (there / "train-r1.kept" / "000099.taken").exists()

    home_with(home, 20)
    made = Gatherer(home, "train").state(1, 1, set(), remote.put)
    assert made is not None
    put_state(remote, made)
    bring_back(remote, there, "train", tmp_path / "there")
    assert not lines or (there / "before-the-mirror-1" / "train-r1.kept" / lines[0]).exists()


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
    sender._is_lost = True
    run.journal.close()
    assert get_state(remote, state_names(remote)[-1]).checkpoint == "train-r1-p0-e00016-e000000.h5"


def test_a_state_that_is_damaged_is_told_and_the_others_are_listed(
    tmp_path: Path, remote: Remote, capfd: pytest.CaptureFixture[str]
) -> None:
    first = send(remote, home_with(tmp_path / "ckpt", 10))
    remote.put(send(remote, home_with(tmp_path / "ckpt", 20), number=1).name, b"other bytes")

    assert [row["checkpoint"] for row in list_states(remote.url)] == [first.checkpoint]
    assert "gone, or damaged" in capfd.readouterr().err


def test_a_home_that_is_removed_while_it_is_read_gives_no_state(tmp_path: Path, remote: Remote) -> None:
    home = home_with(tmp_path / "ckpt", 10)
    files = sorted(path for path in home.iterdir() if path.suffix != ".h5")

    def send(part: str, content: bytes) -> None:
        for path in files:
            path.unlink(missing_ok=True)

    assert Gatherer(home, "train").state(1, 0, set(), send) is None

    home = home_with(tmp_path / "other", 10)
    Catalogue(home).journal("train", 1).unlink()
    with pytest.raises(MirrorFailed, match="cannot be read for the mirror"):
        Gatherer(home, "train").state(1, 0, set(), remote.put)


def test_in_a_folder_of_another_name_the_log_of_changes_speaks_of_the_files_there(tmp_path: Path, remote: Remote) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    home = home_with(here / "ckpt", 10)
    lines = [["replaced", "{}/out/ä.txt", "000001"], ["appended", "{}/log", 7], ["made", "/elsewhere/x"], ["made", "{}-not/x"]]
    text = "\n".join(json.dumps(line) for line in lines)
    (home / "train-r1.changes").write_text(text.replace("{}", str(here)) + '\n["made", "' + str(here))

    send(remote, home, patterns=("out/*",))
    bring_back(remote, there / "ckpt", "train", there)

    *whole, torn = (there / "ckpt" / "train-r1.changes").read_text().splitlines()
    expected = json.loads(json.dumps(lines).replace("{}-not", f"{here}-not").replace("{}", str(there)))
    assert [json.loads(line) for line in whole] == expected
    assert torn == '["made", "' + str(here)
