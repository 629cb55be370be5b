"""Disks that fail at each call of a save, in each way: the save says so, what was saved before is as it was, the next
one works.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from detrain.base import messages
from detrain.base.errors import StoreError
from detrain.store.background_writer import Writer
from tests.store.homes import Run, resumed

CALLS = ("open", "pwrite", "write", "ftruncate", "fsync", "replace")
"""Calls by which a save can fail. One that cannot delete or close goes on."""
ERRORS = [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT]


@pytest.fixture(autouse=True)
def _silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "say", lambda _text: None)


class Disk:
    """Stands between the store and the os module, and counts the calls of the functions that change files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, calls: tuple[str, ...] = CALLS) -> None:
        self.count = 0
        self.at: int | None = None
        """The call that is not passed on, counted from 0."""
        self.act: Callable[[Callable[..., Any], tuple[Any, ...]], Any] = lambda call, rest: call(*rest)
        for name in calls:
            monkeypatch.setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*rest: Any, **more: Any) -> Any:
            self.count += 1
            return self.act(call, rest) if self.at == self.count - 1 else call(*rest, **more)

        return counted


def calls_of_a_save(run: Run, disk: Disk) -> int:
    """How many calls the second save of a run makes."""
    run.save(1)
    before = disk.count
    run.save(2)
    return disk.count - before


@pytest.mark.parametrize("code", ERRORS, ids=[errno.errorcode[code] for code in ERRORS])
def test_an_error_at_any_call_of_a_save_is_named_and_harms_nothing(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    first = Run(tmp_path)
    count = calls_of_a_save(first, disk)
    assert count > 20

    def fail(_call: Callable[..., Any], _rest: tuple[Any, ...]) -> Any:
        raise OSError(code, os.strerror(code))

    said = []
    for at in range(count):
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        run = Run(tmp_path)
        run.save(1)
        disk.count, disk.at, disk.act = 0, at, fail
        try:
            run.save(2)
        except StoreError as error:
            said.append(str(error))
        disk.at = None
        assert not list(tmp_path.glob(".*.tmp"))
        run.journal.close()
        found = resumed(tmp_path)
        assert found is not None
        assert found[1] in (1, 2)
        found[0].save(found[1] + 1)
        found[0].journal.close()
        assert resumed(tmp_path)[1] == found[1] + 1  # type: ignore[index]
    # A line of the journal that cannot be written at once waits, and is written by the save.
    assert len(said) >= count - 2
    assert all(os.strerror(code) in text and text.count("\n") == 1 for text in said)


def test_writes_that_take_a_part_only_are_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pwrite", "write"):
        call = getattr(os, name)
        monkeypatch.setattr(os, name, lambda file, data, *at, call=call: call(file, memoryview(data)[: len(data) // 3 + 1], *at))
    run = Run(tmp_path)
    run.save(1)
    run.save(2)
    run.journal.close()

    assert resumed(tmp_path)[1] == 2  # type: ignore[index]


def test_reads_that_give_a_part_only_are_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Run(tmp_path).save(1)
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, parts, at: preadv(file, [parts[0][: max(len(parts[0]) // 2, 1)]], at))
    assert resumed(tmp_path)[1] == 1  # type: ignore[index]


def test_a_disk_that_cannot_read_the_newest_gives_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path)
    run.save(1)
    run.save(2)
    bad = run.catalogue.entries()[-1].path.stat().st_ino
    preadv = os.preadv

    def fail(file: int, parts: Any, at: int) -> int:
        if os.fstat(file).st_ino == bad and at < 1000:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return preadv(file, parts, at)

    monkeypatch.setattr(os, "preadv", fail)
    assert resumed(tmp_path)[1] == 1  # type: ignore[index]


def save_twice(run: Run) -> None:
    run.save(2)
    run.save(3)


def test_a_folder_that_goes_at_any_call_of_a_save_is_an_error_or_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    home = tmp_path / "home"
    home.mkdir()
    count = calls_of_a_save(Run(home), disk)

    def go(call: Callable[..., Any], rest: tuple[Any, ...]) -> Any:
        shutil.rmtree(home)
        return call(*rest)

    for at in range(count):
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        run = Run(home)
        run.save(1)
        disk.count, disk.at, disk.act = 0, at, go
        with pytest.raises(StoreError, match="No such file"):
            save_twice(run)  # a folder that went at the last call of the first is met by the second
        disk.at = None


def test_a_slow_disk_holds_up_the_next_save_and_not_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(messages, "say", said.append)
    run, writer, release = Run(tmp_path), Writer(), threading.Event()
    fsync = os.fsync

    def slow(descriptor: int) -> None:
        release.wait(20)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    began = time.monotonic()
    writer.write(lambda: run.save(1), is_large=True)
    assert time.monotonic() - began < 5  # the write alone takes 20
    threading.Timer(1.5, release.set).start()
    writer.write(lambda: run.save(2), is_large=True)
    writer.drain()

    assert "the disk is slower than the saves" in said[0]
    assert resumed(tmp_path)[1] == 2  # type: ignore[index]
