"""What is not data: it stays as the process has it, and is named where it has moved on or the loop has made it."""

from __future__ import annotations

import collections
import gc
import hashlib
import io
import itertools
import json
import logging
import logging.handlers
import operator
import pathlib
import sqlite3
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from detrain.python.codec import strangers
from detrain.python.codec.coders import Encoder
from detrain.python.outside import open_files
from tests.codec import program
from tests.codec.program import of_a_library
from tests.codec.sample import hold, into, places, resumed, run_twice
from tests.codec.samples import SAMPLES, VALUES
from tests.codec.test_arrays import decoder_of
from tests.runtime import state_values as kinds
from tests.runtime.state_values import NO_FRAMEWORK, World, baseline_of, encode

OPAQUE: dict[str, Callable[[], Any]] = {
    "lock": threading.Lock,
    "thread": threading.Thread,
    "file": lambda: io.BufferedReader(io.BytesIO()),
    "generator": lambda: (number for number in range(9)),
    "iterator": lambda: iter({1: 2}),
    "memory": lambda: memoryview(b"ab"),
    "local class": type("Local", (threading.Thread,), {}),
    "function": lambda: types.FunctionType(compile("lambda: 0", "a.py", "eval").co_consts[0], globals()),
    "records with objects": lambda: np.array([(None, 1)], [("a", object), ("b", int)]),
}


@pytest.mark.parametrize("make", OPAQUE.values(), ids=OPAQUE)
def test_what_the_loop_made_and_cannot_be_captured_is_named_at_each_place(make: Callable[[], Any]) -> None:
    made = make()
    encoded = encode({"value": [made], "again": made}, baseline_of({"value": []}))
    assert places(encoded.not_captured) == ["value[0]", "again"]


@pytest.mark.parametrize("make", OPAQUE.values(), ids=OPAQUE)
def test_what_was_there_and_cannot_be_captured_stays(make: Callable[[], Any]) -> None:
    after, before = ({"value": [make()], "again": None, "count": 0} for _ in range(2))
    held, baseline = before["value"][0], baseline_of(after)
    after["again"], after["count"] = after["value"].pop(), 1
    resumed(after, before, baseline=baseline)
    assert before == {"value": [], "again": held, "count": 1}
    assert before["again"] is held


@pytest.mark.parametrize("name", ["generator", "iterator"])
def test_what_was_there_and_has_moved_on_is_named(name: str) -> None:
    world: World = {"value": OPAQUE[name](), "other": OPAQUE[name]()}
    baseline = baseline_of(world)
    next(world["value"])
    assert places(encode(world, baseline).not_captured) == ["value"]


def _array_of(value: object) -> Any:
    tuples = [held for held in gc.get_referents(value) if isinstance(held, tuple)]
    return next(item for held in tuples for item in held if isinstance(item, np.ndarray))


def _database() -> sqlite3.Connection:
    made = sqlite3.connect(":memory:")
    made.execute("create table t (x)")
    return made


def _numbers() -> sqlite3.Cursor:
    return sqlite3.connect(":memory:").execute("select 1 union select 2")


class Loader(program.Wrapper):  # type: ignore[misc]
    __module__ = "gymnasium.wrappers"

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return next(self.rows)


def _loader() -> Any:
    made = Loader()
    vars(made).update(rows=(n for n in [1, 2]), thread=threading.Thread(name="waits"))
    return made


def _set_item(value: Any) -> None:
    value[0] = 7


_KEPT_ALIVE = kinds.Loose(0)

HIDDEN: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "handler": (logging.NullHandler, lambda value: value.setLevel(logging.ERROR)),
    "handler that writes later": (
        lambda: logging.handlers.MemoryHandler(9),
        lambda value: value.emit(logging.makeLogRecord({"levelno": logging.INFO})),
    ),
    "hash of any length": (hashlib.shake_128, lambda value: value.update(b"x")),
    "array within an object of C": (lambda: operator.methodcaller("sum", np.ones(2)), lambda value: _array_of(value).fill(0)),
    "cursor within an object of a library": (lambda: of_a_library(rows=_numbers()), lambda value: next(value.rows)),
    "iterator within an object of a library": (lambda: of_a_library(rows=zip(iter([1, 2]))), lambda value: next(value.rows)),
    "generator within an object of a library": (lambda: of_a_library(rows=(n for n in [1, 2])), lambda value: next(value.rows)),
    "cycle within an object of a library": (lambda: of_a_library(rows=itertools.cycle([1, 2])), lambda value: next(value.rows)),
}
"""Objects that keep what they hold where no attribute shows it, and what changes them."""
NEVER_SAY = {"cursor within an object of a library", "cycle within an object of a library"}
"""Those that do not say whether they have moved."""


