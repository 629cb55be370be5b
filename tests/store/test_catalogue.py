"""The checkpoint home: names parse and format, pruning keeps what resuming needs, and nothing that is not ours is
touched.
"""

import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from detrain.base import messages
from detrain.base.config import Config
from detrain.base.cursor import Cursor
from detrain.base.errors import CheckpointDamaged, StoreError
from detrain.base.options import Every
from detrain.cli.ckpt import command as ckpt
from detrain.runtime.session.saves import Saves
from detrain.store.catalogue import Catalogue, Entry, parse_name, stations
from detrain.store.journal import Journal
from detrain.store.lock import hold
from tests.store.homes import newest, state

cursors = st.builds(
    Cursor, st.integers(0, 30), st.integers(0, 10**7), st.integers(0, 10**8), st.sampled_from(["epoch", "load", "batch", "end"])
)
programs = st.text(st.characters(blacklist_characters="/\0", blacklist_categories=["Cs"]), min_size=1, max_size=12)

FOREIGN = [
    "notes.txt",
    "train.h5",
    "weights-e00001.h5",
    "train-r1.journal",
    "train-r1-p0-e1-e0.h5",
    "train-r01-p0-e00001-e000000.h5",
    "train-r1-p0-e000001-e000000.h5",
    "train-r1-p0-e00001-x000000.h5",
    "train-r1-p0-e00001-e000000.h5.bak",
    "train-r1-p0-e00001-e000000.hdf5",
    "train-r1-p0-e-0001-e000000.h5",
    "train-r1-p0-e०००००-e000000.h5",
    "-r1-p0-e00001-e000000.h5",
    ".train-r1-p0-e00001-e000000.h5.tmp",
]


@pytest.fixture
def catalogue(tmp_path):
    return Catalogue(tmp_path)


def save(catalogue, *cursors, program="train", run=1):
    for cursor in cursors:
        catalogue.path(program, run, cursor).touch()


def held(catalogue, program="train", run=1):
    return [entry.cursor for entry in catalogue.entries() if (entry.program, entry.run) == (program, run)]


def epoch(number, phase=0):
    return Cursor(phase, number, 0, "epoch")


def load(number, batch, phase=0):
    return Cursor(phase, number, batch, "load")


def end(number, phase=0):
    return Cursor(phase, number, 0, "end")


@given(programs, st.integers(0, 99999), cursors)
def test_a_name_that_is_formatted_parses_to_what_it_was_made_of(program, run, cursor):
    path = Catalogue(Path("home")).path(program, run, cursor)
    assert parse_name(path) == Entry(path, program, run, cursor)


@given(st.from_regex(r"\A[a-z]{1,3}-r[0-9]{1,2}-p[0-9]{1,2}-e[0-9]{4,6}-[elbz][0-9]{5,7}\.h5\Z"))
def test_a_name_that_parses_is_the_one_that_would_be_formatted(name):
    entry = parse_name(Path(name))
    assert entry is None or Catalogue(Path()).path(entry.program, entry.run, entry.cursor).name == name


def test_a_name_reads_as_it_is_documented():
    assert Catalogue(Path()).path("train", 1, epoch(3)).name == "train-r1-p0-e00003-e000000.h5"


@pytest.mark.parametrize("name", FOREIGN)
def test_other_names_are_not_ours(name):
    assert parse_name(Path(name)) is None


def test_entries_come_in_the_order_of_the_run(catalogue):
    expected = [
        epoch(0),
        load(0, 5),
        load(0, 10),
        epoch(1),
        load(1, 3),
        end(2),
        epoch(0, 1),
        load(0, 100000, 1),
        load(0, 1000000, 1),
    ]
    save(catalogue, *reversed(expected))
    assert held(catalogue) == expected


def test_entries_are_sorted_by_program_and_run_first(catalogue):
    save(catalogue, epoch(0), run=10)
    save(catalogue, epoch(9), run=2)
    save(catalogue, epoch(9), program="a")
    assert [(entry.program, entry.run) for entry in catalogue.entries()] == [("a", 1), ("train", 2), ("train", 10)]


