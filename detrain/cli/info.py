"""`detrain info`: the loops that detrain finds in a program, and the state that it will and will not capture."""

from __future__ import annotations

import json
from pathlib import Path

import click
import msgspec

from detrain.base.errors import StoreError
from detrain.base.structure import Loop
from detrain.cli.shared.options import AsJson, Given, InfoHome, takes_options
from detrain.cli.shared.printing import show_fit
from detrain.launcher.program import Program
from detrain.launcher.structure import find_structure
from detrain.moments.past_run import PastRun, costs, reach
from detrain.reports.foreseen_state import foreseen_state
from detrain.store.job_home import ranks_of

_TITLES = {
    "captured": "captured",
    "loaders": "loaders on resume",
    "outside": "taken from outside (clock, randomness of the system)",
}


@click.command(context_settings={"ignore_unknown_options": True})
@takes_options
def command(*, as_json: AsJson = False, home: InfoHome = "ckpt", given: Given) -> int:
    """Show the loops found in PROGRAM, where that is known from, and what a checkpoint will hold; of a run that is
    there, how far its steps are from checkpoints.

    PROGRAM is read, not run: its arguments may stand there, as for the other commands, and say nothing.

    \b
    Example:
      detrain info train.py
    """
    target = given.found()
    structure = find_structure(target, Path(home))
    state = foreseen_state(target, structure, Path(home))
    run = _newest_run(target, Path(home))
    if as_json:
        found = {"structure": msgspec.to_builtins(structure), "state": state}
        known = None if run is None else {"run": run.number, "reach": reach(run), "costs": costs(run)}
        click.echo(json.dumps(found | {"at": msgspec.to_builtins(known)}, indent=2))
        target.edits(structure, "detrain")
        return 0
    click.echo(f"structure of {given.program}, from {structure.source}")
    if not structure.nests and not structure.fits:
        has_probes = bool(target.probes())
        click.echo("  probes are in the program already" if has_probes else "  no training loop in the source: a run will show it")
    for number, fit in enumerate(structure.fits):
        show_fit(fit, number, len(structure.fits))
    if structure.fits and structure.nests:
        click.echo("\nand has a loop of its own (a run shows whether it comes there)")
    for nest in structure.nests:
        epoch = nest.epoch_loop
        click.echo(f"  epoch loop   {_line(epoch)}" if epoch else "  epoch loop   none: the batch loop counts as one epoch")
        click.echo(f"  batch loop   {_line(nest.batch_loop)}")
        load = f"line {nest.load_line}: {nest.loader}" if nest.load_line else f"the loop's header: {nest.loader}"
        load = load if nest.loader else "none that the source shows: the header only counts"
        click.echo(f"  load         {load}")
        update, evidence = f"line {nest.update_line}", nest.evidence[0] if nest.evidence else ""
        click.echo(
            f"  update       {evidence if evidence.startswith(f'{update}:') else f'{update} ({evidence})' if evidence else update}"
        )
    for title in ("captured", "loaders", "outside"):
        click.echo(_TITLES[title])
        for line in state[title] or ["nothing that static analysis can see"]:
            click.echo(f"  {line}")
    click.echo("not captured")
    for line in state["not_captured"] or ["nothing that static analysis can see; the run names what it meets"]:
        click.echo(f"  {line}")
    if run is not None:
        _show_reach(run)
    target.edits(structure, "detrain")  # a program that a run would refuse is refused here, too
    return 0


def _newest_run(program: Program, home: Path) -> PastRun | None:
    """Return the newest run of a program, for a job that of its first rank; None if there is none."""
    try:
        return PastRun.of(program, (), home, 0 if ranks_of(home / program.name) else None)
    except StoreError:
        return None


def _show_reach(run: PastRun) -> None:
    """Print the cost of `detrain at` for the run's steps."""
    cost = costs(run)
    took = f"; a step took {cost.step_s:.3g} s, the start {cost.start_s:.3g} s" if cost.step_s and cost.start_s is not None else ""
    click.echo(f"detrain at, of the {len(run.batches)} steps of run {run.number}{took}")
    for each in reach(run):
        is_one = each.first == each.last
        epochs = f"epoch {each.first}" if is_one else f"epochs {each.first} to {each.last}"
        own = f"{'its' if is_one else 'their'} own checkpoints"
        since = own if each.since is None else f"the checkpoint {each.since}" if each.since else "the start"
        seconds = f", {cost.start_s + each.steps * cost.step_s:.3g} s" if took and cost.step_s and cost.start_s is not None else ""
        click.echo(f"  {epochs}: from {since}, at most {each.steps} steps{seconds}")


def _line(loop: Loop) -> str:
    text = Path(loop.file).read_text("utf-8", "replace").splitlines()[loop.line - 1].strip()
    where = f" in {loop.function}()" if loop.function else ""
    return f"{Path(loop.file).name}:{loop.line}{where}: {text}"
