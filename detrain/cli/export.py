"""`detrain ckpt export`: the tensors of a checkpoint for other programs."""

from __future__ import annotations

from pathlib import Path

import click

from detrain.export.files import FORMATS, export


@click.command("export")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--to", "form", type=click.Choice(list(FORMATS)), required=True, help="The format to write.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="The file to write [FILE, with another ending]."
)
@click.option("--match", default="", metavar="TEXT", help="Only tensors (for keras: models) whose name has this in it.")
def command(file: Path, form: str, output: Path | None, match: str) -> int:
    """Write the tensors of checkpoint FILE (weights, optimizer slots, metrics) to another format, each under its name.

    The values keep their bits. `.npz` knows no bfloat16: such a tensor goes in as its bits (uint16) under
    NAME:bfloat16.

    `keras` writes a file NAME.weights.h5 for `load_weights` of the model that the program makes; of several models one
    for each, NAME-MODEL.weights.h5 (`--match MODEL` takes one).

    \b
    Example:
      detrain ckpt export --to safetensors ckpt/train-r1-p0-e00003-e000000.h5
      detrain ckpt export --to keras -o digits.weights.h5 ckpt/train-r1-p0-e00003-e000000.h5
    """
    for each in export(file, form, output, match):
        if each.model:
            click.echo(f"{each.model}: {each.tensors} variables, to {each.path}")
        else:
            click.echo(f"{each.tensors} tensors, {each.size_bytes} bytes, to {each.path}")
    return 0
