"""A mirror of a home: what comes back is what was there, of the newest whole state."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detrain.base.cursor import Cursor
from detrain.base.errors import MirrorFailed
from detrain.cli import main
from detrain.reports.checkpoints import check_states, list_states
from detrain.store.catalogue import Catalogue
from detrain.store.mirror import states
from detrain.store.mirror.remote import Remote
from detrain.store.mirror.restore import bring_back, read_sent
from detrain.store.mirror.states import Gatherer, MirroredFile, State, newest_state, put_state
from tests.store.homes import Run, epoch, newest, state
from tests.store.mirrors import files_in, home_with, is_whole, send, size_at


def test_a_home_comes_back_as_it_was_with_files_of_the_program(tmp_path: Path, remote: Remote) -> None:
    home = home_with(tmp_path / "here" / "ckpt", 10, 20)
    (tmp_path / "here" / "out").mkdir()
    (tmp_path / "here" / "out" / "log.txt").write_bytes(b"x" * 2500)
    made = send(remote, home, patterns=("out/**/*",), part_bytes=1000)

    back = bring_back(remote, tmp_path / "there" / "ckpt", "train", tmp_path / "there")

    assert back == made
    assert files_in(tmp_path / "there" / "ckpt") == files_in(home)
    assert (tmp_path / "there" / "out" / "log.txt").read_bytes() == b"x" * 2500
    assert (choice := newest(Catalogue(tmp_path / "there" / "ckpt"), "train")) is not None
    assert choice.entry.cursor.epoch == 20
    assert bring_back(remote, tmp_path / "there" / "ckpt", "train", tmp_path / "there") is None


def test_the_command_fetches_a_program_and_says_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a wrong address it said nothing, with exit status 0."""
    monkeypatch.chdir(tmp_path)
    mirror = tmp_path / "mirror"
    home = home_with(tmp_path / "ckpt", 10)
    send(Remote(str(mirror), "train"), home)
    (mirror / "beside").mkdir()

    assert main(["ckpt", "fetch", "--program", "train", str(mirror), "there"]) == 0
    assert files_in(tmp_path / "there") == files_in(home)
    assert main(["ckpt", "fetch", str(mirror), "all"]) == 0
    assert "beside" not in capsys.readouterr().out
    for wrong in (["--program", "beside", str(mirror)], [str(tmp_path / "nothing")], [str(home)]):
        assert main(["ckpt", "fetch", *wrong, "none"]) == MirrorFailed.exit_code
        assert "in the mirror" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("harm", ["a part is gone", "a part has other bytes", "the state has other bytes"])
def test_a_state_that_is_not_whole_is_passed_over_and_none_at_all_is_an_error(tmp_path: Path, remote: Remote, harm: str) -> None:
    home = home_with(tmp_path / "ckpt", 10)
    first = send(remote, home)
    second = send(remote, home_with(home, 20), number=1)
    for made, parts in ((second, second.parts - first.parts), (first, first.parts)):
        for name in [made.name] if harm.startswith("the state") else parts:
            if harm.endswith("gone"):
                remote.remove(name)
            else:
                remote.put(name, b"0" * (size_at(remote, name) or 0))
        if made == second:
            assert bring_back(remote, tmp_path / "there", "train", tmp_path) == first
        else:
            with pytest.raises(MirrorFailed, match="no state of the mirror"):
                bring_back(remote, tmp_path / "nowhere", "train", tmp_path)
            assert not list((tmp_path / "nowhere").glob("*"))


def spoil(remote: Remote, state: State, *names: str) -> None:
    for each in state.home:
        if each.path in names:
            remote.put(each.parts[0], b"0" * states.size_of(each.parts[0]))


def save(home: Path, *cursors: Cursor) -> Path:
    Catalogue(home).create()
    Catalogue(home).journal("train", 1).touch()
    for cursor in cursors:
        Catalogue(home).save("train", 1, cursor, state(cursor))
    return home


def name_of(cursor: Cursor) -> str:
    return Catalogue(Path()).path("train", 1, cursor).name


def load(number: int, batch: int) -> Cursor:
    return Cursor(0, number, batch, "load")


@pytest.mark.parametrize(
    ("spoilt", "goes_on_at"),
    [
        ([epoch(2)], load(3, 9)),  # nothing that the newest rests on
        ([load(3, 4)], load(3, 9)),
        ([load(3, 9)], load(3, 4)),
        ([epoch(2), load(3, 9)], load(3, 4)),
        ([epoch(3)], epoch(2)),  # the start of its epoch
        ([epoch(2), epoch(3)], None),
    ],
)
def test_of_a_damaged_mirror_comes_back_what_the_newest_rests_on_or_the_newest_before_it(
    tmp_path: Path, remote: Remote, capfd: pytest.CaptureFixture[str], spoilt: list[Cursor], goes_on_at: Cursor | None
) -> None:
    home = save(tmp_path / "ckpt", epoch(2), epoch(3), load(3, 4))
    send(remote, home)
    made = send(remote, save(home, load(3, 9)), number=1)
    spoil(remote, made, *map(name_of, spoilt))
    rows = check_states(remote.url.removesuffix("/train"))
    assert [row["good"] for row in rows] == [not set(spoilt) - {load(3, 9)}, False]
    assert rows[-1]["goes on"] == (name_of(goes_on_at) if goes_on_at else "")

    there = tmp_path / "there"
    if goes_on_at is None:
        with pytest.raises(MirrorFailed, match="no state of the mirror"):
            bring_back(remote, there, "train", tmp_path)
        assert not list(there.glob("*"))
        return
    assert bring_back(remote, there, "train", tmp_path) is not None
    choice = newest(Catalogue(there), "train")
    assert choice is not None
    assert choice.entry.cursor == goes_on_at
    assert files_in(there).items() <= files_in(home).items() | {(each.name, each.read_bytes()) for each in there.glob("*.manifest")}
    assert "not whole" in capfd.readouterr().err


