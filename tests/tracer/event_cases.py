"""Loops watched by each kind of watcher of this Python. Standard library only, so that it also runs where nothing is
installed.

A program calls `update()` in its loops, as an observer would be called. The oracle is a list in which the loops note
each turn and update by themselves.
"""

import random
import sys

from detrain.instrument.loop_marks import MARK, edits_for_marks
from detrain.instrument.text_edits import compile_edited
from detrain.tracer.events import MarkWatcher, MonitoringWatcher, SettraceWatcher

MARKS, HALF_MARKED = "marks", "marks in some loops"
KINDS = ["sys.settrace", MARKS, HALF_MARKED] + (["sys.monitoring"] if sys.version_info >= (3, 12) else [])
FILE = "<program>"

HEADERS = {
    "for": "for {name} in range({count}):",
    "while": "while turn(state, {name!r}, {count}):",
}


class Program:
    """Random nested loops, in one function or each in its own, with an update in the innermost."""

    def __init__(self, seed):
        draw = random.Random(seed)
        depth = draw.randint(1, 3)
        self.lines = ["def run0(update, note, state):"]
        self.headers, self.bodies = {}, {}
        indent, function = 1, 0
        for level in range(depth):
            kind, name, count = draw.choice(list(HEADERS)), f"i{level}", draw.randint(1, 4)
            if kind == "while":
                self.lines.append("    " * indent + f"state[{name!r}] = 0")
            self.lines.append("    " * indent + HEADERS[kind].format(name=name, count=count))
            self.headers[level] = len(self.lines)
            indent += 1
            self.lines.append("    " * indent + f"note('turn', {level})")
            for _ in range(draw.randint(0, 2)):
                self.lines.append("    " * indent + "sum([1, 2, 3])")
            if level < depth - 1 and draw.random() < 0.5:
                function += 1
                self.lines.append("    " * indent + f"run{function}(update, note, state)")
                self.rest(level)
                self.lines.append(f"def run{function}(update, note, state):")
                indent = 1
        self.lines.append("    " * indent + "note('update', None)")
        self.lines.append("    " * indent + "update()")
        for _ in range(draw.randint(0, 2)):
            self.lines.append("    " * indent + "sum([4])")
        for level in self.headers:
            self.bodies.setdefault(level, range(self.headers[level] + 1, len(self.lines) + 1))
        self.source = "\n".join(self.lines) + "\n"

    def rest(self, level):
        for known in range(level + 1):
            self.bodies.setdefault(known, range(self.headers[known] + 1, len(self.lines) + 1))


def turn(state, name, count):
    state[name] += 1
    return state[name] <= count


def make_watcher(program, kind, seen):
    """Return a watcher that adds its events to `seen`, and the edits that it needs in the program."""

    innermost = max(program.headers.values())

    def on_line(_code, line):
        seen.append(("turned", line))
        return line != innermost

    def on_entry(key):
        seen.append(("entered", key[1]))

    if kind == "sys.monitoring":
        return MonitoringWatcher(on_line), []
    if kind == "sys.settrace":
        return SettraceWatcher(on_line, on_entry), []
    edits, lines = edits_for_marks(program.source.encode(), 0)
    assert lines == sorted(program.headers.values())
    marks = [(FILE if kind == MARKS or line % 2 else "another file", line) for line in lines]
    return MarkWatcher(on_entry, marks, SettraceWatcher(on_line, on_entry)), edits


def watch(program, kind):
    """Run a program; return the events that its loops noted and those that the watcher saw, with lines of headers."""
    noted, seen, is_armed = [], [], []
    watcher, edits = make_watcher(program, kind, seen)

    def update():
        seen.append("update")
        frame, running = sys._getframe(1), []
        while frame is not None:
            if frame.f_code.co_filename == FILE:
                names = {level for level, line in program.headers.items() if own(frame, line)}
                loops = {program.headers[level]: program.bodies[level] for level in names}
                if loops:
                    running.insert(0, (frame, FILE, loops))
            frame = frame.f_back
        if not (watcher.is_lasting and is_armed):
            watcher.arm(running)
            is_armed.append(True)

    def own(frame, line):
        return any(line == there for *_span, there in frame.f_code.co_lines())

    scope = {"turn": turn, MARK: getattr(watcher, "enter", None)}
    exec(compile_edited(program.source.encode(), edits, FILE), scope)
    before = sys.gettrace()
    scope["run0"](update, lambda what, level: noted.append((what, level)), {})
    watcher.stop()
    assert sys.gettrace() is before
    return noted, seen


def check(seed, kind):
    """Check that, between two updates, exactly the loops inside a loop that turned are seen to end."""
    program = Program(seed)
    noted, seen = watch(program, kind)
    levels = {line: level for level, line in program.headers.items()}
    expected = between([level if what == "turn" else "update" for what, level in noted])
    # When a header is reached, the runs of the loops inside have ended; at an entry, that of the loop itself, too.
    got = between(["update" if e == "update" else levels[e[1]] + (e[0] == "turned") for e in seen])
    assert len(expected) == len(got), (program.source, noted, seen)
    for turned, ended in zip(expected, got, strict=True):
        assert ended_runs(ended, levels) == ended_runs([min(turned) + 1], levels), (program.source, turned, ended)


def ended_runs(outermost, levels):
    """Return the levels at or below any of these loops."""
    return {level for level in levels.values() if any(level >= first for first in outermost)}


def between(events):
    """Split the events after the first update at the updates, without those after the last."""
    groups, current, is_counting = [], [], False
    for event in events:
        if event == "update":
            if is_counting:
                groups.append(current)
            current, is_counting = [], True
        else:
            current.append(event)
    return groups


def check_told_again_once_armed_anew():
    """Check that a header that was reported once is reported again when loops are armed anew: other
    loops may be inside it by then.
    """
    seen = []
    watcher = MonitoringWatcher(lambda _code, line: bool(seen.append(line)))

    def loop():
        own = sys._getframe()
        header = own.f_lineno + 1
        for turn in range(6):
            if turn in (1, 3):
                watcher.arm([(own, FILE, {header: range(header + 1, header + 3)})])
        return header

    try:
        header = loop()
    finally:
        watcher.stop()
    assert seen == [header, header], seen


def main():
    if "sys.monitoring" in KINDS:
        check_told_again_once_armed_anew()
    for kind in KINDS:
        for seed in range(int(sys.argv[1]), int(sys.argv[2])):
            check(seed, kind)
    print("ok", ", ".join(KINDS))


if __name__ == "__main__":
    main()
