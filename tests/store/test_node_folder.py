"""The folder of a job on its node goes when its processes are dead, and not before.

That a lock ends with a process that is killed takes one that is killed: it is forked, and imports nothing.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from detrain.store.node_folder import NodeFolder


def forked(base: Path, job: str) -> int:
    """Fork a process that holds the folder of a job until it is killed."""
    child = os.fork()
    if child == 0:
        folder = NodeFolder(base, job)
        (folder.path / "slots-0").write_bytes(b"a state")
        time.sleep(60)
        os._exit(0)
    while not list(base.glob(f"*-{job}/slots-0")):
        time.sleep(0.002)
    return child


def end(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_what_a_killed_job_has_left_is_deleted_by_the_next_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    dead, alive = forked(tmp_path, "dead"), forked(tmp_path, "alive")
    end(dead)
    try:
        mine = NodeFolder(tmp_path, "mine")
        assert sorted(each.name.rpartition("-")[2] for each in tmp_path.iterdir()) == ["alive", "mine"]
    finally:
        end(alive)
    mine.delete()
    assert [each.name.rpartition("-")[2] for each in tmp_path.iterdir()] == ["alive"]
    NodeFolder(tmp_path, "other").delete()
    assert list(tmp_path.iterdir()) == []


def test_one_rank_that_is_left_keeps_the_folder_of_its_job(tmp_path: Path) -> None:
    ranks = [forked(tmp_path, "job") for _ in range(2)]
    end(ranks[0])
    try:
        NodeFolder(tmp_path, "other")
        assert list(tmp_path.glob("*-job/slots-0"))
    finally:
        end(ranks[1])


def test_what_is_not_of_this_user_and_kind_stays(tmp_path: Path) -> None:
    strange = [tmp_path / name for name in ("detrain-0-abc", f"detrain-jit-{os.getuid() + 1}-abc", "other")]
    for each in strange:
        each.mkdir()
    (tmp_path / f"detrain-jit-{os.getuid()}-link").symlink_to(tmp_path / "other")

    NodeFolder(tmp_path, "mine").delete()

    assert all(each.is_dir() for each in strange)
