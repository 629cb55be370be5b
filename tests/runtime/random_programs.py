"""Random small programs with a probe in them, and the oracle for liveness: a program must not notice that dead names
changed.

Standard library only, so that it also runs under interpreters that have nothing installed: `python -m
tests.runtime.random_programs FIRST_SEED COUNT` prints the programs that noticed.
"""

import ctypes
import random
import sys

from detrain.python.inspect.frames import is_module_frame, live_locals, write_locals

FILE = "<random program>"
NAMES = "abcd"


class Program:
    """A random program: statements over four names, inputs by `flag()`, outputs by `emit(...)`, a few `probe()`s."""

    def __init__(self, rand, kind):
        self._rand = rand
        self._kind = kind
        self._functions = 0
        indent = 0 if kind == "module" else 1
        first = [f"{'    ' * indent}{name} = {number}" for number, name in enumerate(NAMES) if name == "a" or rand.random() < 0.8]
        body = [*first, *self._block(indent, 2, in_loop=False, size=rand.randint(3, 6)), "    " * indent + "probe()"]
        head = {"function": ["def program():"], "generator": ["def program():", "    yield 0"], "module": []}[kind]
        self.source = "\n".join([*head, *self._with_probes(body), "    " * indent + "emit(a, 'end')"]) + "\n"

    def _with_probes(self, lines):
        """Insert probes before lines that start a statement."""
        found = []
        for line in lines:
            starts = not line.lstrip().startswith(("else:", "elif ", "except", "finally:", "case "))
            if starts and self._rand.random() < 0.3:
                found.append(line[: len(line) - len(line.lstrip())] + "probe()")
            found.append(line)
        return found

    def _name(self):
        return self._rand.choice(NAMES)

    def _value(self, depth=2):
        name, rand = self._name(), self._rand
        kind = rand.randrange(10 if depth else 3)
        if kind == 0:
            return str(rand.randint(0, 9))
        if kind <= 2:
            return name
        if kind <= 4:
            return f"({self._value(depth - 1)} + {self._value(depth - 1)})"
        if kind == 5:
            return f"({self._value(depth - 1)} if flag() else {self._value(depth - 1)})"
        if kind == 6:
            return f"({name} := {self._value(depth - 1)})"
        if kind in (7, 8):
            inner = self._value(depth - 1) if kind == 7 else f"{self._name()} + probe()"
            # CPython 3.13.0 crashes when the locals of such a comprehension are read and a closure holds its variable's
            # namesake.
            own = "e" if "probe" in inner and sys.version_info >= (3, 13) else name
            return f"sum([{inner} for {own} in range(2) if flag()])"
        return f"(lambda {name}: {self._value(0)})({self._value(depth - 1)})"

    def _block(self, indent, depth, *, in_loop, size):
        lines = []
        for _ in range(size):
            lines += self._statement(indent, depth, in_loop=in_loop)
        return lines

    def _body(self, indent, depth, *, in_loop):
        return self._block(indent + 1, depth - 1, in_loop=in_loop, size=self._rand.randint(1, 3))

    def _statement(self, indent, depth, *, in_loop):
        rand, pad = self._rand, "    " * indent
        name, other = self._name(), self._name()
        simple = [
            lambda: [f"{pad}{name} = {self._value()}"],
            lambda: [f"{pad}{name} = {self._value()}"],
            lambda: [f"{pad}{name} = {other} = {self._value()}"],
            lambda: [f"{pad}{name}, {other} = {self._value()}, {self._value()}"],
            lambda: [f"{pad}{name} += {self._value()}"],
            lambda: [f"{pad}del {name}"],
            lambda: [f"{pad}emit({self._value()}, {name})"],
            lambda: [f"{pad}emit({name})"],
            lambda: [f"{pad}boom()"],
        ]
        if in_loop:
            simple += [lambda: [f"{pad}if flag(): continue"], lambda: [f"{pad}if flag(): break"]]
        if self._kind == "function":
            simple.append(lambda: [f"{pad}if flag(): return emit({name}, 'left')"])
        if self._kind == "generator":
            simple.append(lambda: [f"{pad}{name} = yield {other}"])
        if depth == 0 or rand.random() < 0.45:
            return rand.choice(simple)()
        return rand.choice([self._if, self._for, self._while, self._try, self._with, self._function, self._match])(
            indent, depth, in_loop
        )

    def _if(self, indent, depth, in_loop):
        pad = "    " * indent
        lines = [f"{pad}if {self._rand.choice(['flag()', self._name()])}:", *self._body(indent, depth, in_loop=in_loop)]
        return lines + ([f"{pad}else:", *self._body(indent, depth, in_loop=in_loop)] if self._rand.random() < 0.5 else [])

    def _for(self, indent, depth, in_loop):
        pad = "    " * indent
        lines = [f"{pad}for {self._name()} in range({self._rand.randint(0, 3)}):", *self._body(indent, depth, in_loop=True)]
        return lines + ([f"{pad}else:", *self._body(indent, depth, in_loop=in_loop)] if self._rand.random() < 0.3 else [])

    def _while(self, indent, depth, in_loop):
        pad = "    " * indent
        return [f"{pad}while flag():", *self._body(indent, depth, in_loop=True)]

    def _try(self, indent, depth, in_loop):
        pad, shape = "    " * indent, self._rand.randrange(4)
        lines = [f"{pad}try:", *self._body(indent, depth, in_loop=in_loop)]
        if shape != 1:
            catch = self._rand.choice(["except Boom:", f"except Boom as {self._name()}:", "except (Boom, NameError, TypeError):"])
            lines += [f"{pad}{catch}", *self._body(indent, depth, in_loop=in_loop)]
        if shape == 2:
            lines += [f"{pad}else:", *self._body(indent, depth, in_loop=in_loop)]
        if shape in (1, 3):
            lines += [f"{pad}finally:", *self._body(indent, depth, in_loop=in_loop)]
        return lines

    def _with(self, indent, depth, in_loop):
        bound = self._rand.choice(["", f" as {self._name()}"])
        return ["    " * indent + f"with manager(){bound}:", *self._body(indent, depth, in_loop=in_loop)]

    def _match(self, indent, depth, in_loop):
        pad = "    " * indent
        lines = [f"{pad}match [{self._value()}, 1]:", f"{pad}    case [{self._name()}, {self._rand.randint(1, 2)}]:"]
        lines += self._body(indent + 1, depth, in_loop=in_loop)
        return [*lines, f"{pad}    case _:", *self._body(indent + 1, depth, in_loop=in_loop)]

    def _function(self, indent, depth, in_loop):
        """A function over the names around it (cells, or globals), called now, later, or never."""
        pad, name = "    " * indent, self._name()
        self._functions += 1
        function = f"f{self._functions}"
        scope = {"module": "global", "function": "nonlocal", "generator": "nonlocal"}[self._kind]
        writes = self._rand.random() < 0.5 and indent <= 1 and (self._kind == "module") == (indent == 0)
        lines = [f"{pad}def {function}({self._rand.choice(['', 'a=1', 'b=2, c=3'])}):"]
        if writes and "a=1" not in lines[0]:
            lines.append(f"{pad}    {scope} a")
        lines += [f"{pad}    probe()", f"{pad}    emit({name})"]
        if writes and "a=1" not in lines[0]:
            lines.append(f"{pad}    a = {self._rand.randint(0, 9)}")
        return [*lines, f"{pad}{self._rand.choice([f'{function}()', 'probe()'])}", f"{pad}{self._name()} = 1"]


