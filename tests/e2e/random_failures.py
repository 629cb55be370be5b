"""Failures of ranks at random moments: the job goes on until it ends, and is compared with one without failures.

    python -m tests.e2e.random_failures --cases 100 --first 0 [--rows FILE]

prints a table: kinds of failures, how many there were, after how many of them the job ended with the same bits, how
many batches were done again. Each case has two failures. `--rows` keeps the rows if the cases are run in several parts.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from detrain.store.journal import read_batches
from tests.e2e.forkserver import Server
from tests.e2e.test_ranks import PROGRAM, assert_equal_states

SEVERAL: Final = PROGRAM.with_name("several.py")
PROGRAMS: Final = {
    **{mode: (PROGRAM, mode) for mode in ("default", "views", "static", "accumulated")},
    "several": (SEVERAL, "0"),
    "workers": (SEVERAL, "2"),
}
ALONE: Final = {
    **{name: getattr(signal, f"SIG{name}") for name in ("KILL", "SEGV", "ABRT", "STOP", "TERM")},
    "exception": signal.SIGUSR1,
    "hang": signal.SIGUSR2,
}
KINDS: Final = (*ALONE, "TERM to all", "two killed", "KILL to all")
FAILING: Final = """
import signal, time

def _raise(*_):
    raise ZeroDivisionError("a defect")

def _hang(*_):
    time.sleep(1000)

signal.signal(signal.SIGUSR1, _raise)
signal.signal(signal.SIGUSR2, _hang)
"""
"""Code added to the program: signals make it raise an error of its own, or hang."""
PER_EPOCH: Final = 6
BATCHES: Final = 3 * PER_EPOCH
STARTS: Final = 6


@dataclass(frozen=True)
class Failure:
    """One failure and its result."""

    case: int
    kind: str
    program: str
    world: int
    lost: int
    """The number of batches that a rank had begun and that were begun again, without the one under way."""
    is_exact: bool = False


class Wholes:
    """Jobs without failures: each rank's last line of output, and the home, by program and number of ranks."""

    def __init__(self, server: Server, folder: Path) -> None:
        self._server, self._folder = server, folder
        self._known: dict[tuple[str, int], tuple[list[str], Path]] = {}

    def of(self, name: str, world: int) -> tuple[list[str], Path]:
        """Return the lines and the home of a job; a job that is not known yet runs with detrain, and without."""
        if (name, world) not in self._known:
            folder = self._folder / f"{name}-{world}"
            folder.mkdir()
            program, argument = written(name, folder)
            command = ("run", "--no-jit", "--ckpt", folder / "home", program, argument)
            bare = self._server.job(program, argument, cwd=folder, ranks=[{}] * world, is_bare=True)
            whole = self._server.job(*command, cwd=folder, ranks=[{}] * world)
            lasts = [each.out.splitlines()[-1] for each in bare]
            assert [each.out.splitlines()[-1] for each in whole] == lasts, [each.err for each in whole]
            self._known[name, world] = lasts, folder / "home"
        return self._known[name, world]


def written(name: str, folder: Path) -> tuple[Path, str]:
    """Write a program with the code for failures into a folder; return its path and its argument."""
    source, argument = PROGRAMS[name]
    program = folder / source.name
    program.write_text(source.read_text().replace('"""\n\nimport', f'"""\n{FAILING}\nimport', 1))
    return program, argument


