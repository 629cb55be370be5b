"""The history of a run from the files beside its checkpoints: processes, checkpoints, alarms and losses."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any, Final

import msgspec

from detrain.base.cursor import written
from detrain.base.errors import StoreError
from detrain.guard.detector import read_log
from detrain.python.process.environment import compare
from detrain.store import Catalogue
from detrain.store.catalogue import parse_name
from detrain.store.chronicle import CheckpointSaved, Ended, Event, Started
from detrain.store.job_home import jobs_in, ranks_of
from detrain.store.journal import read_batches
from detrain.store.lock import holder_of

_TEMPLATE: Final = Path(__file__).with_name("timeline.html")
_WIDTH, _HEIGHT, _MARGIN = 900, 220, 44
"""Size of the picture, in pixels."""


class Checkpoint(msgspec.Struct, frozen=True):
    """A checkpoint that was taken."""

    cursor: str
    cut: str
    at: float
    size_bytes: int
    took_s: float
    batches_done: int
    loss: float | None
    is_there: bool
    """True if its file still exists."""


class RunProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a run."""

    pid: int
    host: str
    started: float
    """Seconds since 1970; so are all following times."""
    since: str
    """The cursor from which it went on; empty: it began anew."""
    seen: float
    """The time of its last event."""
    end: str
    """`ended`, `running`, `killed` (it reported no end), `started again` by itself, or the cause of its end."""
    changed: list[str]
    """Settings of its environment that differ from those of the process before."""
    checkpoints: list[Checkpoint]


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """The history of a run, or of one rank of a job."""

    program: str
    run: int
    rank: int | None
    processes: list[RunProcess]
    alarms: list[dict[str, Any]]
    batches: int
    """Number of batches on record."""
    last: str
    """The last batch on record."""

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """Times without a process: from the last event of one to the start of the next, unless it restarted itself."""
        pairs = itertools.pairwise(self.processes)
        return [(one.seen, other.started) for one, other in pairs if one.end != "started again"]


def timelines(home: Path, program: str) -> list[Timeline]:
    """Return the history of a program's newest run in a home, for a job that of each rank. Raises StoreError."""
    job = next((each for each in jobs_in(home) if each.name == program), None)
    folders = [home] if job is None else ranks_of(job)
    found = [_timeline(folder, program, None if job is None else rank) for rank, folder in enumerate(folders)]
    if not any(each.processes for each in found):
        raise StoreError(f"{str(home)!r} has no run of {program}", "run it, or give its folder with --ckpt DIR")
    return found


def _timeline(folder: Path, program: str, rank: int | None) -> Timeline:
    catalogue = Catalogue(folder)
    numbers = [path.stem.rpartition("-r")[2] for path in folder.glob("*.journal") if path.stem.rpartition("-r")[0] == program]
    run = max(map(int, filter(str.isdecimal, numbers)), default=0)
    events = catalogue.chronicle(program, run).events()
    batches = sorted(read_batches(catalogue.journal(program, run)))
    return Timeline(
        program=program,
        run=run,
        rank=rank,
        processes=_processes(folder, program, events),
        alarms=read_log(folder / f"{program}-r{run}.alarms.jsonl"),
        batches=len(batches),
        last=written(batches[-1]) if batches else "",
    )


def last_end(folder: Path, program: str, run: int) -> str:
    """Return how the last process of a run ended: "ended" if by its last line; an exception or a signal; "killed" if it
    left no word; "running" if it has not ended; empty if none is on record.
    """
    processes = _processes(folder, program, Catalogue(folder).chronicle(program, run).events())
    return processes[-1].end if processes else ""


def _processes(folder: Path, program: str, events: Sequence[Event]) -> list[RunProcess]:
    starts = [number for number, each in enumerate(events) if isinstance(each, Started)]
    found, before = [], None
    for number, until in itertools.zip_longest(starts, starts[1:]):
        start, following = events[number], events[until] if until is not None else None
        assert isinstance(start, Started)
        own = events[number:until]
        end = next((each for each in own if isinstance(each, Ended) and each.pid == start.pid), None)
        saved = [each for each in own if isinstance(each, CheckpointSaved)]
        if end is not None:
            how = end.how or "ended"
        elif isinstance(following, Started):
            how = "started again" if (following.pid, following.host) == (start.pid, start.host) else "killed"
        else:
            how = "running" if holder_of(folder, program) == start.pid else "killed"
        since = parse_name(Path(start.since))
        found.append(
            RunProcess(
                pid=start.pid,
                host=start.host,
                started=start.at,
                since=str(since.cursor) if since is not None else "",
                seen=max([start.at, *(each.at for each in saved), *([end.at] if end is not None else [])]),
                end=how,
                changed=[] if before is None else compare(before.environment, start.environment),
                checkpoints=[_checkpoint(folder, each) for each in saved],
            )
        )
        before = start
    return found


