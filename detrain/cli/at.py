"""`detrain at`: any moment of a run that is over, with its names, all its tensors, or a debugger."""

from __future__ import annotations

import importlib.util
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import click
import msgspec

from detrain.base import messages
from detrain.base.cursor import written
from detrain.base.errors import UsageError
from detrain.base.options import Home, Option
from detrain.cli.shared.options import PROGRAM_SETTINGS, AsJson, FileThenProgram, Given, takes_options
from detrain.cli.shared.printing import console, print_json, table
from detrain.runtime.observers.moment_asked import Prompt

if TYPE_CHECKING:
    from detrain.moments.standing import Stand

_FLAGS: Final[dict[Prompt, str]] = {"pdb": "--pdb", "shell": "--shell", "debugpy": "--listen"}
_NOWHERE: Final = 1
"""Exit status if the expression looked for is true at no step."""


class _CursorThenProgram(FileThenProgram):
    """`step 41307` is one cursor, in two words; with --when there is none before PROGRAM."""

    without = "when"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Join the two words of such a cursor."""
        at = next((at for at, word in enumerate(args[:-1]) if word == "step" and args[at + 1].isdecimal()), None)
        return super().parse_args(ctx, args if at is None else [*args[:at], f"step {args[at + 1]}", *args[at + 2 :]])


class Opened(msgspec.Struct, kw_only=True):
    """The prompt or debugger that is opened at the step, if any."""

    has_debugger: Annotated[bool, Option("Open Python's debugger there (`back N` goes N steps back).", flag="--pdb")] = False
    has_shell: Annotated[bool, Option("Open a prompt with the names there: IPython's, if it is installed.", flag="--shell")] = False
    port: Annotated[
        int | None,
        Option(
            "Wait there at PORT of this machine for VS Code, or another debugger (debugpy).",
            "PORT",
            "--listen",
            least=0,
            most=65535,
        ),
    ] = None

    def prompt(self) -> Prompt | None:
        """Return the prompt to open. Raises UsageError if there are two, or if debugpy cannot listen."""
        wanted: dict[Prompt, bool] = {"pdb": self.has_debugger, "shell": self.has_shell, "debugpy": self.port is not None}
        asked = [each for each, is_wanted in wanted.items() if is_wanted]
        if len(asked) > 1:
            raise UsageError(" with ".join(_FLAGS[each] for each in asked), "give one of them")
        if self.port is not None:
            if importlib.util.find_spec("debugpy") is None:
                raise UsageError("--listen needs debugpy, which is not installed", "pip install debugpy, or take --pdb")
            try:
                socket.create_server(("127.0.0.1", self.port)).close()
            except OSError as error:
                why = f"--listen {self.port}: {error.strerror or error}"
                raise UsageError(why, "give another port; 0 takes a free one") from error
        return asked[0] if asked else None


@click.command(cls=_CursorThenProgram, context_settings=PROGRAM_SETTINGS, options_metavar="[OPTIONS] CURSOR")
@takes_options
def command(
    *,
    home: Home = "ckpt",
    expressions: Annotated[
        tuple[str, ...], Option("An expression of the names there (repeatable) [all names].", "EXPR", flag="--print")
    ] = (),
    until: Annotated[str | None, Option("Print at each step up to this one.", "CURSOR")] = None,
    when: Annotated[str | None, Option("In place of CURSOR: the first step at which this is true.", "EXPR")] = None,
    start: Annotated[str | None, Option("With --when: look from there on [the run's start].", "CURSOR", flag="--from")] = None,
    bisects: Annotated[
        bool, Option("With --when: it stays true from there on; look behind checkpoints first.", flag="--bisect")
    ] = False,
    within: Annotated[
        str, Option("Stand in the first call of this function at the step, not in the loop.", "NAME", flag="--in")
    ] = "",
    saved: Annotated[Path | None, Option("Write all tensors that training changes: an .npz.", flag="--save")] = None,
    opened: Opened,
    rank: Annotated[int | None, Option("Of a job: stand in this rank; the others run, too.", "N", least=0)] = None,
    as_json: AsJson = False,
    given: Given,
) -> int:
    """Stand at a step of a run that is over, and see what was there: at 3:17, before the body of epoch 3, batch 17.

    CURSOR is EPOCH:BATCH, PHASE/EPOCH:BATCH, `step N` of the whole run, all from 0, or `last` or `crash`, the last step
    on record. PROGRAM is run again from the checkpoint before, in a copy of the current folder, and each batch is
    compared with the run's. The run's own checkpoints and files stay as they are.

    \b
    Examples:
      detrain at 3:17 train.py
      detrain at --print 'loss' --print 'model.fc.weight.grad.norm()' 3:17 train.py
      detrain at --print 'loss' --until last 'step 90' train.py
      detrain at --when 'loss > 10' --print 'x.abs().max()' train.py
      detrain at --pdb crash train.py --epochs 5
    """
    from detrain.moments.past_run import PastRun
    from detrain.moments.standing import stand
    from detrain.reports.pictures import check_writable

    if when is None and start is not None:
        raise UsageError(f"--from {start} without --when", "give the step itself: detrain at CURSOR PROGRAM")
    if when is None and bisects:
        raise UsageError("--bisect without --when", "say what is looked for: --when 'not math.isfinite(loss)'")
    if when is None and not given.arguments:
        raise UsageError(f"a step, or a program, is missing beside {given.program!r}", "detrain at CURSOR PROGRAM [ARGUMENTS]")
    opens = opened.prompt()
    if until is not None and opens is not None and when is None:
        raise UsageError(f"--until with {_FLAGS[opens]}", f"go on in the debugger itself, or leave out {_FLAGS[opens]}")
    cursor = start if when is not None else given.program
    if when is None:
        given = msgspec.structs.replace(given, program=given.arguments[0], arguments=given.arguments[1:])
    check_writable(saved)
    run = PastRun.of(given.found(), given.arguments, Path(home), rank)
    at = run.address(cursor) if cursor is not None else next(iter(run.batches), (0, 0, 0))
    last = run.address(until) if until is not None else None
    if last is not None and last < at:
        raise UsageError(f"--until {until} is before {written(at)}", "give a later step")
    found = stand(
        run,
        at,
        until=last,
        when=when or "",
        bisects=bisects,
        within=within,
        expressions=expressions,
        saved=saved,
        opens=opens,
        port=opened.port or 0,
    )
    if opens is not None and found.found:
        return 0
    if as_json:
        is_one = until is None and when is None
        print_json(found.found[0].shown if is_one else [{"at": written(each.at), "shown": each.shown} for each in found.found])
    else:
        _show(found, has_steps=until is not None)
    if saved is not None and found.found:
        messages.say(f"the tensors are in {saved}")
    if not as_json:
        click.echo(_where(found) if found.found else f"at no step from {written(at)} to {until or 'the last'} is {when}")
    return 0 if found.found else _NOWHERE


def _where(found: Stand) -> str:
    steps = list(dict.fromkeys(written(each.at) for each in (found.found[0], found.found[-1])))
    since = f"the checkpoint {found.since}" if found.since else "the start"
    return f"{' to '.join(steps)}, as the run was there: gone to from {since}"


def _show(found: Stand, *, has_steps: bool) -> None:
    columns = [*(["step"] if has_steps else []), "name", "kind", "value"]
    rows = table(columns, left=columns)
    for each in found.found:
        for shown in each.shown:
            rows.add_row(*([written(each.at)] if has_steps else []), shown.name, shown.kind, shown.error or shown.value)
    if found.found:
        console().print(rows)
