"""Files that are written as a whole: what they were at a cut is there again, whatever has happened to them since."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from detrain.base.cursor import Cursor
from detrain.python.outside import file_versions
from detrain.python.outside.change_log import Changes
from detrain.python.outside.file_versions import How, Versions

CUT = Cursor(0, 1, 0)


def following(folder: Path, *, since: Cursor | None = CUT) -> tuple[Changes, Versions]:
    """Return what a process has that resumes from a cut, or has just taken it."""
    changes = Changes(folder / "run.changes", since)
    return changes, Versions(changes, str(folder))


def resumed(folder: Path) -> Versions:
    changes, versions = following(folder)
    versions.put_back(changes.versions)
    return versions


def write(path: Path, text: str) -> None:
    path.write_text(text)


def replace(path: Path, text: str) -> None:
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").replace(path)


def remove(path: Path, _text: str) -> None:
    path.unlink()


@pytest.mark.parametrize(("how", "change"), [("written", write), ("replaced", replace), ("replaced", remove), ("moved", write)])
@pytest.mark.parametrize("times", [1, 3])
def test_a_file_is_put_back_as_it_was_at_the_cut(
    how: How, change: Callable[[Path, str], None], times: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "best.pt"
    path.write_text("at the cut")
    path.chmod(0o640)
    changes, versions = following(tmp_path)
    changes.cut(CUT)
    versions.begin_cut()
    for turn in range(times if change is not remove else 1):
        versions.keep(str(path), how)
        change(path, f"later {turn}")

    resumed(tmp_path)
    again = resumed(tmp_path)

    assert path.read_text() == "at the cut"
    assert path.stat().st_mode & 0o777 == 0o640
    assert again.stale == set()
    assert capfd.readouterr().err.count("put back as it was") == 1


def test_a_file_that_was_not_there_is_gone_and_nothing_else(tmp_path: Path) -> None:
    changes, versions = following(tmp_path)
    changes.cut(CUT)
    (tmp_path / "other.pt").write_text("x")
    versions.keep(str(tmp_path / "best.pt"), "written")
    (tmp_path / "best.pt").write_text("later")

    resumed(tmp_path)

    assert sorted(path.name for path in tmp_path.glob("*.pt")) == ["other.pt"]


def test_a_process_that_ends_before_it_has_kept_a_file_leaves_it_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "best.pt").write_text("at the cut")
    changes, _versions = following(tmp_path)
    changes.cut(CUT)
    changes.note_version(str(tmp_path / "best.pt"), changes.new_name())

    assert resumed(tmp_path).stale == set()
    assert (tmp_path / "best.pt").read_text() == "at the cut"


def test_a_second_name_of_a_file_stays_that(tmp_path: Path) -> None:
    path, second = tmp_path / "last.pt", tmp_path / "best.pt"
    path.write_text("at the cut")
    os.link(path, second)
    changes, versions = following(tmp_path)
    changes.cut(CUT)

    versions.keep(str(path), "written")
    path.write_text("later")

    assert second.read_text() == "later"
    resumed(tmp_path)
    assert path.read_text() == "at the cut"


def test_what_is_too_old_or_too_large_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, large = tmp_path / "old.pt", tmp_path / "large.pt"
    old.write_text("at the cut")
    large.write_text("at the cut")
    changes, versions = following(tmp_path)
    changes.cut(CUT)
    versions.keep(str(old), "written")
    monkeypatch.setattr(file_versions, "_SMALL_BYTES", 1)
    monkeypatch.setattr(Versions, "_has_room", lambda _self, _size: False)
    versions.keep(str(large), "written")
    old.write_text("later")
    large.write_text("later")
    for epoch in range(2, 6):
        changes.cut(Cursor(0, epoch, 0))
        versions.begin_cut()

    assert resumed(tmp_path).stale == {str(old), str(large)}
    assert old.read_text() == large.read_text() == "later"
    assert not list((tmp_path / "run.kept").iterdir())


def test_the_next_cut_counts_on_what_is_there_then(tmp_path: Path) -> None:
    path, next_cut = tmp_path / "best.pt", Cursor(0, 2, 0)
    changes, versions = following(tmp_path)
    for cursor, text in ((CUT, "first"), (next_cut, "second"), (None, "third")):
        versions.keep(str(path), "written")
        path.write_text(text)
        if cursor is not None:
            changes.cut(cursor)
            versions.begin_cut()

    later, of_next = following(tmp_path, since=next_cut)
    of_next.put_back(later.versions)
    assert path.read_text() == "second"
    resumed(tmp_path)
    assert path.read_text() == "first"


def test_a_file_that_may_not_be_written_keeps_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was emptied before the program was told that it may not write it."""
    monkeypatch.setattr(file_versions, "_may", lambda _path, _how: False)  # the tests may be run by root
    path = tmp_path / "best.pt"
    path.write_text("at the cut")
    _changes, versions = following(tmp_path)

    versions.keep(str(path), "written")

    assert path.read_text() == "at the cut"
