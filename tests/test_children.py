"""Children end with their parents, and folders of killed processes are cleared away."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from detrain.base.child_processes import scratch_folder
from detrain.python.process import children

PARENT = """
import subprocess, sys, time
from detrain.base.child_processes import dying_with_this, scratch_folder
from pathlib import Path
with scratch_folder(Path(sys.argv[1]), "trial-") as folder:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], preexec_fn=dying_with_this())
    print(child.pid, folder, flush=True)
    time.sleep(60)
"""


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells children of their parent's end")
def test_a_killed_process_leaves_no_child_and_its_folder_goes_with_the_next(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child, folder = parent.stdout.readline().split()
    try:
        assert _is_running(int(child))
        with scratch_folder(tmp_path, "trial-"):
            assert Path(folder).is_dir()  # it is in use

        parent.send_signal(signal.SIGKILL)
        parent.wait()
        deadline = time.monotonic() + 10
        while _is_running(int(child)) and time.monotonic() < deadline:
            time.sleep(0.01)

        assert not _is_running(int(child))
        assert Path(folder).is_dir()
        with scratch_folder(tmp_path, "trial-") as own:
            assert list(tmp_path.iterdir()) == [own]
        assert list(tmp_path.iterdir()) == []
    finally:
        parent.kill()
        if _is_running(int(child)):
            os.kill(int(child), signal.SIGKILL)


ORPHAN = """
import os, sys, time
from detrain.base.child_processes import die_with
parent = os.getpid()
if os.fork() == 0:
    while sys.argv[1] == "late" and os.getppid() == parent:
        time.sleep(0.01)
    die_with(parent)
    print("it goes on", flush=True)
    time.sleep(60)
    os._exit(0)
if sys.argv[1] == "late":
    os._exit(0)  # before its child has said that it dies with it
time.sleep(60)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells children of their parent's end")
@pytest.mark.parametrize("is_reaped", [True, False])
def test_a_child_that_finds_its_parent_dead_ends_too(is_reaped: bool) -> None:
    """A worker that a killed trial had just forked waited for its batches for ever."""
    parent = subprocess.Popen([sys.executable, "-c", ORPHAN, "late"], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    if is_reaped:
        parent.wait()

    assert parent.stdout.read() == ""  # its end comes as the child's does
    parent.wait()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells children of their parent's end")
def test_a_child_goes_on_until_its_parent_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", ORPHAN, "in time"], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "it goes on\n"
    parent.kill()

    assert parent.stdout.read() == ""
    parent.wait()


def test_what_a_framework_brings_back_is_ended_before_the_process_becomes_another(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = signal.getsignal(signal.SIGCHLD)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(children, "_exempt", [lambda: {child.pid}])
    try:
        children.end()
        assert not Path(f"/proc/{child.pid}").exists()
    finally:
        signal.signal(signal.SIGCHLD, handler)
        child.kill()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells which processes there are")
def test_who_a_fork_server_has_forked_is_named_and_the_server_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is a process of its own: that is what it is about."""
    before = children.living()
    process = multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(60,))
    process.start()
    try:
        assert [each for each in children.living() if each not in before] != []
        monkeypatch.setattr(children, "_exempt", [lambda: {process.pid}])
        assert children.living() == before
    finally:
        process.kill()
        process.join()
    assert children.living() == before


BUSY_WHEN_ASKED = "import sys\nfor line in sys.stdin:\n    sum(range(10**6)); print('done', flush=True)\n"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells how long a process has run")
def test_a_child_that_has_not_run_since_the_loop_began_holds_nothing_new() -> None:
    """A pool that worked before the loop, and idles since, was named at each cut. A process is what has run so long."""
    child = subprocess.Popen([sys.executable, "-c", BUSY_WHEN_ASKED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdin is not None
        assert child.stdout is not None

        def work() -> None:
            child.stdin.write("now\n")  # type: ignore[union-attr]
            child.stdin.flush()  # type: ignore[union-attr]
            assert child.stdout.readline() == "done\n"  # type: ignore[union-attr]

        work()
        before: dict[int, int] = {}
        while before != (before := children.run_times()):  # it goes to sleep behind its answer
            time.sleep(0.2)
        name = Path(sys.executable).name

        assert not [each for each in children.living((), before) if name in each]
        work()
        assert [each for each in children.living((), before) if name in each]
    finally:
        child.kill()
        child.wait()
