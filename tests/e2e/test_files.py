"""Files that a program writes: after a kill and a second run they hold what one run would have written, and nothing is
lost.
"""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from detrain.base import errors
from tests.e2e.programs import PRELUDE
from tests.e2e.runs import Result, Run, compared, library, plain, ran

BODY = """
optimizer = Optimizer(np.ones(3))
for epoch in range(4):
    for step in range(6):
        x = np.random.normal(size=3)
        optimizer.apply_gradients(x)
        {write}
        die(f"{{epoch}}:{{step}}")
    {write_epoch}
print(open("log.txt").read())
show(optimizer.weights)
"""
LINE = 'f"{epoch} {step} {optimizer.weights.sum()!r}\\n"'
EPOCH_LINE = 'f"{epoch} {optimizer.weights.sum()!r}\\n"'

PROGRAMS = {
    "open for writing": ('log = open("log.txt", "w")\nlog.write("header\\n")', f"log.write({LINE})", "log.flush()"),
    "open for appending": ('log = open("log.txt", "a", buffering=1)\nlog.write("header\\n")', f"log.write({LINE})", "pass"),
    "opened for each line": (
        'with open("log.txt", "w") as log:\n    log.write("header\\n")',
        f'with open("log.txt", "a") as log: log.write({LINE})',
        "pass",
    ),
    "pathlib": (
        'import pathlib\npathlib.Path("log.txt").write_text("header\\n")',
        f'with pathlib.Path("log.txt").open("a") as log: log.write({LINE})',
        "pass",
    ),
    "logging": (
        'import logging\nlogging.basicConfig(filename="log.txt", filemode="w", level="INFO", format="%(message)s")',
        f"logging.info({LINE})",
        f"logging.info({EPOCH_LINE})",
    ),
    "logging, from the first record on": (
        'import logging\nlogging.getLogger().addHandler(logging.FileHandler("log.txt", mode="w", delay=True))',
        f"logging.warning({LINE})",
        "pass",
    ),
    "csv": (
        'import csv\nlog = open("log.txt", "w", newline="")\nrows = csv.writer(log)\nrows.writerow(["epoch", "sum"])',
        "pass",
        "rows.writerow([epoch, optimizer.weights.sum()]); log.flush()",
    ),
    "a bare writer of csv": (
        'import csv\nrows = csv.writer(open("log.txt", "w", buffering=1, newline=""))',
        "pass",
        "rows.writerow([epoch, optimizer.weights.sum()])",
    ),
    "bytes": ('log = open("log.txt", "wb", buffering=0)', f"log.write({LINE}.encode())", "pass"),
}


def program(folder: Path, name: str) -> Path:
    before, write, write_epoch = PROGRAMS[name]
    path = folder / "program.py"
    path.write_text(PRELUDE + before + "\n" + BODY.format(write=write, write_epoch=write_epoch))
    return path


def whole(folder: Path, name: str) -> Result:
    folder.mkdir()
    return plain("-m", "detrain", "run", "--bare", program(folder, name), cwd=folder).ok()


@pytest.mark.parametrize("every", ["1", "2b"])
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.fast] * ("first record" in name)) for name in PROGRAMS])
def test_a_log_of_a_killed_run_ends_like_that_of_a_whole_one(name: str, every: str, tmp_path: Path, detrain: Run) -> None:
    expected = whole(tmp_path / "whole", name)
    for where in ("2:4", "3:1", ""):
        last = detrain("run", "--every", every, program(tmp_path, name), cwd=tmp_path, DIE_AT=where)

    assert last.status == 0, last.err
    assert last.out == expected.out
    assert "not captured" not in last.err


@pytest.mark.parametrize("held", ["rows.file", "rows"])
def test_an_hdf5_file_that_stays_open_for_writing_refuses_the_resume(held: str, tmp_path: Path, detrain: Run) -> None:
    """Made before the loop, it was made anew by a resumed run, without the rows before the cut, in silence."""
    before = 'import h5py\nrows = h5py.File("log.h5", "w").create_dataset("rows", (4, 3))\n'
    before += f"held = {held}\n"
    body = BODY.replace('open("log.txt").read()', "held.name").format(write="pass", write_epoch="rows[epoch] = optimizer.weights")
    died, last = (ran(detrain, tmp_path, PRELUDE + before + body, DIE_AT=where) for where in ("2:1", ""))

    assert "log.h5 (file: the loop writes on in it" in died.err
    assert last.status == errors.NotCapturable.exit_code