def test_folders_and_links_to_nothing_are_no_checkpoints(catalogue):
    catalogue.save("train", 1, epoch(1), state(epoch(1)))
    catalogue.path("train", 1, epoch(2)).mkdir()
    catalogue.path("train", 1, epoch(3)).symlink_to("nothing")

    chosen = newest(catalogue, "train")

    assert chosen is not None
    assert chosen.entry.cursor == epoch(1)


def test_files_that_a_run_deletes_while_they_are_listed_are_passed_over(catalogue, monkeypatch):
    for number in (1, 2):
        catalogue.save("train", 1, epoch(number), state(epoch(number)))
    entries, gone = catalogue.entries(), catalogue.path("train", 1, epoch(1))
    gone.unlink()
    monkeypatch.setattr(Catalogue, "entries", lambda _self: entries)

    for command in ("ls", "verify"):
        done = CliRunner().invoke(ckpt, [command, str(catalogue.folder)], catch_exceptions=False)
        assert done.return_value in (0, None)
        assert "e00002" in done.output
        assert gone.name not in done.output


def test_a_folder_that_is_not_there_has_no_entries(tmp_path):
    assert Catalogue(tmp_path / "missing").entries() == []


@given(st.lists(cursors, min_size=1, max_size=12, unique_by=Cursor.key), st.data())
def test_stations_lie_on_the_way_in_order_with_the_target_last(all_cursors, data):
    entries = [Entry(Path(str(number)), "train", 1, cursor) for number, cursor in enumerate(all_cursors)]
    target = data.draw(st.sampled_from(entries))
    way = stations(entries, target)
    keys = [entry.cursor.key() for entry in way]
    assert way[-1] == target
    assert keys == sorted(set(keys))
    assert {entry.cursor.phase for entry in way} == {
        entry.cursor.phase for entry in entries if entry.cursor.key() <= target.cursor.key()
    }


@given(st.lists(cursors, min_size=1, max_size=12, unique_by=Cursor.key), st.data())
def test_stations_of_a_pruned_home_are_those_of_the_whole_one(all_cursors, data):
    entries = [Entry(Path(str(number)), "train", 1, cursor) for number, cursor in enumerate(all_cursors)]
    target = data.draw(st.sampled_from(entries))
    way = stations(entries, target)
    assert stations(way, target) == way


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (epoch(1), [epoch(1)]),
        (load(1, 5), [epoch(1), load(1, 5)]),
        (load(2, 5), [load(2, 5)]),  # no checkpoint at the start of epoch 2
        (end(3), [end(3)]),
        (epoch(0, 1), [end(3), epoch(0, 1)]),
        (load(0, 7, 1), [end(3), epoch(0, 1), load(0, 7, 1)]),
    ],
)
def test_a_checkpoint_rests_on_the_start_of_its_epoch_and_on_earlier_phases(target, expected):
    everything = [epoch(0), epoch(1), load(1, 5), load(2, 5), end(3), epoch(0, 1), load(0, 7, 1)]
    entries = {cursor: Entry(Path(str(number)), "train", 1, cursor) for number, cursor in enumerate(everything)}
    assert [entry.cursor for entry in stations(entries.values(), entries[target])] == expected


def test_pruning_keeps_the_newest(catalogue):
    save(catalogue, *(epoch(number) for number in range(1, 8)))
    catalogue.prune("train", 1, 3)
    assert held(catalogue) == [epoch(5), epoch(6), epoch(7)]


def test_pruning_keeps_each_second_epoch_if_asked(catalogue):
    for epoch in range(1, 8):
        catalogue.path("train", 1, Cursor(0, epoch, 0)).touch()
    catalogue.path("train", 1, Cursor(0, 8, 0, "end")).touch()
    catalogue.prune("train", 1, 1, keep_every=2)
    assert [entry.cursor.epoch for entry in catalogue.entries()] == [2, 4, 6, 8]


def test_pruning_keeps_what_is_behind_the_batches_of_each_second_epoch(catalogue):
    save(catalogue, *(cursor for number in range(1, 7) for cursor in (epoch(number), load(number, 3), load(number, 5))))
    catalogue.prune("train", 1, 1, keep_every=2, after_batches=True)
    assert held(catalogue) == [cursor for number in (2, 4, 6) for cursor in (epoch(number), load(number, 5))]


