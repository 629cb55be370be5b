"""The parts around the protocol: slots, gate, pace, processes and signals."""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detrain.runtime.ranks import processes
from detrain.runtime.ranks.gate import Gate, Late
from detrain.runtime.ranks.hang import Pace
from detrain.runtime.ranks.program import ProgramThread
from detrain.runtime.ranks.slots import SLOTS, HeldSlots, OwnSlots, buddy_of, kept, read_slots
from detrain.runtime.ranks.vote import StatePoint
from detrain.runtime.session.just_in_time import SHARE, Rate

RUN = bytes(range(16))


def points_of(steps: int, cuts_a_step: int = 1, steps_a_cut: int = 1) -> list[StatePoint]:
    """Return all points that a program of so many steps publishes, in their order."""
    points, cut = [], 0
    for step in range(steps):
        if step % steps_a_cut == 0:
            for _ in range(cuts_a_step):
                points.append(StatePoint(step, cut, "c"))
                cut += 1
        points.append(StatePoint(step, cut - 1, "d"))
    return points


# Slots.


@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 3), st.integers(0, 6))
def test_what_a_vote_can_ask_for_is_kept(steps: int, cuts: int, steps_a_cut: int, back: int) -> None:
    """Another rank is one step behind or before: of its newest points, those that this rank has had are still there."""
    points = points_of(steps, cuts, steps_a_cut)
    mine: set[StatePoint] = set()
    for point in points:
        mine = kept([*mine, point])
        assert len(mine) < SLOTS
    last = points[-1]
    entries = [point for point in points if point.kind == "d" and point.steps >= last.steps - 1]
    assert {*entries} <= mine
    assert {StatePoint(p.steps, p.cut, "c") for p in points if p.kind == "c" and p.cut in {e.cut for e in entries}} <= mine
    first_cuts = [next((p for p in points if p.kind == "c" and p.steps == s), None) for s in (last.steps, last.steps - 1)]
    assert {p for p in first_cuts if p is not None} <= mine