@pytest.mark.parametrize("is_refused", [True, False])
def test_a_log_whose_handler_the_loop_makes_is_never_emptied_by_a_resumed_run(
    is_refused: bool, tmp_path: Path, detrain: Run
) -> None:
    """Made where it is missing, it would be made again behind the cut; made and taken away in each epoch, it is."""
    add = 'handler = logging.FileHandler(f"log{{epoch}}.txt", mode="w"); logging.getLogger().addHandler(handler)'
    body = BODY.replace("    for step", f"    {add}\n    for step").replace('open("log.txt")', 'open("log1.txt")')
    if is_refused:
        add = 'if not logging.getLogger().handlers: logging.getLogger().addHandler(logging.FileHandler("log.txt", mode="w"))'
        body = BODY.replace("    for step", f"    {add}\n    for step")
    away = "pass" if is_refused else "logging.getLogger().removeHandler(handler); handler.close()"
    text = PRELUDE + "import logging\n" + body.format(write=f"logging.warning({LINE})", write_epoch=away)
    whole_run, died = ran(detrain, tmp_path, text, "--bare"), ran(detrain, tmp_path, text, DIE_AT="2:1")
    last = ran(detrain, tmp_path, text)

    if is_refused:
        assert "log.txt (file: the loop makes a handler" in died.err
        assert last.status == errors.NotCapturable.exit_code
    else:
        assert (last.status, last.out) == (0, whole_run.out)


def test_a_file_that_is_written_whole_and_then_appended_to_is_gone_before_the_first_checkpoint(
    tmp_path: Path, detrain: Run
) -> None:
    """It was taken away, and a warning said that it cannot be set back: Lightning's `metrics.csv` is such a file."""
    write = f'with open("log.txt", "a" if os.path.exists("log.txt") else "w") as log: log.write({LINE})'
    path = tmp_path / "program.py"
    path.write_text(PRELUDE + "import os\n" + BODY.format(write=write, write_epoch="pass"))
    expected = plain("-m", "detrain", "run", "--bare", path, cwd=tmp_path)
    (tmp_path / "log.txt").unlink()
    detrain("run", path, cwd=tmp_path, DIE_AT="0:3")
    last = detrain("run", path, cwd=tmp_path)

    assert (last.status, last.out) == (0, expected.out)
    assert "warning" not in last.err


def test_what_is_cut_off_is_kept(tmp_path: Path, detrain: Run) -> None:
    name = "open for appending"
    detrain("run", program(tmp_path, name), cwd=tmp_path, DIE_AT="2:4")
    lines = (tmp_path / "log.txt").read_text().splitlines()
    resumed = detrain("run", program(tmp_path, name), cwd=tmp_path)

    [tail] = (tmp_path / "ckpt").glob("*.tail")
    assert tail.read_text().splitlines() == [*lines[13:], "header"]
    assert "set back from" in resumed.err


def test_a_run_that_starts_anew_empties_its_files(tmp_path: Path, detrain: Run) -> None:
    name = "open for writing"
    expected = whole(tmp_path / "whole", name)
    detrain("run", program(tmp_path, name), cwd=tmp_path, DIE_AT="2:4")
    anew = detrain("run", "--fresh", program(tmp_path, name), cwd=tmp_path)

    assert anew.out == expected.out


def test_a_file_that_has_gone_is_said(tmp_path: Path, detrain: Run) -> None:
    name = "opened for each line"
    detrain("run", program(tmp_path, name), cwd=tmp_path, DIE_AT="2:4")
    os.truncate(tmp_path / "log.txt", 3)
    resumed = detrain("run", program(tmp_path, name), cwd=tmp_path).ok()

    assert "at the checkpoint" in resumed.err


UNPACKED = """
import tarfile

class Model:
    def eval(self):
        return self

{head}
    if not os.path.isfile("rows.txt"):
        with open("rows.tgz", "rb") as file:
            with tarfile.open(fileobj=file, mode="r:gz") as archive:
                archive.extractall()
    model, optimizer = Model(), Optimizer(np.loadtxt("rows.txt"))
    for epoch in range(3):
        for step in range(4):
            optimizer.apply_gradients(np.random.normal(size=3))
            die(f"{{epoch}}:{{step}}")
        model.eval()
    show(optimizer.weights)
{foot}
"""


