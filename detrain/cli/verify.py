"""`detrain verify`: run a program whole, whole again, killed and resumed, and without probes, and compare the runs."""

from __future__ import annotations

import json
from typing import Annotated, Any

import click
import msgspec

from detrain.base.errors import Diverged
from detrain.base.options import Option
from detrain.cli.shared.options import AsJson, Given, program_command
from detrain.cli.shared.printing import console
from detrain.verify.verification import Verification, verify_job, verify_program
from detrain.verify.verified_run import described


@program_command
def command(
    *,
    kills: Annotated[int, Option("Kills of the third run.", "N", least=0)] = 2,
    every: Annotated[str, Option("Checkpoint each N epochs, batches or minutes.", "N|Nb|Nmin")] = "1",
    seed: Annotated[int, Option("Seed of the choice of cuts to kill at.", "S")] = 0,
    nproc: Annotated[int | None, Option("As a job of N processes: ranks are killed and compared.", "N", least=2)] = None,
    as_json: AsJson = False,
    given: Given,
) -> int:
    """Run PROGRAM four times, the third killed N times and resumed, and compare all bits.

    It is killed at one cut of each kind first: the start of an early epoch, inside the second pass over the data, an
    epoch of another length, a second training loop, a later epoch. Which of a kind, --seed draws.

    What is compared: the digest of every batch, the checkpoints (variables, random streams, Python values), all
    variables at the end, what is printed from the last resume on, and the files written in the current folder. A run
    without probes (`detrain run --bare`) must print and write the same. The runs work in copies of that folder; what
    the program writes elsewhere it writes four times. Exit status 0: exact; 78: not.

    \b
    Example:
      detrain verify --kills 3 train.py --epochs 5
    """
    if nproc is not None:
        by_rank = verify_job(
            given.program, given.arguments, world=nproc, is_module=given.is_module, kills=kills, every=every, seed=seed
        )
        is_exact = all(found.is_exact for found in by_rank)
        if as_json:
            click.echo(json.dumps({"exact": is_exact, "ranks": [_as_json(found) for found in by_rank]}, indent=2))
            return 0 if is_exact else Diverged.exit_code
        for rank, found in enumerate(by_rank):
            click.echo(f"rank {rank}")
            _print(found)
            click.echo(found.verdict)
        return 0 if is_exact else Diverged.exit_code
    found = verify_program(given.program, given.arguments, is_module=given.is_module, kills=kills, every=every, seed=seed)
    if as_json:
        click.echo(json.dumps(_as_json(found), indent=2))
    else:
        _print(found)
        click.echo(found.verdict)
    return 0 if found.is_exact else Diverged.exit_code


def _print(found: Verification) -> None:
    from rich.table import Table

    table = Table("run", "seconds", "killed at", "equal: batches", "checkpoints", "variables", box=None, pad_edge=False)
    for run in found.runs:
        cells = [run.name, f"{run.seconds:.1f}", ", ".join(run.kills)]
        if run.status:
            cells.append(f"ended with {run.status}")
        elif run is found.bare:
            cells.append("output differs" if run.differing_output else "output" if run.lines is not None else "")
        if run.comparison is not None:
            equal = run.equal_checkpoints(but_for=found.again.values)
            common, first = run.comparison.batches, run.comparison.first_batch
            cells += [
                f"{common} of {found.batches}" if first is None else f"until {first}",
                f"{equal} of {len(run.comparison.checkpoints)}",
                f"{run.equal_variables} of {run.variables}",
            ]
        table.add_row(*cells)
    console().print(table)
    for run in found.runs:
        compared = described(run.comparison) if run.comparison is not None else []
        if run.differing_output or (compared and not run.is_equal(but_for=found.again.values)):
            click.echo(f"{run.name}:")
            for line in [*compared, *run.differing[:8], *run.differing_output[:8]]:
                click.echo(f"  {line}")
    if found.again.values:
        click.echo(
            f"Python values that are others in each run, as those of a clock are: {', '.join(sorted(found.again.values)[:8])}"
        )
    for warning in sorted({warning for run in found.runs for warning in run.warnings}):
        click.echo(warning)


def _as_json(found: Verification) -> dict[str, Any]:
    return {
        "exact": found.is_exact,
        "verdict": found.verdict,
        "batches": found.batches,
        "runs": [
            {
                "name": run.name,
                "status": run.status,
                "seconds": round(run.seconds, 2),
                "kills": run.kills,
                "comparison": msgspec.to_builtins(run.comparison),
                "variables": run.variables,
                "differing_variables": run.differing,
                "lines_of_output": run.lines,
                "files": None if run.files is None else len(run.files),
                "differing_output": run.differing_output,
                "files_not_compared": run.unstable_files,
                "warnings": sorted(set(run.warnings)),
            }
            for run in found.runs
        ],
    }
