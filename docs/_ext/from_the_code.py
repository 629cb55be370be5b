"""Pages that are made from the code: the commands, from click's own tree. And links that lead out of docs/."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import click
from sphinx.application import Sphinx

COMMANDS = "reference/commands"
"""The page at whose end the commands are written."""


def described(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    """Yield the Markdown of a command and of its sub-commands."""
    pieces = [piece for piece in command.collect_usage_pieces(context) if piece]
    yield f"{'#' * level} {context.command_path}\n"
    yield f"```text\n{context.command_path} {' '.join(pieces)}\n```\n"
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b"):
            yield "```console\n" + "\n".join(f"$ {line.strip()}" for line in paragraph.splitlines()[2:]) + "\n```\n"
        else:
            yield " ".join(paragraph.split()) + "\n"
    named = (each.get_help_record(context) for each in command.params if isinstance(each, click.Option))
    options = [record for record in named if record is not None]
    if options:
        yield "| option | what it does |\n|---|---|"
        yield from (f"| `{name.replace('|', chr(92) + '|')}` | {_cell(text)} |" for name, text in options)
        yield ""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from described(child, click.Context(child, info_name=name, parent=context), level + 1)


def _cell(text: str) -> str:
    for special in "|*<":
        text = text.replace(special, "\\" + special)
    return " ".join(text.split())


def commands() -> str:
    """Return the Markdown of all commands."""
    from detrain.cli import detrain

    context = click.Context(detrain, info_name="detrain")
    parts: list[str] = []
    for name in detrain.list_commands(context):
        child = detrain.get_command(context, name)
        assert child is not None
        parts += described(child, click.Context(child, info_name=name, parent=context), 2)
    return "\n".join(parts)


def _read(_app: Sphinx, page: str, source: list[str]) -> None:
    if page == COMMANDS:
        source[0] += "\n" + commands()
    up = "../" * page.count("/")
    source[0] = source[0].replace(f"]({up}../ARCHITECTURE.md", f"]({up}explanation/architecture.md")


def setup(app: Sphinx) -> dict[str, Any]:
    """Have each page looked at as it is read."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