@pytest.mark.parametrize(("head", "foot"), [("if True:", ""), ("def main():", "main()")], ids=["module", "function"])
def test_an_archive_that_only_the_first_run_opens_is_no_loss(head: str, foot: str, tmp_path: Path, detrain: Run) -> None:
    (tmp_path / "rows.txt").write_text("1 2 3\n")
    with tarfile.open(tmp_path / "rows.tgz", "w:gz") as archive:
        archive.add(tmp_path / "rows.txt", "rows.txt")
    (tmp_path / "rows.txt").unlink()
    path = tmp_path / "program.py"
    path.write_text(PRELUDE + UNPACKED.format(head=head, foot=foot))
    expected = detrain("run", "--ckpt", "other", path, cwd=tmp_path)
    (tmp_path / "rows.txt").unlink()
    for where in ("1:2", ""):
        last = detrain("run", "--every", "2b", path, cwd=tmp_path, DIE_AT=where)

    assert last.status == 0, last.err
    assert last.out == expected.out


TABLE = """
import csv

class Table:
    # Writes its file again where a row has a new column, as loggers do.
    def __init__(self):
        self.names = []
    def log(self, **row):
        is_there, new = os.path.isfile("table.csv"), set(row) - set(self.names)
        self.names = sorted({{*self.names, *new}})
        if is_there and new:
            with open("table.csv", newline="") as file:
                rows = list(csv.DictReader(file))
            with open("table.csv", "w", newline="") as file:
                writer = csv.DictWriter(file, self.names)
                writer.writeheader()
                writer.writerows(rows)
        with open("table.csv", "a" if is_there else "w", newline="") as file:
            writer = csv.DictWriter(file, self.names)
            if not is_there:
                writer.writeheader()
            writer.writerow(row)

table, optimizer = Table(), Optimizer(np.ones(3))
for epoch in range(4):
    for step in range(4):
        optimizer.apply_gradients(np.random.normal(size=3))
        if epoch * 4 + step >= {first}:
            table.log(step=step, loss=float(optimizer.weights.sum()))
        die(f"{{epoch}}:{{step}}")
    if epoch >= {later}:
        table.log(epoch=epoch, **{{f"score_{{epoch // 2}}": float(optimizer.weights.max())}})
    die(f"{{epoch}}:end")
print(open("table.csv").read())
show(optimizer.weights)
"""


@pytest.mark.parametrize("every", ["1", "3b", "7b"])
@pytest.mark.parametrize(("first", "later", "deaths"), [(0, 0, "1:1 2:0 2:end"), (5, 1, "1:3 2:1"), (5, 2, "1:3 2:end 3:1")])
def test_a_table_that_is_written_again_where_it_gets_a_column(
    first: int, later: int, deaths: str, every: str, tmp_path: Path, detrain: Run
) -> None:
    text = PRELUDE + TABLE.format(first=first, later=later)
    expected, _, last = compared(detrain, tmp_path, text, every=every, at=deaths.split(), whole="run", is_apart=True)

    assert last.out == expected.out
    assert "REFUSED" not in expected.err


IN_PHASES = """
optimizer = Optimizer(np.ones(3))
for fold in range(3):
    log, shared = open(f"fold{fold}.txt", "w"), open("shared.txt", "w")
    for epoch in range(3):
        for step in range(4):
            optimizer.apply_gradients(np.random.normal(size=3))
            die(f"{fold} {epoch}:{step}")
        print(fold, epoch, optimizer.weights, file=log)
        print(fold, epoch, file=shared)
    log.close()
    shared.close()
    with open("last.txt", "w") as last:
        last.write("x" * (9 - 4 * fold))
print([open(f"{name}.txt").read() for name in ("fold0", "fold1", "fold2", "shared", "last")])
show(optimizer.weights)
"""


@pytest.mark.parametrize("places", [["1 0:1"], ["1 2:1", "2 0:2"], ["2 2:3"]])
def test_a_log_of_an_earlier_training_is_not_emptied_on_the_way(places: list[str], tmp_path: Path, detrain: Run) -> None:
    expected, _, last = compared(detrain, tmp_path, PRELUDE + IN_PHASES, at=places, is_apart=True)

    assert last.out == expected.out


