"""The journal: what was appended is read again, and what a crash or a bad disk made of it is
never taken for a record.
"""

import contextlib
import errno
import os
import struct
import sys
import threading
import time

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from detrain.base.errors import CheckpointDamaged, CheckpointTooNew, StoreError
from detrain.store.journal import Journal

addresses = st.tuples(st.integers(0, 3), st.integers(0, 2**40), st.integers(0, 2**40))
records = st.one_of(
    st.tuples(st.just("b"), addresses, st.binary(min_size=16, max_size=16)),
    st.tuples(st.just("r"), addresses, st.dictionaries(st.sampled_from(["python", "numpy"]), st.binary(max_size=30))),
)


@contextlib.contextmanager
def opened(path, keep_bytes=0, **how):
    journal = Journal(path, keep_bytes, **how)
    try:
        yield journal
    finally:
        journal.close()


def append(journal, items):
    """Append records; return the length of the journal after each."""
    ends = []
    for kind, address, value in items:
        (journal.add_batch if kind == "b" else journal.add_streams)(address, value)
        ends.append(journal.size)
    return ends


def contents(path, keep_bytes=0):
    with opened(path, keep_bytes) as journal:
        return journal.batches, journal.streams


def expected_of(items):
    return (
        {address: value for kind, address, value in items if kind == "b"},
        {address: value for kind, address, value in items if kind == "r"},
    )