@pytest.mark.parametrize(
    ("best", "metrics", "expected"),
    [
        ("loss", [5.0, 2.0, 3.0, 2.0, 4.0], [2, 5]),
        ("min:loss", [5.0, 2.0, 3.0, 2.0, 4.0], [2, 5]),
        ("max:accuracy", [0.1, 0.9, 0.9, 0.2, 0.3], [2, 5]),
        ("max:accuracy", [0.1, 0.2, 0.3, 0.4, 0.5], [5]),
        ("loss", [None, 3.0, None, 4.0, None], [2, 5]),
        ("loss", [None] * 5, [5]),
        ("", [1.0, 2.0, 3.0, 4.0, 5.0], [5]),
    ],
)
def test_pruning_keeps_the_best_at_every_turn(catalogue, best, metrics, expected):
    for number, metric in enumerate(metrics, 1):
        catalogue.save("train", 1, epoch(number), state(epoch(number), metric=metric))
        catalogue.prune("train", 1, 1, keep_best=best)
    assert [cursor.epoch for cursor in held(catalogue)] == expected


def test_a_damaged_checkpoint_is_not_the_best(catalogue):
    catalogue.save("train", 1, epoch(1), state(epoch(1), metric=0.0))
    catalogue.path("train", 1, epoch(1)).write_bytes(b"x")
    for number in (2, 3):
        catalogue.save("train", 1, epoch(number), state(epoch(number), metric=float(number)))
    Catalogue(catalogue.folder).prune("train", 1, 1, keep_best="loss")
    assert held(catalogue) == [epoch(2), epoch(3)]


def test_pruning_keeps_what_the_newest_rest_on(catalogue):
    save(catalogue, epoch(1), load(1, 4), load(1, 8), end(2), epoch(0, 1), epoch(1, 1), load(1, 2, 1), load(1, 4, 1))
    catalogue.prune("train", 1, 1)
    assert held(catalogue) == [end(2), epoch(1, 1), load(1, 4, 1)]


@given(all_cursors=st.lists(cursors, min_size=1, max_size=10, unique_by=Cursor.key), keep=st.integers(1, 4))
def test_after_pruning_the_newest_resume_as_they_would_have_before(tmp_path_factory, all_cursors, keep):
    catalogue = Catalogue(tmp_path_factory.mktemp("home"))
    save(catalogue, *all_cursors)
    before = catalogue.entries()
    ways = [stations(before, entry) for entry in before[-keep:]]
    catalogue.prune("train", 1, keep)
    after = catalogue.entries()
    assert [stations(after, entry) for entry in before[-keep:]] == ways
    needed = {entry.path for way in ways for entry in way}
    common = set.intersection(*({entry.path for entry in way} for way in ways))
    others = {entry.path for entry in after} - needed
    assert others <= {entry.path for entry in before}
    if all(can_resume([each for each in before if each.cursor.key() <= entry.cursor.key()][-1:]) for entry in before):
        assert len(others) <= (len(common) if keep > 1 else 0)


def can_resume(entries):
    """Whether one of the checkpoints has its whole way there, by docs/reference/format.md, told once more."""
    starts = {(entry.cursor.phase, entry.cursor.epoch) for entry in entries if entry.cursor.cut == "epoch"}
    return any(
        entry.cursor.cut in ("epoch", "end") or entry.cursor.epoch == 0 or (entry.cursor.phase, entry.cursor.epoch) in starts
        for entry in entries
    )


@given(all_cursors=st.lists(cursors, min_size=2, max_size=10, unique_by=Cursor.key), keep=st.integers(2, 4))
def test_no_one_file_costs_all_checkpoints_that_are_kept(tmp_path_factory, all_cursors, keep):
    catalogue = Catalogue(tmp_path_factory.mktemp("home"))
    save(catalogue, *all_cursors)
    before = catalogue.entries()
    catalogue.prune("train", 1, keep)
    after = catalogue.entries()
    for lost in after:
        if can_resume([entry for entry in before if entry.cursor.key() < lost.cursor.key()]):
            assert can_resume([entry for entry in after if entry != lost])