REWRITTEN = """
import json
optimizer = Optimizer(np.ones(3))
best = float("inf")
for epoch in range(5):
    for step in range(4):
        x = np.random.normal(size=3)
        optimizer.apply_gradients(x)
        die(f"{epoch}:{step}")
    if epoch in (1, 3):
        with open("best.json", "w") as file:
            json.dump(optimizer.weights.tolist(), file)
    elif epoch > 1:
        optimizer.weights[:] = json.load(open("best.json"))
show(optimizer.weights)
"""


@pytest.mark.parametrize("name", ["best.json", "ckpt/best.json"])
def test_a_file_of_a_later_moment_that_is_read_is_put_back(name: str, tmp_path: Path, detrain: Run) -> None:
    assert ran(detrain, tmp_path, PRELUDE + REWRITTEN.replace("best.json", name), "--every", "2", DIE_AT="4:1").status == -9
    (checkpoint,) = sorted((tmp_path / "ckpt").glob("*e00002*.h5"))
    for path in (tmp_path / "ckpt").glob("*e00004*.h5"):
        path.unlink()
    last = detrain("run", "--every", "2", "program.py", cwd=tmp_path).ok()
    calm = detrain("run", "--ckpt", "other", "program.py", cwd=tmp_path)

    assert last.out == calm.out
    assert "is read" not in last.err + calm.err
    assert checkpoint.name in last.err
    assert f"{name}: put back as it was at the checkpoint" in last.err


def test_a_file_of_a_later_moment_that_others_wrote_is_refused(tmp_path: Path, detrain: Run) -> None:
    """A program that the loop starts writes it, and the loop reads it."""
    by_others = "import subprocess; subprocess.run(['cp', 'one.json', 'best.json'])"
    program = PRELUDE + REWRITTEN.replace('open("best.json", "w")', 'open("one.json", "w")')
    program = program.replace("    elif epoch > 1:", f"        {by_others}\n    elif epoch > 1:")
    assert ran(detrain, tmp_path, program, "--every", "2", DIE_AT="4:1").status == -9
    for path in (tmp_path / "ckpt").glob("*e00004*.h5"):
        path.unlink()

    refused = detrain("run", "--every", "2", "program.py", cwd=tmp_path)
    detrain("run", "--every", "2", "--allow-lost", "best.json", "program.py", cwd=tmp_path).ok()

    assert refused.status == 79, refused.err
    assert "best.json is read, which was written after the checkpoint" in refused.err


WRITTEN_ANEW = """
optimizer = Optimizer(np.ones(3))
for epoch in range(7):
    for step in range(3):
        x = np.random.normal(size=3)
        optimizer.apply_gradients(x)
        die(f"{epoch}:{step}")
    {write}
    optimizer.weights[:] += 0.1 * np.array(json.load(open("last.json")))
show(optimizer.weights)
"""
WAYS = {
    "os.replace": 'open("new.json", "w").write(json.dumps(optimizer.weights.tolist())); os.replace("new.json", "last.json")',
    "os.open": (
        'number = os.open("last.json", os.O_WRONLY | os.O_CREAT | os.O_TRUNC); '
        "os.write(number, json.dumps(optimizer.weights.tolist()).encode()); os.close(number)"
    ),
}


@pytest.mark.parametrize("write", WAYS.values(), ids=WAYS)
def test_a_file_whose_content_at_the_cut_is_gone_may_be_written_anew_and_read(write: str, tmp_path: Path, detrain: Run) -> None:
    """It was refused unless Python's `open` had written it."""
    program = PRELUDE("import json\n" + WRITTEN_ANEW.replace("{write}", write))
    whole = ran(detrain, tmp_path, program, "--keep", "9").ok()

    again = detrain("run", "--keep", "9", "--from", "1:0", "program.py", cwd=tmp_path).ok()

    assert "at 1:0" in again.err
    assert again.last_line() == whole.last_line()


