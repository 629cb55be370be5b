"""`detrain at CURSOR --save` over the adversarial programs of `tests/programs`, in all three frameworks: what it saves
behind a checkpoint is what a run had there that nothing has interrupted, and nothing of the run is changed.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from detrain.base.cursor import Address, written
from detrain.store.catalogue import parse_name
from detrain.store.journal import read_batches
from tests.e2e.runs import detrain
from tests.e2e.test_at import digests
from tests.e2e.test_exactness import FRAMEWORK, OWN_INPUTS
from tests.programs_marks import JAX, PROGRAMS, TORCH, command

pytestmark = pytest.mark.slow

CASES = [
    *(("tensorflow", PROGRAMS / f"{name}.py") for name in FRAMEWORK if name not in OWN_INPUTS),
    *(("torch", path) for path in sorted(TORCH.glob("*.py"))),
    *(("jax", path) for path in sorted(JAX.glob("*.py"))),
]


def saved_at(folder: Path, at: Address, path: Path) -> tuple[dict[str, bytes], str]:
    """Return the tensors that are saved at a cursor, by name, and where the run was gone to from."""
    file = folder.with_name(f"{folder.name}.npz")
    done = detrain("at", "--save", file, "--print", "1", written(at), *command(path), cwd=folder).ok()
    with np.load(file) as found:
        return {name: found[name].tobytes() for name in found.files}, done.out.splitlines()[-1]


@pytest.mark.parametrize(("framework", "path"), CASES, ids=lambda value: value if isinstance(value, str) else value.stem)
def test_what_is_saved_behind_a_checkpoint_is_what_an_uninterrupted_run_had(framework: str, path: Path, tmp_path: Path) -> None:
    pytest.importorskip(framework)
    draw = random.Random(path.stem)
    work = tmp_path / "work"
    work.mkdir()
    every = draw.choice(["2b", "3b"])  # "1" is each ten minutes where there are no epochs
    detrain("run", "--every", every, "--keep", "100", *command(path), cwd=work).ok()
    [journal] = (work / "ckpt").glob("*.journal")
    entries = [entry for each in (work / "ckpt").glob("*.h5") if (entry := parse_name(each)) is not None]
    first, last = (key((e.cursor.phase, e.cursor.epoch, e.cursor.batch) for e in entries) for key in (min, max))
    places = [at for at in read_batches(journal) if first < at < last]
    assert places, "no batch between checkpoints"
    at = draw.choice(places)
    before = digests(work)

    behind, since = saved_at(work, at, path)

    assert digests(work) == before
    assert "the checkpoint" in since
    whole = tmp_path / "whole"
    shutil.copytree(work, whole)
    for entry in entries:  # with none before the cursor the program runs from its start
        if (entry.cursor.phase, entry.cursor.epoch, entry.cursor.batch) <= at:
            (whole / "ckpt" / entry.path.name).unlink()
    uninterrupted, start = saved_at(whole, at, path)
    assert "the start" in start
    assert uninterrupted
    assert behind == uninterrupted
