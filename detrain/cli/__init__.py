"""The commands: one file each. Nothing imports this package."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from detrain.errors import DetrainError, StoreError, UsageError


class _Lazy(click.Group):
    """Loads a command's module when the command is asked for, so that `detrain run` starts fast."""

    _COMMANDS = (
        "run",
        "verify",
        "diff",
        "doctor",
        "sites",
        "inject",
        "replay",
        "random",
        "trace",
        "show",
        "instrument",
        "info",
        "ckpt",
    )

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return list(self._COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in self._COMMANDS:
            return None
        from importlib import import_module

        command: click.Command = import_module(f"detrain.cli.{cmd_name}").command
        return command


@click.command(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "DETRAIN"})
@click.version_option(package_name="detrain")
def detrain() -> None:
    """Make any training program replayable to the bit, without editing it.

    \b
    detrain run train.py        train, with checkpoints; run it again to resume
    detrain verify train.py     kill it, resume it, and compare bit for bit
    detrain diff ckpt_a ckpt_b  where two runs part
    detrain trace train.py      find its loops by watching it run
    detrain info train.py       what detrain sees in a program
    detrain ckpt ls             the checkpoints that there are
    detrain sites train.py      where a fault can be put into its step
    detrain inject … train.py   put one there, and see what comes of it
    detrain random … train.py   many, drawn by chance
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    try:
        result = detrain.main(args=None if argv is None else list(argv), prog_name="detrain", standalone_mode=False)
    except click.exceptions.Exit as exit_request:
        return exit_request.exit_code
    except click.exceptions.NoArgsIsHelpError as no_command:
        print(f"{no_command.format_message()}\n\ndetrain: error: no command\n  give one of these", file=sys.stderr, flush=True)
        return UsageError.exit_code
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "detrain"
        print(f"detrain: error: {error.format_message()}\n  `{path} --help` shows what there is", file=sys.stderr, flush=True)
        return UsageError.exit_code
    except click.ClickException as error:
        print(f"detrain: error: {error.format_message()}", file=sys.stderr, flush=True)
        return error.exit_code
    except click.Abort:
        return 130
    except DetrainError as error:
        print(f"detrain: error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except OSError as error:  # of a file that may not be looked at, or of the output; a command that knows better says so itself
        where = f": {error.filename!r}" if error.filename is not None else ""
        print(f"detrain: error: {error.strerror or error}{where}", file=sys.stderr, flush=True)
        return StoreError.exit_code
    return result if isinstance(result, int) else 0