def test_a_file_whose_content_at_the_cut_is_gone_is_refused_under_another_name_too(tmp_path: Path, detrain: Run) -> None:
    """The file of a later moment was read under the name that the program had given to it."""
    write = (
        'os.path.exists("best.json") and os.rename("best.json", "last.json")'
        + "\n    "
        + (
            'os.path.exists("last.json") or open("last.json", "w").write("[1, 1, 1]")\n    '
            'open("best.json", "w").write(json.dumps(optimizer.weights.tolist()))'
        )
    )
    program = PRELUDE("import json\n" + WRITTEN_ANEW.replace("{write}", write))
    ran(detrain, tmp_path, program, "--keep", "9").ok()

    again = detrain("run", "--keep", "9", "--from", "1:0", "program.py", cwd=tmp_path)

    assert again.status == errors.NotCapturable.exit_code, again.out
    assert "last.json is read, which was written after the checkpoint" in again.err


def test_a_file_of_the_system_is_of_no_later_moment(tmp_path: Path, detrain: Run) -> None:
    """Those of processes that have begun since the checkpoint are new: the shell's that resumes, for one."""
    shown = 'open("log.txt", "w").close()\n'
    program = shown + PRELUDE + BODY.format(write='open(os.environ["STATUS"]).read()', write_epoch="pass")
    killed = ran(detrain, tmp_path, program, DIE_AT="2:1", STATUS="/proc/1/status")
    with subprocess.Popen(["sleep", "60"]) as process:
        status = f"/proc/{process.pid}/status"
        os.stat(status)
        resumed = detrain("run", "program.py", cwd=tmp_path, STATUS=status)
        process.kill()

    assert (killed.status, resumed.status) == (-9, 0), resumed.err


@pytest.mark.parametrize("made", ["tempfile.TemporaryFile('w+')", "gone()"])
def test_a_file_without_a_path_is_named(made: str, tmp_path: Path, detrain: Run) -> None:
    gone = "import os, tempfile\ndef gone():\n    file = open('gone.txt', 'w+')\n    os.unlink('gone.txt')\n    return file\n"
    body = BODY.format(write="scratch.write('x')", write_epoch="scratch.seek(0); print(len(scratch.read()))")
    body = body.replace('print(open("log.txt").read())\n', "")
    run = ran(detrain, tmp_path, f"{PRELUDE}{gone}scratch = {made}\n{body}").ok()

    assert "not captured" in run.err
    assert "scratch (" in run.err


STREAMS = {
    "a class that writes twice": """
class Tee:
    def __init__(self):
        self.file, self.out, self.written = open("out.txt", "w"), sys.stdout, 0
    def write(self, text):
        self.written += self.file.write(text)
        self.out.write(text)
    def flush(self):
        self.file.flush()
        self.out.flush()
sys.stdout = Tee()
""",
    "a file": 'sys.stdout = open("out.txt", "w")',
    "a wrapper": 'import io; sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", line_buffering=True)',
}


@pytest.mark.parametrize("name", STREAMS)
def test_what_a_program_has_in_the_place_of_its_output_goes_on(name: str, tmp_path: Path, detrain: Run) -> None:
    text = """
import json, logging
optimizer = Optimizer(np.ones(3))
np.steps, logging.Logger.steps, json.dumps.steps = 0.0, [0.0], 0.0  # of a module, a class and a function of libraries
for epoch in range(2):
    for step in range(4):
        np.steps += 1
        logging.Logger.steps.append(np.steps)
        json.dumps.steps += len(logging.Logger.steps)
        optimizer.apply_gradients(np.full(3, json.dumps.steps))
        print(epoch, step, optimizer.weights.tolist(), getattr(sys.stdout, "written", ""))
        die(f"{epoch}:{step}")
"""
    whole = ran(detrain, tmp_path, PRELUDE + STREAMS[name] + text, "--bare").ok()
    written = (tmp_path / "out.txt").read_text() if (tmp_path / "out.txt").exists() else ""
    died = detrain("run", "--every", "2b", "program.py", cwd=tmp_path, DIE_AT="1:2").died()
    again = detrain("run", "--every", "2b", "program.py", cwd=tmp_path).ok()

    assert "not captured" not in died.err + again.err
    assert again.out == whole.out[-len(again.out) or len(whole.out) :]
    assert (tmp_path / "out.txt").read_text() == written if written else again.out


