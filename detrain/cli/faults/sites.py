"""`detrain sites`: the places in a program's compiled step where a fault can be put."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from detrain.base.cursor import parse_cursor
from detrain.base.options import Home, Option
from detrain.campaign.subject import Subject
from detrain.cli.shared.fault_options import OfInference, OfStage
from detrain.cli.shared.options import AsJson, Given, program_command
from detrain.cli.shared.printing import console, print_json, table
from detrain.faults.sites import Site, matching


@program_command
def command(
    *,
    home: Home = "ckpt",
    pattern: Annotated[str | None, Option("Only sites whose name, layer or label fits.", "PATTERN", flag="--match")] = None,
    stage: OfStage = None,
    at: Annotated[str | None, Option("Of this step, both from 0 [the first].", "EPOCH:BATCH")] = None,
    is_all: Annotated[
        bool, Option("All ops, not only convolutions and matrix products, where there are any.", flag="--all")
    ] = False,
    is_inference: OfInference = False,
    as_json: AsJson = False,
    given: Given,
) -> int:
    """List the sites of PROGRAM's training step: run its first step (or that of --at), and say of which ops it is made.

    \b
    Example:
      detrain sites --match 'conv2d*' --stage backward train.py
    """
    subject = Subject(given.found(), given.arguments, Path(home), is_inference=is_inference)
    found = subject.sites(parse_cursor(at) if at is not None else None)
    fitting = matching(found, pattern, stage)
    contractions = [site for site in fitting if site.is_contraction]
    shown = contractions if contractions and pattern is None and not is_all else fitting
    if as_json:
        print_json(shown)
        return 0
    _print(shown, len(found))
    return 0


def _print(sites: list[Site], total: int) -> None:
    shown = table(("site", "label", "operands", "elements", "runs", ""), left=("site", "label", "operands", ""))
    for site in sites:
        operands = "\n".join(f"{name} {_shape(operand.shape)} {operand.dtype}" for name, operand in site.operands.items())
        elements = "\n".join(f"{operand.elements:,}" for operand in site.operands.values())
        shown.add_row(site.name, site.label, operands, elements, str(site.executions), "" if site.is_alive else "dead")
    printer = console()
    printer.print(shown)
    dead = sum(not site.is_alive for site in sites)
    replicas = max(site.replicas for site in sites)
    text = f"{len(sites)} of {total} sites" + (f", {dead} of them dead" if dead else "")
    printer.print(text + (f"; shapes are of one of {replicas} replicas" if replicas > 1 else ""))


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join("?" if size < 0 else str(size) for size in shape) or "scalar"
