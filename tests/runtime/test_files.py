"""What is cut off of files, and where it is kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from detrain.python.outside.change_log import Changes
from detrain.python.outside.open_files import Files, FileState, _set_back
from detrain.python.outside.rewritten_files import Contents


def test_each_tail_is_kept(tmp_path: Path) -> None:
    home = tmp_path / "ckpt"
    home.mkdir()
    texts = []
    for folder in (tmp_path / "a", tmp_path / "b", tmp_path / "a", tmp_path / "a", tmp_path / ("long" * 50) / ("name" * 50)):
        folder.mkdir(parents=True, exist_ok=True)
        texts += [f"of {folder.name}, number {min(len(texts), 2)}"]
        (folder / "log.csv").write_text(f"head {texts[-1]}")
        _set_back(str(folder / "log.csv"), 5, home, "at the checkpoint")
        assert (folder / "log.csv").read_text() == "head "

    tails = {file.name: file.read_text() for file in home.glob("*.tail")}
    assert tails.pop(next(name for name in tails if name.startswith("tail-"))) == texts[4]
    assert tails == {"a-log.csv.tail": texts[0], "b-log.csv.tail": texts[1], "a-log.csv.2.tail": texts[2]}


def test_a_thread_of_the_programs_makes_folders_and_files_while_they_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended the process: a set changed its size while it was gone over."""
    monkeypatch.chdir(tmp_path)
    files = Files()
    contents = Contents(files, Changes(tmp_path / "r1.changes", None), lambda: None)
    files._made |= {str(tmp_path / "first"), str(tmp_path / "second")}
    contents.also_writes(str(tmp_path / "first.txt"))
    contents.also_writes(str(tmp_path / "second.txt"))

    def is_folder(path: str) -> bool:
        files._made.add(f"{path} of a thread")
        return True

    def is_its(path: str) -> bool:
        contents.also_writes(f"{path} of a thread")
        return True

    monkeypatch.setattr(os.path, "isdir", is_folder)
    monkeypatch.setattr(contents, "_is_its", is_its)
    assert files.folders() == ("first", "second")
    assert list(contents.all_written()) == [str(tmp_path / name) for name in ("first.txt", "second.txt")]


@pytest.mark.parametrize("name", [b"out/\xff.txt", "größe".encode(), b"\xc3(", b"a b"])
def test_a_name_of_any_bytes_is_text_in_a_checkpoint(name: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = Files()
    path = os.path.join(tmp_path, os.fsdecode(name))

    shown = files.shown(path)

    assert files.path_of(shown) == path
    assert shown.encode().decode() == shown


@pytest.mark.parametrize(("found", "expected"), [("one\n", "one\nthree\n"), ("one\ntwo\n", "one\ntwo\nthree\n")])
def test_a_file_that_was_shortened_between_two_processes_gets_no_gap(found: str, expected: str, tmp_path: Path) -> None:
    """What the program wrote next came behind zero bytes."""
    files, log = Files(), tmp_path / "results.csv"
    with log.open("w") as file:
        file.write(found)
        file.flush()
        files.opened(str(log), "w", file, 0)
        files.restore({files.shown(str(log)): FileState(8, 8)}, tmp_path)
        file.write("three\n")

    assert log.read_text() == expected