@pytest.mark.parametrize("name", HIDDEN)
def test_what_holds_its_content_out_of_sight_is_named_when_that_changes(name: str) -> None:
    make, change = HIDDEN[name]
    world: World = {"value": make(), "other": make()}
    baseline = baseline_of(world)
    before = encode(world, baseline).not_captured
    change(world["value"])
    assert before == [] or name in NEVER_SAY
    assert "value" in places(encode(world, baseline).not_captured)


@pytest.mark.parametrize("name", ["weak keys", "weak values", "weak set"])
def test_of_what_holds_weakly_it_is_said_why_it_is_named(name: str) -> None:
    world = SAMPLES[name].make()
    baseline = baseline_of(world)
    SAMPLES[name].change(world)
    [said] = encode(world, baseline).not_captured
    assert said.endswith(": when what it holds is let go of is not as without detrain)")


def test_a_file_open_for_writing_is_named(tmp_path: pathlib.Path) -> None:
    with (tmp_path / "log").open("w") as log, (tmp_path / "log").open() as lines:
        world: World = {"log": log, "lines": lines, "out": sys.stdout}
        assert encode(world, baseline_of(world)).not_captured == ["log (_io.TextIOWrapper: open for writing)"]
        assert hold({"log": log, "lines": lines}).lost == ["log (_io.TextIOWrapper: open for writing)"]


def test_the_arrays_of_a_file_of_numpy_stay(tmp_path: pathlib.Path) -> None:
    """Its attribute `f` has no attributes, not even `__class__`: a run with one ended with a defect."""
    np.savez(tmp_path / "a.npz", a=np.arange(3))
    after, before = ({"value": [np.load(tmp_path / "a.npz")], "count": 0} for _ in range(2))
    held, baseline = before["value"][0], baseline_of(after)
    after["count"] = int(after["value"][0]["a"].sum())
    resumed(after, before, ("value[0]",), baseline)  # named as harmless

    assert before == {"value": [held], "count": 3}
    assert held["a"].tolist() == [0, 1, 2]


def test_what_stands_in_for_open_is_not_where_batches_come_from() -> None:
    """A program that has it by `from io import open` would else load the batches before a cut again."""
    after, before = ({"open": open_files._Open(types.SimpleNamespace(hear=print))} for _ in range(2))
    encoded = encode(after, baseline_of(after))
    assert encoded.not_captured == []
    into(encoded, before)


# Objects of libraries, and of the program's classes that derive from them.


def test_what_changes_deep_inside_of_an_object_of_a_library_is_named() -> None:
    """Only its own numbers were compared: an environment in wrappers began anew in a resumed run, in silence."""
    inner = of_a_library(turns=0, board=np.zeros(3), rng=np.random.default_rng(0))
    world: World = {"value": of_a_library(env=[of_a_library(env=inner)]), "other": of_a_library(env=of_a_library(turns=0))}
    baseline = baseline_of(world)
    assert encode(world, baseline).not_captured == []
    for change in (lambda: setattr(inner, "turns", 1), lambda: inner.board.fill(2), inner.rng.random):
        change()
        assert places(encode(world, baseline).not_captured) == ["value"]
        baseline = baseline_of(world)


def test_an_object_of_the_program_that_only_a_librarys_object_leads_to_comes_back_in_place() -> None:
    """It began anew in silence: objects of the program were taken to be reached otherwise."""
    world = {"value": SAMPLES["object of a library that leads to the program's"].make()["value"]}
    there, baseline = world["value"].callbacks[0]["each"][0], baseline_of(world)
    there.x.append(5)
    encoded = encode(world, baseline)
    there.x.append(6)
    into(encoded, world)
    assert world["value"].callbacks[0]["each"][0] is there
    assert there.x == [1, 5]