def _checkpoint(folder: Path, saved: CheckpointSaved) -> Checkpoint:
    entry, path = parse_name(Path(saved.name)), folder / saved.name
    cursor, cut = (str(entry.cursor), entry.cursor.cut) if entry is not None else (saved.name, "")
    return Checkpoint(cursor, cut, saved.at, saved.size_bytes, saved.took_s, saved.batches_done, saved.loss, path.is_file())


def rows_of(found: Timeline) -> list[tuple[str, str, str]]:
    """Return the events in order, for people: time, event, and details; alarms come last, without a time."""
    rows = []
    for each in found.processes:
        how = f"goes on from {each.since}" if each.since else "starts anew"
        rows.append((each.started, how, "; ".join([f"process {each.pid} on {each.host}", *each.changed])))
        for one in each.checkpoints:
            loss = f", loss {one.loss:.6g}" if one.loss is not None else ""
            gone = "" if one.is_there else ", not kept"
            about = f"{one.size_bytes:,} bytes in {one.took_s:.2f} s, {one.batches_done:,} batches{loss}{gone}"
            rows.append((one.at, f"checkpoint {one.cursor}{' (end)' if one.cut == 'end' else ''}", about))
        if each.end != "running":
            unheard = f"last heard of {each.seen - each.started:.1f} s after its start" if each.end == "killed" else ""
            rows.append((each.seen, each.end, unheard or f"after {each.seen - each.started:.1f} s"))
    return [(time_of(at), what, about) for at, what, about in rows] + [
        ("", f"alarm at {each.get('at', '')}", f"{each.get('action', '')} {each.get('key', '')}".strip()) for each in found.alarms
    ]


def time_of(at: float) -> str:
    """Return a time as text for people, in this machine's zone."""
    return datetime.datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def page_of(found: Sequence[Timeline]) -> str:
    """Return a self-contained page of HTML: batches and losses over time, with gaps marked, and a table of events."""
    from html import escape

    parts = []
    for each in found:
        name = f"{each.program}, run {each.run}" + (f", rank {each.rank}" if each.rank is not None else "")
        cells = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>\n" for row in rows_of(each))
        summary = f"{each.batches:,} batches on record, the last {each.last or 'none'}; {len(each.processes)} processes"
        parts.append(
            f"<h2>{escape(name)}</h2>\n<p>{escape(summary)}</p>\n{_picture(each)}\n"
            f"<table><tr><th>when</th><th>what</th><th></th></tr>\n{cells}</table>"
        )
    return Template(_TEMPLATE.read_text("utf-8")).substitute(title=escape(found[0].program), body="\n".join(parts))


def _picture(found: Timeline) -> str:
    """Return an SVG with the batches done (and the losses, if known) at checkpoints over time."""
    first = min(each.started for each in found.processes)
    span = max(*(each.seen for each in found.processes), first + 1e-3) - first
    saved = [one for each in found.processes for one in each.checkpoints]
    losses = [one.loss for one in saved if one.loss is not None]
    most = max((one.batches_done for one in saved), default=1)
    low, high = (min(losses), max(losses)) if losses else (0.0, 1.0)

    def across(at: float) -> float:
        return _MARGIN + (at - first) / span * (_WIDTH - 2 * _MARGIN)

    def up(share: float) -> float:
        return _HEIGHT - 24 - share * (_HEIGHT - 44)

    shapes = [
        f'<rect class="gap" x="{across(one):.1f}" y="10" width="{max(across(other) - across(one), 1):.1f}" height="{_HEIGHT - 34}">'
        f"<title>no process for {other - one:.1f} s</title></rect>"
        for one, other in found.gaps
    ]
    for each in found.processes:
        line = " ".join(f"{across(one.at):.1f},{up(one.batches_done / most):.1f}" for one in each.checkpoints)
        known = [(one.at, one.loss) for one in each.checkpoints if one.loss is not None]
        curve = " ".join(f"{across(at):.1f},{up((loss - low) / ((high - low) or 1)):.1f}" for at, loss in known)
        shapes += [f'<polyline class="batches" points="{line}"/>', f'<polyline class="loss" points="{curve}"/>']
        shapes += [
            f'<circle cx="{across(one.at):.1f}" cy="{up(one.batches_done / most):.1f}" r="3"><title>{one.cursor}</title></circle>'
            for one in each.checkpoints
        ]
    of_loss = f"dashed: loss, {low:.4g} to {high:.4g}" if losses else "no loss on record"
    legend = f"dots: checkpoints, by batches, to {most:,}; {of_loss}" + ("; red: no process" if found.gaps else "")
    ends = (
        f'<text x="{_MARGIN}" y="{_HEIGHT - 6}">{time_of(first)}</text>'
        f'<text x="{_WIDTH - _MARGIN}" y="{_HEIGHT - 6}" text-anchor="end">{time_of(first + span)}</text>'
        f'<text x="{_WIDTH // 2}" y="{_HEIGHT - 6}" text-anchor="middle">{legend}</text>'
    )
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(shapes)}{ends}</svg>'
