"""What added statements say outside of the bodies of batches, without running these: from epoch to epoch the run goes on
from the checkpoints behind their batches (`detrain run --after-batches`), in one process from the program's start.

A second process does the same without the statements. Before each epoch's first batch both have the same state, but for
names that were added; at the start of each epoch, and at the end, it is the run's.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from detrain.base.compiled_sources import parse
from detrain.base.cursor import Cursor
from detrain.base.errors import UsageError
from detrain.base.structure import loop_nodes
from detrain.launcher.structure import find_structure
from detrain.moments.additions_since import Added
from detrain.moments.culprit import of_training
from detrain.moments.past_run import PastRun, address_of
from detrain.moments.replays import Replay, Stretch, key_of
from detrain.store import Entry, read, read_meta
from detrain.verify.state_diff import compare

_TODO = "leave out --no-bodies: bodies are run again then"


def require_outside(added: Added) -> None:
    """Raise UsageError for a statement that stands in the body of a batch, or makes a function that bodies may call."""
    bodies = dict[str, list[range]]()
    for nest in find_structure(added.run.program).nests:
        file, line = nest.batch_loop.file, nest.batch_loop.line
        with open(file, "rb") as source:
            loop = loop_nodes(parse(source.read())).get(line)
        if loop is not None:
            bodies.setdefault(file, []).append(range(loop.body[0].lineno, (loop.body[-1].end_lineno or line) + 1))
    for file, each in added.statements:
        shown, tree = f"`{file.name}:{each.line}: {each.text}`", parse(file.now)
        if any(each.line in body for body in bodies.get(str(file.path.resolve()), ())):
            raise UsageError(f"--no-bodies: {shown} stands in the body of a batch", _TODO)
        statement = next(node for node in ast.walk(tree) if isinstance(node, ast.stmt) and node.lineno == each.line)
        if any(_may_be_handed_on(node, tree) for node in ast.walk(statement)):
            raise UsageError(f"--no-bodies: {shown} makes what bodies may call", _TODO)


def _may_be_handed_on(node: ast.AST, tree: ast.AST) -> bool:
    """Return whether a node makes a class or a function of which more is done than to call it by its name."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return isinstance(node, ast.Lambda | ast.ClassDef)
    calls = {id(each.func) for each in ast.walk(tree) if isinstance(each, ast.Call)}
    names = [each for each in ast.walk(tree) if isinstance(each, ast.Name) and each.id == node.name]
    return bool(node.decorator_list) or any(id(each) not in calls for each in names)


def stretch_over(run: PastRun, end: Cursor | None) -> Stretch:
    """Return the run from its start to a cut at an epoch's start, or to its end, over the batches of all epochs.

    Raises UsageError where an epoch has no checkpoint behind its batches, or none that can be gone to at once.
    """
    last = {at[:2]: at for at in run.batches}
    wanted = [at for at in last.values() if end is None or at < (end.phase, end.epoch, 0)]
    behind = {address_of(entry): entry for entry in run.entries if entry.cursor.cut == "load"}
    jumps = list[Entry]()
    for phase, epoch, batch in wanted:
        entry = behind.get((phase, epoch, batch + 1))
        shown = Cursor(phase, epoch, 0)
        if entry is None and (phase, epoch) == wanted[-1][:2] and not _goes_on(run, shown):  # it has ended in this epoch
            end = shown
            break
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
    """Return what is not as it would be proved by, of a replay with what was added and one without; empty: all is."""
    for entry in run.entries:
        key = key_of(entry.cursor)
        if key in with_them.states and (found := of_training(compare(read(entry.path), read(with_them.states[key])))):
            return f"{found[0].what} {found[0]} is another one at {entry.cursor}"
    for cursor in _first_batches(with_them.stretch):
        key = key_of(cursor)
        if key not in with_them.states or key not in without.states:
            if with_them.status:  # an assertion that was added has ended it
                break
            return f"no state can be taken before the first batch of {cursor}"
        differing = compare(read(without.states[key]), read(with_them.states[key]))
        found = [each for each in differing if not each.is_unused and not each.why.startswith("only in")]
        if found:
            return f"{found[0].what} {found[0]} is another one at {cursor}"
    return ""


def _first_batches(stretch: Stretch) -> Iterator[Cursor]:
    return (cut for cut in sorted(stretch.cuts, key=Cursor.key) if cut.cut == "load")
