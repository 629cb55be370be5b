"""A checkpoint does not say where a database is written."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from detrain.base.errors import Diverged
from detrain.python.outside.change_log import Changes
from detrain.python.outside.open_files import Files
from detrain.python.outside.rewritten_files import Contents


def a_database() -> bytes:
    with closing(sqlite3.connect(":memory:")) as made:
        made.execute("create table t (x)")
        return made.serialize()


@pytest.mark.parametrize("name", ["/elsewhere/rows.db", "../rows.db", "inner/../../rows.db"])
def test_one_that_lies_elsewhere_and_was_not_opened_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    contents = Contents(Files(), Changes(folder / "run.changes", None), lambda: None)

    with pytest.raises(Diverged, match="which this run has not opened"):
        contents.restore_databases({name: np.frombuffer(a_database(), np.uint8)})

    assert not (tmp_path / "rows.db").exists()


def test_one_below_the_folder_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    contents = Contents(Files(), Changes(tmp_path / "run.changes", None), lambda: None)

    contents.restore_databases({"rows.db": np.frombuffer(a_database(), np.uint8)})

    with closing(sqlite3.connect("rows.db")) as found:
        assert found.execute("select name from sqlite_master").fetchall() == [("t",)]
