"""The output of added statements outside the bodies of batches, without running these. One process runs from the
program's start and jumps, in each epoch, to the checkpoint after its batches (`detrain run --after-batches`).

A second process does the same without the statements. Before each epoch's first batch both must have the same state,
but for added names; at the start of each epoch, and at the end, it must be the run's.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Final, TypeGuard

from detrain.base.compiled_sources import parse
from detrain.base.cursor import Cursor
from detrain.base.errors import UsageError
from detrain.base.structure import AnyLoop, bound_names, loop_nodes
from detrain.launcher.structure import find_structure
from detrain.moments.additions_since import Added
from detrain.moments.culprit import of_training
from detrain.moments.past_run import PastRun
from detrain.moments.replays import Replay, Stretch, key_of
from detrain.python.codec.graph_files import unpack
from detrain.store import Entry, read, read_meta
from detrain.verify.state_diff import compare

_TODO: Final = "leave out --no-bodies: bodies are run again then"
_FUNCTIONS: Final = ast.FunctionDef | ast.AsyncFunctionDef


def require_outside(added: Added, stretch: Stretch) -> None:
    """Raise UsageError for an added statement that stands in the body of a batch, makes a function that bodies may
    call, or reads a name that bodies bind and checkpoints lack, because no other statement reads it there.
    """
    snapshot = read(stretch.jumps[-1].path) if stretch.jumps else None
    roots = unpack(snapshot.python, snapshot.arrays).roots if snapshot is not None else ()
    known = {key.rpartition("|")[2] for key in roots}
    loops = dict[str, list[AnyLoop]]()
    structure = find_structure(added.run.program)
    for at in (nest.batch_loop for nest in structure.nests):
        loop = loop_nodes(parse(Path(at.file).read_bytes())).get(at.line)
        loops.setdefault(at.file, []).extend([loop] if loop is not None else [])
    if not (structure.fits or all(loops.values() or [None])):
        raise UsageError("--no-bodies: the source alone does not tell which loop goes over batches", _TODO)
    for file, each in added.statements:
        shown, tree = f"`{file.name}:{each.line}: {each.text}`", parse(file.now)
        statement = next(node for node in ast.walk(tree) if isinstance(node, ast.stmt) and node.lineno == each.line)
        if any(_may_be_handed_on(node, tree) for node in ast.walk(statement)):
            raise UsageError(f"--no-bodies: {shown} makes what bodies may call", _TODO)
        gone = {name for node in ast.walk(tree) if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
        for loop in loops.get(str(file.path.resolve()), ()):
            if any(statement.lineno == node.lineno for of in loop.body for node in ast.walk(of) if isinstance(node, ast.stmt)):
                raise UsageError(f"--no-bodies: {shown} stands in the body of a batch", _TODO)
            scopes = [_around(tree, node, _FUNCTIONS)[:1] for node in (loop, statement)]
            if scopes[0] == scopes[1] or not scopes[0]:
                bound = bound_names([*loop.body, *([loop.target] if not isinstance(loop, ast.While) else [])])
                gone.update(name for name in bound if name not in _bound_since(tree, loop, statement))
        if unheld := sorted({node.id for node in ast.walk(statement) if _is_read(node)} & gone - known):
            what = f"--no-bodies: {shown} reads {unheld[0]!r}, which bodies bind, and which nothing else reads behind them"
            raise UsageError(what, f"no checkpoint has it: {_TODO}")


def _is_read(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)


def _around(tree: ast.AST, inside: ast.stmt, kinds: type | UnionType) -> list[int]:
    """Return the lines of the nodes of some kinds around a statement, the innermost first."""
    found = [node for node in ast.walk(tree) if isinstance(node, kinds) and isinstance(node, ast.stmt)]
    return sorted((each.lineno for each in found if each.lineno < inside.lineno <= (each.end_lineno or 0)), reverse=True)


def _bound_since(tree: ast.AST, loop: AnyLoop, statement: ast.stmt) -> set[str]:
    """Return the names that assignments bind in any case after the last body and before an added statement."""
    found = set[str]()
    epoch = _around(tree, loop, AnyLoop)[:1]
    begin = loop.end_lineno or 0
    if statement.lineno < loop.lineno:
        begin = epoch[0] if epoch else 0
    for node in ast.walk(tree):
        for _field, block in ast.iter_fields(node):
            if isinstance(block, list) and any(statement in ast.walk(each) for each in block if isinstance(each, ast.stmt)):
                before = [each for each in block if isinstance(each, ast.Assign | ast.AnnAssign) and each.lineno < statement.lineno]
                found.update(bound_names(each for each in before if each.lineno > begin))
    return found


def _may_be_handed_on(node: ast.AST, tree: ast.AST) -> bool:
    """Return True if a node makes a class or a lambda, or a function that is not only called by its name."""
    if not isinstance(node, _FUNCTIONS):
        return isinstance(node, ast.Lambda | ast.ClassDef)
    calls = {id(each.func) for each in ast.walk(tree) if isinstance(each, ast.Call)}
    names = [each for each in ast.walk(tree) if isinstance(each, ast.Name) and each.id == node.name]
    return bool(node.decorator_list) or any(id(each) not in calls for each in names)


def stretch_over(run: PastRun, end: Cursor | None) -> Stretch:
    """Return the stretch from the run's start to a cut at an epoch's start, or to its end, that jumps over the bodies
    of all epochs. Those of a first epoch are run if it has no checkpoint after them: their number was not known then.

    Raises UsageError if another epoch has no such checkpoint, or batches would have to be loaded again to reach it.
    """
    last = {at[:2]: at for at in run.batches}
    wanted = [at for at in last.values() if end is None or at < (end.phase, end.epoch, 0)]
    behind = {entry.cursor.address: entry for entry in run.entries if entry.cursor.cut == "load"}
    jumps = list[Entry]()
    for phase, epoch, batch in wanted:
        entry = behind.get((phase, epoch, batch + 1))
        shown = Cursor(phase, epoch, 0)
        if entry is None and (phase, epoch) == wanted[-1][:2] and not _goes_on(run, shown):  # the run ended in this epoch
            end = shown
            break
        if entry is None and not epoch and wanted[-1][1]:
            continue
        if entry is None:
            raise UsageError(
                f"--no-bodies: the run has kept no checkpoint behind the batches of epoch {str(shown).removesuffix(':0')}",
                "they are taken by `detrain run --after-batches --keep-every 1`; else leave out --no-bodies",
            )
        if forward := read_meta(entry.path).forward:
            raise UsageError(f"--no-bodies: batches would have to be loaded again, up to {entry.cursor} ({forward})", _TODO)
        jumps.append(entry)
    ends = Cursor(end.phase, end.epoch, 0, "load" if end.cut == "epoch" else end.cut) if end is not None else None
    cuts = [each.cursor for each in run.entries if not each.cursor.is_inside]
    cuts += [Cursor(*at[:2], 0, "load") for at in wanted]
    return Stretch(None, ends, tuple({*cuts, *([ends] if ends else [])}), jumps=tuple(jumps))


def _goes_on(run: PastRun, epoch: Cursor) -> bool:
    return any(entry.cursor.key() > (epoch.phase, epoch.epoch + 1) for entry in run.entries)


def unproved(run: PastRun, with_them: Replay, without: Replay) -> str:
    """Return why replays with and without the additions do not prove that the output is the run's; empty if they do."""
    for entry in run.entries:
        key = key_of(entry.cursor)
        if key in with_them.states and (found := of_training(compare(read(entry.path), read(with_them.states[key])))):
            return f"{found[0].what} {found[0]} is another one at {entry.cursor}"
    for cursor in _first_batches(with_them.stretch):
        key = key_of(cursor)
        if key not in with_them.states or key not in without.states:
            if with_them.status:  # an added assertion has ended the replay
                break
            return f"no state can be taken before the first batch of {cursor}"
        plain, looked_at = read(without.states[key]), read(with_them.states[key])
        others = [name for name, state in plain.meta.frameworks.items() if looked_at.meta.frameworks.get(name) != state]
        if others:  # the framework's settings, by which bodies compute
            return f"what the process has set of {others[0]}, or made by it, is another at {cursor}"
        differing = compare(plain, looked_at)
        found = [each for each in differing if not each.is_unused and not each.why.startswith("only in")]
        if found:
            return f"{found[0].what} {found[0]} is another one at {cursor}"
    return ""


def _first_batches(stretch: Stretch) -> Iterator[Cursor]:
    return (cut for cut in sorted(stretch.cuts, key=Cursor.key) if cut.cut == "load")
