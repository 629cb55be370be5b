"""Options and arguments that commands share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from detrain.base.errors import UsageError

if TYPE_CHECKING:
    from detrain.faults.outcome_classes import Thresholds

PROGRAM_SETTINGS: Final = {"ignore_unknown_options": False, "allow_interspersed_args": False}
"""Options after PROGRAM belong to the program."""


class Seconds(click.FloatRange):
    """A time limit: a number of seconds from 1 on."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; a usage error for what is none, or none that a clock reaches."""
        seconds: float = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        return seconds


SECONDS: Final = Seconds(min=1)


class FileThenProgram(click.Command):
    """A command with a file before PROGRAM, if there is no --model: options may stand behind the file, too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move the file behind such options."""
        options, rest = self._parsed(ctx, args)
        if rest and options.get("model") is None:
            behind = self._parsed(ctx, rest[1:])[1]
            between = rest[1 : len(rest) - len(behind)]
            args = [*args[: len(args) - len(rest)], *between, rest[0], *behind]
        return super().parse_args(ctx, args)

    def _parsed(self, ctx: click.Context, args: list[str]) -> tuple[Mapping[str, object], list[str]]:
        """Return the options at the beginning, and what stands behind them."""
        options = self.make_parser(ctx).parse_args(list(args))[0]
        values = [options.get(str(each.name)) for each in self.params if isinstance(each, click.Argument)]
        rest = [each for value in values for each in (value if isinstance(value, list | tuple) else [value])]
        return options, [each for each in rest if isinstance(each, str)]


def program_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add PROGRAM and its arguments to a command."""
    function = click.argument("arguments", nargs=-1, type=click.UNPROCESSED)(function)
    return click.argument("program", metavar="PROGRAM")(function)


def home_option(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option `--ckpt`."""
    return click.option(
        "--ckpt",
        "home",
        envvar="CKPT_DIR",
        metavar="DIR",
        default="ckpt",
        show_default=True,
        callback=_named,
        help=f"{what} [$CKPT_DIR].",
    )


def _named(ctx: click.Context, param: click.Parameter, home: str) -> str:
    """Refuse a home without a name: it would be the current folder, but rather a variable of the shell was not set."""
    if not home:
        raise UsageError("--ckpt '' names no folder", "give one with --ckpt DIR or $CKPT_DIR (the current one is '.')")
    return home


def threshold_option() -> Callable[[Any], Any]:
    """Return the option that sets numbers of the outcomes' definitions."""
    return click.option(
        "--threshold",
        "thresholds",
        multiple=True,
        metavar="NAME=NUMBER",
        callback=_thresholds,
        help="A number of the outcomes' definitions (docs/reference/faults.md); repeatable.",
    )


def _thresholds(_ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> Thresholds:
    from detrain.campaign.outcomes import read_thresholds

    return read_thresholds(texts)
