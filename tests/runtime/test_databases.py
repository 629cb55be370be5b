"""A checkpoint does not say where a database is written."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from detrain.base.errors import Diverged
from detrain.python.codec.recipes import describe, make_again
from detrain.python.inspect.fingerprint import database_of
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


def test_a_connection_is_again_one_to_the_database_below_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whatever its rows are made, wherever the folder lies now. To another file it only reads: data sets that open
    theirs with the first item came back no more.
    """
    (tmp_path / "old").mkdir()
    monkeypatch.chdir(tmp_path / "old")
    with closing(sqlite3.connect("rows.db")) as table:
        table.execute("create table t (x)")
        table.row_factory = lambda _rows, values: {"row": values}
        described = describe(table)
        assert described is not None
        assert described[1][0] == "rows.db"
        table.execute("insert into t values (1)")
        assert describe(table) is None  # inside a transaction
        table.commit()
    with closing(sqlite3.connect(":memory:")) as table:
        assert describe(table) is None
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    monkeypatch.chdir(tmp_path / "new")
    with closing(sqlite3.connect("rows.db")) as live, closing(make_again(*described, None)) as made:
        assert make_again(*described, live) is live
        assert live.row_factory is made.row_factory is described[1][2]
        assert [database_of(each) for each in (live, made)] == [str(tmp_path / "new" / "rows.db")] * 2
    for path in (str(tmp_path / "old" / "rows.db"), "../old/rows.db"):
        with closing(make_again(described[0], [path, *described[1][1:]], None)) as other:
            assert other.execute("select * from t").fetchall() == [{"row": (1,)}]
            with pytest.raises(sqlite3.OperationalError, match="readonly"):
                other.execute("insert into t values (2)")
    assert make_again(described[0], ["none.db", *described[1][1:]], None) is None
    assert not os.path.exists("none.db")
