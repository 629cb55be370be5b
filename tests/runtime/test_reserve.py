"""A process that waits while a copy of it does trials, and goes on behind one in which the copy ends or is left."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from detrain.runtime.observers.reserve import GO_ON, _is_apart

if sys.platform != "linux":
    pytest.skip("only Linux has copies of a process", allow_module_level=True)

ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
PROGRAM = """
import json, os, random, sys, time
from pathlib import Path
from detrain.runtime.observers.reserve import Reserve, claim

folder, doing = Path(sys.argv[1]), sys.argv[2].split(",")
logs = [str(folder / f"log-{number}") for number in range(len(doing))]
random.seed(3)
reserve, at = Reserve(), 0
assert claim(logs[0]) and reserve.can_copy(folder)
print(os.getpid(), flush=True)
while at < len(doing):
    place = reserve.wait(logs[at:])
    at += place
    if place:
        continue
    for number in range(at, len(doing)):
        if number > at and not claim(logs[number]):
            reserve.end(0)
        with open(logs[number], "a") as log:
            print(json.dumps([os.getpid(), reserve.number, random.random()]), file=log)
        print("in", number, flush=True)
        if doing[number] == "hangs":
            time.sleep(60)
        elif doing[number] == "is killed":
            os.kill(reserve.number, 9)
        elif doing[number] != "ends":
            sys.exit(int(doing[number]))
    reserve.end(0)
"""


def run(folder: Path, *doing: str) -> subprocess.Popen[str]:
    (folder / "program.py").write_text(PROGRAM)
    out, command = (folder / "stdout").open("w+"), [sys.executable, str(folder / "program.py"), str(folder), ",".join(doing)]
    return subprocess.Popen(command, stdout=out, stderr=(folder / "stderr").open("w+"), text=True, env=ONE_THREAD)


def logs_of(folder: Path) -> list[list[Any]]:
    files = sorted(folder.glob("log-*"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def test_behind_a_trial_in_which_a_copy_ends_another_goes_on_from_where_the_first_began(tmp_path: Path) -> None:
    process = run(tmp_path, "ends", "1", "ends", "is killed", "ends")

    assert process.wait(20) == 0, (tmp_path / "stderr").read_text()
    draw = random.Random(3)
    first, second = draw.random(), draw.random()
    logs = logs_of(tmp_path)
    assert [log[0][2] for log in logs] == [first, second, first, second, first]
    assert {log[0][0] for log in logs} == {process.pid}  # whichever copy it is
    assert len({log[0][1] for log in logs}) == 3
    assert [log[1:] for log in logs] == [[], [{"ended": 1}], [], [{"ended": -9}], []]
    assert (tmp_path / "stdout").read_text() == f"{process.pid}\n"


def test_a_copy_is_left_in_a_trial_and_what_ends_it_ends_it_with_all_others(tmp_path: Path) -> None:
    process = run(tmp_path, "hangs", "ends", "ends")
    try:
        until(lambda: any(logs_of(tmp_path)))
        (tmp_path / "new").write_text(str(tmp_path / "log-1"))
        (tmp_path / "new").replace(tmp_path / GO_ON)
        until(lambda: len(logs_of(tmp_path)) == 3 and logs_of(tmp_path)[2])
        assert process.poll() is None  # it waits for the copy that hangs
    finally:
        process.kill()
        process.wait()
    left = int(str(logs_of(tmp_path)[0][0][1]))
    until(lambda: not Path(f"/proc/{left}").exists() or ") Z" in Path(f"/proc/{left}/stat").read_text())


def test_an_error_of_detrains_ends_the_process_as_it_ended_the_copy(tmp_path: Path) -> None:
    assert run(tmp_path, "ends", "73", "ends").wait(20) == 73
    assert len(logs_of(tmp_path)) == 2


@pytest.mark.parametrize("what", ["thread", "file", "memory"])
def test_there_is_no_copy_of_what_two_would_share(tmp_path: Path, what: str) -> None:
    lines = {
        "thread": "import threading, time; threading.Thread(target=time.sleep, args=[9], daemon=True).start()",
        "file": f"file = open({str(tmp_path.parent / 'data')!r}, 'w+')",
        "memory": "import mmap; shared = mmap.mmap(-1, 4096)",
    }
    program = f"{lines[what]}\nfrom detrain.runtime.observers.reserve import Reserve\nfrom pathlib import Path\n"
    program += f"print(Reserve().can_copy(Path({str(tmp_path)!r})))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=ONE_THREAD)
    assert done.stdout == "False\n", done.stderr


def until(is_so: object, limit_s: float = 20.0) -> None:
    end = time.monotonic() + limit_s
    while not is_so():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_library_that_keeps_its_own_file_open_is_no_reason_against_a_copy(tmp_path: Path) -> None:
    """As libffi does. A copy would share the position in any other file."""
    file = tmp_path / "data"
    file.write_bytes(b"x")
    with file.open("rb") as held:
        apart = [_is_apart(held.fileno(), tmp_path / "trial", code) for code in ({str(file)}, set())]

    assert apart == [True, False]
