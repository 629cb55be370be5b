"""The state that a program's checkpoints will and will not hold, as far as source and newest checkpoint show it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

from detrain.base import keras_backend
from detrain.base.compiled_sources import parse
from detrain.base.cursor import Cursor
from detrain.base.errors import StoreError
from detrain.base.framework_names import FRAMEWORKS, TENSORFLOW
from detrain.base.losses import conditional, lacking
from detrain.base.source_files import imported_in, sources
from detrain.base.structure import Loop, Structure
from detrain.instrument.outside_inputs import lifted_random_ops, outside_inputs, stateful_stages
from detrain.launcher.program import Program
from detrain.python.loaders.generator_reads import generators_that_read, samplers_that_hold
from detrain.store import Catalogue, Meta
from detrain.store.reader import look

_LOST: Final = {
    "Thread": "a thread",
    "Process": "a process",
    "Pool": "a pool of workers",
    "socket": "a socket",
    "Lock": "a lock",
    "popen": "a process",
    "Popen": "a process",
}


def foreseen_state(program: Program, structure: Structure, home: Path) -> dict[str, list[str]]:
    """Return lines of text by subject: captured, loaders, outside, not_captured.

    The newest checkpoint is looked for in `home`.
    """
    trees = dict(sources(program.path))
    newest = _newest(home, program.name)
    state = _state(structure, trees, None if newest is None else newest[0])
    state["not_captured"] += [] if newest is None else newest[1]
    return state


def _newest(home: Path, program: str) -> tuple[Meta, list[str]] | None:
    """Return the metadata of the program's newest good checkpoint, and why it would be refused; None without one."""
    for entry in reversed([entry for entry in Catalogue(home).entries() if entry.program == program]):
        try:
            _digest, meta = look(entry.path, reads_all=False)
        except StoreError:
            continue
        lost, cursor = meta.not_captured, _cursor(meta)
        refused = [f"{each}: to resume from {cursor} will be REFUSED" for each in lacking(lost, ())]
        asked = [f"{each}: to resume from {cursor} will be REFUSED if that is not the same" for each in conditional(lost)]
        return meta, [*refused, *asked]
    return None


def _state(structure: Structure, trees: dict[str, ast.Module], newest: Meta | None) -> dict[str, list[str]]:
    """Return lines about state that is captured and that is not, as far as source and newest checkpoint show it."""
    lifted = [f"  {each}" for each in lifted_random_ops(trees)]
    captured = [
        *_of_frameworks(trees),
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
    lost += _own_ranks(trees)
    for file, tree in trees.items():
        lost += [
            f"{Path(file).name}:{line}: {generator}() reads {name}, which {writer}() writes: if it lives on from epoch to epoch, a "
            "resumed run pulls it again and is REFUSED where it yields otherwise"
            for line, generator, name, writer in generators_that_read(tree, file)
        ]
        lost += [
            f"{Path(file).name}:{line}: {sampler} holds {name}, which {writer}() writes: if it draws by that, a run that resumes "
            "inside an epoch is REFUSED; --every 1 takes checkpoints at the starts of epochs"
            for line, sampler, name, writer in samplers_that_hold(tree, file)
        ]
    if changed:
        captured.append(f"Python state, among it what the loops assign: {', '.join(changed)}")
    outside = [str(each) for each in outside_inputs(trees)]
    return {"captured": captured, "loaders": loaders, "outside": outside, "not_captured": lost}


def _own_ranks(trees: dict[str, ast.Module]) -> list[str]:
    """Return lines for calls by which a program may start its own ranks, as far as its source shows it."""
    calls = [(file, node) for file, tree in trees.items() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = [(file, node.lineno, ast.unparse(node.func)) for file, node in calls]
    lasts = {name.rpartition(".")[2] for _file, _line, name in named}
    joins = not lasts.isdisjoint({"init_process_group", "Accelerator"})
    starts = {"notebook_launcher", "debug_launcher", *(("spawn", "start_processes", "Process") if joins else ())}
    return [
        f"{Path(file).name}:{line}: {name}() may start processes that train together: a process that joins a group so is REFUSED "
        "(start it by `detrain launch --nproc-per-node N`)"
        for file, line, name in named
        if name.rpartition(".")[2] in starts
    ]


def _of_frameworks(trees: dict[str, ast.Module]) -> list[str]:
    """Return lines about the state that is captured of the frameworks that a program imports."""
    tops = {keras_backend.foreseen(trees.values()) if top == "keras" else top for top in imported_in(trees.values())}
    found = [each for each in FRAMEWORKS if not each.modules.isdisjoint(tops)] or [TENSORFLOW]
    streams = ["random, numpy.random", *(each.streams for each in found if each.streams)]
    return [*(each.captured for each in found), f"random streams: {', '.join(streams)}"]


def _cursor(meta: Meta) -> Cursor:
    return Cursor(meta.phase, meta.epoch, meta.batch)


def _node(loop: Loop) -> ast.AST | None:
    for node in ast.walk(parse(Path(loop.file).read_bytes())):
        if isinstance(node, ast.For | ast.While) and node.lineno == loop.line:
            return node
    return None
