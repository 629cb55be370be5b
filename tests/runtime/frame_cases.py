"""Writing the locals of suspended frames, case by case.

Standard library only: also run as a module under other Pythons.
"""

import gc
import sys
import weakref

from detrain.python.inspect.frames import (
    can_unbind,
    cells_of,
    has_known_frames,
    is_module_frame,
    live_locals,
    names_of,
    unbind_local,
    user_frames,
    write_locals,
)


def here():
    return sys._getframe(1)


def set_callers(**values):
    """Write names of the calling frame, as detrain does from below a probe."""
    write_locals(sys._getframe(1), values)


def case_a_local_is_written():
    x = 1
    set_callers(x=2)
    assert x == 2


def case_the_locals_that_are_not_named_stay():
    x, y = 1, [1]
    before = y
    set_callers(x=2)
    assert (x, y) == (2, [1])
    assert y is before


def case_a_local_that_is_not_bound_is_bound():
    x = 1
    del x
    set_callers(x=2)
    assert x == 2  # noqa: F821


def case_an_argument_is_written():
    def inner(x, *rest, **more):
        set_callers(x=2, rest=(3,), more={"a": 4})
        return x, rest, more

    assert inner(1, 1, b=1) == (2, (3,), {"a": 4})


def case_a_cell_is_written_for_the_function_that_holds_it():
    x = 1

    def read():
        return x

    set_callers(x=2)
    assert x == read() == 2


def case_a_free_variable_is_written_for_the_function_around():
    x = 1

    def inner():
        assert x == 1
        set_callers(x=2)
        return x

    assert inner() == 2
    assert x == 2


def case_names_are_unbound_as_by_del():
    def unbind(name):
        frame = sys._getframe(1)
        if can_unbind(frame):
            unbind_local(frame, name)
        return can_unbind(frame)

    plain, shared, kept = [1], [2], [3]
    share = lambda: (shared, kept)  # noqa: E731  # both are cells
    held = weakref.ref(share)
    if plain and unbind("plain"):
        assert unbind("shared")
        assert unbind("plain")  # not bound any more
        assert sorted(names_of(here())) == ["held", "kept", "share", "unbind"]
        assert unbind("share")
        assert held() is None or sys.version_info >= (3, 14)  # which keeps what a debugger overwrites while the frame lives


def case_the_frames_of_callers_are_written():
    def innermost():
        frame = here()
        write_locals(frame.f_back, {"x": 2})
        write_locals(frame.f_back.f_back, {"x": 3})

    def middle():
        x = 0
        innermost()
        return x

    x = 0
    assert middle() == 2
    assert x == 3


def case_writing_twice_keeps_the_last():
    x = y = 1
    set_callers(x=2)
    set_callers(y=3)
    set_callers(x=4)
    assert (x, y) == (4, 3)


def case_a_write_survives_that_the_locals_are_read_again():
    x = 1
    frame = here()
    write_locals(frame, {"x": 2})
    assert frame.f_locals["x"] == 2
    assert dict(frame.f_locals)["x"] == 2
    assert x == 2


def case_what_the_program_took_of_its_locals_stays_as_it_was():
    def train(rate, steps=3):
        given = locals()
        before = dict(given)
        found = 0

        def read():
            return found

        for x in range(steps):
            frame = here()
            assert names_of(frame)["x"] == x == live_locals(frame)["x"]
            assert not is_module_frame(frame)
            write_locals(frame, {"found": found + rate})
        assert given == before == {"rate": 2, "steps": 3}
        return read()

    assert train(2) == 6


def case_what_is_looked_at_is_not_kept():
    class Loader:
        pass

    loader = Loader()
    gone = weakref.ref(loader)
    frame = here()
    assert names_of(frame)["loader"] is loader is live_locals(frame)["loader"]
    write_locals(frame, {"loader": loader})
    del loader
    assert gone() is None


def case_looking_often_leaves_nothing_behind():
    kept = object()
    frame = here()
    names_of(frame)
    before, dicts = sys.getrefcount(kept), sum(type(item) is dict for item in gc.get_objects())
    for _ in range(1000):
        names_of(frame)
        write_locals(frame, {"before": before})
    assert sys.getrefcount(kept) == before
    assert sum(type(item) is dict for item in gc.get_objects()) < dicts + 100


def case_the_program_sees_what_is_written_when_it_asks_again():
    x = 1
    given = locals()
    set_callers(x=2)
    assert given["x"] == 1
    assert locals()["x"] == x == 2