ROTATING = """
import logging
from logging.handlers import RotatingFileHandler
log = logging.getLogger("train")
log.setLevel("INFO")
log.addHandler(RotatingFileHandler("train.log", maxBytes=70, backupCount={count}))
for number in range({before}):
    log.info("a line before the loop, %d", number)
optimizer = Optimizer(np.ones(3))
for epoch in range(3):
    for step in range(10):
        optimizer.apply_gradients(np.random.normal(size=3))
        log.info("epoch %d step %d %r", epoch, step, optimizer.weights.sum())
        die(f"{{epoch}}:{{step}}")
    log.info("epoch %d", epoch)
show(optimizer.weights)
"""


@pytest.mark.fast
@pytest.mark.parametrize(("count", "before"), [(99, 0), (2, 5)])
def test_a_log_that_rotates_is_set_back_as_the_files_that_it_was(count: int, before: int, tmp_path: Path, detrain: Run) -> None:
    """The file that lay at the path of the log was cut to the length of another one.

    What is killed is a process.
    """
    text = PRELUDE + ROTATING.format(count=count, before=before)
    compared(detrain, tmp_path, text, at=("1:6", "2:3", "2:9"), every="4b", whole="run", is_apart=True)

    def logs(folder: Path) -> dict[str, str]:
        return {path.name: path.read_text() for path in sorted(folder.glob("train.log*"))}

    assert logs(tmp_path / "killed") == logs(tmp_path / "whole")


READ_ON_THE_WAY = """
import os, pathlib
log = pathlib.Path("log.txt")
with log.open("a") as file:
    file.write("begun\\n")
known = [len(log.read_text()), log.open("rb").read().count(b"\\n")]
optimizer = Optimizer(np.ones(3))
for epoch in range(4):
    for step in range(4):
        optimizer.apply_gradients(np.random.normal(size=3) * known[0])
        die(f"0 {epoch}:{step}")
    with log.open("a") as file:
        file.write(f"{epoch} {optimizer.weights.sum()!r}\\n")
with open(log, "a") as file:
    file.write("second\\n")
between = (log.read_text(),)
print(known, between)
for epoch in range(3):
    for step in range(4):
        optimizer.apply_gradients(np.random.normal(size=3) * len(between[0]))
        die(f"1 {epoch}:{step}")
    with log.open("a") as file:
        file.write(f"{epoch} {optimizer.weights.sum()!r}\\n")
print(log.read_text(), between)
show(optimizer.weights)
"""


@pytest.mark.parametrize("place", ["1 1:2", "0 2:1"])
@pytest.mark.parametrize("found", [None, "of yesterday\n"])
def test_code_on_the_way_reads_a_log_as_it_was_there(found: str | None, place: str, tmp_path: Path, detrain: Run) -> None:
    """It read there what the loop had appended since."""
    folders = [tmp_path / name for name in ("whole", "killed")]
    for folder in folders if found is not None else ():
        folder.mkdir()
        (folder / "log.txt").write_text(found or "")
    expected, _, last = compared(detrain, tmp_path, PRELUDE + READ_ON_THE_WAY, every="3b", at=place, is_apart=True)

    assert last.out == expected.out
    assert (folders[0] / "log.txt").read_text() == (folders[1] / "log.txt").read_text()


LIBRARY_LOG = """
import os
class Log:
    def __init__(self, path):
        self.path = path
        if not os.path.exists(path):
            open(path, "ab").close()
        self.lines = self.read()
    def read(self):
        with open(self.path, "rb") as file:
            return file.read().split()
    def append(self, line):
        with open(self.path, "ab") as file:
            file.write(line.encode() + b"\\n")
"""
WITH_LIBRARY_LOG = """
from logbook import Log
log = Log("log.txt")
log.append("begun")
lines = log.read()
optimizer = Optimizer(np.ones(3))
for epoch in range(4):
    for step in range(4):
        optimizer.apply_gradients(np.random.normal(size=3) * len(lines))
        die(f"{epoch}:{step}")
    log.append(f"{epoch}={optimizer.weights.sum()!r}")
print(log.read(), lines, log.lines)
show(optimizer.weights)
"""


def test_a_library_reads_its_log_on_the_way_as_it_was(tmp_path: Path, detrain: Run) -> None:
    """It was told that the log which it had just made was not there."""
    text, path = PRELUDE + WITH_LIBRARY_LOG, library(tmp_path, {"logbook.py": LIBRARY_LOG})
    expected, _, last = compared(detrain, tmp_path, text, at="2:2", every="3b", whole="run", is_apart=True, **path)

    assert last.out == expected.out
