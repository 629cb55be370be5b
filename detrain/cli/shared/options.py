"""Makes a command's options from the annotations of its parameters; and options that commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, get_args, get_origin, get_type_hints

import click
import msgspec

from detrain.base.options import Option, home_option
from detrain.launcher.program import Program

PROGRAM_SETTINGS: Final = {"ignore_unknown_options": False, "allow_interspersed_args": False}
"""Settings by which options after PROGRAM belong to the program."""


class FileThenProgram(click.Command):
    """A command with a file before PROGRAM, unless --model is given: options may also stand behind the file."""

    without: ClassVar[str] = "model"
    """The option that makes PROGRAM come first."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move the file behind the options that follow it. A file of Python is PROGRAM: there is none before it."""
        options, rest = self._parsed(ctx, args)
        if rest and options.get(self.without) is None and not rest[0].endswith(".py"):
            behind = self._parsed(ctx, rest[1:])[1]
            between = rest[1 : len(rest) - len(behind)]
            args = [*args[: len(args) - len(rest)], *between, rest[0], *behind]
        return super().parse_args(ctx, args)

    def _parsed(self, ctx: click.Context, args: list[str]) -> tuple[Mapping[str, object], list[str]]:
        """Return the options at the beginning, and the words behind them."""
        options = self.make_parser(ctx).parse_args(list(args))[0]
        values = [options.get(str(each.name)) for each in self.params if isinstance(each, click.Argument)]
        rest = [each for value in values for each in (value if isinstance(value, list | tuple) else [value])]
        return options, [each for each in rest if isinstance(each, str)]


AsJson = Annotated[bool, Option("Print JSON.", flag="--json")]
Address = Annotated[str | None, Option("Of a Ray cluster [one is started here].")]
IsModule = Annotated[bool, Option("PROGRAM is a module, as with python -m.", flag="-m", group="Options")]
InfoHome = Annotated[str, home_option("Where to look for an inst.info")]


class Given(msgspec.Struct, kw_only=True):
    """A program with its arguments, as a user gives them to a command."""

    is_module: IsModule = False
    program: str
    arguments: tuple[str, ...]

    def found(self) -> Program:
        """Return the program. Raises ProgramNotFound."""
        return Program.find(self.program, is_module=self.is_module)


def takes_options(function: Callable[..., int]) -> Callable[..., int]:
    """Turn parameters with an `Option` into options, and others into arguments. A struct stands for its fields."""
    hints = get_type_hints(function, include_extras=True)
    structs = {name: kind for name, kind in hints.items() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)}

    @functools.wraps(function)
    def called(**values: Any) -> int:
        for name, struct in structs.items():
            values[name] = struct(**{field: values.pop(field) for field in struct.__struct_fields__})
        return function(**values)

    taking: Callable[..., int] = called
    for name, parameter in reversed(list(signature(function).parameters.items())):
        fields = msgspec.structs.fields(structs[name]) if name in structs else ()
        declared = [(field.name, field.type, field.default) for field in fields] or [(name, hints[name], parameter.default)]
        for each in reversed(declared):
            taking = _parameter(*each)(taking)
    return taking


def program_command(function: Callable[..., int]) -> click.Command:
    """Make a command of a function. Options behind PROGRAM are the program's own."""
    return click.command(cls=_GroupedHelp, context_settings=PROGRAM_SETTINGS)(takes_options(function))


def _parameter(name: str, kind: Any, default: object) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Return the decorator that adds an option, or an argument, of a type."""
    if get_origin(kind) is not Annotated:
        many: dict[str, Any] = {"nargs": -1, "type": click.UNPROCESSED}
        return click.argument(name, **many if get_origin(kind) is tuple else {"type": _TYPES.get(kind, kind)})
    kind, option = get_args(kind)
    inner = kind if get_origin(kind) is Literal else next(iter(get_args(kind)), kind)  # X of `X | None` and `tuple[X, ...]`
    flag = option.flag or f"--{name.replace('_', '-')}"
    is_required = default in (Parameter.empty, msgspec.NODEFAULT)
    said: dict[str, Any]
    said = {} if is_required else {"default": str(default) if option.type and default is not None else default}
    return click.option(
        flag if kind != bool | None else f"{flag}/--no-{flag[2:]}",
        name,
        is_flag=inner is bool,
        multiple=get_origin(kind) is tuple,
        type=option.type or _click_type(inner, option),
        required=is_required,
        **said,
        show_default=option.shows_default and default != "",
        metavar=option.metavar,
        envvar=option.variable,
        help=option.help,
        cls=_GroupedOption,
        group=option.group,
    )


class _GroupedOption(click.Option):
    """An option that may begin a part of the help."""

    def __init__(self, *args: Any, group: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group


class _GroupedHelp(click.Command):
    """A command whose help shows options in parts: an option with a group begins one."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options into the help."""
        parts: dict[str, list[tuple[str, str]]] = {}
        heading = "Options"
        for param in self.get_params(ctx):
            if not isinstance(param, click.Option):
                continue
            heading = getattr(param, "group", "Options") or heading
            if (record := param.get_help_record(ctx)) is not None:
                parts.setdefault(heading, []).append(record)
        for heading, records in parts.items():
            with formatter.section(heading):
                formatter.write_dl(records)


_TYPES: Final = {Path: click.Path(path_type=Path)}
_RANGES: Final[dict[type, Any]] = {int: click.IntRange, float: click.FloatRange}


def _click_type(kind: Any, option: Option) -> Any:
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind))
    if option.least is not None:
        return _RANGES[kind](option.least, option.most)
    return _TYPES.get(kind, kind)
