"""`detrain doctor`: which computations this machine repeats bit for bit, run to run and process to process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import click

from detrain.base import messages
from detrain.base.errors import DetrainError
from detrain.cli.printing import console

if TYPE_CHECKING:
    from rich.text import Text

_PROCESSES = 2


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--repeats", type=click.IntRange(2), default=8, show_default=True, metavar="N", help="Repetitions in each process.")
def command(as_json: bool, repeats: int) -> int:
    """Measure on this machine's devices which computations of TensorFlow give the same bits again.

    Each is repeated in two processes, once as TensorFlow is and once with deterministic ops, as under `detrain run`. Exit status 1
    if something differs although ops are deterministic.

    \b
    Example:
      detrain doctor
    """
    rows = []
    stock = [_measure(is_deterministic=False, repeats=repeats) for _ in range(_PROCESSES)]
    settled = [_measure(is_deterministic=True, repeats=repeats) for _ in range(_PROCESSES)]
    for device, cases in settled[0]["cases"].items():
        for name in cases:
            rows.append(
                {
                    "device": device,
                    "computation": name,
                    "stock": _said([run["cases"][device][name] for run in stock]),
                    "deterministic": _said([run["cases"][device][name] for run in settled]),
                }
            )
    if as_json:
        click.echo(json.dumps({"tensorflow": settled[0]["version"], "repeats": repeats, "rows": rows}, indent=2))
    else:
        _print(rows, repeats)
    return 1 if any("no" in row["deterministic"].values() for row in rows) else 0


def _measure(*, is_deterministic: bool, repeats: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "detrain.adapters.tensorflow.doctor", str(int(is_deterministic)), str(repeats)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONHASHSEED": "0"}
    with messages.working("doctor: measuring", "with deterministic ops" if is_deterministic else "as TensorFlow is"):
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        tail = done.stderr.strip().splitlines()[-1:] or ["no output"]
        raise DetrainError(f"TensorFlow cannot be measured: {tail[0]}", "install it: pip install 'detrain[tensorflow]'")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _said(processes: list[list[str]]) -> dict[str, str]:
    """Return whether repetitions agree within each process, and whether the processes agree."""
    refused = next((digests[0] for digests in processes if digests[0].startswith("refused")), None)
    if refused is not None:
        return {"runs": refused, "processes": refused}
    within = all(len(set(digests)) == 1 for digests in processes)
    between = len({tuple(digests) for digests in processes}) == 1
    return {"runs": "yes" if within else "no", "processes": "yes" if between else "no"}


def _print(rows: list[dict[str, Any]], repeats: int) -> None:
    from rich.table import Table

    table = Table("device", "computation", "as TensorFlow is", "deterministic ops", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row["device"], row["computation"], *[_in_words(row[setting]) for setting in ("stock", "deterministic")])
    printer = console()
    printer.print(table)
    printer.print(
        f"same bits: in {repeats} repetitions, in each of {_PROCESSES} processes; deterministic ops are what detrain run sets"
    )


def _in_words(said: dict[str, str]) -> Text:
    from rich.text import Text

    if said["runs"] not in ("yes", "no"):
        return Text(said["runs"], "yellow")
    if said["runs"] == "no":
        return Text("differs run to run", "red")
    return Text("same bits") if said["processes"] == "yes" else Text("differs process to process", "red")
