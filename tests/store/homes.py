"""Checkpoint homes for the tests of the store: small states that depend on their cursor, saved as a run saves them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from detrain.base.cursor import Cursor
from detrain.base.digest import Array
from detrain.store import Catalogue, Choice, Meta, Snapshot, read
from detrain.store.journal import Journal

PROGRAM = "train"


def state(cursor: Cursor, *, journal_bytes: int = 0, size: int = 6, **fields: object) -> Snapshot:
    """Return a state in which every value depends on the cursor."""
    number = cursor.phase * 10000 + cursor.epoch * 100 + cursor.batch
    meta = Meta(
        phase=cursor.phase, epoch=cursor.epoch, batch=cursor.batch, cut=cursor.cut, run=1, program=PROGRAM, arguments=(),
        sources={}, environment={}, seed=0, batches_done=number, journal_bytes=journal_bytes, **fields,  # type: ignore[arg-type]
    )  # fmt: skip
    tensors: dict[str, Array] = {"dense/kernel": np.arange(size, dtype=np.float32) + number, "steps": np.array(number)}
    return Snapshot(meta, tensors, {"python": bytes([number % 256] * 5)}, b"graph %d" % number, {"00000": np.full(3, number)})


def with_small_arrays(snapshot: Snapshot) -> Snapshot:
    """Return the state with arrays that a file stacks (from version 3 on), and others that are too few or too large to
    be stacked.
    """
    number = snapshot.meta.batches_done
    small = [np.full(2, number + place, np.float32) for place in range(5)] + [np.array(number * place) for place in range(4)]
    arrays = [*small[::2], np.zeros(3, "U2"), np.arange(5000.0), *small[1::2], np.zeros((2, 0)), np.zeros((2, 0))]
    return dataclasses.replace(snapshot, arrays=snapshot.arrays | {f"{99995 + n:05d}": array for n, array in enumerate(arrays)})


def epoch(number: int) -> Cursor:
    return Cursor(0, number, 0, "epoch")


class Run:
    """A run that uses the store as the session does: batches go to the journal, a checkpoint needs it, and old
    checkpoints are pruned.
    """

    def __init__(self, folder: Path, keep: int = 2, keep_bytes: int = 0) -> None:
        self.catalogue = Catalogue(folder)
        self.keep = keep
        self.journal = Journal(folder / f"{PROGRAM}-r1.journal", keep_bytes)

    def save(self, number: int, size: int = 6) -> None:
        """Train an epoch of two batches, and take a checkpoint at the start of the next, number `number`."""
        for batch in range(2):
            self.journal.add_batch((0, number - 1, batch), bytes([number] * 16))
        self.journal.flush()
        cursor = epoch(number)
        snapshot = state(cursor, journal_bytes=self.journal.size, size=size)
        self.journal.sync()
        self.catalogue.save(PROGRAM, 1, cursor, snapshot)
        self.prune()

    def prune(self) -> None:
        self.catalogue.prune(PROGRAM, 1, self.keep)


def newest(catalogue: Catalogue, program: str) -> Choice | None:
    """Return the checkpoint from which a run of a program goes on, None if it starts anew."""
    return next(catalogue.good(program), None)


def resumed(folder: Path) -> tuple[Run, int] | None:
    """Resume as `detrain run` does: clean the home, choose a checkpoint, check that journal and state belong together.

    Returns the run and its epoch; None if there is no checkpoint.
    """
    catalogue = Catalogue(folder)
    choice = newest(catalogue, PROGRAM)
    catalogue.remove_leftovers(PROGRAM)
    if choice is None:
        return None
    catalogue.adopt(choice)
    snapshot = read(choice.entry.path)
    number = choice.entry.cursor.epoch
    size, journal_bytes = snapshot.tensors["dense/kernel"].size, snapshot.meta.journal_bytes
    assert same(snapshot, state(epoch(number), journal_bytes=journal_bytes, size=size))
    run = Run(folder, keep_bytes=journal_bytes)
    assert {(0, done, batch) for done in range(number) for batch in range(2)} <= run.journal.batches.keys()
    return run, number


def same(one: Snapshot, other: Snapshot) -> bool:
    """Return True if two states have the same bits."""

    def bits(arrays: object) -> list[object]:
        return [(key, array.dtype, array.shape, array.tobytes()) for key, array in arrays.items()]  # type: ignore[attr-defined]

    return (one.meta, dict(one.rng), one.python, bits(one.tensors), bits(one.arrays)) == (
        other.meta,
        dict(other.rng),
        other.python,
        bits(other.tensors),
        bits(other.arrays),
    )