def test_what_the_parts_of_a_figure_lead_to_is_gone_through_once_for_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part leads to all others: a figure of ten times ten axes took minutes, in each checkpoint."""
    looked_at: collections.Counter[int] = collections.Counter()
    is_state = strangers._is_state_inside
    monkeypatch.setattr(strangers, "_is_state_inside", lambda *each: looked_at.update([id(each[-1])]) or is_state(*each))
    figure = Figure()
    world: World = {"axes": figure.subplots(2, 3), "figure": figure}
    baseline = baseline_of(world)
    assert max(looked_at.values()) == 1

    looked_at.clear()
    encode(world, baseline)
    assert max(looked_at.values()) == 1


@pytest.mark.parametrize("names", [("axes", "figure"), ("figure", "axes")])
def test_an_object_of_the_program_that_a_figure_leads_to_comes_back_in_place(names: tuple[str, str]) -> None:
    figure = Figure()
    axes: Any = figure.subplots(2, 2)
    axes[1, 1].note = there = kinds.Batch([1])
    world: World = {"axes": axes, "figure": figure}
    baseline = baseline_of(world)
    there.x.append(5)
    axes[0, 0].plot([1, 2])
    encoded = encode({name: world[name] for name in names}, baseline)
    there.x.append(6)
    into(encoded, world)
    assert axes[1, 1].note is there
    assert there.x == [1, 5]


@pytest.mark.parametrize("length", [0.5, -0.0, "far", (1, 2.5), [3]])
def test_a_named_tuple_of_the_program_that_a_librarys_object_holds_stays(length: object) -> None:
    """A resume was refused: an equal tuple took its place."""
    there = kinds.Point(kinds.Batch([1]), length)
    world: World = {"value": of_a_library(optimizer=there, steps=np.zeros(2))}
    baseline = baseline_of(world)
    encoded = encode(world, baseline)
    assert encoded.not_captured == []
    into(encoded, world)
    assert world["value"].optimizer is there


def test_what_a_librarys_object_has_come_to_hold_is_named() -> None:
    world = {"value": SAMPLES["object of a library that leads to the program's"].make()["value"]}
    baseline = baseline_of(world)
    world["value"].callbacks[0]["each"][0] = kinds.Batch([7], np.zeros(2))

    [said] = encode(world, baseline).not_captured
    assert said.startswith("value.callbacks[0]['each'][0] (")
    assert said.endswith(": an object of a library holds it since)")


def test_what_a_library_keeps_in_an_object_of_the_programs_is_named_where_it_is_not_all_data() -> None:
    world: World = {"env": program.Env(env=program.Env(), thread=threading.Thread(name="waits"))}
    baseline = baseline_of(world)
    world["env"].steps += 1
    assert encode(world, baseline).not_captured == []
    world["env"].env.step()
    assert places(encode(world, baseline).not_captured) == ["env"]


def test_what_is_a_librarys_own_in_an_object_of_the_programs_stays() -> None:
    live: list[Any] = []

    def make() -> World:
        live[:] = [worker := program.Worker(), worker.lock, worker.items]
        return {"worker": worker}

    _after, before = run_twice(make, lambda world: (world["worker"].work(), setattr(world["worker"], "name", "of the library")))
    worker = before["worker"]
    assert (worker.name, worker.done) == ("worker", 1)
    assert [worker, worker.lock, worker.items] == live
    assert worker.items is live[2]


def test_what_leads_to_an_object_of_an_extension_that_shows_nothing_is_named() -> None:
    """The game behind an environment (ale_py) is in an object of C++, and began anew in a resumed run, in silence."""
    cv2 = pytest.importorskip("cv2")
    game = cv2.createBackgroundSubtractorMOG2()
    world: World = {"env": of_a_library(env=of_a_library(game=game)), "game": game, "other": of_a_library(turns=0)}

    said = encode(world, baseline_of(world)).not_captured

    assert places(said) == ["env", "game"]
    assert all("what an extension keeps in it cannot be read" in loss for loss in said)


def test_an_iterator_that_the_body_moved_on_is_missed_behind_the_loading() -> None:
    """A loader of a library for validation went on from where the resumed process had it, with
    no more than a warning.
    """
    world, there = ({"checks": _loader()} for _ in range(2))
    baseline = baseline_of(world)
    next(world["checks"].rows)
    encoder = Encoder(NO_FRAMEWORK, baseline, are_loads_replayed=True)
    encoded = encoder.finish({"checks": encoder.encode(world["checks"], "checks")})
    assert (encoded.not_captured, len(encoded.moved)) == ([], 1)

    decoder = decoder_of(encoded, there)
    decoder.decode(decoder.roots["checks"], there["checks"], "checks")

    [said] = decoder.missing
    assert said.startswith("checks: gymnasium.wrappers.Loader is not where the first run had it")


def test_functions_of_a_library_stay_where_an_object_of_it_lists_them() -> None:
    """A pipeline of webdataset lost the functions that it calls, and a resumed run ended with an AttributeError."""

    def make() -> World:
        stage = program.Wrapper()
        vars(stage).update(calls=[json.dumps], named={"handler": json.loads}, count=0)
        return {"stage": stage}

    _after, before = run_twice(make, lambda world: setattr(world["stage"], "count", 3))

    assert vars(before["stage"]) == {"calls": [json.dumps], "named": {"handler": json.loads}, "count": 3}


class Holder(logging.Formatter):
    """Stays as the process has it, being of a class of Python's: what its methods store comes back where it is data."""

    def __init__(self) -> None:
        super().__init__()
        self.best: Any = None


@pytest.mark.parametrize("name", VALUES)
def test_a_value_that_an_object_holds_which_stays_comes_back(name: str) -> None:
    after, before = run_twice(lambda: {"holder": Holder()}, lambda world: setattr(world["holder"], "best", VALUES[name](2)))
    assert program.shown(before["holder"].best) == program.shown(after["holder"].best)
