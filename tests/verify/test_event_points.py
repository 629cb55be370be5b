"""TensorBoard's event files compared by their points. They are written here by TensorBoard's own code."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import pytest

from detrain.python.outside import event_files
from detrain.verify.event_points import is_event_file, points_by_folder, points_in
from detrain.verify.work_folder import written

event_pb2 = pytest.importorskip("tensorboard.compat.proto.event_pb2")
record_writer = pytest.importorskip("tensorboard.summary.writer.record_writer")


def events(*points: tuple[str, int, float], at: float = 0.0) -> bytes:
    """The bytes of an event file of these points, written at that time."""
    made = io.BytesIO()
    writer = record_writer.RecordWriter(made)
    writer.write(event_pb2.Event(wall_time=at, file_version="brain.Event:2").SerializeToString())
    for tag, step, value in points:
        event = event_pb2.Event(wall_time=at + 0.25, step=step)
        event.summary.value.add(tag=tag, simple_value=value)
        writer.write(event.SerializeToString())
    return made.getvalue()


LOSSES = [("loss", step, 1 / (step + 1)) for step in range(5)]


def test_the_points_are_those_that_tensorboards_own_reader_finds() -> None:
    data = events(("loss", 0, 0.5), ("loss", -3, 0.25), ("accuracy", 1 << 40, 1.0))

    found = [(step, event_pb2.Event().summary.value.add().FromString(value)) for step, value in points_in(data)]

    assert [(each.tag, step, each.simple_value) for step, each in found] == [
        ("loss", 0, 0.5),
        ("loss", -3, 0.25),
        ("accuracy", 1 << 40, 1.0),
    ]


def test_one_file_and_two_of_the_same_points_are_equal_whenever_they_were_written() -> None:
    whole = points_by_folder({"logs/events.out.tfevents.1.host.7.0": events(*LOSSES, at=1.0)})
    resumed = points_by_folder(
        {
            "logs/events.out.tfevents.9.host.8.0": events(*LOSSES[:3], at=9.0),
            "logs/events.out.tfevents.10.host.9.0": events(*LOSSES[3:], at=10.0),
        }
    )

    assert whole == resumed
    assert list(whole) == ["logs/*.tfevents.* (points)"]


@pytest.mark.parametrize(
    "second", [LOSSES[2:], LOSSES[4:], [("loss", 3, 0.0), LOSSES[4]]], ids=["double", "missing", "other value"]
)
def test_double_missing_and_other_points_are_seen(second: list[tuple[str, int, float]]) -> None:
    whole = points_by_folder({"events.out.tfevents.1.h": events(*LOSSES)})

    other = points_by_folder({"events.out.tfevents.1.h": events(*LOSSES[:3]), "events.out.tfevents.2.h": events(*second)})

    assert whole != other


def test_what_code_before_the_loop_writes_again_is_no_double_point() -> None:
    before = [("settings", 0, 7.0), ("graph", 0, 1.0)]
    whole = points_by_folder({"events.out.tfevents.1.h": events(*before, *LOSSES)})

    resumed = points_by_folder(
        {"events.out.tfevents.1.h": events(*before, *LOSSES[:3]), "events.out.tfevents.2.h": events(*before, *LOSSES[3:])}
    )

    assert whole == resumed


def test_a_file_that_is_cut_off_has_the_points_before_that() -> None:
    assert len(list(points_in(events(*LOSSES)[:-5]))) == 4


def test_files_of_a_run_are_listed_with_the_points_of_its_event_files(tmp_path: Path) -> None:
    (tmp_path / "events.out.tfevents.1.h.2.0").write_bytes(events(*LOSSES))
    (tmp_path / "log.csv").write_text("1\n")

    found = written(tmp_path, {})

    assert sorted(found) == ["./*.tfevents.* (points)", "log.csv"]
    assert not is_event_file("my.tfevents.d/log.csv")


def test_points_in_the_queue_of_a_writer_are_written_at_a_cut() -> None:
    module: Any = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    done: list[bytes] = []

    class Slow:
        def write(self, data: bytes) -> None:
            time.sleep(0.05)
            done.append(data)

        def flush(self) -> None:
            done.append(b"flushed")

        def close(self) -> None:
            done.append(b"closed")

    writer = module._AsyncWriter(Slow())
    for number in range(4):
        writer.write(bytes([number]))
    event_files.flush()

    assert [each for each in done if each != b"flushed"] == [b"\0", b"\1", b"\2", b"\3"]
    assert done[-1] == b"flushed"
    writer.close()
