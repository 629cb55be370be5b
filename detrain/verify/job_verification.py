"""Runs a job of several ranks whole, whole again, and with ranks killed and the job resumed, and compares rank by rank.

What all ranks print comes in any order, and is not compared; files are, as of the job.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from detrain.base import messages
from detrain.base.cursor import Cursor
from detrain.base.errors import DetrainError
from detrain.launcher.program import Program
from detrain.python.process.environment import for_runs_of_ours
from detrain.runtime.observers.verify_hooks import VerifyPlan
from detrain.store.job_home import rank_folder
from detrain.verify.kill_places import places_to_kill
from detrain.verify.verification import KEEP, Verification, outside_of_run, read_notes
from detrain.verify.verified_run import ComparedRun, VerifiedRun
from detrain.verify.work_folder import WorkFolder, written

Kill = tuple[int, tuple[int, ...]]
"""After how many batches, and which ranks."""


def verify_job(
    program: str,
    arguments: Sequence[str] = (),
    *,
    world: int,
    is_module: bool = False,
    kills: int = 2,
    every: str = "1",
    seed: int = 0,
) -> list[Verification]:
    """Run a job of `world` ranks three times; in the third one rank, then all, and so on, are killed at random batches.

    Returns what is found of each rank. Raises ProgramNotFound, and DetrainError where the whole job fails or there is
    no batch in it.
    """
    found = Program.find(program, is_module=is_module)
    options = ["--every", every, "--keep", str(KEEP), *(["-m"] if is_module else [])]
    with tempfile.TemporaryDirectory(prefix="detrain-verify-") as folder:
        place = WorkFolder.around(Path.cwd(), Path(folder))
        everything = [*options, program if is_module else place.program(program), *arguments]
        whole = _run("whole", place, everything, found.name, world, [], {})
        outside = outside_of_run(whole[0].home)
        again = _run("again", place, everything, found.name, world, [], outside)
        batches = list(ComparedRun.at(whole[0].journal).batches) if whole[0].journal.is_file() else []
        if whole[0].status or not batches:
            why = f"ended with status {whole[0].status}" if whole[0].status else "did no batch in a loop with probes"
            raise DetrainError(f"the job {program!r} {why}: there is nothing to compare", "see `detrain launch` of it")
        draw = random.Random(seed)
        places = places_to_kill(batches, kills, draw)
        chosen = [(at, (draw.randrange(world),) if turn % 2 == 0 else tuple(range(world))) for turn, at in enumerate(places)]
        names = {at: str(Cursor(*batches[at])) for at in places}
        killed = _run("killed", place, everything, found.name, world, chosen, outside, names)
        for runs in (again, killed):
            for rank, run in enumerate(runs):
                if not run.status:
                    run.compare(whole[rank])
        for three in zip(killed, whole, again, strict=True):
            three[0].compare_files(*three[1:])
    each = zip(whole, again, killed, strict=True)
    return [Verification(*three, len(batches)) for three in each]


def _run(
    name: str,
    place: WorkFolder,
    command: Sequence[str],
    program: str,
    world: int,
    kills: Sequence[Kill],
    outside: dict[str, list[str]],
    cursors: Mapping[int, str] = {},
) -> list[VerifiedRun]:
    """Run the job to its end, through kills; return what each rank has done."""
    home = place.folder / name
    done = [VerifiedRun(name, rank_folder(home, program, rank), is_of_job=True) for rank in range(world)]
    before = place.begin()
    began, left = time.monotonic(), list(kills)
    states = place.folder / f"{name}.states"
    while True:
        output, errors = (place.folder / f"{name}.{len(left)}.{kind}" for kind in ("output", "errors"))
        at, ranks = left[0] if left else (None, ())
        with messages.working(f"verify: {name} job", "with a kill" if left else "to its end"):
            hooks = VerifyPlan(str(states), outside, at, ranks, is_of_job=True)
            environment = {**for_runs_of_ours(), **hooks.hand_over(place.folder / f"{name}.trial")}
            whole = [sys.executable, "-m", "detrain", "launch", "--nproc-per-node", str(world), "--ckpt", str(home), *command]
            with output.open("wb") as stdout, errors.open("wb") as stderr:
                process = subprocess.run(whole, env=environment, stdout=stdout, stderr=stderr, check=False, cwd=place.work)
        said = errors.read_text(errors="replace")
        for run in done:
            run.warnings += [line for line in said.splitlines() if line.startswith("detrain: warning:")]
        if not left or process.returncode == 0:
            break
        at, ranks = left.pop(0)
        for rank in ranks:
            done[rank].kills.append(cursors.get(at, ""))
        for rank in set(range(world)) - set(ranks):
            done[rank].kills.append(f"with rank {ranks[0]}")
    if process.returncode:
        messages.put(said[-4000:].rstrip("\n"))
    files = written(place.work, before) if place.is_copied else None
    for rank, run in enumerate(done):
        run.status, run.seconds, run.files = process.returncode, time.monotonic() - began, files
        read_notes(run, Path(f"{states}.rank-{rank}"))
    return done
