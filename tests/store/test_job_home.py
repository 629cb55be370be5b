"""The checkpoints of a job: which cuts count, and which stay."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest

from detrain.base.cursor import Cursor
from detrain.reports.jobs import check_job, list_cuts, status_of
from detrain.store import Catalogue
from detrain.store.chronicle import Ended, Started
from detrain.store.job_home import complete_names, jobs_in, rank_folder, ranks_of
from tests.store.homes import epoch, state

PROGRAM = "train"


def save(home: Path, rank: int, cursor: Cursor, world: int = 2) -> None:
    catalogue = Catalogue(rank_folder(home, PROGRAM, rank))
    catalogue.create()
    snapshot = state(cursor)
    meta = msgspec.structs.replace(snapshot.meta, environment={"world size": str(world)})
    catalogue.save(PROGRAM, 1, cursor, dataclasses.replace(snapshot, meta=meta))


def test_a_cut_counts_once_all_ranks_have_their_part(tmp_path: Path) -> None:
    for rank, numbers in enumerate(((1, 2, 3), (1, 2))):
        for number in numbers:
            save(tmp_path, rank, epoch(number))

    rows = list_cuts(tmp_path)

    assert [(row["cursor"], row["ranks"], row["complete"]) for row in rows] == [
        ("1:0", [0, 1], True),
        ("2:0", [0, 1], True),
        ("3:0", [0], False),
    ]
    assert jobs_in(tmp_path) == [tmp_path / PROGRAM]
    assert jobs_in(tmp_path / PROGRAM) == [tmp_path / PROGRAM]
    assert ranks_of(tmp_path) == []
    notes = [row["note"] for row in check_job(tmp_path / PROGRAM)[0] if "note" in row]
    assert notes == ["no part of rank 1: no run goes on from here"]
    [status] = status_of(tmp_path)
    assert (status["last_checkpoint"], status["running"], len(status["ranks"])) == ("2:0", False, 2)


@pytest.mark.parametrize(
    ("end", "said"),
    [(Ended(2.0, 7), "ended"), (Ended(2.0, 7, "KeyboardInterrupt"), "KeyboardInterrupt"), (None, "killed")],
)
def test_the_status_says_how_the_last_process_ended(end: Ended | None, said: str, tmp_path: Path) -> None:
    save(tmp_path, 0, epoch(1))
    chronicle = Catalogue(rank_folder(tmp_path, PROGRAM, 0)).chronicle(PROGRAM, 1)
    for event in (Started(1.0, 7, "here"), *([] if end is None else [end])):
        chronicle.add(event)

    [status] = status_of(tmp_path)

    assert (status["running"], status["ended"]) == (False, said)


def test_what_not_all_ranks_have_yet_takes_the_place_of_nothing(tmp_path: Path) -> None:
    for number in range(1, 6):
        save(tmp_path, 0, epoch(number))
    for number in range(1, 4):
        save(tmp_path, 1, epoch(number))
    folder = rank_folder(tmp_path, PROGRAM, 0)

    Catalogue(folder).prune(PROGRAM, 1, 2, counts=complete_names(folder, 2))

    left = [entry.cursor.epoch for entry in Catalogue(folder).entries()]
    assert left == [2, 3, 4, 5]  # two that all have, and those that are to come