class Boom(Exception):
    """The error that `boom()` raises."""


class Poison:
    """The value of a dead name. No code may ever look at it."""

    def __repr__(self):
        return "POISON"

    def __bool__(self):
        return False

    def __add__(self, other):
        return self

    __radd__ = __iadd__ = __add__

    def __index__(self):
        return 99


class Manager:
    """A context manager that swallows `Boom` if told so."""

    def __init__(self, swallows):
        self._swallows = swallows

    def __enter__(self):
        return 5

    def __exit__(self, kind, error, trace):
        return self._swallows and kind is Boom


class TooLong(BaseException):
    """The program runs for too long."""


def run(code, kind, inputs, at_probe):
    """Run a program; return its outputs and number of probes. `at_probe(frame, number)` is called at its probes."""
    shown, flags, probes, steps = [], random.Random(inputs), [0], [0]

    def flag():
        steps[0] += 1
        if steps[0] > 200:
            raise TooLong
        return flags.random() < 0.5

    def probe():
        at_probe(sys._getframe(1), probes[0])
        probes[0] += 1
        return 1

    def boom():
        if flag():
            raise Boom

    names = {
        "emit": lambda *values: shown.append(repr(values)),
        "flag": flag,
        "probe": probe,
        "boom": boom,
        "manager": lambda: Manager(flag()),
        "Boom": Boom,
        "TooLong": TooLong,
    }
    try:
        exec(code, names)
        if kind == "function":
            shown.append(repr(names["program"]()))
        elif kind == "generator":
            shown.extend(repr(value) for value, _ in zip(names["program"](), range(30), strict=False))
    except (Exception, TooLong) as error:
        shown.append(type(error).__name__)
    return shown, probes[0]


