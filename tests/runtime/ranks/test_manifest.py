"""The files of a just-in-time checkpoint: what is committed is whole, once, and found again."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from detrain.runtime.ranks import manifest as files
from detrain.runtime.ranks.vote import Decision, StatePoint
from detrain.runtime.ranks.wire import View

DECISION = Decision(
    StatePoint(4, 4, "d"), StatePoint(4, 4, "c"), 1, ((StatePoint(4, 4, "c"), (0, 1, 1)), (StatePoint(4, 4, "d"), (0, 1, 1)))
)


def _save(folder: Path) -> None:
    (folder / "part").mkdir()
    (folder / "part" / "weights").write_bytes(b"w" * 100)


def _committed(home: Path, incarnation: str = "a", job: str = "job", **changes: Any) -> files.CommitManifest:
    folder = files.folder_of(home, incarnation)
    written = [
        files.write_part(folder, View((2,)), DECISION, rank, lambda owner, point: f"{owner}{point.name}".encode(), _save)
        for rank in range(2)
    ]
    every = tuple(file for each in written for file in each)
    manifest = files.CommitManifest(1, job, incarnation, "lost-2", 3, DECISION.point, DECISION.base, (2,), "why", b"\0extra", every)
    manifest = msgspec.structs.replace(manifest, **changes)
    assert files.seal(folder, manifest) == "lost-2"
    return manifest


def test_what_is_committed_is_found_and_read(tmp_path: Path) -> None:
    manifest = _committed(tmp_path)

    found, passed = files.find(tmp_path, "job", 3)

    assert passed == []
    assert found is not None
    assert found.manifest == manifest
    assert (found.big / "part" / "weights").read_bytes() == b"w" * 100
    assert [found.small(rank, DECISION.point) for rank in range(3)] == [b"0d4-4", b"1d4-4", b"2d4-4"]
    assert found.manifest.done == 5


def test_an_incarnation_has_one_manifest(tmp_path: Path) -> None:
    first = _committed(tmp_path)
    folder = files.folder_of(tmp_path, "a")

    assert files.seal(folder, msgspec.structs.replace(first, round="lost-1-2")) == "lost-2"
    assert files.seal(folder, None) == "lost-2"
    (folder / "manifest.json").unlink()
    assert files.seal(folder, None) is None
    assert [path.name for path in folder.iterdir()] == ["lost-2"]


def test_of_many_that_commit_at_once_one_does(tmp_path: Path) -> None:
    manifest = _committed(tmp_path)
    folder = files.folder_of(tmp_path, "b")
    folder.mkdir()
    named: list[str | None] = []
    threads = [
        threading.Thread(target=lambda name=name: named.append(files.seal(folder, msgspec.structs.replace(manifest, round=name))))
        for name in map(str, range(16))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(named) == 16
    assert len({*named}) == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"world": 4}, "it is of 4 ranks, and this job has 3"),
        ({"job": "other"}, r"it is of another job \(other; this one is job\)"),
        ({"format": 2}, "it has format 2; this detrain reads 1"),
        ({"files": ()}, "its manifest does not name lost-2/small-0-c4-4"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_named_and_passed_over(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    _committed(tmp_path, "b", **changes)
    good = _committed(tmp_path, "a")

    found, (passed,) = files.find(tmp_path, "job", 3)

    assert found is not None
    assert found.manifest == good
    assert re.fullmatch(f"jit-b is passed over: {reason}", passed)


def test_a_checkpoint_that_is_damaged_or_without_manifest_is_named_and_passed_over(tmp_path: Path) -> None:
    for name in "abcd":
        _committed(tmp_path, name)
    (tmp_path / "jit-a" / "manifest.json").unlink()
    (tmp_path / "jit-b" / "lost-2" / "big" / "part" / "weights").write_bytes(b"v" * 100)
    (tmp_path / "jit-c" / "lost-2" / "small-1-c4-4").unlink()
    path = tmp_path / "jit-d" / "manifest.json"
    path.write_bytes(path.read_bytes()[:-40])

    found, passed = files.find(tmp_path, "job", 3)

    assert found is None
    assert [line.partition(" is passed over: ")[2][:30] for line in passed] == [
        "it has no manifest: its run en",
        "lost-2/big/part/weights has no",
        "[Errno 2] No such file or dire",
        "Input data was truncated"[:30],
    ]


def test_a_manifest_that_names_files_outside_of_it_is_passed_over(tmp_path: Path) -> None:
    manifest = _committed(tmp_path)
    path = tmp_path / "jit-a" / "manifest.json"
    outside = files.File("lost-2/../../../secret", 1, bytes(16))
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, files=(*manifest.files, outside))))

    found, passed = files.find(tmp_path, "job", 3)

    assert found is None
    assert "which is outside of it" in passed[0]


def test_of_several_checkpoints_the_one_of_the_most_steps_is_found(tmp_path: Path) -> None:
    _committed(tmp_path, "z", point=StatePoint(4, 4, "c"))
    newest = _committed(tmp_path, "a")

    found, _ = files.find(tmp_path, "job", 3)

    assert found is not None
    assert found.manifest == newest


def test_a_save_that_writes_nothing_is_none(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="is empty"):
        files.write_part(tmp_path / "jit-a", View(), DECISION, 1, lambda _owner, _point: b"", lambda _folder: None)


def test_the_folder_of_a_round_has_a_name_of_bounded_length() -> None:
    views = [View(tuple(range(count))) for count in range(0, 1024, 50)] + [View((1,), (2,)), View((1, 2))]

    assert len({view.name for view in views}) == len(views)
    assert all(len(view.name) < 100 for view in views)