def test_checkpoints_that_nobody_can_go_on_from_do_not_count(catalogue):
    save(catalogue, epoch(0), epoch(1), load(2, 1), load(3, 1))  # the starts of epochs 2 and 3 are gone
    catalogue.prune("train", 1, 1)
    assert held(catalogue) == [epoch(1), load(2, 1), load(3, 1)]


def run_in_epochs(catalogue, epochs, *, batches, keep):
    """Save as a run does with `--every 1b`: at the start of each epoch, and before each batch but the first."""
    for number in range(epochs):
        for batch in range(batches):
            cursor = epoch(number) if batch == 0 else load(number, batch)
            catalogue.save("train", 1, cursor, state(cursor))
            catalogue.prune("train", 1, keep)


def flip(path, offset=-200):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_damage_at_the_start_of_the_epoch_costs_that_epoch_and_no_more(catalogue):
    run_in_epochs(catalogue, 4, batches=6, keep=3)
    assert held(catalogue) == [epoch(2), epoch(3), load(3, 3), load(3, 4), load(3, 5)]
    flip(catalogue.path("train", 1, epoch(3)))

    choice = newest(catalogue, "train")
    assert choice.entry.cursor == epoch(2)
    catalogue.adopt(choice)

    # What was saved in that epoch must not count as the newest from here on.
    assert held(catalogue) == [epoch(2)]
    assert sorted(path.suffix for path in catalogue.folder.iterdir()) == [".bad", ".h5", ".manifest", *[".stranded"] * 3]
    for cursor in (load(2, 1), load(2, 2), epoch(3)):
        catalogue.save("train", 1, cursor, state(cursor))
        catalogue.prune("train", 1, 1)
    assert newest(catalogue, "train").entry.cursor == epoch(3)


def test_damage_at_the_end_of_an_earlier_phase_is_gone_around(catalogue):
    for cursor in (epoch(1), epoch(2), end(3), epoch(1, 1), epoch(2, 1), epoch(3, 1), epoch(4, 1)):
        catalogue.save("train", 1, cursor, state(cursor))
        catalogue.prune("train", 1, 2)
    assert held(catalogue) == [epoch(2), end(3), epoch(3, 1), epoch(4, 1)]
    flip(catalogue.path("train", 1, end(3)))

    choice = newest(catalogue, "train")

    assert [entry.cursor for entry in choice.stations] == [epoch(2), epoch(4, 1)]
    assert choice.damaged == (catalogue.path("train", 1, end(3)),)
    assert choice.stranded == ()


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_phase_that_was_left_inside_of_an_epoch_is_finished_from_where_its_start_is(catalogue, is_gone):
    """Left by `break`: it has no checkpoint of its end.

    One damaged file let its epoch begin with the values of the run's start.
    """
    for cursor in (epoch(1), epoch(2), load(2, 4), epoch(1, 1), epoch(2, 1)):
        catalogue.save("train", 1, cursor, state(cursor))
    path = catalogue.path("train", 1, epoch(2))
    path.unlink() if is_gone else flip(path)

    assert [entry.cursor for entry in newest(catalogue, "train").stations] == [epoch(1), epoch(2, 1)]


def test_an_epoch_of_a_later_phase_without_its_start_is_not_gone_on_from(catalogue):
    for cursor in (end(3), epoch(1, 1), load(2, 5, 1)):
        catalogue.save("train", 1, cursor, state(cursor))

    assert newest(catalogue, "train").entry.cursor == epoch(1, 1)


def test_the_message_tells_what_is_damaged_from_what_rests_on_it(catalogue):
    for cursor in (epoch(1), load(1, 1), load(1, 2)):
        catalogue.save("train", 1, cursor, state(cursor))
    flip(catalogue.path("train", 1, epoch(1)))

    with pytest.raises(CheckpointDamaged, match=r"none of the 3 checkpoints .* 1 is damaged, and 2 rest on it"):
        newest(catalogue, "train")


def test_pruning_with_nothing_to_keep_leaves_nothing(catalogue):
    save(catalogue, epoch(1), epoch(2))
    catalogue.prune("train", 1, 0)
    assert held(catalogue) == []