THREE = [("b", (0, 0, 0), b"0" * 16), ("r", (0, 0, 1), {"python": b"12345"}), ("b", (0, 0, 1), b"1" * 16)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.journal"


@given(items=st.lists(records, max_size=8))
def test_what_was_appended_is_read_again(tmp_path_factory, items):
    path = tmp_path_factory.mktemp("journal") / "run.journal"
    with opened(path) as journal:
        ends = append(journal, items)
    assert contents(path) == expected_of(items)
    assert path.stat().st_size == (ends[-1] if ends else 0)


@given(items=st.lists(records, min_size=1, max_size=6), more=st.lists(records, max_size=4), data=st.data())
def test_a_reopened_journal_keeps_its_start_and_takes_new_records(tmp_path_factory, items, more, data):
    path = tmp_path_factory.mktemp("journal") / "run.journal"
    with opened(path) as journal:
        ends = [0, *append(journal, items)]
    kept = data.draw(st.integers(0, len(items)))
    with opened(path, ends[kept], may_differ=True) as journal:
        # Also what lies beyond the cut, to compare with.
        assert (journal.batches, journal.streams) == expected_of(items)
        append(journal, more)
    assert contents(path) == expected_of(items[:kept] + more if more else items)


states = st.dictionaries(st.sampled_from(["python", "numpy"]), st.sampled_from([b"", b"1", b"2" * 20]))
heads_and_elements = st.lists(
    st.one_of(st.tuples(st.just("r"), addresses, states), st.tuples(st.sampled_from(["it", "other"]), st.integers(0, 3), states)),
    max_size=12,
)


@given(items=heads_and_elements, more=heads_and_elements, data=st.data())
def test_the_streams_of_elements_are_those_before_the_cut_whether_written_out_or_as_at_a_head(tmp_path_factory, items, more, data):
    def append_all(journal, items):
        for kind, place, value in items:
            if kind == "r":
                journal.add_streams(place, value)
            else:
                journal.add_element(kind, place, value)
            yield journal.size

    def expected(items, read):
        found = {name: dict(numbers) for name, numbers in read.items()}
        for name, number, value in items:
            # Else a resumed run is on its way past it again.
            if name != "r" and read.get(name, {}).get(number) != value:
                found[name] = {**({} if number == 0 else found.get(name, {})), number: value}
        return found

    path = tmp_path_factory.mktemp("journal") / "run.journal"
    with opened(path) as journal:
        ends = [0, *append_all(journal, items)]
    kept = data.draw(st.integers(0, len(items)))
    with opened(path, ends[kept]) as journal:
        read = expected(items[:kept], {})
        assert journal.elements == read
        *_, end = ends[kept], *append_all(journal, more)
    with opened(path, end) as journal:
        assert journal.elements == expected(more, read)


def test_a_tail_torn_at_any_byte_is_cut_off(path, tmp_path):
    with opened(path) as journal:
        ends = [0, *append(journal, THREE)]
    whole = path.read_bytes()
    torn = tmp_path / "torn.journal"
    for length in range(len(whole) + 1):
        torn.write_bytes(whole[:length])
        good = max(number for number, end in enumerate(ends) if end <= length)
        with opened(torn, ends[good]) as journal:
            assert (journal.batches, journal.streams) == expected_of(THREE[:good])
            append(journal, THREE[good:])
        assert torn.read_bytes() == whole


def test_a_flipped_bit_anywhere_loses_its_record_and_those_behind_it_but_makes_no_other(path, tmp_path):
    with opened(path) as journal:
        ends = [0, *append(journal, THREE)]
    whole = path.read_bytes()
    damaged = tmp_path / "damaged.journal"
    for offset in range(len(whole)):
        for bit in range(8):
            data = bytearray(whole)
            data[offset] ^= 1 << bit
            damaged.write_bytes(data)
            good = max(number for number, end in enumerate(ends) if end <= offset)
            assert contents(damaged) == expected_of(THREE[:good])


def test_a_checkpoint_that_rests_on_damaged_records_is_refused(path):
    with opened(path) as journal:
        ends = append(journal, THREE)
    data = bytearray(path.read_bytes())
    data[ends[0] + 9] ^= 1
    path.write_bytes(data)
    with opened(path, ends[0]):
        pass
    with pytest.raises(CheckpointDamaged, match=f"whole up to byte {ends[0]}; the checkpoint rests on {ends[1]}"):
        Journal(path, ends[1])


@pytest.mark.parametrize("keep_bytes", [1, 1000])
def test_a_length_that_is_no_end_of_a_record_is_refused(path, keep_bytes):
    with opened(path) as journal:
        append(journal, THREE)
    with pytest.raises(CheckpointDamaged):
        Journal(path, keep_bytes)


def test_a_checkpoint_whose_journal_is_gone_is_refused(path):
    with pytest.raises(CheckpointDamaged, match="is gone; the checkpoint rests on 40 bytes"):
        Journal(path, 40)
    assert not path.exists()


def test_opening_does_not_cut_and_the_first_new_record_does(path):
    with opened(path) as journal:
        ends = append(journal, THREE)
    with opened(path, ends[0], may_differ=True) as journal:
        assert journal.size == ends[0]
        assert path.stat().st_size == ends[2]
        append(journal, THREE[1:2])
        assert path.stat().st_size == ends[1]
    assert contents(path) == expected_of(THREE[:2])


def test_equal_records_give_equal_bytes(path, tmp_path):
    for each in (path, tmp_path / "other"):
        with opened(each) as journal:
            append(journal, THREE)
    assert path.read_bytes() == (tmp_path / "other").read_bytes()


def test_a_record_is_in_the_file_as_soon_as_it_is_added(path):
    with opened(path) as journal:
        append(journal, THREE)
        assert contents(path) == expected_of(THREE)
        journal.sync()


def test_the_clock_of_the_program_is_not_asked(path, monkeypatch):
    """It looks who asks, behind each training step; and a program may stop it."""
    with opened(path) as journal:
        for number in range(50):
            monkeypatch.setattr(time, "monotonic", lambda: 1 / 0)
            journal.add_batch((0, 0, number), bytes(16))
        monkeypatch.undo()

    assert len(Journal(path, 0).batches) == 50


def test_a_write_that_the_disk_takes_in_pieces_is_whole(path, monkeypatch):
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, offset: pwrite(file, data[:7], offset))
    with opened(path) as journal:
        append(journal, THREE)
    assert contents(path) == expected_of(THREE)


