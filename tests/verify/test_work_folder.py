"""Runs work in copies of the current folder: whatever they write there, the user's own files stay as they are."""

from __future__ import annotations

import os
import shutil
import time
from collections import namedtuple
from pathlib import Path

import pytest

from detrain.base.errors import UsageError
from detrain.verify import work_folder
from detrain.verify.work_folder import WorkFolder, copy_folder


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file that counts as large, and one that does not."""
    monkeypatch.setattr(work_folder, "_COPIED_BYTES", 10)
    folder = tmp_path / "source"
    (folder / "sub").mkdir(parents=True)
    (folder / "small.txt").write_text("small")
    (folder / "sub" / "large.bin").write_text("large as it was")
    return folder


def test_what_is_written_into_a_large_file_does_not_come_into_the_users(source: Path, tmp_path: Path) -> None:
    assert copy_folder(source, tmp_path / "copy")

    with (tmp_path / "copy" / "sub" / "large.bin").open("r+") as file:
        file.write("other")
    os.truncate(tmp_path / "copy" / "sub" / "large.bin", 3)

    assert (source / "sub" / "large.bin").read_text() == "large as it was"


def test_a_large_file_is_linked_only_if_the_run_has_not_changed_it(source: Path, tmp_path: Path) -> None:
    time.sleep(0.02)
    began = time.time()
    time.sleep(0.02)
    written = source / "model.pt"
    written.write_text("written by the run, and old by its date")
    os.utime(written, (0, 0))

    assert copy_folder(source, tmp_path / "copy", unchanged_since=began)

    assert (tmp_path / "copy" / "sub" / "large.bin").is_symlink()
    assert not (tmp_path / "copy" / "model.pt").is_symlink()
    assert (tmp_path / "copy" / "model.pt").read_bytes() == written.read_bytes()
    assert (tmp_path / "copy" / "model.pt").stat().st_mtime == 0


def test_a_link_inside_of_the_folder_leads_into_the_copy(source: Path, tmp_path: Path) -> None:
    (source / "sub" / "latest").symlink_to("../small.txt")
    (source / "whole").symlink_to(source / "sub")
    (tmp_path / "beside").write_text("elsewhere")
    (source / "outside").symlink_to("../beside")
    (source / "nowhere").symlink_to("nothing")
    (source / "loop").symlink_to("loop")
    copy = tmp_path / "copies" / "copy"
    copy.parent.mkdir()

    assert copy_folder(source, copy)
    (copy / "sub" / "latest").write_text("changed")
    (copy / "whole" / "large.bin").write_text("changed, too")

    assert (source / "small.txt").read_text() == "small"
    assert (source / "sub" / "large.bin").read_text() == "large as it was"
    assert (copy / "small.txt").read_text() == "changed"
    assert (copy / "outside").read_text() == "elsewhere"


def test_bytecode_is_not_written_into_the_users_folder(source: Path, tmp_path: Path) -> None:
    (source / "sub" / "__pycache__").mkdir()

    assert copy_folder(source, tmp_path / "copy")

    assert not (tmp_path / "copy" / "sub" / "__pycache__").exists()


def test_each_run_finds_a_large_file_as_the_user_has_it(source: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    place = WorkFolder.around(source, tmp_path / "runs")
    for content in ("written by the first run", "and by the second"):
        place.begin()
        assert (place.work / "sub" / "large.bin").read_text() == "large as it was"
        (place.work / "sub" / "large.bin").write_text(content)
        assert (source / "sub" / "large.bin").read_text() == "large as it was"
    place.begin()
    (place.work / "sub" / "large.bin").unlink()
    place.begin()
    assert (place.work / "sub" / "large.bin").read_text() == "large as it was"


def test_one_copy_of_a_large_file_does_for_all_runs_that_only_read_it(source: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    place = WorkFolder.around(source, tmp_path / "runs")
    before = place.begin()
    place.begin()

    assert (place.work / "sub" / "large.bin").resolve() == (place.folder / "first" / "sub" / "large.bin").resolve()
    assert set(before) == {"small.txt"}


def test_where_there_is_no_room_for_copies_that_is_said_beforehand(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", ["total", "used", "free"])
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100, 90, 10))

    with pytest.raises(UsageError, match="15 bytes of large files"):
        copy_folder(source, tmp_path / "copy")

    assert not (tmp_path / "copy").exists()