def befall(server: Server, wholes: Wholes, folder: Path, case: int) -> list[Failure]:
    """Run a job with two failures. Raises AssertionError if it does not end as one without failures."""
    draw = random.Random(case)
    name, world = draw.choice([*PROGRAMS]), draw.choice([3, 3, 4])
    lasts, whole_home = wholes.of(name, world)
    program, argument = written(name, folder)
    home = folder / "home"
    journals = [home / program.stem / f"rank-{rank}" / f"{program.stem}-r1.journal" for rank in range(world)]
    command = ("run", "--jit-every", "1", "--jit-hang", "3", "--ckpt", home, program, argument)
    turns = [draw.choice(KINDS), draw.choice(KINDS)]
    failed: list[Failure] = []
    pending: list[str] = []
    done = 0
    for turn in range(STARTS):
        kind = turns[turn] if turn < len(turns) else ""
        at = draw.randrange(2, BATCHES // 2) + (BATCHES // 2 - 2) * turn
        if kind == "hang":
            at = max(at, 9)  # the first stretch of a kind may take ten times as long
        at = max(at, done + 1)  # not at its start: journals hold the batches done before
        faults: dict[int, object] = {}
        ranks = draw.sample(range(world), {"two killed": 2}.get(kind, 1))
        for rank in range(world) if kind.endswith("all") else ranks if kind else ():
            number = ALONE["KILL"] if "kill" in kind else ALONE[kind.split()[0]]
            later = draw.random() * (0.1 if rank == ranks[-1] and kind == "two killed" else 0.03)
            faults[rank] = {"journal": str(journals[rank]), "batches": at, "later_s": later, "signal": number}
        results = server.job(*command, cwd=folder, ranks=[{}] * world, faults=faults)
        has_ended = all(result.status == 0 for result in results)
        went_on = _went_on(results[0].err, program.stem)
        if went_on is not None or has_ended:  # else it has died before it printed where it goes on
            failed += [Failure(case, each, name, world, max(0, done - 1 - (went_on or 0))) for each in pending]
            pending = []
        done = max((len(read_batches(path)) for path in journals if path.is_file()), default=0)
        if has_ended:
            break
        assert kind, [result.err for result in results]  # this start had no failure: a false alarm
        pending.append(kind)
    assert [result.out.splitlines()[-1:] for result in results] == [[last] for last in lasts], (
        turns,
        [each.err for each in results],
    )
    assert_equal_states(whole_home, home, world)
    return [Failure(**{**asdict(each), "is_exact": True}) for each in failed]


def _went_on(err: str, program: str) -> int | None:
    at = re.search(rf"resuming {program} at (\d+)(?::(\d+))?", err)
    return PER_EPOCH * int(at[1]) + int(at[2] or 0) if at else None


def table(rows: list[Failure]) -> str:
    """Return a table of the rows by kind."""
    lines = ["| a failure | how many | bit-identical at the end | done again, beside the batch under way |", "|---|---|---|---|"]
    for kind in KINDS:
        mine = [row for row in rows if row.kind == kind]
        lost = sorted(row.lost for row in mine)
        spread = "none" if not any(lost) else f"none of {lost.count(0)}; else {lost[lost.count(0)]} to {lost[-1]} batches"
        lines.append(f"| {kind} | {len(mine)} | {sum(row.is_exact for row in mine)} | {spread} |")
    lines.append(f"| all | {len(rows)} | {sum(row.is_exact for row in rows)} | |")
    return "\n".join(lines)


def main() -> None:
    """Run cases, and print the table of these and of the rows from earlier parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--rows", type=Path)
    options = parser.parse_args()
    rows = [Failure(**json.loads(line)) for line in options.rows.read_text().splitlines()] if _is_there(options.rows) else []
    server, others = Server("torch", OMP_NUM_THREADS="1"), list[int]()
    with tempfile.TemporaryDirectory() as kept:
        wholes = Wholes(server, Path(kept))
        for case in range(options.first, options.first + options.cases):
            with tempfile.TemporaryDirectory() as name:
                try:
                    found = befall(server, wholes, Path(name), case)
                except AssertionError as error:
                    others.append(case)
                    print(f"case {case} has not ended so: {error}", file=sys.stderr, flush=True)
                    continue
            rows += found
            if options.rows is not None:
                with options.rows.open("a") as file:
                    file.writelines(json.dumps(asdict(row)) + "\n" for row in found)
    server.close()
    print(table(rows))
    if others:
        sys.exit(f"cases that have not ended with the same bits: {others}")


def _is_there(path: Path | None) -> bool:
    return path is not None and path.is_file()


if __name__ == "__main__":
    main()