def dead_names(frame):
    """Return the names of the program's frames, innermost first, that the analysis says are dead: (frame, names)."""
    found = []
    while frame is not None:
        if frame.f_code.co_filename == FILE:
            values = frame.f_globals if is_module_frame(frame) else frame.f_locals
            live = live_locals(frame)
            found.append((frame, [name for name in values if name in NAMES and name not in live]))
        frame = frame.f_back
    return found


def poison(frame, names):
    """Give names another value."""
    write_locals(frame, dict.fromkeys(names, Poison()))


def unbind(frame, names):
    """Unbind names, as in a resumed process that has not bound them yet. Locals can be unbound in 3.11 only."""
    values = frame.f_globals if is_module_frame(frame) else frame.f_locals
    for name in names if sys.version_info < (3, 12) or is_module_frame(frame) else ():
        del values[name]
    if values is not frame.f_globals and sys.version_info < (3, 12):
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(1))


def noticed(source, kind, inputs):
    """Return how the program noticed that dead names were changed at one of its probes, or None; and the number of
    changed names.
    """
    code = compile(source, FILE, "exec")
    expected, probes = run(code, kind, inputs, lambda frame, number: None)
    count = 0
    for change in (poison, unbind):
        for at in range(min(probes, 6)):

            def at_probe(frame, number, at=at, change=change):
                nonlocal count
                if number == at:
                    for each, names in dead_names(frame):
                        change(each, names)
                        count += len(names)

            shown, _ = run(code, kind, inputs, at_probe)
            if shown != expected:
                return f"{change.__name__} at probe {at}, inputs {inputs}: {shown} instead of {expected}\n{source}", count
    return None, count


def check(seed):
    """Return how the random program of a seed noticed the changes, or None; and the number of dead names."""
    rand = random.Random(seed)
    kind = rand.choice(["function", "function", "module", "generator"])
    source = Program(rand, kind).source
    while not is_program(source):
        source = Program(rand, kind).source
    total = 0
    for inputs in range(3):
        problem, count = noticed(source, kind, inputs)
        total += count
        if problem:
            return problem, total
    return None, total


def is_program(source):
    """Return True if Python compiles the source; it does not if, say, `:=` binds the name of its comprehension."""
    try:
        compile(source, FILE, "exec")
    except SyntaxError:
        return False
    return True


if __name__ == "__main__":
    dead = 0
    for number in range(int(sys.argv[1]), int(sys.argv[1]) + int(sys.argv[2])):
        said, changed = check(number)
        dead += changed
        if said:
            print(f"seed {number}: {said}")
    print("dead names:", dead)