@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=12))
def test_states_of_any_size_are_read_as_they_were_published(sizes: list[int]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        slots, told = OwnSlots(folder, 3, RUN), {}
        for number, size in enumerate(sizes):
            point = StatePoint(number, number, "c")
            told[point] = bytes([number]) * size
            slots.publish(point, told[point])
            found = read_slots(folder, 3, RUN)
            assert found == {each: told[each] for each in found}
            assert set(found) == kept(found) >= kept(list(told)[-2:])
        assert read_slots(folder, 3, bytes(16)) == {}, "of another run"
        assert read_slots(folder, 4, RUN) == {}


def test_a_slot_that_is_torn_or_flipped_is_none(tmp_path: Path) -> None:
    slots = OwnSlots(tmp_path, 0, RUN)
    slots.publish(StatePoint(0, 0, "c"), b"first")
    slots.publish(StatePoint(0, 0, "d"), b"second")
    path = tmp_path / "slots-0"
    whole = path.read_bytes()
    at = whole.index(b"second")

    for place in range(at - 60, at + 6):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        found = read_slots(tmp_path, 0, RUN)
        assert found[StatePoint(0, 0, "c")] == b"first"
        assert found.get(StatePoint(0, 0, "d"), b"second") == b"second"
    path.write_bytes(whole[: at + 3])
    assert read_slots(tmp_path, 0, RUN) == {}


def test_slots_outlive_a_process_that_is_killed_while_it_publishes(tmp_path: Path) -> None:
    """A process is needed: its death is what is tried."""
    code = f"""
from pathlib import Path
from detrain.runtime.session.just_in_time import Rate
from detrain.runtime.ranks.slots import OwnSlots
from detrain.runtime.ranks.vote import StatePoint
slots = OwnSlots(Path({str(tmp_path)!r}), 0, bytes(range(16)))
step = 0
while True:
    slots.publish(StatePoint(step, step, "c"), step.to_bytes(8, "big") * 4000)
    if step == 50:
        print("going", flush=True)
    step += 1
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    process.communicate()

    found = read_slots(tmp_path, 0, RUN)

    assert found
    for point, state in found.items():
        assert state == point.steps.to_bytes(8, "big") * 4000


def test_buddies_are_on_other_nodes() -> None:
    nodes = [[0, 1, 2], [3, 4], [5]]

    assert [buddy_of(rank, nodes) for rank in range(6)] == [3, 4, 3, 5, 5, 0]
    assert buddy_of(1, [[0, 1]]) is None
    held = HeldSlots([0, 1])
    held.put(0, StatePoint(4, 4, "d"), b"x")
    assert held.entered() == 0
    held.put(1, StatePoint(5, 5, "d"), b"y")
    held.put(7, StatePoint(5, 5, "d"), b"of another's")
    assert (held.entered(), set(held.states())) == (5, {0, 1})


# The gate.


def _gates(tmp_path: Path, nodes: list[list[int]]) -> list[Gate]:
    gates: list[Gate] = []
    for node, ranks in enumerate(nodes):
        (tmp_path / str(node)).mkdir()
        for rank in ranks:
            gates.append(Gate(tmp_path / str(node), rank, nodes, lambda to, *what: gates[to].hear(*what)))
    return gates


@pytest.mark.parametrize("nodes", [[[0, 1, 2]], [[0], [1]], [[0, 1], [2, 3], [4]], [[0], [1], [2], [3], [4], [5], [6]]])
def test_nobody_passes_the_gate_before_all_have_come(tmp_path: Path, nodes: list[list[int]]) -> None:
    gates = _gates(tmp_path, nodes)
    arrived, too_early, lock = [0] * len(gates), [], threading.Lock()

    def train(rank: int) -> None:
        for step in range(20):
            time.sleep((rank * 7 + step * 3) % 5 / 2000)
            with lock:
                arrived[rank] = step + 1
            gates[rank].hold(step + 1)
            assert gates[rank].wait(step, lambda: False)
            with lock:
                if min(arrived) <= step:
                    too_early.append((rank, step))

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(len(gates))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert too_early == []
    assert arrived == [20] * len(gates)


@pytest.mark.parametrize("nodes", [[[0, 1, 2]], [[0], [1]], [[0, 1], [2, 3], [4]], [[0], [1], [2], [3], [4], [5], [6]]])
def test_all_take_the_greatest_number_of_each_step_through_the_gate(tmp_path: Path, nodes: list[list[int]]) -> None:
    gates = _gates(tmp_path, nodes)
    draw = random.Random(len(gates))
    brought = [[draw.randrange(1, 1 << 60) for _ in gates] for _ in range(40)]
    taken: list[list[int | None]] = [[] for _ in gates]

    def train(rank: int) -> None:
        for step, numbers in enumerate(brought):
            gates[rank].hold(step + 1)
            taken[rank].append(gates[rank].wait(step, lambda: False, numbers[rank]))
            time.sleep((rank * 7 + step * 3) % 5 / 2000)

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(len(gates))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert taken == [[max(numbers) for numbers in brought]] * len(gates)


def test_who_waits_at_the_gate_for_one_that_does_not_come_is_told_so(tmp_path: Path) -> None:
    gates = _gates(tmp_path, [[0, 1]])

    with pytest.raises(Late):
        gates[0].wait(0, lambda: False, limit_s=0.02)

    assert gates[1].wait(0, lambda: False, 7) == 7, "it finds that the other has been here"


# How often a state is held.


@given(
    st.lists(st.floats(1e-4, 100), min_size=1, max_size=50),
    st.lists(st.tuples(st.floats(1e-4, 10), st.integers(0, 1 << 33)), min_size=1, max_size=5),
)
def test_the_quickest_hold_takes_its_share_of_the_time_of_median_batches_up_to_the_next(
    batches: list[float], holds: list[tuple[float, int]]
) -> None:
    rate, now = Rate(), 0.0
    for took in batches:
        rate.begin_batch(now)
        now += took
        rate.end_batch(now)
        now += 5.0  # what lies between is no batch
    for hold in holds:
        rate.held(*hold)

    cost = min(took + size / 2e9 for took, size in holds[-3:])
    median = statistics.median(batches[-32:])
    assert cost <= 1.0001 * SHARE * rate.wish * median
    assert rate.wish == 1 or cost >= 0.9999 * SHARE * (rate.wish - 1) * median


def test_what_is_waited_for_at_a_gate_is_no_hang() -> None:
    pace = Pace(floor_s=1.0)
    for turn in range(9):
        pace.mark("batch", float(turn) / 10)

    pace.pause(0.85)
    for now in range(1, 1001):
        pace.wait(float(now))
        assert pace.late(now + 0.9) is None
    pace.go_on(1000.0)
    assert pace.late(1000.9) is None
    assert pace.late(1001.0) is not None, "0.05 s of it were before the gate"


def test_who_hangs_while_it_waits_at_a_gate_is_late() -> None:
    """A signal handler of the program runs there as anywhere."""
    pace = Pace(floor_s=1.0)
    pace.mark("batch", 0.0)
    pace.pause(0.5)
    pace.wait(1.0)

    assert pace.late(2.9) is None
    assert "no progress for 2.1 s in a stretch of kind 'gate'" in str(pace.late(3.1))


def test_the_gate_stays_shut_for_a_state_that_no_buddy_has_and_when_frozen(tmp_path: Path) -> None:
    gates = _gates(tmp_path, [[0], [1]])
    gates[0].hold(1)
    passed: list[int] = []
    frozen = threading.Event()
    threads = [threading.Thread(target=lambda rank=rank: passed.append(gates[rank].wait(0, frozen.is_set))) for rank in range(2)]
    for thread in threads:
        thread.start()

    time.sleep(0.1)
    assert passed == []
    frozen.set()
    for thread in threads:
        thread.join()

    assert passed == [None, None]


# Rest.


def test_a_frozen_program_enters_no_step_and_publishes_no_more_once_a_vote_is_cast(monkeypatch: pytest.MonkeyPatch) -> None:
    program, published, over = ProgramThread(0, 0), [], threading.Event()
    # What rests for good ends with the test: later ones look who else runs.
    monkeypatch.setattr("detrain.runtime.ranks.program.time.sleep", lambda _seconds: sys.exit(over.wait()))

    def main() -> None:
        program.cut(published.append)
        program.enter(published.append, lambda _: True)
        program.stepped()
        frozen.wait()
        program.cut(published.append)
        raise AssertionError("it goes on")

    frozen = threading.Event()

    def rests() -> None:
        with suppress(SystemExit):
            main()

    thread = threading.Thread(target=rests, daemon=True)
    thread.start()
    program.freeze()
    closed = program.close()
    frozen.set()
    thread.join(0.05)

    assert thread.is_alive()
    assert program.is_parked
    assert closed[0] in {0, 1}
    assert StatePoint(1, 1, "c") not in published
    over.set()
    thread.join()


@pytest.mark.parametrize("place", ["cut", "entry"])
def test_a_program_that_hangs_as_it_publishes_is_no_source_and_its_watcher_goes_on(place: str) -> None:
    """A signal handler of the program's that never returns runs inside of detrain's own call, too."""
    program, hangs, over = ProgramThread(3, 3), threading.Event(), threading.Event()

    def publish(_point: StatePoint) -> None:
        hangs.set()
        over.wait()

    def main() -> None:
        with suppress(SystemExit):
            program.cut(publish) if place == "cut" else program.enter(publish, lambda _: sys.exit())

    thread = threading.Thread(target=main, daemon=True)
    thread.start()
    hangs.wait()
    found: list[object] = []
    watcher = threading.Thread(target=lambda: found.extend([program.freeze(), program.is_frozen, program.close()]), daemon=True)
    watcher.start()
    watcher.join(5.0)

    assert found == [None, True, (3, False)]
    program.is_frozen = False  # or it would rest for good
    over.set()
    thread.join()


def test_an_error_in_the_step_spoils_the_state_and_one_beside_it_does_not() -> None:
    for is_inside in (True, False):
        program = ProgramThread(3, 3)
        program.enter(lambda _: None, lambda _: True)
        if not is_inside:
            program.stepped()
        program.break_off()
        assert program.close() == (3 if is_inside else 4, not is_inside)


# Pace.


def test_a_stretch_counts_as_a_hang_by_those_of_its_kind() -> None:
    pace, now = Pace(floor_s=1.0), 0.0
    for number in range(30):
        pace.mark("batch", now)
        now += 0.5
        assert (pace.late(now + 7) is not None) == (number >= 8)
    pace.mark("batch", now)
    assert pace.late(now + 3.9) is None
    assert "no progress for 4.1 s in a stretch of kind 'batch'" in str(pace.late(now + 4.1))
    pace.mark("validation", now + 4.1)
    pace.mark("batch", now + 1000)
    assert pace.late(now + 1003) is None
    assert pace.late(now + 1040) is not None
    pace.stop()
    assert pace.late(now + 5000) is None


def test_a_hang_in_a_stretch_of_which_few_have_been_is_noticed_later() -> None:
    pace = Pace(floor_s=10.0)
    pace.mark("first batch", 0.0)
    assert pace.late(299.0) is None, "it compiles, or is the first validation"
    assert "it had 300.0 s, as the first of its kind" in str(pace.late(301.0))
    pace.mark("batch", 200.0)
    pace.mark("first batch", 201.0)
    assert pace.late(201.0 + 16 * 200 - 1) is None
    assert pace.late(201.0 + 16 * 200 + 1) is not None
    pace.mark("batch", 202.0)
    assert pace.late(241.0) is None
    assert pace.late(243.0) is not None


def test_what_is_no_batch_may_take_longer_each_tenth_time() -> None:
    pace, now = Pace(floor_s=10.0), 0.0
    for _ in range(20):
        pace.mark("behind the batches", now)
        pace.mark("batch", now + 1)
        now += 2
    pace.mark("behind the batches", now)

    assert pace.late(now + 39.0) is None
    assert "it had 40.0 s, by the last 20 of its kind" in str(pace.late(now + 41.0))


@given(st.lists(st.floats(0.001, 0.4), min_size=9, max_size=200))
def test_noise_within_the_range_of_before_is_no_hang(durations: list[float]) -> None:
    pace, now = Pace(), 0.0
    for duration in durations:
        pace.mark("batch", now)
        assert pace.late(now + min(1.0, duration)) is None
        now += duration


# Processes and signals.


def test_a_process_is_seen_to_be_stopped_and_gone_and_another_with_its_number_is_left_alone() -> None:
    """A process is needed: it is stopped and killed."""
    child = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    started = processes._stat(child.pid)[1]
    known = processes.Process(child.pid, started)

    assert processes.rests(known) is None
    processes.end(processes.Process(child.pid, started + 1))
    assert processes.rests(processes.Process(child.pid, started + 1)) == "is gone"
    child.send_signal(signal.SIGSTOP)
    _until(lambda: processes.rests(known) == "is stopped")
    processes.end(known)

    assert child.wait() == -signal.SIGKILL
    assert processes.rests(known) == "is gone"
    assert processes.rests(processes.this_process()) is None


def test_sigterm_becomes_readable_and_is_put_back_also_in_a_child() -> None:
    """A forked child is needed: it must die of SIGTERM, and its parent hear nothing."""
    pipe = processes.SigtermPipe()
    try:
        assert not pipe.has_come()
        child = os.fork()
        if child == 0:
            pipe.undo()
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
        assert not pipe.has_come()
        os.kill(os.getpid(), signal.SIGTERM)
        _until(pipe.has_come)
    finally:
        pipe.undo()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def _until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        time.sleep(0.001)
