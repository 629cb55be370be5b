"""Reports about jobs of several ranks, as rows for JSON: the cuts of each job with the ranks that have them, and the
status of the newest runs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from detrain.base.cursor import Cursor
from detrain.base.errors import DetrainError, StoreError
from detrain.reports import checkpoints
from detrain.reports.timeline import last_end
from detrain.store import Catalogue, Entry, read_meta
from detrain.store.job_home import EVERY, JUST_IN_TIME, jobs_in, parts, ranks_of
from detrain.store.journal import read_batches
from detrain.store.lock import holder_of
from detrain.store.mirror.restore import read_sent

_WORLD = "world size"


def list_cuts(place: Path) -> list[dict[str, Any]]:
    """Return a row for each cut of each job in a folder, the parts of all ranks together."""
    rows = []
    for job in jobs_in(place):
        folders = ranks_of(job)
        for name, found in parts(folders).items():
            there = [entry for entry in found if entry is not None]
            row: dict[str, Any] = {"file": name, "job": str(job), **_sizes(there)}
            try:
                meta = read_meta(there[0].path)
            except DetrainError as error:
                row["error"] = error.what
            else:
                world = int(meta.environment.get(_WORLD, "1"))
                has = [int(entry.path.parent.name.removeprefix("rank-")) for entry in there]
                row |= {
                    "program": meta.program,
                    "run": meta.run,
                    "cursor": str(there[0].cursor),
                    "cut": meta.cut,
                    "arguments": list(meta.arguments),
                    "ranks": has,
                    "world": world,
                    "complete": has == list(range(world)),
                }
            rows.append(row)
    return rows


def newest_complete(job: Path) -> str:
    """Return the name of the newest checkpoint that all ranks of a job have. Raises StoreError if there is none."""
    complete = [row["file"] for row in list_cuts(job) if row.get("complete")]
    if not complete:
        raise StoreError(f"{str(job)!r} has no checkpoint of all ranks", "`detrain ckpt ls` shows which ranks have which")
    return str(complete[-1])


def check_job(job: Path) -> tuple[list[dict[str, Any]], int]:
    """Check all parts of a job, and name the cuts that are not complete. Return rows and the exit status."""
    rows: list[dict[str, Any]] = []
    status = 0
    for folder in ranks_of(job):
        found, wrong = checkpoints.check_checkpoints(folder)
        rows += [{**row, "file": f"{folder.name}/{row['file']}"} for row in found]
        status = status or wrong
    for row in list_cuts(job):
        if not row.get("complete", True):
            missing = sorted(set(range(row["world"])) - set(row["ranks"]))
            note = f"no part of rank {', '.join(map(str, missing))}: no run goes on from here"
            rows.append({"file": row["file"], "good": True, "note": note})
    return rows, status


def describe_job(job: Path, rank: int) -> dict[str, Any]:
    """Return the contents of one rank's part of a job's newest complete checkpoint. Raises StoreError."""
    folder = job / f"rank-{rank}"
    if folder not in ranks_of(job):
        raise StoreError(f"{str(job)!r} has no rank {rank} with checkpoints", f"it has {len(ranks_of(job))}, counted from 0")
    return checkpoints.describe_checkpoint(folder / newest_complete(job))


def status_of(place: Path) -> list[dict[str, Any]]:
    """Return the status of the newest run of each program in a folder: ranks, and the cost of a failure now."""
    rows = [_status(job.name, ranks_of(job), is_job=True) for job in jobs_in(place)]
    programs = sorted({entry.program for entry in Catalogue(place).entries()})
    return rows + [_status(program, [place], is_job=False) for program in programs]


def _status(program: str, folders: Sequence[Path], *, is_job: bool) -> dict[str, Any]:
    found = parts(folders)
    newest = next((entry for each in reversed(found.values()) for entry in each if entry is not None), None)
    if is_job and newest is not None:  # an earlier job may have had more ranks
        folders = folders[: int(read_meta(newest.path).environment.get(_WORLD, "1"))]
        found = parts(folders)
    run = max((entry.run for each in found.values() for entry in each if entry is not None), default=0)
    complete = [each for each in found.values() if all(entry is not None and entry.run == run for entry in each)]
    last = [entry for entry in complete[-1] if entry is not None] if complete else []
    ranks: list[dict[str, Any]] = []
    for number, folder in enumerate(folders):
        batches = list(read_batches(Catalogue(folder).journal(program, run)))
        done_then = read_meta(last[number].path).batches_done if last else 0
        pid = holder_of(folder, program)
        at = str(Cursor(*batches[-1])) if batches else ""
        ranks.append({"rank": number, "pid": pid, "at": at, "batches": len(batches), "since_checkpoint": len(batches) - done_then})
    now, is_running = time.time(), all(rank["pid"] is not None for rank in ranks)
    every = _just_in_time(folders[0].parent) if is_job and is_running else 0
    sent = None if is_job else read_sent(folders[0], program)
    return {
        "program": program,
        "run": run,
        "job": is_job,
        "running": is_running,
        "ended": "" if is_running else last_end(folders[0], program, run),
        "just_in_time": every > 0,
        "just_in_time_every": every,
        "last_checkpoint": str(last[0].cursor) if last else None,
        "age_s": round(now - max(entry.path.stat().st_mtime for entry in last), 1) if last else None,
        "a_failure_costs_batches": max(int(rank["since_checkpoint"]) for rank in ranks),
        "ranks": ranks,
        "mirror": None if sent is None else msgspec.to_builtins(sent),
    }


def _just_in_time(job: Path) -> int:
    """Return the number of batches after which a running job holds its state anew (`--jit`); 0 if it does not."""
    try:
        return int((job / JUST_IN_TIME / EVERY).read_text())
    except (OSError, ValueError):
        return 0


def _sizes(there: Sequence[Entry]) -> dict[str, Any]:
    stats = [entry.path.stat() for entry in there]
    newest = max(stat.st_mtime for stat in stats)
    return {"bytes": sum(stat.st_size for stat in stats), "age_s": round(time.time() - newest, 1)}
