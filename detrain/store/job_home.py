"""The folders in which a job's processes keep their checkpoints: `HOME/PROGRAM/rank-N/`, each a checkpoint home.

A cut counts for the job once each rank has committed its own part of it. All ranks give their parts of a cut the same
file name, so the names show which cuts are complete. No second list exists that could contradict them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from detrain.store.catalogue import Catalogue, Entry, parse_name
from detrain.store.node_folder import PREFIX, memory

JUST_IN_TIME: Final = "jit"
"""Folder of a job's just-in-time checkpoints, in the job's folder: it is there while ranks watch each other."""
EVERY: Final = "every"
"""File in that folder: the number of batches from one held state to the next, as it is now."""
_RANK: Final = re.compile(r"rank-(0|[1-9]\d*)", re.ASCII)


def rank_folder(home: Path, program: str, rank: int) -> Path:
    """Return the checkpoint home of one rank of a job."""
    return home / program / f"rank-{rank}"


def folders_beside(home: Path) -> list[str]:
    """Return the folders, by the starts of their paths, in which a rank with this checkpoint home keeps other files."""
    return [f"{home.parent / JUST_IN_TIME}/", f"{memory() / PREFIX}"] if _RANK.fullmatch(home.name) else []


def ranks_of(job: Path) -> list[Path]:
    """Return the folders of a job's ranks that have checkpoints, by rank; none if `job` is no job's folder."""
    if not job.is_dir():
        return []
    found = [(int(match[1]), path) for path in job.iterdir() if (match := _RANK.fullmatch(path.name)) and names_in(path)]
    return [path for _rank, path in sorted(found)]


def jobs_in(home: Path) -> list[Path]:
    """Return the folders of jobs in a checkpoint home, or the home alone if it is a job's folder itself."""
    if ranks_of(home):
        return [home]
    return sorted(path for path in home.iterdir() if ranks_of(path)) if home.is_dir() else []


def names_in(folder: Path) -> set[str]:
    """Return the names of the checkpoints in a folder."""
    return {path.name for path in folder.glob("*.h5") if parse_name(path) is not None}


def complete_names(folder: Path, world: int) -> Callable[[str], bool]:
    """Return a function that is True for the name of a checkpoint that all ranks have now; `folder` is one rank's."""
    found = [names_in(folder.with_name(f"rank-{rank}")) for rank in range(world)]
    return lambda name: all(name in names for names in found)


def parts(folders: Sequence[Path]) -> dict[str, list[Entry | None]]:
    """Return, by file name, for each cut that any rank has: each rank's part, or None; in the order of cuts."""
    by_rank = [{entry.path.name: entry for entry in Catalogue(folder).entries()} for folder in folders]
    every = {name: entry for found in by_rank for name, entry in found.items()}
    order = sorted(every, key=lambda name: (every[name].program, every[name].run, every[name].cursor.key()))
    return {name: [found.get(name) for found in by_rank] for name in order}
