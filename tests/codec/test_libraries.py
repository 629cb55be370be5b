"""Objects of libraries that are data: a config, a namespace, a meter. They come back whole, in place or made anew, or
they are named; and nothing of the library's code is run for that.
"""

from __future__ import annotations

import builtins
import calendar
import contextlib
import difflib
import email
import functools
import http.cookies
import http.server
import importlib
import inspect
import io
import json
import operator
import optparse
import pickle
import random
import statistics
import string
import sys
import textwrap
import threading
import time
import urllib.parse
import urllib.request
import xml.dom.minidom
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from detrain.base.losses import is_refused
from detrain.python.inspect.library_globals import give_to_library, held_in_library, name_in_library
from detrain.python.inspect.names import is_laid_open
from detrain.python.inspect.object_graph import ABSENT
from detrain.python.inspect.reductions import tells
from tests.codec import program
from tests.codec.sample import lost_of, made_anew, places, run_twice, there_and_back
from tests.runtime.state_values import World, baseline_of, encode, restore


@pytest.fixture
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A library, as a new process has it: that of data, or the one that the test names."""
    name = getattr(request, "param", program.LIBRARY.__name__)
    monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module(name)
    monkeypatch.delitem(sys.modules, name)


def test_an_object_of_a_library_is_found_by_its_address_not_by_the_name_that_holds_it_now(library: Any) -> None:
    live: list[Any] = []

    def make() -> World:
        live[:] = [library.Meter()]
        return {"one": live[0], "other": None}

    def change(world: World) -> None:
        world["other"], world["one"] = world["one"], library.Meter()
        world["other"].total = 2.0

    _after, before = run_twice(make, change)
    held = before["other"]
    assert held is live[0]
    assert before["one"] is not held
    assert (held.total, before["one"].total) == (2.0, 0.0)


@pytest.mark.parametrize("name", ["Interned", "Single", "Closing", "Known"])
def test_what_a_new_object_would_not_be_the_same_as_is_named(library: Any, name: str) -> None:
    """One that its class keeps account of, or that does something when it goes, or holds what no attribute shows."""
    assert places(lost_of(getattr(library, name))) == ["value"]


def test_what_is_not_data_through_and_through_is_named_when_anything_in_it_changes(library: Any) -> None:
    def change_set(meter: Any) -> None:
        meter.seen.discard(1)
        meter.seen.add(3)

    def change_items(meter: Any) -> None:
        dict.__setitem__(meter.config, "lr", 0.5)

    for change in (change_set, change_items, lambda meter: setattr(meter.point, "x", 2)):
        meter = library.Meter()
        meter.thread, meter.seen, meter.config, meter.point = (
            threading.Thread(),
            {1, 2},
            library.Config({"lr": 0.1}),
            library.Point(1),
        )
        world: World = {"meter": meter}
        baseline = baseline_of(world)
        assert encode(world, baseline).not_captured == []
        change(meter)
        assert places(encode(world, baseline).not_captured) == ["meter"]


def test_locks_that_nobody_holds_and_attributes_of_a_thread_are_no_bar_to_data(library: Any) -> None:
    """A study of optuna had each resume refused."""

    def make() -> Any:
        meter = library.Meter()
        meter.locks, meter.here = (threading.Lock(), threading.RLock()), library.OfThread()
        return meter

    def change(meter: Any) -> None:
        meter.total, meter.here.depth = 2.0, 3

    after, back = there_and_back(make, change)

    assert (back.total, back.here.depth) == (2.0, 3)
    assert back.locks[0] is not after.locks[0]  # this process's own


def test_the_namespace_of_a_library_is_the_one_that_the_process_has(library: Any) -> None:
    """stable-baselines3 hands `globals()` to its callbacks; each resume was refused for Python's own objects in it."""

    def make() -> Any:
        meter = library.Meter()
        meter.names, meter.builtins = vars(library), vars(builtins)
        return meter

    after, back = there_and_back(make, lambda meter: setattr(meter, "total", 2.0))

    assert (back.total, back.names, back.builtins) == (2.0, after.names, after.builtins)
    assert back.names is vars(library)


def test_what_a_library_s_class_shows_stays_as_the_class_does(library: Any) -> None:
    """stable-baselines3's wrappers of environments hold all members of their classes; each resume was refused."""

    def make() -> Any:
        meter = library.Meter()
        meter.members = dict(inspect.getmembers(library.Meter))
        return meter

    after, back = there_and_back(make, lambda meter: setattr(meter, "total", 2.0))

    assert (back.total, back.members.keys()) == (2.0, after.members.keys())