def case_a_loop_goes_on_with_the_written_counter():
    seen = []
    count = 0
    while count < 10:
        seen.append(count)
        if count == 1:
            set_callers(count=7)
        count += 1
    assert seen == [0, 1, 8, 9]


def case_a_suspended_generator_is_written():
    def generator():
        x = 1
        while True:
            yield x

    running = generator()
    assert next(running) == 1
    write_locals(running.gi_frame, {"x": 5})
    assert next(running) == 5


def case_a_generator_is_written_from_within():
    def generator():
        for x in range(3):
            y = None
            set_callers(y=x * 10)
            yield x, y

    assert list(generator()) == [(0, 0), (1, 10), (2, 20)]


def case_the_globals_of_a_module_are_written():
    shown = []
    names = {"set_callers": set_callers, "show": shown.append, "__name__": "somewhere"}
    exec(compile("x = 1\nset_callers(x=2, y=3)\nshow((x, y))", "<module>", "exec"), names)
    assert shown == [(2, 3)]
    assert (names["x"], names["y"]) == (2, 3)


COMPREHENSION = """
k = 7

def act(k):
    frame = here().f_back
    while frame.f_code.co_name != "<module>":
        frame = frame.f_back
    write_locals(frame, {"x": k})
    shown.append((is_module_frame(frame), live_locals(frame).get("k")))

x = 0
[act(k) for k in range(2)]
shown.append((x, k))
"""


def case_a_module_inside_a_comprehension_is_written():
    shown = []
    names = {"here": here, "is_module_frame": is_module_frame, "write_locals": write_locals, "live_locals": live_locals}
    exec(compile(COMPREHENSION, "<module>", "exec"), names | {"shown": shown})
    assert shown == [(True, 7), (True, 7), (1, 7)]


def case_the_body_of_a_class_is_written():
    class Made:
        x = 1
        set_callers(x=2)
        y = x

    assert (Made.x, Made.y) == (2, 2)


def case_names_apart_from_the_globals_are_written_there():
    names, own = {"set_callers": set_callers}, {}
    exec("x = 1\nset_callers(x=2)\ny = x", names, own)
    assert own == {"x": 2, "y": 2}
    assert "x" not in names


def case_a_module_frame_is_told_from_a_function():
    found = []
    names = {"look": lambda: found.append(is_module_frame(sys._getframe(1)))}
    exec(compile("look()\n[look() for _ in range(1)]\ndef f(): look()\nf()\nclass C: look()", "<module>", "exec"), names)
    assert found[0] is True
    assert found[2:] == [False, False]
    assert found[1] is (sys.version_info >= (3, 12))  # on 3.11 a comprehension has a frame of its own


def case_only_live_locals_are_given():
    dead = [1]
    kept = [2]
    found = live_locals(here())
    dead = kept
    assert found == {"kept": kept}
    assert dead


def case_names_that_functions_of_a_module_read_are_live():
    found = []
    names = {"look": lambda: found.append(live_locals(sys._getframe(1)))}
    exec(compile("a = b = 1\ndef f(): return a\nlook()\na = b = 2", "<module>", "exec"), names)
    assert {name for name in found[0] if name in "ab"} == {"a"}


def case_the_frames_of_libraries_are_left_out():
    import functools

    frames = []
    functools.reduce(lambda a, b: frames.extend(user_frames(here())), [1, 2])
    assert frames[0].f_code.co_name == "<lambda>"
    assert frames[1] is here()


def case_cells_are_those_of_closures():
    def inner(x, y=0):
        z, plain = 1, 2
        gone = 3
        del gone

        def share():
            return x, z, gone, outer  # noqa: F821

        frame, cells = here(), dict(zip(share.__code__.co_freevars, share.__closure__, strict=True))
        assert cells_of(frame) in (None, cells)
        assert cells_of(frame) is not None or not has_known_frames()
        assert set(cells_of(frame.f_back) or {"outer"}) == {"outer"}
        return plain + y

    outer = 5
    assert cells_of(sys._getframe()) in (None, {"outer": inner.__closure__[inner.__code__.co_freevars.index("outer")]})
    inner(1)


def case_cells_of_a_generator_and_of_a_frame_without_any():
    def numbers():
        here_too = 1
        yield cells_of(here()), (lambda: here_too).__closure__

    (found, closure) = next(numbers())
    assert found in (None, {"here_too": closure[0]})

    def none(a):
        return cells_of(here())

    assert none(1) == {}


CASES = {name: case for name, case in list(globals().items()) if name.startswith("case_")}

if __name__ == "__main__":
    for case in CASES.values():
        case()
    print(len(CASES))
