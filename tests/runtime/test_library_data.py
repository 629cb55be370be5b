"""Objects of libraries that are data: a config, a namespace, a meter. They come back whole, in place or made anew, or
they are named; and nothing of the library's code is run for that.
"""

from __future__ import annotations

import calendar
import contextlib
import difflib
import email
import functools
import http.cookies
import http.server
import importlib
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
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detrain.python.inspect.library_globals import give_to_library, held_in_library, name_in_library
from detrain.python.inspect.names import is_laid_open, own_attributes
from detrain.python.inspect.object_graph import ABSENT
from detrain.python.inspect.reductions import tells
from detrain.runtime.state.uncaptured import is_refused
from tests.runtime.state_values import World, baseline_of, encode, restore

LIBRARY = '''
import collections
import functools


def _closed(*_arguments, **_keywords):
    raise AssertionError("code of the library was run")


class Config(dict):
    """Attributes are items; only a closed one may be filled from outside."""

    is_closed = False

    def __init__(self, items=()):
        super().__init__(items)
        object.__setattr__(self, "frozen", [False])

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name, value):
        self[name] = value

    def __setitem__(self, key, value):
        if Config.is_closed:
            _closed()
        dict.__setitem__(self, key, value)


class Shown(dict):
    """Like munch: what it shows as `__dict__` is made anew each time."""

    __dict__ = property(lambda self: dict(self))


class Row(list):
    def __init__(self, *items):
        super().__init__(items)
        self.title = "row"

    append = extend = __setitem__ = _closed


class Queue(collections.deque):
    pass


class Group(set):
    add = _closed


class Point:
    __slots__ = ("x", "y")

    def __init__(self, x):
        self.x = x

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)


class Tree:
    def __init__(self, parent=None):
        self.parent, self.children, self.kind = parent, {}, Point


class Meter:
    def __init__(self):
        self.total, self.last, self.seen = 0.0, None, set()


class Interned:
    _known = {}

    def __new__(cls, name="a"):
        return cls._known.setdefault(name, object.__new__(cls))


class _One(type):
    _made = {}

    def __call__(cls):
        return cls._made.setdefault(cls, type.__call__(cls))


class Single(metaclass=_One):
    pass


class Closing:
    def __del__(self):
        pass


class Made:
    def __new__(cls, *_arguments):
        return object.__new__(cls)


class Tag(str):
    pass


class Known(str):
    known = {}

    def __new__(cls, text=""):
        return cls.known.setdefault(text, str.__new__(cls, text))


class Keeper:
    Item = collections.namedtuple("Item", "score file")

    def __init__(self):
        self.saved = []


class Bound(functools.partial):
    pass


class Missing:
    pass


_UNSET = object()
MISSING = Missing()
DEFAULTS, EMPTY, CHOSEN = {"rate": [0.1]}, [], Meter()


ASKED = None


def first_asked():
    global ASKED
    if ASKED is None:
        ASKED = Meter()
    return ASKED


class Option:
    NOT_YET, last = object(), None

    def __init__(self, value=_UNSET, other=MISSING):
        self.value, self.other, self.later = value, other, self.NOT_YET
        self.defaults, self.empty, self.chosen, self.own = DEFAULTS, EMPTY, CHOSEN, object()

    def marks(self):
        is_default = self.value is _UNSET, self.other is MISSING, self.later is self.NOT_YET
        return *is_default, self.defaults is DEFAULTS, self.empty is EMPTY, self.chosen is CHOSEN
'''


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A library with such classes."""
    yield from _imported("library_of_data", LIBRARY, tmp_path, monkeypatch)


def _imported(name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module(name)
    del sys.modules[name]


def there_and_back(make: Callable[[], Any], change: Callable[[Any], object]) -> tuple[Any, Any, Any]:
    """Return (what a loop has changed, what a resumed process has of it, and what that had before)."""
    after, before = ({"value": make()} for _ in range(2))
    held, baseline = before["value"], baseline_of(after)
    change(after["value"])
    encoded = encode(after, baseline)
    assert encoded.not_captured == []
    assert restore(encoded, before, baseline_of(before)) == []
    return after["value"], before["value"], held


def made_anew(make: Callable[[], Any]) -> Any:
    """Return what a resumed process has of an object that the loop has made."""
    world: World = {"value": None}
    baseline = baseline_of(world)
    world["value"] = make()
    encoded, there = encode(world, baseline), {"value": None}
    assert encoded.not_captured == []
    assert restore(encoded, there, baseline_of(there)) == []
    return there["value"]


def lost(make: Callable[[], Any]) -> list[str]:
    """Return what is named of an object that the loop has made."""
    world: World = {"value": None}
    baseline = baseline_of(world)
    world["value"] = make()
    return encode(world, baseline).not_captured


def test_items_of_a_librarys_dict_come_back_in_place_and_past_its_methods(library: Any) -> None:
    """The values of before the loop came back, in silence: only attributes were captured."""

    def change(config: Any) -> None:
        config.lr, config.new, config.inner.deep, config.rest = 0.5, {"a": [1]}, 3, library.Config({"z": 1})
        del config["gone"]
        library.Config.is_closed = True

    def make() -> Any:
        return library.Config({"gone": 1, "lr": 0.1, "inner": library.Config({"deep": 1})})

    after, back, held = there_and_back(make, change)
    assert back is held
    assert back == after == {"lr": 0.5, "inner": {"deep": 3}, "new": {"a": [1]}, "rest": {"z": 1}}
    assert list(back) == list(after)
    assert type(back.rest) is library.Config
    assert own_attributes(back) == {"frozen": [False]}


def test_a_dict_that_shows_its_items_as_attributes_has_none(library: Any) -> None:
    after, back, held = there_and_back(lambda: library.Shown(a=1), lambda shown: shown.update(b=[2]))
    assert back is held
    assert back == after == {"a": 1, "b": [2]}


@pytest.mark.parametrize(
    ("name", "items"), [("Row", [3.0, 1.0]), ("Queue", [1, 2]), ("Group", [7, 8, 9])], ids=["list", "deque", "set"]
)
def test_what_another_container_of_a_librarys_holds_comes_back(library: Any, name: str, items: list[Any]) -> None:
    cls = getattr(library, name)
    base = cls.__mro__[1]

    def change(value: Any) -> None:
        base.clear(value)
        vars(value)["title"] = ["changed"]
        for item in items:
            (base.add if base is set else base.append)(value, item)

    after, back, held = there_and_back(cls, change)
    assert back is held
    assert list(back) == list(after)
    assert back.title == ["changed"]
    assert list(made_anew(lambda: after)) == list(after)


def test_an_attribute_that_comes_to_hold_another_object_of_a_library_comes_back(library: Any) -> None:
    """It was deleted in the resumed process, and no word said so."""
    after, back, held = there_and_back(library.Meter, lambda meter: vars(meter).update(total=1.5, last=library.Point(2.5)))
    assert back is held
    assert (back.total, back.last.x, hasattr(back.last, "y")) == (1.5, 2.5, False)
    assert type(back.last) is type(after.last)


def test_what_the_loop_makes_of_a_librarys_data_class_is_made_again(library: Any) -> None:
    def make() -> Any:
        tree = library.Tree()
        tree.children["a"] = library.Tree(tree)
        tree.children["a"].parent = tree
        tree.rows = library.Row(library.Point(np.float32(1)), library.Config({"x": 1}))
        return tree

    back = made_anew(make)
    assert back.children["a"].parent is back
    assert back.kind is library.Point
    assert (back.rows[0].x, back.rows[1].x, back.rows.title) == (np.float32(1), 1, "row")


def test_a_named_tuple_that_a_class_of_a_library_holds_is_made_again(library: Any) -> None:
    """It was REFUSED: its name, that of the module and itself, leads nowhere."""
    after, back, _held = there_and_back(library.Keeper, lambda keeper: keeper.saved.append(keeper.Item(0.5, "a.pt")))

    assert back.saved == after.saved
    assert type(back.saved[0]) is library.Keeper.Item


def test_an_object_of_a_library_is_found_by_its_address_not_by_the_name_that_holds_it_now(library: Any) -> None:
    after: World = {"one": library.Meter(), "other": None}
    before: World = {"one": library.Meter(), "other": None}
    held, baseline = before["one"], baseline_of(after)
    after["other"], after["one"] = after["one"], library.Meter()
    after["other"].total = 2.0

    assert restore(encode(after, baseline), before, baseline_of(before)) == []

    assert before["other"] is held
    assert before["one"] is not held
    assert (held.total, before["one"].total) == (2.0, 0.0)


@pytest.mark.parametrize("name", ["Interned", "Single", "Closing", "Known"])
def test_what_a_new_object_would_not_be_the_same_as_is_named(library: Any, name: str) -> None:
    """One that its class keeps account of, or that does something when it goes, or holds what no attribute shows."""
    assert [said.partition(" (")[0] for said in lost(getattr(library, name))] == ["value"]


def test_a_text_of_a_library_is_made_again(library: Any) -> None:
    made = made_anew(lambda: library.Tag("text"))

    assert (type(made), made) == (library.Tag, "text")


def test_what_a_class_makes_by_its_own_code_each_time_anew_is_made_again(library: Any) -> None:
    assert type(made_anew(library.Made)) is library.Made


def test_what_is_not_data_through_and_through_is_named_when_anything_in_it_changes(library: Any) -> None:
    def change_set(meter: Any) -> None:
        meter.seen.discard(1)
        meter.seen.add(3)

    def change_items(meter: Any) -> None:
        dict.__setitem__(meter.config, "lr", 0.5)

    for change in (change_set, change_items, lambda meter: setattr(meter.point, "x", 2)):
        meter = library.Meter()
        meter.lock, meter.seen, meter.config, meter.point = threading.Lock(), {1, 2}, library.Config({"lr": 0.1}), library.Point(1)
        world: World = {"meter": meter}
        baseline = baseline_of(world)
        assert encode(world, baseline).not_captured == []
        change(meter)
        assert [said.partition(" (")[0] for said in encode(world, baseline).not_captured] == ["meter"]


def test_what_cannot_be_captured_in_a_container_of_a_librarys_is_named_by_itself(library: Any) -> None:
    world: World = {"config": library.Config({"lock": threading.Lock(), "lr": 0.1})}
    there: World = {"config": library.Config({"lock": threading.Lock(), "lr": 0.1})}
    lock, baseline = there["config"]["lock"], baseline_of(world)
    dict.__setitem__(world["config"], "lr", 0.5)
    dict.__setitem__(world["config"], "thread", threading.Thread())

    encoded = encode(world, baseline)

    assert [said.partition(" (")[0] for said in encoded.not_captured] == ["config['thread']"]
    assert restore(encoded, there, baseline_of(there)) == []
    assert there["config"] == {"lock": lock, "lr": 0.5}


def test_encoding_changes_nothing_of_a_librarys_object(library: Any) -> None:
    config = library.Config({"a": library.Row(1)})
    held = list(config.items())
    encode({"config": config}, baseline_of({"config": config}))
    assert list(map(id, held[0])) == list(map(id, next(iter(config.items()))))
    assert (list(config["a"]), own_attributes(config)) == ([1], {"frozen": [False]})


@pytest.mark.parametrize("name", ["Bound", "partial"])
def test_a_partial_call_comes_back_with_its_class_and_attributes(library: Any, name: str) -> None:
    cls = getattr(library, name, functools.partial)

    def change(meter: Any) -> None:
        meter.last = cls(library.Meter, [2.0], key=3)
        meter.last.title = ["new"]

    after, back, _held = there_and_back(library.Meter, change)
    assert type(back.last) is type(after.last) is cls
    assert (back.last.func, back.last.args, back.last.keywords) == (library.Meter, ([2.0],), {"key": 3})
    assert vars(back.last) == {"title": ["new"]}


def test_a_class_of_c_with_members_does_not_show_all_that_its_objects_hold() -> None:
    assert not is_laid_open(functools.partial)
    assert is_laid_open(type("Slotted", (), {"__slots__": ("one", "other")}))


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

    assert lost(make) == ["value._exit_callbacks[0][1] (function)"]


def _pickled(value: Any) -> bytes:
    """Two equal texts may be one or two: each is written out."""
    content = io.BytesIO()
    pickler = pickle.Pickler(content)
    pickler.fast = True
    pickler.dump(value.toxml() if isinstance(value, xml.dom.minidom.Document) else value)
    return content.getvalue()


def test_an_ellipsis_and_what_is_not_implemented_are_values() -> None:
    assert made_anew(lambda: [..., (0, ...), {"a": NotImplemented}]) == [..., (0, ...), {"a": NotImplemented}]


def test_a_partial_call_that_is_there_is_kept_and_its_parts_are_put_back(library: Any) -> None:
    def make() -> Any:
        return library.Bound(print, [1.0])

    _after, back, held = there_and_back(make, lambda value: value.args[0].append(2.0))
    assert back is held
    assert back.args == ([1.0, 2.0],)


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
    after, back, held = there_and_back(lambda: make(module), change)
    assert back is held
    assert see(back) == see(after)
    assert see(made_anew(lambda: after)) == see(after)


ASKED = '''
import collections
import random

NOTES = collections.defaultdict(list)
ASKED = []


class Noted:
    """What it holds is in a table of its module, and its class says so."""

    def __init__(self, lr=0.25):
        self.name = "noted"
        NOTES[id(self)].append(lr)

    def __getstate__(self):
        ASKED.append(random.random())
        self.asked = True
        return {"name": self.name, "notes": list(NOTES[id(self)])}


class Counted(dict):
    def __reduce__(self):
        return Counted, (dict(self), len(self))


class Versioned:
    def __getstate__(self):
        return {**vars(self), "_version": "1.5.2"}


class Failing(dict):
    def __reduce_ex__(self, protocol):
        raise RuntimeError("cannot be copied")
'''


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A library whose classes say themselves what they hold."""
    yield from _imported("library_that_tells", ASKED, tmp_path, monkeypatch)