def test_a_lock_that_somebody_holds_is_one(library: Any) -> None:
    world: World = {"meter": library.Meter()}
    world["meter"].lock = threading.Lock()
    baseline = baseline_of(world)
    world["meter"].total = 2.0
    with world["meter"].lock:
        assert places(encode(world, baseline).not_captured) == ["meter"]


def test_what_cannot_be_captured_in_a_container_of_a_librarys_is_named_by_itself(library: Any) -> None:
    world: World = {"config": library.Config({"lock": threading.Lock(), "lr": 0.1})}
    there: World = {"config": library.Config({"lock": threading.Lock(), "lr": 0.1})}
    lock, baseline = there["config"]["lock"], baseline_of(world)
    dict.__setitem__(world["config"], "lr", 0.5)
    dict.__setitem__(world["config"], "thread", threading.Thread())

    encoded = encode(world, baseline)

    assert places(encoded.not_captured) == ["config['thread']"]
    assert restore(encoded, there, baseline_of(there)) == []
    assert there["config"] == {"lock": lock, "lr": 0.5}


def test_a_class_of_c_with_members_does_not_show_all_that_its_objects_hold() -> None:
    assert not is_laid_open(functools.partial)
    assert is_laid_open(type("Slotted", (), {"__slots__": ("one", "other")}))


@pytest.mark.parametrize(("module", "is_closed"), [("jax.lax", True), ("jax", True), ("jaxlib.xla", True), ("jaxopt.base", False)])
def test_a_library_whose_name_begins_as_that_of_jax_is_laid_open(module: str, is_closed: bool) -> None:
    """jaxopt's states were closed as JAX's own objects, and each resume was refused."""
    assert is_laid_open(type("State", (tuple,), {"_fields": (), "__slots__": (), "__module__": module})) != is_closed


def test_what_a_library_knows_by_its_identity_is_that_in_the_resumed_process(library: Any) -> None:
    """A mark for "not given" was another object after a resume, in silence: the library took it for a value."""
    back = made_anew(library.Option)
    assert back.marks() == (True,) * 6

    given = made_anew(lambda: library.Option(3, None))
    assert (given.value, given.other) == (3, None)
    assert type(given.own) is object
    assert given.own is not library.Option.NOT_YET


def test_what_the_loop_changes_of_such_is_changed_under_the_librarys_name(library: Any) -> None:
    world: World = {"value": None}
    baseline = baseline_of(world)
    world["value"] = library.Option()
    library.DEFAULTS["rate"].append(0.5)
    library.EMPTY.append("x")
    library.CHOSEN.total = 7.0
    encoded, there = encode(world, baseline), {"value": None}
    assert encoded.not_captured == []

    library.DEFAULTS["rate"][:], library.EMPTY[:], library.CHOSEN.total = [0.1], [], 0.0  # as a new process has it
    assert restore(encoded, there, baseline_of(there)) == []
    assert there["value"].marks() == (True,) * 6  # type: ignore[attr-defined]
    assert (library.DEFAULTS, library.EMPTY, library.CHOSEN.total) == ({"rate": [0.1, 0.5]}, ["x"], 7.0)


def test_what_no_library_holds_any_more_is_missed(library: Any) -> None:
    world: World = {"value": None}
    baseline = baseline_of(world)
    world["value"] = library.Option()
    encoded, there = encode(world, baseline), {"value": None}
    del library._UNSET
    assert restore(encoded, there, baseline_of(there)) == ["value.value: no library holds library_of_data:_UNSET here"]


def test_what_a_library_makes_when_it_is_first_asked_is_its_own_again(library: Any) -> None:
    """The library kept None under its name, and made another one when it was asked next."""
    world: World = {"value": None}
    baseline = baseline_of(world)
    world["value"] = library.first_asked()
    world["value"].total = 3.0  # type: ignore[attr-defined]
    library.Option.last = library.Tree()
    world["tree"] = library.Option.last
    encoded, there = encode(world, baseline), {"value": None, "tree": None}
    library.ASKED = library.Option.last = None
    assert restore(encoded, there, baseline_of(there)) == []

    assert there["value"] is library.first_asked()
    assert library.ASKED.total == 3.0
    assert there["tree"] is library.Option.last


