"""Liveness: no name is called dead that the program can still read, and those that matter for the size of a checkpoint
are.
"""

import sys
import textwrap
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detrain.python.inspect.frames import live_locals
from detrain.python.inspect.live_names import live_names, names_read_by_functions
from tests.runtime import interpreters, random_programs


@given(st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_no_program_notices_that_its_dead_names_were_changed_or_taken_away(seed):
    problem, _dead = random_programs.check(seed)
    assert problem is None, problem


@pytest.mark.slow
@pytest.mark.parametrize("version", interpreters.OTHERS)
def test_no_program_notices_it_under_another_python(version):
    done = interpreters.run_module(version, "tests.runtime.random_programs", "0", "400")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:-1] == []
    assert int(done.stdout.split()[-1]) > 1000  # the oracle had something to change


def live_at_probe(body):
    """Return the live names at the first call of `probe()` of a function with this body."""
    namespace = {}
    exec(f"def program(data, model):\n{textwrap.indent(textwrap.dedent(body), '    ')}", namespace)
    found = []
    namespace["probe"] = lambda: found.append(live_names((frame := sys._getframe(1)).f_code, frame.f_lasti))
    namespace["program"]([1, 2], abs)
    return found[0]


@pytest.mark.parametrize(
    ("dead", "live", "body"),
    [
        (
            {"grads", "tape"},
            {"total", "model", "losses"},
            """
            total, losses = 0, []
            for x in data:
                probe()
                with open("/dev/null") as tape:
                    loss = model(x)
                grads = [tape, loss]
                total += len(grads)
                losses.append(loss)
            return total
            """,
        ),
        (
            {"y"},
            {"x", "model"},
            """
            for x in data:
                y = x
                probe()
                y = model(x)
            """,
        ),
        (
            {"scratch", "model"},
            {"result"},
            """
            result = [each for each in data]
            scratch = [result]
            probe()
            return result
            """,
        ),
        (
            {"left"},
            {"right"},
            """
            left = right = 1
            probe()
            if right:
                left = 2
            else:
                left = 3
            return left
            """,
        ),
        (
            {"error"},
            {"count"},
            """
            count = 0
            while count < 2:
                probe()
                try:
                    model()
                except TypeError as error:
                    count += 1
            """,
        ),
    ],
)
def test_what_a_loop_assigns_before_it_reads_is_dead_at_its_head(dead, live, body):
    names = live_at_probe(body)
    assert dead.isdisjoint(names)
    assert live <= names


@pytest.mark.parametrize(
    ("live", "body"),
    [
        ({"kept"}, "kept = 1\nprobe()\ndel kept"),  # deleting what is not there fails
        ({"kept"}, "kept = 1\nprobe()\nlocals()"),
        ({"kept"}, "kept = 1\nprobe()\neval('kept')"),
        ({"kept"}, "import sys\nkept = 1\nprobe()\nsys._getframe(0)"),
        ({"kept"}, "kept = 1\ndef inner(): return kept\nprobe()\nkept = 2"),
        ({"kept"}, "kept = 1\ntry:\n    probe()\n    model()\n    kept = 2\nexcept TypeError:\n    return kept"),
        ({"kept"}, "kept = 1\ntry:\n    probe()\n    kept = model()\nfinally:\n    return kept"),
        ({"kept"}, "kept = 1\nfor x in data:\n    probe()\n    if x > 1: kept += 1\n    else: kept = 0"),
        ({"data"}, "probe()\nreturn [x for x in data]"),
    ],
)
def test_what_may_still_be_read_is_live(live, body):
    assert live <= live_at_probe(body)


def module(source):
    return compile(textwrap.dedent(source), "<module>", "exec")


def test_a_frame_that_has_not_started_keeps_every_name():
    code = module("a = 1\nb = a")
    assert live_names(code, -1) >= {"a", "b"}


@pytest.mark.parametrize(
    ("names", "source"),
    [
        ({"a"}, "a = b = 1\ndef f(): return a"),
        ({"a"}, "a = b = 1\ndef f():\n    def g(): return a\n    return g"),
        ({"a"}, "a = b = 1\nclass C:\n    x = a"),
        ({"a"}, "a = b = 1\nclass C:\n    def f(self): return a"),
        ({"a"}, "a = b = 1\nf = lambda: a"),
        ({"a"}, "a = b = 1\ndef f():\n    global a\n    a = 2"),
        ({"a"}, "a = b = 1\ndef f():\n    global a\n    del a"),
        ({"a", "b"}, "a = b = 1\ndef f(): return globals()['a']"),
        ({"a", "b"}, "a = b = 1\ndef f():\n    def g(): return eval('a')"),
        ({"a", "b"}, "a = b = f = 1\ndef f(): return a.query('c > @b')"),
        ({"a", "b"}, "a = b = f = 1\ndef f(): return a.eval('c + @b')"),
        ({"a", "b"}, "a = b = f = 1\ndef f():\n    import builtins\n    return builtins.globals()"),
        ({"a", "b"}, "a = b = f = 1\ndef f(): return a.__dict__"),
        ({"a"}, "a = b = 1\ndef f(): return a.eval()"),
        ({"a"}, "a = b = 1\ndef f(): return a.dir, a.vars['x'], a.exec('ls')"),
    ],
)
def test_globals_that_functions_of_the_module_use_are_found(names, source):
    assert names_read_by_functions(module(source)) & {"a", "b"} == names


def test_a_fast_name_of_an_inlined_comprehension_is_not_the_global_of_its_name():
    """From 3.12 on a module's comprehension has its variable in a fast local of the module's frame."""
    code = module("kept = 1\nprobe()\n[kept for kept in range(2)]\nshow(kept)")
    seen = []

    def probe():
        frame = sys._getframe(1)
        seen.append(live_names(frame.f_code, frame.f_lasti))

    exec(code, {"probe": probe, "show": id})
    assert "kept" in seen[0]


@pytest.mark.parametrize(
    ("reads", "is_live"),
    [
        ("globals()[f'best_{fold}']", True),
        ("vars()[f'best_{fold}']", True),
        ("import sys\nvars(sys.modules[__name__]).get(f'best_{fold}')", True),
        ("import sys\nme = sys.modules[__name__]\nvars(me)", True),
        ("import sys as me\nvars(me)", True),
        ("import os.path as me\nvars(me)", True),
        ("look = vars\nlook()", True),
        ("list(map(vars, [args]))", True),
        ("def show(of): return vars(of)\nimport sys\nshow(sys.modules[__name__])", True),
        ("vars(args), dir(args)", False),
        ("vars(args), list(net.modules())", False),
        ("import sys\nvars(args), list(sys.modules)", True),
        ("from sys import modules\nvars(args), list(modules)", True),
        ("def show(of): return vars(of)\nshow(args)", False),
        ("best", False),
    ],
)
def test_globals_that_the_source_does_not_name_are_live_where_it_looks_at_its_namespace(reads, is_live):
    """They were lost in a resumed run, in silence."""
    seen = {}
    module = {"at_cut": lambda: seen.update(live_locals(sys._getframe(1))), "best": 1, "best_0": 2, "fold": 0}
    module |= {"args": types.SimpleNamespace(), "net": types.SimpleNamespace(modules=list), "__name__": "sys"}
    exec(compile(f"at_cut()\n{reads}\n", "module.py", "exec"), module)

    assert ("best_0" in seen) == is_live
