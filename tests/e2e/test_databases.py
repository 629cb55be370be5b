"""A SQLite database that the program writes is a part of its state: killed and run again, the program reads what it
would have read, and leaves in it what one run does.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.e2e.programs import PRELUDE
from tests.e2e.runs import Run

HEAD = PRELUDE("""
import sqlite3
table = sqlite3.connect("rows.db")
OPENED
table.execute("create table if not exists runs (n)")
table.execute("create table if not exists t (x)")
table.execute("insert into runs select count(*) from runs")
table.commit()
print("runs so far", table.execute("select count(*) from runs").fetchone()[0], flush=True)
optimizer = Optimizer(np.ones(3))
""")
LOOP = """
for epoch in range(3):
    for batch in range(4):
        step = 4 * epoch + batch
        BODY
        factor = float(table.execute("select count(*) + total(x) from t").fetchone()[0])
        optimizer.apply_gradients(np.full(3, factor))
        die(f"{epoch}:{batch}")
    print(epoch, factor, flush=True)
show(optimizer.weights)
"""
STUDY = """
def objective(trial):
    optimizer = Optimizer(np.full(3, 1.0 + trial))
    for epoch in range(2):
        for batch in range(4):
            optimizer.apply_gradients(np.full(3, 0.1))
            die(f"{trial}:{epoch}:{batch}")
        table.execute("insert into t values (?)", (float(optimizer.weights[0]),))
        table.commit()
        others = table.execute("select count(*), avg(x) from t").fetchone()
        print(trial, epoch, others, flush=True)
    return optimizer
for trial in range(3):
    last = objective(trial)
show(last.weights)
"""
WRITES = 'table.execute("insert into t values (?)", (step,)); table.commit()'
PROGRAMS = {
    "open all the while": (HEAD.replace("OPENED", "") + LOOP.replace("BODY", WRITES), "1:2"),
    "with a log beside it": (
        HEAD.replace("OPENED", "table.execute('pragma journal_mode=wal')") + LOOP.replace("BODY", WRITES),
        "1:2",
    ),
    "opened in each batch": (
        HEAD.replace("OPENED", "") + LOOP.replace("BODY", f"table.close(); table = sqlite3.connect('rows.db'); {WRITES}"),
        "1:2",
    ),
    "several trainings": (HEAD.replace("OPENED", "") + STUDY, "1:1:2"),
    "first opened by the loop": (
        HEAD.replace("OPENED", "")
        + "table.close()\n"
        + LOOP.replace("BODY", "table = sqlite3.connect('other.db'); table.execute('create table if not exists t (x)'); " + WRITES),
        "2:1",
    ),
}
"""Programs, and where they are killed."""


def rows(folder: Path) -> list[object]:
    """What is in the databases of a folder."""
    found: list[object] = []
    for path in sorted(folder.glob("*.db")):
        with sqlite3.connect(path) as table:
            names = [name for (name,) in table.execute("select name from sqlite_master order by name")]
            found.append([path.name, *(table.execute(f"select * from {name}").fetchall() for name in names)])
        table.close()
    return found


def folder_with(tmp_path: Path, name: str, program: str, *, is_used: bool) -> Path:
    """A folder with a program, and with a database of an earlier run."""
    folder = tmp_path / name
    folder.mkdir()
    (folder / "program.py").write_text(program)
    if is_used:
        with sqlite3.connect(folder / "rows.db") as table:
            table.execute("create table runs (n)")
            table.execute("insert into runs values (0)")
        table.close()
    return folder


@pytest.mark.parametrize("is_used", [False, True], ids=["a new one", "one of an earlier run"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_database_is_that_of_one_run(name: str, is_used: bool, tmp_path: Path, detrain: Run) -> None:
    program, place = PROGRAMS[name]
    one = folder_with(tmp_path, "one", program, is_used=is_used)
    other = folder_with(tmp_path, "other", program, is_used=is_used)
    whole = detrain("run", "--bare", "program.py", cwd=one).ok()

    died = detrain("run", "--every", "2b", "program.py", cwd=other, DIE_AT=place).died()
    detrain("run", "--every", "2b", "program.py", cwd=other, DIE_AT=place).died()
    again = detrain("run", "--every", "2b", "program.py", cwd=other).ok()

    assert "not captured" not in died.err + again.err
    assert whole.out.endswith(again.out[again.out.index("\n") + 1 :])
    assert again.last_line() == whole.last_line()
    assert rows(other) == rows(one)


def test_a_run_killed_before_its_first_checkpoint_finds_the_database_as_it_was(tmp_path: Path, detrain: Run) -> None:
    program = PROGRAMS["open all the while"][0]
    one, other = (folder_with(tmp_path, name, program, is_used=True) for name in ("one", "other"))
    whole = detrain("run", "--bare", "program.py", cwd=one)

    detrain("run", "--every", "1", "program.py", cwd=other, DIE_AT="0:2").died()
    again = detrain("run", "--every", "1", "program.py", cwd=other).ok()

    assert again.out == whole.out
    assert rows(other) == rows(one)


def test_a_transaction_that_is_open_at_a_cut_is_refused_beforehand(tmp_path: Path, detrain: Run) -> None:
    program = HEAD.replace("OPENED", "") + LOOP.replace("BODY", 'table.execute("insert into t values (?)", (step,))')
    folder = folder_with(tmp_path, "one", program, is_used=False)

    died = detrain("run", "--every", "2b", "program.py", cwd=folder, DIE_AT="1:2")
    again = detrain("run", "--every", "2b", "program.py", cwd=folder)

    assert "a resumed run will be REFUSED from here on: rows.db (file: a transaction is open)" in died.err
    assert again.status != 0 or again.out.endswith(detrain("run", "--bare", "program.py", cwd=folder).last_line() + "\n")


def test_a_database_that_another_process_has_open_is_not_put_back(tmp_path: Path, detrain: Run) -> None:
    folder = folder_with(tmp_path, "one", PROGRAMS["open all the while"][0], is_used=False)
    detrain("run", "--every", "2b", "program.py", cwd=folder, DIE_AT="1:2").died()
    with sqlite3.connect(folder / "rows.db") as other:
        before = other.execute("select count(*) from t").fetchone()
        again = detrain("run", "--every", "2b", "program.py", cwd=folder)
        assert other.execute("select count(*) from t").fetchone() == before
    other.close()

    assert again.status not in (0, -9)
    assert "rows.db is open in process" in again.err