def test_no_checkpoint_of_a_state_comes_back_without_the_journal_that_all_rest_on(tmp_path: Path, remote: Remote) -> None:
    earlier = send(remote, home_with(tmp_path / "earlier", 2))
    made = send(remote, home_with(tmp_path / "later", 2, 3), number=1)
    spoil(remote, made, "train-r1.journal")

    assert bring_back(remote, tmp_path / "there", "train", tmp_path) == earlier
    assert files_in(tmp_path / "there") == files_in(tmp_path / "earlier")


def test_a_rank_goes_back_to_where_the_others_are_though_later_parts_are_damaged(tmp_path: Path, remote: Remote) -> None:
    home = save(tmp_path / "ckpt", epoch(2), epoch(3))
    made = send(remote, save(home, epoch(4)))
    spoil(remote, made, name_of(epoch(4)))

    assert (back := bring_back(remote, tmp_path / "there", "train", tmp_path, name_of(epoch(3)))) is not None
    assert back.checkpoint == name_of(epoch(3))
    assert [entry.cursor for entry in Catalogue(tmp_path / "there").entries()] == [epoch(2), epoch(3)]


def test_of_a_job_without_a_common_checkpoint_nothing_comes_back(tmp_path: Path, remote: Remote) -> None:
    send(remote, save(tmp_path / "ckpt", epoch(2)))

    assert bring_back(remote, tmp_path / "there", "train", tmp_path, "") is None


def test_a_state_that_is_half_written_is_not_the_newest(tmp_path: Path, remote: Remote) -> None:
    made = send(remote, save(tmp_path / "ckpt", epoch(2)))
    remote.put("states/000001-000000009.json", b"half")

    assert newest_state(remote) == made


def test_the_newest_holder_counts_though_what_is_whole_of_it_is_earlier(tmp_path: Path, remote: Remote) -> None:
    send(remote, save(tmp_path / "taken for gone", epoch(9)), term=1)
    made = send(remote, save(tmp_path / "ckpt", epoch(2), epoch(3)), term=2)
    spoil(remote, made, name_of(epoch(3)))

    assert (back := bring_back(remote, tmp_path / "there", "train", tmp_path)) is not None
    assert (back.term, back.checkpoint) == (2, name_of(epoch(2)))


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
    remote = Remote(str(folder / "mirror"), "train")
    send(remote, home, part_bytes=size * 100)
    bring_back(remote, folder / "there", "train", folder)
    assert files_in(folder / "there") == files_in(home)


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


def test_a_connection_that_is_broken_is_made_anew(tmp_path: Path) -> None:
    remote = Remote(str(tmp_path / "mirror"), "train")
    remote.put("a", b"1")
    broken = remote._files
    broken.cat_file = lambda _path: (_ for _ in ()).throw(OSError("connection reset"))
    with pytest.raises(MirrorFailed, match="connection reset"):
        remote.get("a")
    assert remote.get("a") == b"1"


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


def test_files_of_the_program_that_are_not_those_of_the_state_are_put_aside(tmp_path: Path, remote: Remote) -> None:
    """Another machine has gone on, or only the home was lost: what the loop reads again must be what it was."""
    here, there = tmp_path / "here", tmp_path / "there"
    home = home_with(here / "ckpt", 10)
    for folder, text in ((here, "of the state"), (there, "of another moment")):
        (folder / "out").mkdir(parents=True)
        (folder / "out" / "best.txt").write_text(text)
        (folder / "out" / "same.txt").write_text("same")
    send(remote, home, patterns=("out/*",))

    bring_back(remote, there / "ckpt", "train", there)

    assert (there / "out" / "best.txt").read_text() == "of the state"
    aside = there / "ckpt" / "before-the-mirror-1"
    assert (aside / "out" / "best.txt").read_text() == "of another moment"
    assert not (aside / "out" / "same.txt").exists()
    assert sorted(path.name for path in (there / "out").iterdir()) == ["best.txt", "same.txt"]


@pytest.mark.parametrize("pattern", ["out", "out/", "out/**", "out/**/*", "./out/**"])
def test_all_files_of_a_folder_are_copied_by_its_name_or_by_two_stars(pattern: str, tmp_path: Path) -> None:
    """`out/**`, as the help has it, found no file before Python 3.13."""
    home = home_with(tmp_path / "ckpt", 1)
    for name in ("log.txt", "deep/er/best.txt"):
        (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / name).write_text(name)

    made = Gatherer(home, "train", (pattern,), tmp_path).state(1, 0, set(), lambda _part, _content: None)

    assert made is not None
    assert [each.path for each in made.files] == ["out/deep/er/best.txt", "out/log.txt"]
