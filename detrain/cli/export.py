"""`detrain ckpt export`: the tensors of a checkpoint for other programs, as `.npz` or `.safetensors`."""

from __future__ import annotations

import os
from pathlib import Path

import click
import numpy as np

from detrain.errors import StoreError, UsageError
from detrain.runtime.dtypes import dtype_name, is_extension
from detrain.store import Meta, read

_FORMATS = {"npz": ".npz", "safetensors": ".safetensors"}


@click.command("export")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--to", "form", type=click.Choice(list(_FORMATS)), required=True, help="The format to write.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="The file to write [FILE, with another ending]."
)
@click.option("--match", default="", metavar="TEXT", help="Only tensors whose name has this in it.")
def command(file: Path, form: str, output: Path | None, match: str) -> int:
    """Write the tensors of checkpoint FILE (weights, optimizer slots, metrics) to another format, each under its name.

    The values keep their bits. `.npz` knows no bfloat16: such a tensor goes in as its bits (uint16) under NAME:bfloat16.

    \b
    Example:
      detrain ckpt export --to safetensors ckpt/train-r1-p0-e00003-e000000.h5
    """
    snapshot = read(file)
    tensors = {name: np.ascontiguousarray(array) for name, array in snapshot.tensors.items() if match in name}
    if not tensors:
        raise UsageError(f"no tensor of {str(file)!r} has {match!r} in its name", "`detrain ckpt show` lists them")
    target = output or file.with_suffix(_FORMATS[form])
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        if form == "npz":
            with temporary.open("wb") as sink:
                np.savez(sink, **dict(_for_numpy(name, array) for name, array in tensors.items()))  # type: ignore[arg-type]
        else:
            _write_safetensors(temporary, tensors, snapshot.meta)
        os.replace(temporary, target)
    except OSError as error:
        raise StoreError(f"cannot write {str(target)!r}: {error.strerror or error}", "give another file with --output") from error
    finally:
        temporary.unlink(missing_ok=True)
    click.echo(f"{len(tensors)} tensors, {sum(array.nbytes for array in tensors.values())} bytes, to {target}")
    return 0


def _for_numpy(name: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    if not is_extension(array.dtype):
        return name, array
    return f"{name}:{dtype_name(array.dtype)}", array.reshape(-1).view(f"u{array.itemsize}").reshape(array.shape)


def _write_safetensors(path: Path, tensors: dict[str, np.ndarray], meta: Meta) -> None:
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import save_file
    except ImportError as error:
        raise UsageError("safetensors is not installed", "pip install 'detrain[export]', or --to npz") from error
    about = {"program": meta.program, "phase": str(meta.phase), "epoch": str(meta.epoch), "batch": str(meta.batch), "cut": meta.cut}
    try:
        save_file(tensors, str(path), metadata=about)
    except (SafetensorError, KeyError) as error:
        raise UsageError(f"safetensors cannot hold this checkpoint: {error}", "give --match, or --to npz") from error