def test_what_only_its_class_says_that_an_object_holds_is_refused_when_it_changes(asked: Any) -> None:
    world: World = {"noted": asked.Noted(), "other": asked.Noted()}
    baseline = baseline_of(world)
    assert encode(world, baseline).not_captured == []
    asked.NOTES[id(world["noted"])].append(0.125)
    [said] = encode(world, baseline).not_captured
    assert said.startswith("noted (library_that_tells.Noted")
    assert is_refused(said)


def test_what_only_its_class_says_that_a_new_object_holds_is_refused(asked: Any) -> None:
    [said] = lost(lambda: asked.Noted(0.375))
    assert is_refused(said)


def test_to_ask_a_class_changes_nothing(asked: Any) -> None:
    world: World = {"noted": asked.Noted()}
    before = random.getstate()
    baseline = baseline_of(world)
    encode(world, baseline)
    assert asked.ASKED
    assert random.getstate() == before
    assert vars(world["noted"]) == {"name": "noted"}


def test_what_a_class_says_that_is_captured_or_computed_is_no_loss(asked: Any) -> None:
    after, back, held = there_and_back(lambda: asked.Counted(a=0.5), lambda value: value.update(b="text", c=1 << 40))
    assert back is held
    assert back == after
    assert dict(made_anew(lambda: after)) == dict(after)
    assert dict(made_anew(lambda: asked.Failing(a=1))) == {"a": 1}
    assert type(made_anew(asked.Versioned)) is asked.Versioned


def test_the_programs_own_methods_are_not_asked() -> None:
    class Own(importlib.import_module("configparser").RawConfigParser):  # type: ignore[misc, name-defined]
        def __getstate__(self) -> object:
            raise AssertionError("the program's code was run")

    assert not tells(Own)