def test_what_a_full_disk_does_not_take_waits_and_no_checkpoint_can_rest_on_it(path, monkeypatch):
    with opened(path) as journal:
        append(journal, THREE[:2])
        before = path.stat().st_size
        pwrite, calls = os.pwrite, []

        def full(file, data, offset):
            calls.append(offset)
            if len(calls) % 2 == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return pwrite(file, data[:5], offset)

        monkeypatch.setattr(os, "pwrite", full)
        append(journal, THREE[2:])
        assert path.stat().st_size == before
        for wait in (journal.flush, journal.sync):
            with pytest.raises(StoreError, match="No space left"):
                wait()
        assert path.stat().st_size == before
        monkeypatch.undo()
        journal.sync()
        assert path.stat().st_size == journal.size
    assert contents(path) == expected_of(THREE)


def test_a_journal_that_has_gone_or_was_exchanged_is_no_ground_for_a_checkpoint(path):
    with opened(path) as journal:
        append(journal, THREE[:2])
        journal.sync()
        path.unlink()
        with pytest.raises(StoreError, match="No such file"):
            journal.sync()
        path.touch()
        with pytest.raises(StoreError, match="another file"):
            journal.sync()


def test_a_journal_of_a_later_version_is_refused_and_one_without_a_version_read(path):
    with opened(path) as journal:
        ends = append(journal, THREE)
    data = path.read_bytes()
    head = ends[0] - (ends[2] - ends[1])  # the first record brought it; the third is as long as the first
    assert data[8:head] == b"\x92\xa1v\x02"
    path.write_bytes(data[head:])
    assert contents(path, ends[2] - head) == expected_of(THREE)
    payload = b"\x92\xa1v\x03"
    path.write_bytes(struct.pack("<II", len(payload), xxhash.xxh32_intdigest(payload)) + payload + data[head:])
    with pytest.raises(CheckpointTooNew, match="has format 3"):
        Journal(path, 0)


def test_a_journal_that_cannot_be_opened_is_an_error_of_the_store(tmp_path):
    with pytest.raises(StoreError, match="cannot write journal"):
        Journal(tmp_path / "missing" / "run.journal", 0)


def test_records_that_come_while_another_thread_writes_are_all_there(tmp_path, monkeypatch):
    items = [("b", (0, 0, number), number.to_bytes(16, "little")) for number in range(2000)]
    interval = sys.getswitchinterval()
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
    for turn in range(12):  # without a lock, one in seven lost records
        done = threading.Event()
        path = tmp_path / f"{turn}.journal"
        with opened(path) as journal:

            def write(journal=journal, done=done):
                while not done.is_set():
                    journal.sync()

            writer = threading.Thread(target=write)
            sys.setswitchinterval(1e-6)
            writer.start()
            append(journal, items)
            done.set()
            writer.join()
            sys.setswitchinterval(interval)
        assert contents(path) == expected_of(items)


def test_what_is_still_to_come_stays_behind_what_is_recorded_again(path):
    items = [("b", (0, 0, number), bytes([number]) * 16) for number in range(6)]
    with opened(path) as journal:
        ends = append(journal, items)
    for again in (3, 5):
        with opened(path, ends[1]) as journal:
            assert append(journal, items[2:again])[-1] == ends[again - 1]
        assert path.stat().st_size == ends[-1]
        assert contents(path, ends[1])[0] == expected_of(items)[0]
    with opened(path, ends[1]) as journal:
        append(journal, items[2:])
    assert path.stat().st_size == ends[-1]


def test_what_may_differ_is_let_go_of(path):
    items = [("b", (0, 0, number), bytes([number]) * 16) for number in range(6)]
    with opened(path) as journal:
        ends = append(journal, items)
    journal = Journal(path, ends[1], may_differ=True)
    append(journal, items[2:3])
    journal.close()
    assert path.stat().st_size == ends[2]


def test_what_a_body_still_has_to_fetch_stays(path):
    with opened(path) as journal:
        journal.add_batch((0, 0, 0), b"0" * 16)
        cut = journal.size
        for number in range(3):
            journal.add_fetched((0, 0, 0, number), bytes([number]) * 16)
        journal.add_batch((0, 0, 1), b"1" * 16)
        end = journal.size
    with opened(path, cut) as journal:
        journal.add_fetched((0, 0, 0, 0), bytes(16))
    with opened(path, cut) as journal:
        assert sorted(journal.fetched) == [(0, 0, 0, number) for number in range(3)]
        assert (0, 0, 1) in journal.batches
    assert path.stat().st_size == end
