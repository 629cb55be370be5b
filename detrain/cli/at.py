"""`detrain at`: any moment of a run that is over: what was there, all its tensors, a debugger."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click

from detrain.base import messages
from detrain.base.options import Home, Option
from detrain.cli.shared.options import PROGRAM_SETTINGS, AsJson, FileThenProgram, Given, takes_options
from detrain.cli.shared.printing import print_json, table
from detrain.faults.experiment import parse_cursor


@click.command(cls=FileThenProgram, context_settings=PROGRAM_SETTINGS)
@takes_options
def command(
    *,
    home: Home = "ckpt",
    expressions: Annotated[
        tuple[str, ...], Option("An expression of the names there (repeatable) [all names].", "EXPR", flag="--print")
    ] = (),
    saved: Annotated[Path | None, Option("Write all tensors that training changes: an .npz.", flag="--save")] = None,
    has_debugger: Annotated[bool, Option("Open Python's debugger there.", flag="--pdb")] = False,
    as_json: AsJson = False,
    cursor: str,
    given: Given,
) -> int:
    """Stand at a step of a run that is over, and see what was there: at 3:17, before the body of epoch 3, batch 17.

    PROGRAM is run again from the checkpoint before, in a copy of the current folder, and each batch is compared with
    the run's. The run's own checkpoints and files stay as they are.

    \b
    Examples:
      detrain at 3:17 train.py
      detrain at --print 'loss' --print 'model.fc.weight.grad.norm()' 3:17 train.py
      detrain at --pdb 3:17 train.py --epochs 5
    """
    from detrain.reports.pictures import check_writable
    from detrain.verify.standing import stand

    check_writable(saved)
    found = stand(
        given.found(),
        given.arguments,
        Path(home),
        parse_cursor(cursor),
        expressions=expressions,
        saved=saved,
        has_debugger=has_debugger,
    )
    if has_debugger:
        return 0
    if as_json:
        print_json(found.shown)
        return 0
    rows = table(("name", "kind", "value"), left=("name", "kind", "value"))
    for each in found.shown:
        rows.add_row(each.name, each.kind, each.error or each.value)
    from detrain.cli.shared.printing import console

    console().print(rows)
    if saved is not None:
        messages.say(f"the tensors are in {saved}")
    click.echo(f"{cursor}, as the run was there: gone to from {f'the checkpoint {found.since}' if found.since else 'the start'}")
    return 0