def test_two_objects_hold_one_mark_whichever_was_there_before(library: Any) -> None:
    """Also where the one that the loop has made is put back first."""
    world: World = {"made": None, "there": library.Option()}
    baseline = baseline_of(world)
    world["made"] = library.Option()
    encoded, again = encode(world, baseline), {"made": None, "there": library.Option()}
    assert restore(encoded, again, baseline_of(again)) == []
    assert [each.marks() for each in again.values()] == [(True,) * 6] * 2  # type: ignore[attr-defined]


def test_a_container_that_python_holds_is_none_of_a_librarys(library: Any) -> None:
    """A library may have taken `sys.path` for its own: a file must not be able to fill it."""
    library.PATHS = sys.path
    assert name_in_library(sys.path) is None
    assert held_in_library("library_of_data:PATHS") is ABSENT
    assert held_in_library("sys:path") is ABSENT
    assert held_in_library("library_of_data:DEFAULTS") is library.DEFAULTS


def test_a_file_gives_nothing_under_a_name_that_python_goes_by(library: Any) -> None:
    """By `__path__` Python knows from where a package imports."""
    library.__path__, library.__late__, library.NEW = ["/somewhere"], None, None
    of_server = "http.server:SimpleHTTPRequestHandler.extensions_map"
    for name in ("library_of_data:__path__", "library_of_data:Option.__annotations__", of_server):
        assert held_in_library(name) is ABSENT
    for name in ("library_of_data:__late__", "library_of_data:GONE", "library_of_data:Gone.new", "library_of_data:DEFAULTS"):
        assert not give_to_library(name, ["/elsewhere"])
    assert give_to_library("library_of_data:NEW", given := ["here"])
    assert library.NEW is given
    assert library.__path__ == ["/somewhere"]


STANDARD: dict[str, Callable[[], Any]] = {
    "nullcontext": lambda: contextlib.nullcontext([3]),
    "suppress": lambda: contextlib.suppress(KeyError),
    "an empty stack of contexts": contextlib.ExitStack,
    "a message": lambda: email.message_from_string("To: a\n\nb"),
    "a document": lambda: xml.dom.minidom.parseString('<a b="1"><c/></a>'),
    "what wraps texts": lambda: textwrap.TextWrapper(30),
    "an encoder of JSON": lambda: json.JSONEncoder(indent=2),
    "a calendar": lambda: calendar.Calendar(6),
    "a matcher": lambda: difflib.SequenceMatcher(None, "abcd", "bcde"),
    "options": lambda: optparse.Values({"a": [1]}),
    "a cookie": lambda: http.cookies.SimpleCookie("a=1"),
    "a request": lambda: urllib.request.Request("http://localhost/", headers={"A": "b"}),
    "an address": lambda: urllib.parse.urlparse("http://localhost/a?b#c"),
    "what is in an archive": lambda: zipfile.ZipInfo("a.txt", (2020, 1, 2, 3, 4, 6)),
    "a template": lambda: string.Template("$a"),
    "a distribution": lambda: statistics.NormalDist(1, 2),
    "a time in parts": lambda: time.gmtime(86_400.0),
    "what gets items": lambda: operator.itemgetter(1, "a"),
    "what gets attributes": lambda: operator.attrgetter("a.b"),
}
"""Objects of Python's own library that are written in Python, or that say of what they are made."""


@pytest.mark.parametrize("name", STANDARD)
def test_what_the_loop_makes_of_pythons_own_library_is_made_again(name: str) -> None:
    """It was REFUSED. Python itself compares: both are pickled to the same bytes."""
    expected, back = STANDARD[name](), made_anew(STANDARD[name])
    assert type(back) is type(expected)
    assert _pickled(back) == _pickled(expected)


def test_what_a_stack_of_contexts_leaves_is_named() -> None:
    """It holds a function that Python's library has made."""

    def make() -> Any:
        stack = contextlib.ExitStack()
        stack.callback(print)
        return stack

    assert lost_of(make) == ["value._exit_callbacks[0][1] (function)"]


def _pickled(value: Any) -> bytes:
    """Two equal texts may be one or two: each is written out."""
    content = io.BytesIO()
    pickler = pickle.Pickler(content)
    pickler.fast = True
    pickler.dump(value.toxml() if isinstance(value, xml.dom.minidom.Document) else value)
    return content.getvalue()


