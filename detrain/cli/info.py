"""`detrain info`: what detrain sees in a program, and what of its state will and will not be captured."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import click
import msgspec

from detrain.base.cursor import Cursor
from detrain.base.errors import StoreError
from detrain.base.source_files import sources
from detrain.base.source_parsing import parse
from detrain.base.structure import Loop, Structure
from detrain.cli.options import home_option, program_arguments
from detrain.cli.show import show_fit
from detrain.instrument.outside_inputs import lifted_random_ops, outside_inputs, stateful_stages
from detrain.launcher.program import Program
from detrain.launcher.structure import find_structure
from detrain.python.inspect.object_graph import WITH_VARIABLES, is_needed
from detrain.runtime.state.uncaptured import is_refused
from detrain.store import Catalogue, Meta, opened

_LOST = {
    "Thread": "a thread",
    "Process": "a process",
    "Pool": "a pool of workers",
    "socket": "a socket",
    "Lock": "a lock",
    "popen": "a process",
    "Popen": "a process",
}


_TITLES = {
    "captured": "captured",
    "loaders": "loaders on resume",
    "outside": "taken from outside",
}


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@home_option("Where to look for an inst.info")
@click.option("-m", "is_module", is_flag=True, help="PROGRAM is a module, as with python -m.")
@program_arguments
def command(as_json: bool, home: str, is_module: bool, program: str, arguments: tuple[str, ...]) -> int:
    """Show the loops found in PROGRAM, where that is known from, and what a checkpoint will hold.

    PROGRAM is read, not run: its arguments may stand there, as for the other commands, and say nothing.

    \b
    Example:
      detrain info train.py
    """
    target = Program.find(program, is_module=is_module)
    structure = find_structure(target, Path(home))
    trees = dict(sources(target.path))
    newest = _newest(Path(home), target.name)
    state = _state(structure, trees, None if newest is None else newest[0])
    state["not_captured"] += [] if newest is None else newest[1]
    if as_json:
        click.echo(json.dumps({"structure": msgspec.to_builtins(structure), "state": state}, indent=2))
        target.edits(structure, "detrain")
        return 0
    click.echo(f"structure of {program}, from {structure.source}")
    if not structure.nests and not structure.fits:
        has_probes = bool(target.probes())
        click.echo("  probes are in the program already" if has_probes else "  no training loop in the source: a run will show it")
    for number, fit in enumerate(structure.fits if not structure.nests else ()):
        show_fit(fit, number, len(structure.fits))
    for nest in structure.nests:
        epoch = nest.epoch_loop
        click.echo(f"  epoch loop   {_line(epoch)}" if epoch else "  epoch loop   none: the batch loop counts as one epoch")
        click.echo(f"  batch loop   {_line(nest.batch_loop)}")
        load = f"line {nest.load_line}: {nest.loader}" if nest.load_line else f"the loop's header: {nest.loader}"
        load = load if nest.loader else "none that the source shows: the header only counts"
        click.echo(f"  load         {load}")
        click.echo(f"  update       line {nest.update_line}" + (f" ({nest.evidence[0]})" if nest.evidence else ""))
    for title in ("captured", "loaders", "outside"):
        click.echo(_TITLES[title])
        for line in state[title] or ["nothing that static analysis can see"]:
            click.echo(f"  {line}")
    click.echo("not captured")
    for line in state["not_captured"] or ["nothing that static analysis can see; the run names what it meets"]:
        click.echo(f"  {line}")
    target.edits(structure, "detrain")  # what a run would refuse is refused here, too
    return 0


def _newest(home: Path, program: str) -> tuple[Meta, list[str]] | None:
    """Return what the newest good checkpoint of the program says about itself, and why it would be refused; None without one."""
    for entry in reversed([entry for entry in Catalogue(home).entries() if entry.program == program]):
        try:
            with opened(entry.path) as snapshot:
                nodes = msgspec.msgpack.decode(snapshot.python)["nodes"]
                is_missing = any(node[0] == "opaque" and node[1].endswith(WITH_VARIABLES) for node in nodes)
                losses = [each for each in snapshot.meta.not_captured if is_refused(each) or (is_missing and is_needed(each))]
                return snapshot.meta, [f"{each}: to resume from {_cursor(snapshot.meta)} will be REFUSED" for each in losses]
        except StoreError:
            continue
    return None


def _line(loop: Loop) -> str:
    text = Path(loop.file).read_text("utf-8", "replace").splitlines()[loop.line - 1].strip()
    where = f" in {loop.function}()" if loop.function else ""
    return f"{Path(loop.file).name}:{loop.line}{where}: {text}"


def _state(structure: Structure, trees: dict[str, ast.Module], newest: Meta | None) -> dict[str, list[str]]:
    """Return what is captured and what is not, as far as the source and the newest checkpoint show it."""
    lifted = [f"  {each}" for each in lifted_random_ops(trees)]
    captured = [
        "every variable of TensorFlow and Keras alive: weights, optimizer slots, metrics, seed generators",
        "random streams: random, numpy.random, TensorFlow's eager seeds; stateful random ops in traced functions are lifted",
        *lifted,
        "files that the program writes are set back to their length at the cut, those that it reads to their position",
    ]
    loaders = [
        "whole epochs are skipped; inside an epoch loaders are set to their positions where that is exact, else loaded from again",
        *map(str, stateful_stages(trees)),
    ]
    if newest is not None:
        what = f"loads again: {newest.forward}" if newest.forward else "sets loaders to their positions"
        loaders.append(f"the newest checkpoint, {_cursor(newest)}, {what}")
    lost: list[str] = []
    changed: list[str] = []
    for nest in structure.nests:
        loop = nest.epoch_loop or nest.batch_loop
        node = _node(loop)
        if node is None:
            continue
        names = sorted({n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)})
        changed += [name for name in names if name not in changed]
        for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if name in _LOST:
                lost.append(f"{Path(loop.file).name}:{call.lineno}: {ast.unparse(call)[:60]} makes {_LOST[name]}")
    if changed:
        captured.append(f"Python state, among it what the loops assign: {', '.join(changed)}")
    outside = [str(each) for each in outside_inputs(trees)]
    return {"captured": captured, "loaders": loaders, "outside": outside, "not_captured": lost}


def _cursor(meta: Meta) -> Cursor:
    return Cursor(meta.phase, meta.epoch, meta.batch)


def _node(loop: Loop) -> ast.AST | None:
    for node in ast.walk(parse(Path(loop.file).read_bytes())):
        if isinstance(node, ast.For | ast.While) and node.lineno == loop.line:
            return node
    return None