def test_pruning_never_touches_what_is_not_of_the_run(catalogue):
    save(catalogue, epoch(1), epoch(2), epoch(3))
    save(catalogue, epoch(1), run=2)
    save(catalogue, epoch(1), program="train-r1")
    save(catalogue, epoch(1), program="other")
    for name in FOREIGN:
        (catalogue.folder / name).touch()
    (catalogue.folder / "train-r1-p0-e00000-e000000.h5").mkdir()
    catalogue.prune("train", 1, 1)
    names = {path.name for path in catalogue.folder.iterdir()}
    others = {"train-r2-p0-e00001-e000000.h5", "train-r1-r1-p0-e00001-e000000.h5", "other-r1-p0-e00001-e000000.h5"}
    assert names == {*FOREIGN, *others, "train-r1-p0-e00003-e000000.h5", "train-r1-p0-e00000-e000000.h5"}


def test_pruning_goes_on_where_a_file_is_gone_already(catalogue, monkeypatch):
    save(catalogue, epoch(1), epoch(2), epoch(3))
    entries = catalogue.entries()
    entries[0].path.unlink()
    monkeypatch.setattr(catalogue, "entries", lambda: entries)
    catalogue.prune("train", 1, 1)
    assert [path.name for path in catalogue.folder.iterdir()] == [entries[2].path.name]


@pytest.mark.parametrize("program", ["train", "tr[ai]n", "*", "train-r1"])
def test_only_the_leftovers_of_the_program_are_removed(catalogue, program):
    mine = [f".{catalogue.path(program, 1, epoch(1)).name}.123.tmp", f".inst.info.{1 << 30}.tmp"]
    others = [
        f".inst.info.{os.getpid()}.tmp",
        ".train-rnn-r1-p0-e00001-e000000.h5.123.tmp",
        ".train-r1-notes.h5.123.tmp",
        ".trains-r1-p0-e00001-e000000.h5.123.tmp",
        ".detrain.123.tmp",
        "train-r1-p0-e00001-e000000.h5",
        *FOREIGN,
    ]
    for name in [*mine, *others]:
        (catalogue.folder / name).touch()
    catalogue.remove_leftovers(program)
    assert {path.name for path in catalogue.folder.iterdir()} == set(others)