REAL: dict[str, tuple[str, Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "munch": ("munch", lambda m: m.Munch({"a": 1, "b": m.Munch(c=2)}), lambda v: v.update(a=[3]), dict),
    "addict": ("addict", lambda m: m.Dict({"a": 1, "b": {"c": 2}}), lambda v: setattr(v.b, "c", 5), dict),
    "box": ("box", lambda m: m.Box({"a": 1, "b": {"c": 2}}), lambda v: setattr(v.b, "new", {"d": 1}), lambda v: v.to_dict()),
    "yacs": ("yacs.config", lambda m: m.CfgNode({"a": 1, "b": {"c": 2}}), lambda v: setattr(v, "a", 3), dict),
    "mmengine": ("mmengine", lambda m: m.ConfigDict(a=1, b={"c": 2}), lambda v: setattr(v, "new", {"e": 1}), dict),
    "easydict": ("easydict", lambda m: m.EasyDict(a=1, b={"c": 2}), lambda v: setattr(v, "new", {"e": 1}), dict),
    "ml_collections": ("ml_collections", lambda m: m.ConfigDict({"a": 1}), lambda v: setattr(v, "a", 3), lambda v: v.to_dict()),
    "omegaconf": (
        "omegaconf",
        lambda m: m.OmegaConf.create({"a": 1, "b": {"c": [2]}}),
        lambda v: (setattr(v, "a", 3), setattr(v, "new", {"k": 1})),
        lambda v: type(v).__mro__ and str(v),
    ),
    "sortedcontainers": ("sortedcontainers", lambda m: m.SortedDict(b=1), lambda v: v.update(a=2), lambda v: list(v.items())),
    "cachetools": ("cachetools", lambda m: m.LRUCache(2), lambda v: v.update(a=1, b=2, c=3), lambda v: list(v.items())),
}
"""Libraries with a module, what makes an object, what changes it, and what is seen of it."""


@pytest.mark.parametrize("name", REAL)
def test_configs_of_libraries_come_back_in_place_and_made_anew(name: str) -> None:
    module_name, make, change, see = REAL[name]
    module = pytest.importorskip(module_name)
    after, back = there_and_back(lambda: make(module), change)
    assert see(back) == see(after)
    assert see(made_anew(lambda: after)) == see(after)


telling = pytest.mark.parametrize("library", ["library_that_tells"], indirect=True)


@telling
def test_what_only_its_class_says_that_an_object_holds_is_refused_when_it_changes(library: Any) -> None:
    world: World = {"noted": library.Noted(), "other": library.Noted()}
    baseline = baseline_of(world)
    assert encode(world, baseline).not_captured == []
    library.NOTES[id(world["noted"])].append(0.125)
    [said] = encode(world, baseline).not_captured
    assert said.startswith("noted (library_that_tells.Noted")
    assert is_refused(said)


@telling
def test_what_only_its_class_says_that_a_new_object_holds_is_refused(library: Any) -> None:
    [said] = lost_of(lambda: library.Noted(0.375))
    assert is_refused(said)


@telling
def test_to_ask_a_class_changes_nothing(library: Any) -> None:
    world: World = {"noted": library.Noted()}
    before = random.getstate()
    baseline = baseline_of(world)
    encode(world, baseline)
    assert library.ASKED
    assert random.getstate() == before
    assert vars(world["noted"]) == {"name": "noted"}


@telling
def test_what_a_class_says_that_is_captured_or_computed_is_no_loss(library: Any) -> None:
    after, back = there_and_back(lambda: library.Counted(a=0.5), lambda value: value.update(b="text", c=1 << 40))
    assert back == after
    assert dict(made_anew(lambda: after)) == dict(after)
    assert dict(made_anew(lambda: library.Failing(a=1))) == {"a": 1}
    assert type(made_anew(library.Versioned)) is library.Versioned


def test_the_programs_own_methods_are_not_asked() -> None:
    class Own(importlib.import_module("configparser").RawConfigParser):  # type: ignore[misc, name-defined]
        def __getstate__(self) -> object:
            raise AssertionError("the program's code was run")

    assert not tells(Own)


def test_what_is_known_to_keep_what_was_put_there_may_show_nothing() -> None:
    """A tree for neighbours, which a data set looks up, had each resume refused."""
    trees = pytest.importorskip("sklearn.neighbors")
    world: World = {"tree": trees.BallTree([[0.0], [1.0]])}

    assert encode(world, baseline_of(world)).not_captured == []


def test_a_tokenizer_is_as_the_loop_has_set_it() -> None:
    """It had each resume refused: it shows nothing, and says all when it is asked."""
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]")

    after, back = there_and_back(lambda: tokenizers.Tokenizer(words), lambda value: value.enable_truncation(max_length=5))

    assert back.truncation == after.truncation
    assert back.truncation["max_length"] == 5
    assert encode({"mark": (mark := tokenizers.AddedToken("x"))}, baseline_of({"mark": mark})).not_captured == []
