"""The log of what a run changes in folders, and the user's modules, which are looked for again at each step."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from detrain.python.outside.change_log import Changes
from detrain.runtime.state.capture import user_modules


@pytest.mark.parametrize(("name", "is_put_back"), [("000000", True), ("../secret", False), ("/etc/hostname", False)])
def test_a_log_that_somebody_made_puts_back_no_file_but_those_that_are_kept(tmp_path: Path, name: str, is_put_back: bool) -> None:
    home, target = tmp_path / "home", tmp_path / "out" / "file"
    (home / "run.kept").mkdir(parents=True)
    (home / "run.kept" / "000000").write_text("kept")
    (home / "secret").write_text("secret")
    (home / "run.changes").write_text(json.dumps(["kept", str(target), name]) + "\n")

    Changes(home / "run.changes", None).put_back()

    assert target.exists() == is_put_back


def test_a_child_keeps_its_files_beside_those_of_its_parent(tmp_path: Path) -> None:
    """A child is forked: what it shares with its parent is what this is about."""
    log = tmp_path / "run.changes"
    changes = Changes(log, None)
    files = [tmp_path / name for name in ("of_child", "of_parent", "again_of_child")]
    for file in files:
        file.write_text(file.name)
    child = os.fork()
    if child == 0:
        for file in (files[0], files[2]):
            changes.keep(str(file), float("inf"))
            file.unlink()
        os._exit(0)
    os.waitpid(child, 0)
    changes.keep(str(files[1]), float("inf"))
    files[1].unlink()

    Changes(log, None).put_back()

    assert [file.read_text() for file in files] == [file.name for file in files]


@pytest.mark.parametrize("is_counted_the_same", [False, True])
def test_a_module_that_has_come_since_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_counted_the_same: bool) -> None:
    name = f"new_of_user_{is_counted_the_same}"  # what has been looked at once is known for good
    gone, new = ModuleType("gone_again"), ModuleType(name)
    new.__file__ = str(tmp_path / "new_of_user.py")
    monkeypatch.setitem(sys.modules, "gone_again", gone)
    assert name not in user_modules()

    if is_counted_the_same:
        monkeypatch.delitem(sys.modules, "gone_again")
    monkeypatch.setitem(sys.modules, name, new)

    assert user_modules()[name] is new


def test_a_line_that_a_full_disk_has_torn_costs_no_later_one(tmp_path: Path) -> None:
    log = tmp_path / "r1.changes"
    Changes(log, None).make(str(tmp_path / "first"), lambda: None)
    log.write_bytes(log.read_bytes() + b'["made", "/torn')

    Changes(log, None).make(str(tmp_path / "second"), lambda: None)

    assert Changes(log, None).folders == {str(tmp_path / "first"), str(tmp_path / "second")}
