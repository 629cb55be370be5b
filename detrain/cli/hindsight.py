"""`detrain hindsight`: the output that a run would have had with statements that were added to the program since."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import click

from detrain.base import messages
from detrain.base.options import Home, Option
from detrain.cli.shared.options import Address, Given, program_command


@program_command
def command(
    *,
    home: Home = "ckpt",
    epochs: Annotated[str, Option("Epochs A to B-1, from 0; 2: or :5, [PHASE/]EPOCH.", "A:B", shows_default=False)] = ":",
    no_bodies: Annotated[
        bool, Option("Only what is said outside of the bodies of batches, which are not run (after `run --after-batches`).")
    ] = False,
    jobs: Annotated[int | None, Option("Processes at a time [one a core; ray: one a CPU].", "N", least=1)] = None,
    engine: Annotated[
        Literal["auto", "ray", "slurm", "submitit-local"],
        Option("Where they run: here, or on machines that see $TMPDIR, too."),
    ] = "auto",
    address: Address = None,
    given: Given,
) -> int:
    """Print what a run that is over would have printed with statements that were added to PROGRAM since: prints, logger
    calls, assertions, hooks.

    It is proved first that statements were only added. Then the epochs asked for are run from the run's checkpoints, N
    at a time, each batch is compared with the run's, and so are tensors and random streams at each checkpoint. Stdout
    and stderr are those of a program that had the statements from its start. Where one changes the training, that is
    said, with the step, and nothing from there on is printed. The run's own checkpoints and files stay as they are.

    \b
    Examples:
      detrain hindsight train.py
      detrain hindsight --epochs 3:5 --jobs 2 train.py --lr 0.1
      detrain hindsight --no-bodies train.py
    """
    from detrain.campaign.engine.choice import made
    from detrain.moments.hindsight import Span, hindsight
    from detrain.moments.past_run import PastRun

    run = PastRun.of(given.found(), given.arguments, Path(home))
    workers = partial(made, engine, jobs, address)
    found = hindsight(run, Span.parse(epochs, run), workers, runs_bodies=not no_bodies)
    click.echo(found.out, nl=False)
    click.echo(found.err, nl=False, err=True)
    if found.error is not None:
        raise found.error
    if found.status:
        messages.say(f"the program ended with status {found.status}, with what was added; up to there it is this run")
        return found.status
    if found.not_compared:
        messages.warn(f"not compared with the run, as no state could be taken there: {', '.join(found.not_compared)}")
    batches = f"{found.batches} batches and " if found.batches else ""
    messages.say(f"as this run was: {batches}{found.checkpoints} checkpoints are the same")
    return 0
