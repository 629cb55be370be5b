"""Runs the part of two runs that leads to their first difference again, and names the op that causes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from detrain.base import messages
from detrain.base.cursor import Address, written
from detrain.base.errors import AnotherProgram, FaultInvalid
from detrain.campaign.subject import Subject
from detrain.campaign.trial_log import TrialResult
from detrain.faults.experiment import Experiment
from detrain.python.process.environment import variables
from detrain.store import Entry, read_meta
from detrain.store.catalogue import link, parse_name
from detrain.verify.verified_run import ComparedRun, Comparison


class Bisection(msgspec.Struct, frozen=True):
    """The place where two runs begin to differ."""

    start: str
    """Address of the last checkpoint at which both are equal; empty if both started anew."""
    step: str | None
    """The first step after which their variables or losses differ; None if they do not differ when they run again."""
    op: str | None
    """The first op of that step with a differing output (its inputs are equal); None if no op's output differs."""
    replica: int = 0


def bisect(one: ComparedRun, other: ComparedRun, found: Comparison, subject: Subject) -> Bisection:
    """Run both runs again from their last equal checkpoint, each in its own environment, and return where they part.

    Raises AnotherProgram if one was of other sources or arguments, or had another seed, and FaultInvalid if one fails.
    """
    _require_one_program([one, other], subject)
    start, limit = _between(one, found)
    first = (start.cursor.phase, start.cursor.epoch, 0) if start is not None else (0, 0, 0)
    messages.say(f"running both again from {written(first) if start is not None else 'the start'}, for the first step that differs")
    plan = Experiment(log="", at=first, until=limit)
    runs = [_again(run, first if start is not None else None, plan, subject) for run in (one, other)]
    step = _first_step(*runs)
    if step is None:
        return Bisection(written(first) if start is not None else "", None, None)
    messages.say(f"they part in step {written(step)}: running it again with a digest of each op")
    digests = msgspec.structs.replace(plan, digests_at=step, until=None, has_digests=False)
    ops = [_again(run, first if start is not None else None, digests, subject).digests for run in (one, other)]
    op = _first_op(*ops)
    return Bisection(written(first) if start is not None else "", written(step), op[0] if op else None, op[1] if op else 0)


def described(found: Bisection) -> list[str]:
    """Return the result as lines of text."""
    since = f"equal at the checkpoint {found.start}" if found.start else "both started anew"
    if found.step is None:
        return [f"bisect      {since}; run again, they do not part: it was of that time (machine, data, chance)"]
    if found.op is None:
        return [f"bisect      {since}; they part in step {found.step}, in no op of a compiled function: in eager code or Python"]
    replica = f" (replica {found.replica})" if found.replica else ""
    return [f"bisect      {since}; they part in step {found.step}, at {found.op}{replica}: all that it depends on is equal"]


def _require_one_program(runs: Sequence[ComparedRun], subject: Subject) -> None:
    metas = [(run, read_meta(path)) for run in runs for path in [*run.checkpoints.values()][-1:]]
    for run, meta in metas:
        changed = subject.program.changed_sources(meta.sources)
        if tuple(meta.arguments) != subject.arguments:
            changed.append(f"the arguments {list(meta.arguments)}")
        if meta.seed != metas[0][1].seed:
            changed.append(f"--seed {meta.seed}")
        if changed:
            raise AnotherProgram(
                f"{str(run.place)!r} is a run of another program than {str(subject.program.path)!r}: {', '.join(changed)}",
                "--bisect runs one program again, for two runs of it; what was changed is what makes others part",
            )


def _between(one: ComparedRun, found: Comparison) -> tuple[Entry | None, Address | None]:
    """Return the last checkpoint at an epoch's start before the first that differs, and the address of the latter."""
    start: Entry | None = None
    for key, differences in found.checkpoints.items():
        entry = parse_name(one.checkpoints[key]) if key in one.checkpoints else None
        if entry is None:
            continue
        if any(not difference.is_unused for difference in differences):
            return start, entry.cursor.address
        if entry.cursor.cut == "epoch":
            start = entry
    return start, None


def _again(run: ComparedRun, start: Address | None, plan: Experiment, subject: Subject) -> TrialResult:
    """Run the program from a checkpoint of a run, or from its start, in the environment that the run recorded."""
    entries: Sequence[Entry] = [entry for path in run.checkpoints.values() if (entry := parse_name(Path(path))) is not None]
    with subject.scratch() as home:
        if start is not None:
            link([entry for entry in entries if entry.cursor.cut in ("epoch", "end")], start, home)
        recorded = read_meta(entries[-1].path).environment if entries else None
        settings = variables(int(recorded.get("threads", "0")) if recorded else 0, recorded)
        done = subject.run(msgspec.structs.replace(plan, log=str(home / "log")), home, settings=settings)
    if not done.is_whole:
        raise FaultInvalid(
            f"the program failed when it was run again (status {done.status}): {(done.error.splitlines() or ['no message'])[-1]}",
            "give it as it was run, with the same arguments",
        )
    return done


def _first_step(one: TrialResult, other: TrialResult) -> Address | None:
    theirs = other.by_cursor()
    for cursor, step in sorted(one.by_cursor().items()):
        match = theirs.get(cursor)
        if cursor[2] >= 0 and match is not None and (match.state, match.series) != (step.state, step.series):
            return cursor
    return None


def _first_op(one: Sequence[tuple[str, int, int]], other: Sequence[tuple[str, int, int]]) -> tuple[str, int] | None:
    theirs: dict[tuple[str, int], list[int]] = {}
    for name, replica, digest in other:
        theirs.setdefault((name, replica), []).append(digest)
    for name, replica, digest in one:
        match = theirs.get((name, replica))
        if match and match.pop(0) != digest:
            return name, replica
    return None
