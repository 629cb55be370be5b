"""The commands: one file each. Only detrain's entry points import this package."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

import click

from detrain.base import messages
from detrain.base.errors import DetrainError, StoreError, UsageError

SECTIONS: Final = {
    "Train": {
        "run": "Train, with checkpoints; run again, it resumes to the bit.",
        "launch": "Train in several processes, as torchrun starts them.",
        "status": "Show how a run stands, and what a failure now would cost.",
        "timeline": "Show what happened to a run.",
        "ckpt": "List, show, verify, compare and export checkpoints.",
    },
    "Look and prove": {
        "info": "Show what detrain sees in a program, before it is run.",
        "doctor": "Look at the installation, and at what repeats to the bit.",
        "verify": "Kill a program, resume it, and compare bit for bit.",
        "diff": "Show where two runs part.",
        "at": "Stand at any step of a run that is over.",
        "hindsight": "Print what a run would have said with statements added since.",
        "explain": "Say what an error or a warning means, and what to do.",
    },
    "Hardware faults": {
        "sites": "List where a fault can be put into a program's step.",
        "inject": "Put one fault in, and see what comes of it.",
        "replay": "Do a recorded fault again, bit for bit.",
        "random": "Put many faults in, drawn by chance.",
        "profile": "Count what a program's steps compute, by group of instruction.",
        "campaign": "Put very many faults in, on all cores or a cluster.",
    },
    "Loops and probes": {
        "trace": "Find a program's loops by watching it run.",
        "show": "Show the loops that an inst.info names.",
        "instrument": "Print the probes as a diff, or write them.",
    },
}
"""The commands as the help lists them, with their texts there."""
COMMANDS: Final = {name: text for section in SECTIONS.values() for name, text in section.items()}
_IS_POSIX: Final = os.name == "posix"
_OF_FAULTS: Final = frozenset({"sites", "inject", "replay", "random", "profile"})
"""Commands whose files are in `faults/`."""


class _Lazy(click.Group):
    """Loads a command's module when the command is called: to list the commands, none is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in COMMANDS:
            return None
        from importlib import import_module

        room = "detrain.cli.faults" if cmd_name in _OF_FAULTS else "detrain.cli"
        gc.disable()  # imports leave no garbage; to look for it takes a tenth of the time
        try:
            command: click.Command = import_module(f"{room}.{cmd_name}").command
        finally:
            gc.enable()
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of the commands, their texts one below another in all sections."""
        width = max(map(len, COMMANDS))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is called. Raises UsageError for an unknown one, with a command that may be meant."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            raise UsageError(f"there is no command {name!r}", _meant(name))
        return super().resolve_command(ctx, args)


def _meant(name: str) -> str:
    """Return advice for the user who called an unknown command."""
    if name in ("ls", "list"):
        return "`detrain ckpt ls` lists checkpoints"
    if name.endswith(".py"):
        return f"`detrain run {name}` trains, and resumes"
    meant = "".join(f"is it `detrain {close}`? " for close in get_close_matches(name, COMMANDS, 1))
    return f"{meant}`detrain --help` shows what there is"


FIRST: Final = """What people do with detrain:

  detrain run train.py         train; run again after a kill, it resumes exactly
  detrain info train.py        what detrain sees in a program, before it is run
  detrain verify train.py      prove it: kill, resume, compare all bits
  detrain diff ckpt_a ckpt_b   where two runs part
  detrain doctor               is all there, and does this machine repeat?

`detrain --help` lists all commands."""


@click.command(
    cls=_Lazy,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "DETRAIN"},
)
@click.version_option(package_name="detrain")
@click.pass_context
def detrain(ctx: click.Context) -> None:
    """Make any training program replayable to the bit, without editing it.

    \b
    Examples:
      detrain run train.py
      detrain verify train.py
      detrain ckpt ls
    """
    if ctx.invoked_subcommand is None:
        click.echo(FIRST)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    messages.fill_standard_files()
    if not _IS_POSIX:
        return _fail(
            UsageError("detrain runs on Linux, and most of it on macOS; this is neither", "run it in WSL 2, or in a container")
        )
    try:
        result = detrain.main(args=None if argv is None else list(argv), prog_name="detrain", standalone_mode=False)
    except click.exceptions.Exit as exit_request:
        return exit_request.exit_code
    except click.exceptions.NoArgsIsHelpError as no_command:
        click.echo(f"{no_command.format_message()}\n\ndetrain: error: no command\n  give one of these", err=True)
        return UsageError.exit_code
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "detrain"
        return _fail(UsageError(error.format_message(), f"`{path} --help` shows what there is"))
    except click.ClickException as error:
        click.echo(f"detrain: error: {error.format_message()}", err=True)
        return error.exit_code
    except click.Abort:
        return 130
    except DetrainError as error:
        return _fail(error)
    except OSError as error:  # a file that may not be read, or the output; commands report all other cases themselves
        where = f": {error.filename!r}" if error.filename is not None else ""
        return _fail(StoreError(f"{error.strerror or error}{where}"))
    except Exception as error:  # an unexpected error gets a report
        from detrain.python.process.defect_report import defect

        return _fail(defect(error))
    return result if isinstance(result, int) else 0


def _fail(error: DetrainError) -> int:
    click.echo(error.printed(), err=True)
    return error.exit_code