def test_creating_a_home_makes_the_folders_above_and_leaves_nothing_in_it(tmp_path):
    catalogue = Catalogue(tmp_path / "a" / "b")
    catalogue.create()
    catalogue.create()
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_home_that_cannot_be_made_is_an_error_of_the_store(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be written"):
        Catalogue(tmp_path / "file" / "home").create()


def test_a_home_whose_checkpoints_are_gone_is_no_new_one(catalogue):
    for cursor in (epoch(1), epoch(2)):
        catalogue.save("train", 1, cursor, state(cursor))
    for entry in catalogue.entries():
        entry.path.unlink()

    with pytest.raises(CheckpointDamaged, match="its manifest lists 'train-r1-p0-e00002"):
        newest(catalogue, "train")
    assert newest(catalogue, "other") is None


def test_checkpoints_inside_of_an_epoch_whose_start_is_gone_are_refused(catalogue):
    for cursor in (epoch(1), load(1, 2)):
        catalogue.save("train", 1, cursor, state(cursor))
    catalogue.path("train", 1, epoch(1)).unlink()

    with pytest.raises(CheckpointDamaged, match="inside of an epoch, and that of its start is gone"):
        newest(catalogue, "train")


def test_verify_names_the_newest_checkpoint_if_it_is_gone(catalogue):
    for cursor in (epoch(1), epoch(2)):
        catalogue.save("train", 1, cursor, state(cursor))
    catalogue.path("train", 1, epoch(2)).unlink()

    result = CliRunner().invoke(ckpt, ["verify", str(catalogue.folder)], standalone_mode=False)

    assert result.return_value == CheckpointDamaged.exit_code
    assert "train-r1-p0-e00002-e000000.h5  is gone; train-r1.manifest lists it last" in result.output


def journaled(catalogue, epochs):
    """Save epochs that rest on a journal; return how long it was at each."""
    journal, lengths = Journal(catalogue.journal("train", 1), 0), []
    for number in range(1, epochs + 1):
        journal.add_batch((0, number - 1, 0), bytes([number] * 16))
        journal.sync()
        lengths.append(journal.size)
        catalogue.save("train", 1, epoch(number), state(epoch(number), journal_bytes=journal.size))
    journal.close()
    return lengths


def verified(folder):
    result = CliRunner().invoke(ckpt, ["verify", str(folder)], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.return_value, result.output


def test_a_damaged_journal_costs_the_checkpoints_that_rest_on_the_damage(catalogue):
    lengths = journaled(catalogue, 4)
    flip(catalogue.journal("train", 1), lengths[2] - 1)

    status, output = verified(catalogue.folder)
    assert status == CheckpointDamaged.exit_code
    assert output.count("BAD") == 2
    assert f"damaged: whole up to byte {lengths[1]}; the checkpoint rests on {lengths[2]} bytes of it" in output

    choice = newest(catalogue, "train")
    assert choice.entry.cursor == epoch(2)
    catalogue.adopt(choice)
    assert held(catalogue) == [epoch(1), epoch(2)]
    assert len(list(catalogue.folder.glob("*.stranded"))) == 2


def test_a_journal_that_is_gone_is_said_to_be_gone(catalogue):
    journaled(catalogue, 2)
    catalogue.journal("train", 1).unlink()

    with pytest.raises(CheckpointDamaged, match="is gone; the checkpoint rests on"):
        newest(catalogue, "train")


def test_a_folder_or_device_without_checkpoints_is_not_verified(tmp_path):
    with pytest.raises(StoreError, match="no checkpoint in"):
        verified(tmp_path)
    with pytest.raises(StoreError, match="is neither a file nor a folder"):
        verified("/dev/null")


def test_verify_notes_a_manifest_with_lines_that_cannot_be_read(catalogue):
    for cursor in (epoch(1), epoch(2)):
        catalogue.save("train", 1, cursor, state(cursor))
    assert "note" not in verified(catalogue.folder)[1]
    flip(catalogue.folder / "train-r1.manifest", -10)

    status, output = verified(catalogue.folder)

    assert status == 0
    assert "note  train-r1.manifest  lines that are damaged, or were torn by a crash: 1;" in output


def config(home, **options):
    """What a run of `train` in a home is told."""
    return Config(
        target="train.py", is_module=False, entry="train.py", shown="train.py", arguments=(), program="train", run=1,
        home=str(home), seed=0, threads=1, every=Every(1, "epochs"), keep=3, **options,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
@pytest.mark.parametrize("name", ["train-r1.manifest", "train-r1.journal", ".train.lock"])
def test_what_is_no_file_where_ours_belong_is_refused_at_once(catalogue, tmp_path_factory, name, kind):
    path, elsewhere = catalogue.folder / name, tmp_path_factory.mktemp("elsewhere") / "file"
    elsewhere.write_bytes(b"of somebody")
    {"link": lambda: path.symlink_to(elsewhere), "pipe": lambda: os.mkfifo(path), "folder": path.mkdir}[kind]()

    def begin():
        hold(catalogue.folder, "train")
        Saves(config(catalogue.folder), catalogue, None)

    with pytest.raises(StoreError, match=r"it is (no file|a symbolic link)") as raised:
        begin()

    assert raised.value.todo.startswith("put it out of the way: detrain has not made it")
    assert elsewhere.read_bytes() == b"of somebody"


def test_a_warning_says_intact_only_of_what_is_there(catalogue, monkeypatch):
    said = []
    monkeypatch.setattr(messages, "warn", said.append)
    saves = Saves(config(catalogue.folder, on_save_error="warn"), catalogue, None)
    for number in (1, 2):
        saves.save(epoch(number), state(epoch(number)))
        saves.finish_writing()
    assert said == []
    monkeypatch.setattr(saves.journal, "sync", raise_full)
    saves.save(epoch(3), state(epoch(3)))
    saves.finish_writing()
    shutil.rmtree(catalogue.folder)
    saves.save(epoch(4), state(epoch(4)))
    saves.finish_writing()

    assert [line.rpartition("checkpoint, ")[2] for line in said] == [
        "earlier ones are intact",
        "and there is no earlier one in the folder",
    ]


def raise_full():
    raise StoreError("cannot write the journal: no space left", "free space")
