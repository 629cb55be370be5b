"""Where the processes of a job keep their checkpoints: `HOME/PROGRAM/rank-N/`, each a checkpoint home of its own.

A cut counts for the job once each rank has committed its own part of it: a part is written under one name by all, and
so the names tell. Nothing else is written down of that: there is no second list that could say something else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from detrain.store.catalogue import Catalogue, Entry, parse_name

JUST_IN_TIME: Final = "jit"
"""Of a job's just-in-time checkpoints, in the job's folder: there while ranks watch each other."""
EVERY: Final = "every"
"""In that folder: each how many batches the state is held now."""
_RANK: Final = re.compile(r"rank-(0|[1-9]\d*)", re.ASCII)


def rank_folder(home: Path, program: str, rank: int) -> Path:
    """Return the checkpoint home of one rank of a job."""
    return home / program / f"rank-{rank}"


def ranks_of(job: Path) -> list[Path]:
    """Return the folders of the ranks of a job that have checkpoints, in their order; none if it is no job's folder."""
    if not job.is_dir():
        return []
    found = [(int(match[1]), path) for path in job.iterdir() if (match := _RANK.fullmatch(path.name)) and names_in(path)]
    return [path for _rank, path in sorted(found)]


def jobs_in(home: Path) -> list[Path]:
    """Return the folders of jobs in a checkpoint home, and that itself if it is the folder of one."""
    if ranks_of(home):
        return [home]
    return sorted(path for path in home.iterdir() if ranks_of(path)) if home.is_dir() else []


def names_in(folder: Path) -> set[str]:
    """Return the names of the checkpoints in a folder."""
    return {path.name for path in folder.glob("*.h5") if parse_name(path) is not None}


def complete_names(folder: Path, world: int) -> Callable[[str], bool]:
    """Return a function that tells whether all ranks have the checkpoint of a name now; `folder` is that of one."""
    found = [names_in(folder.with_name(f"rank-{rank}")) for rank in range(world)]
    return lambda name: all(name in names for names in found)


def parts(folders: Sequence[Path]) -> dict[str, list[Entry | None]]:
    """Return, for each cut that some rank has, the part of each rank, None where it has none; in the order of cuts."""
    by_rank = [{entry.path.name: entry for entry in Catalogue(folder).entries()} for folder in folders]
    every = {name: entry for found in by_rank for name, entry in found.items()}
    order = sorted(every, key=lambda name: (every[name].program, every[name].run, every[name].cursor.key()))
    return {name: [found.get(name) for found in by_rank] for name in order}
