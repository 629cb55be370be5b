"""Iterators, writers of CSV and files in memory: restored, they go on as the ones that were described."""

from __future__ import annotations

import array
import contextlib
import contextvars
import copy
import csv
import fnmatch
import functools
import io
import itertools
import operator
import queue
import random
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detrain.python.loaders.generator_replay import LoopGenerators
from tests.runtime.state_values import World, baseline_of, encode, restore

DATA = [3, 1, 4, 1, 5, 9, 2, 6]

MAKERS: dict[str, Callable[[list[int]], Iterator[Any]]] = {
    "list": iter,
    "tuple": lambda data: iter(tuple(data)),
    "text": lambda data: iter("".join(map(str, data))),
    "range": lambda data: iter(range(len(data))),
    "reversed": reversed,
    "enumerate": lambda data: enumerate(data, 5),
    "zip": lambda data: zip(data, iter(data), strict=False),
    "map": lambda data: map(operator.neg, data),
    "filter": lambda data: filter(None, data),
    "nested": lambda data: enumerate(zip(data, map(operator.neg, iter(data)), strict=False)),
    "cycle": itertools.cycle,
    "chain": lambda data: itertools.chain(data, data),
    "count": lambda data: itertools.count(data[0]),
    "repeat": lambda data: itertools.repeat(7, 20),
    "islice": lambda data: itertools.islice(data, 1, 7, 2),
    "accumulate": itertools.accumulate,
    "product": lambda data: itertools.product(data[:3], repeat=2),
    "permutations": lambda data: itertools.permutations(data[:4], 2),
    "combinations": lambda data: itertools.combinations(data[:5], 3),
    "compress": lambda data: itertools.compress(data, iter([1, 0, 1, 1, 0, 1, 1, 1])),
    "zip_longest": lambda data: itertools.zip_longest(data, data[:3], fillvalue=0),
    "tee": lambda data: itertools.tee(data)[0],
    "cycle of a product": lambda data: itertools.cycle(itertools.product(data[:2], data[:3])),
}
ON_3_14_AS_WELL = {"list", "tuple", "text", "range", "reversed", "enumerate", "zip", "map", "filter", "nested"}


def taken(iterator: Iterator[Any], count: int) -> list[Any]:
    return list(itertools.islice(iterator, count))


@pytest.mark.parametrize("kind", [kind for kind in MAKERS if sys.version_info < (3, 14) or kind in ON_3_14_AS_WELL])
@given(st.integers(0, 12), st.integers(0, 12))
def test_an_iterator_goes_on_where_the_described_one_was(kind: str, steps: int, steps_there: int) -> None:
    def world() -> World:
        data = list(DATA)
        return {"data": data, "iterator": MAKERS[kind](data)}

    after, before = world(), world()
    baseline = baseline_of(after)
    taken(after["iterator"], steps)
    taken(before["iterator"], steps_there)

    encoded = encode(after, baseline)
    assert encoded.not_captured == []
    assert restore(encoded, before, baseline_of(before)) == []

    assert taken(before["iterator"], 20) == taken(after["iterator"], 20)


class Feed:
    """An iterator of a program's own, which each `iter` begins again."""

    def __init__(self) -> None:
        self.times, self.at = 0, 0

    def __iter__(self) -> Feed:
        self.times, self.at = self.times + 1, 0
        return self

    def __next__(self) -> int:
        if self.at == len(DATA):
            raise StopIteration
        self.at += 1
        return 10 * self.times + DATA[self.at - 1]


OVER_A_FEED: dict[str, Callable[[Feed], Iterator[Any]]] = {
    "enumerate": enumerate,
    "zip": lambda feed: zip(feed, range(9), strict=False),
    "map": lambda feed: map(operator.neg, feed),
    "filter": lambda feed: filter(None, feed),
    "nested": lambda feed: enumerate(zip(range(9), feed, strict=False)),
    "accumulate": itertools.accumulate,
    "chain": lambda feed: itertools.chain([1, 2], feed),
    "compress": lambda feed: itertools.compress(feed, [1, 0, 1, 1, 0, 1, 1, 1]),
    "cycle": itertools.cycle,
    "dropwhile": lambda feed: itertools.dropwhile(bool, feed),
    "islice": lambda feed: itertools.islice(feed, 1, 7, 2),
    "starmap": lambda feed: itertools.starmap(operator.neg, itertools.zip_longest(feed)),
    "takewhile": lambda feed: itertools.takewhile(bool, feed),
    "tee": lambda feed: itertools.tee(feed)[0],
    "zip_longest": lambda feed: itertools.zip_longest(range(9), feed),
}


@pytest.mark.parametrize("kind", [kind for kind in OVER_A_FEED if sys.version_info < (3, 14) or kind in ON_3_14_AS_WELL])
@pytest.mark.parametrize("steps", range(4))
def test_an_iterator_over_one_of_the_programs_own_does_not_begin_that_again(kind: str, steps: int) -> None:
    def world() -> World:
        return {"feed": (feed := Feed()), "iterator": OVER_A_FEED[kind](feed)}

    after, before = world(), world()
    baseline = baseline_of(after)
    taken(after["iterator"], steps)

    encoded = encode(after, baseline)
    assert encoded.not_captured == []
    assert restore(encoded, before, baseline_of(before)) == []

    assert vars(before["feed"]) == vars(after["feed"])
    assert taken(before["iterator"], 20) == taken(after["iterator"], 20)


@pytest.mark.parametrize("kind", sorted(ON_3_14_AS_WELL))
def test_an_iterator_that_is_where_it_was_stays_the_same_object(kind: str) -> None:
    data = list(DATA)
    after: World = {"data": data, "iterator": MAKERS[kind](data)}
    there = list(DATA)
    before: World = {"data": there, "iterator": MAKERS[kind](there)}
    for world in (after, before):
        taken(world["iterator"], 2)
    live = before["iterator"]

    assert restore(encode(after, baseline_of(after)), before, baseline_of(before)) == []

    assert before["iterator"] is live


def test_two_names_of_one_iterator_stay_one() -> None:
    data = list(DATA)
    one = zip(data, data, strict=False)
    after: World = {"data": data, "one": one, "other": one}
    before: World = copy.deepcopy({"data": data}) | {"one": zip(DATA, DATA, strict=False), "other": None}
    baseline = baseline_of(after)
    next(one)

    restore(encode(after, baseline), before, baseline_of(before))

    assert before["one"] is before["other"]


def test_a_generator_inside_of_an_iterator_is_named() -> None:
    world: World = {"pairs": zip((number for number in DATA), DATA, strict=False)}
    baseline = baseline_of(world)
    next(world["pairs"])

    assert any("generator" in loss for loss in encode(world, baseline).not_captured)


@given(st.text(alphabet="ab\n", max_size=20), st.text(alphabet="ab\n", max_size=20), st.data())
def test_text_in_memory(text: str, other: str, draw: st.DataObject) -> None:
    after: World = {"memory": io.StringIO(text)}
    after["memory"].seek(draw.draw(st.integers(0, len(text))))
    before: World = {"memory": io.StringIO(other)}
    live = before["memory"]

    restore(encode(after, baseline_of(after)), before, baseline_of(before))

    assert before["memory"] is live
    assert (live.tell(), live.getvalue()) == (after["memory"].tell(), text)


@given(
    st.sampled_from("bHlqfd"), st.lists(st.integers(0, 9)), st.sampled_from("bHlqfd"), st.lists(st.integers(0, 9)), st.booleans()
)
def test_an_array_of_python(code: str, content: list[int], other_code: str, other: list[int], is_looked_at: bool) -> None:
    after: World = {"numbers": array.array(code, content)}
    before: World = {"numbers": array.array(other_code, other)}
    live, view = before["numbers"], memoryview(before["numbers"]) if is_looked_at and len(content) == len(other) else None
    encoded = encode(after, baseline_of({"numbers": None}))

    assert restore(encoded, before, baseline_of(before)) == []

    assert encoded.not_captured == []
    assert (before["numbers"], before["numbers"].typecode) == (after["numbers"], code)
    assert (before["numbers"] is live) == (code == other_code)
    assert view is None or code != other_code or view.tolist() == content


def test_two_iterators_of_one_tee_share_what_they_read() -> None:
    def world() -> World:
        return dict(zip(("far", "near"), itertools.tee(iter(range(200))), strict=True))

    after, before = world(), world()
    baseline = baseline_of(after)
    taken(after["far"], 100)
    taken(after["near"], 3)

    assert restore(encode(after, baseline), before, baseline_of(before)) == []

    assert taken(before["near"], 120) == taken(after["near"], 120) == list(range(3, 123))
    assert taken(before["far"], 2) == [100, 101]


@pytest.mark.parametrize("cls", [queue.Queue, queue.LifoQueue, queue.PriorityQueue, queue.SimpleQueue])
def test_a_queue_comes_back_in_place(cls: Any) -> None:
    after, before = ({"queue": cls(), "new": None} for _ in range(2))
    held, baseline = before["queue"], baseline_of(after)
    after["new"] = cls()
    for number in (3, 1, 2):
        after["queue"].put([number])
        after["new"].put([-number])
    after["queue"].get()
    before["queue"].put([9])

    encoded = encode(after, baseline)

    assert encoded.not_captured == []
    assert restore(encoded, before, baseline_of(before)) == []
    assert before["queue"] is held
    for name in ("queue", "new"):
        assert getattr(before[name], "unfinished_tasks", None) == getattr(after[name], "unfinished_tasks", None)
        assert [before[name].get() for _ in range(before[name].qsize())] == [after[name].get() for _ in range(after[name].qsize())]


@pytest.mark.parametrize("kind", ["pairwise", "words", "numbers"])
def test_an_iterator_that_does_not_say_where_it_is_is_named_though_batches_are_loaded_again(kind: str) -> None:
    made: dict[str, Iterator[Any]] = {
        "pairwise": itertools.pairwise(itertools.count()),
        "words": re.finditer("a", "aaa"),
        "numbers": np.ndenumerate(np.ones(3)),
    }
    world: World = {"it": made[kind]}
    baseline = baseline_of(world)
    next(world["it"])

    encoded = encode(world, baseline, are_loads_replayed=True)

    assert len(encoded.not_captured) == 1
    assert "nothing tells where that is" in encoded.not_captured[0]


LIBRARY = """
def held(rows):
    drawn, ready = iter(rows), None
    for ready in drawn:
        yield ready
def handed_on(rows):
    yield from held(rows)
def counted(rows):
    count = 0
    while True:
        count += 1
        yield count
"""


def generators_of(module: str) -> World:
    """Return functions of a library that make generators."""
    made: World = {"__name__": module}
    exec(compile(LIBRARY, "<library>", "exec"), made)
    return made


@pytest.mark.parametrize("kind", ["held", "handed_on"])
def test_a_generator_of_a_library_is_where_the_iterators_are_that_it_draws_from(kind: str) -> None:
    worlds = [World(rows=list(DATA), it=generators_of("library")[kind](list(DATA))) for _ in range(3)]
    baselines = [baseline_of(world) for world in worlds]
    for world, count in zip(worlds, (3, 3, 2), strict=True):
        taken(world["it"], count)

    encoded = encode(worlds[0], baselines[0], are_loads_replayed=True)

    assert encoded.not_captured == []
    assert restore(encoded, worlds[1], baselines[1]) == []
    assert len(restore(encoded, worlds[2], baselines[2])) == 1


@pytest.mark.parametrize(("kind", "rows"), [("counted", DATA), ("held", map(operator.neg, DATA))])
def test_a_generator_of_a_library_that_draws_from_what_does_not_say_where_it_is_is_named(kind: str, rows: Any) -> None:
    world = World(it=generators_of("library")[kind](rows))
    baseline = baseline_of(world)
    taken(world["it"], 3)

    encoded = encode(world, baseline, are_loads_replayed=True)

    assert ["nothing tells where that is" in loss for loss in encoded.not_captured] == [True]


@pytest.mark.parametrize("who", ["load", "body", "around"])
def test_a_generator_is_drawn_by_bodies_where_it_moves_behind_a_load(who: str) -> None:
    generators = LoopGenerators(lambda: (0, 0, 0), str, lambda _old, _new: None, None)  # type: ignore[arg-type]
    factor = 1
    drawn = (factor * each for each in DATA)
    generators.follow(drawn)
    for _ in range(2):
        generators.at_head()
        if who == "load":
            next(drawn)
        generators.behind_load()
        if who == "body":
            next(drawn)
        factor += 300
    generators.at_head()

    assert generators.is_drawn_by_bodies(drawn) is (who == "body")


def test_the_counters_of_a_bar_do_not_tell_where_it_is() -> None:
    def bar(shown_at: int) -> Any:
        made = generators_of("tqdm.std")
        exec(compile("def bar(rows, shown_at):\n    for each in rows: yield each", "<library>", "exec"), made)
        return made["bar"](iter(DATA), shown_at)

    after, before = World(it=bar(5)), World(it=bar(6))
    baselines = baseline_of(after), baseline_of(before)
    taken(after["it"], 3), taken(before["it"], 3)

    encoded = encode(after, baselines[0], are_loads_replayed=True)

    assert encoded.not_captured == []
    assert restore(encoded, before, baselines[1]) == []


class Kept:
    """What a cache may be made of."""

    def __init__(self, number: int) -> None:
        self.number = number


@functools.lru_cache
@contextlib.contextmanager
def opened(number: int) -> Iterator[int]:
    """What a library's decorator has made, kept under the name by which its module knows it."""
    yield number


@pytest.mark.parametrize(
    "cached",
    [
        Kept,
        functools.partial(np.random.uniform, 0.0),
        np.random.uniform,
        random.Random(0).getrandbits,
        random.sample,
        lambda n: (n, random.seed),
        opened,
    ],
    ids=["class", "partial", "builtin", "method of a built-in", "function of a library", "function", "decorated by a library"],
)
def test_a_cache_that_has_grown_is_named_whatever_it_is_made_of_but_not_one_of_a_library(cached: Any) -> None:
    cache = cached if cached is opened else functools.lru_cache(cached)
    world: World = {"cache": cache, "library": fnmatch._compile_pattern}
    baseline = baseline_of(world)
    world["cache"](*((range(3), 1) if cached == random.sample else (1,)))
    fnmatch.fnmatch("name", f"*.{cached!r}")

    assert encode(world, baseline).not_captured == ["cache (functools._lru_cache_wrapper: it has moved on)"]


def test_a_queue_beside_other_threads_is_named() -> None:
    world: World = {"queue": queue.Queue()}
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    baseline = baseline_of(world)
    world["queue"].put(1)

    assert encode(world, baseline).not_captured == ["queue (queue.Queue: it has moved on)"]

    done.set()
    thread.join()


def test_the_thread_that_watches_progress_bars_is_no_reader_of_queues() -> None:
    tqdm = pytest.importorskip("tqdm").tqdm
    world: World = {"queue": queue.Queue()}
    with tqdm(total=1, file=io.StringIO()):
        baseline = baseline_of(world)
        world["queue"].put(1)

        assert type(tqdm.monitor).__module__ in {thread.__class__.__module__ for thread in threading.enumerate()}
        assert encode(world, baseline).not_captured == []


def test_what_a_thread_and_a_context_hold_comes_back() -> None:
    def world() -> World:
        local = threading.local()
        local.items = [0]
        return {"local": local, "value": contextvars.ContextVar("value", default=5), "unset": contextvars.ContextVar("unset")}

    after, before = world(), world()
    local, items, baseline = before["local"], before["local"].items, baseline_of(after)
    after["local"].items.append(1)
    after["local"].new = after["local"].items
    after["value"].set([2])

    encoded = encode(after, baseline)

    assert encoded.not_captured == []
    assert restore(encoded, before, baseline_of(before)) == []
    assert before["local"] is local
    assert vars(local) == {"items": [0, 1], "new": [0, 1]}
    assert local.items is items is local.new
    assert (before["value"].get(), before["unset"].get(None)) == ([2], None)


def test_a_writer_of_csv_that_the_loop_made_writes_on() -> None:
    after: World = {"memory": io.StringIO(), "writer": None}
    before: World = {"memory": io.StringIO(), "writer": None}
    baseline = baseline_of(after)
    after["writer"] = csv.DictWriter(after["memory"], ["a", "b"], delimiter=";", lineterminator="\n", quoting=csv.QUOTE_ALL)
    after["writer"].writeheader()

    encoded = encode(after, baseline)
    assert encoded.not_captured == []
    assert restore(encoded, before, baseline_of(before)) == []
    for world in (after, before):
        world["writer"].writerow({"a": 1, "b": "x;y"})

    assert before["memory"].getvalue() == after["memory"].getvalue() == '"a";"b"\n"1";"x;y"\n'


@pytest.mark.parametrize("mode", ["w", "a", "r", "r+", "wb", "rb", "rb+", "ab"])
@pytest.mark.parametrize("there", ["nothing", "open", "closed", "another"])
def test_a_closed_file_is_closed_again(mode: str, there: str, tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("kept")
    with open(path, mode) as file:
        pass
    held = {
        "nothing": None,
        "open": open(path, mode),  # noqa: SIM115
        "closed": open(path, mode),  # noqa: SIM115
        "another": open(tmp_path / "other.txt", "w"),  # noqa: SIM115
    }
    held["closed"].close()  # type: ignore[union-attr]
    before: World = {"file": held[there]}

    encoded = encode({"file": file}, baseline_of({}))
    missing = restore(encoded, before, baseline_of({}))

    new = before["file"]
    assert (missing, encoded.not_captured) == ([], [])
    assert (type(new), new.closed, new.name, new.mode) == (type(file), True, str(path), file.mode)
    assert there not in ("open", "closed") or new is held[there]
    assert not held["another"].closed  # type: ignore[union-attr]
    assert path.read_text() == ("" if mode[0] == "w" else "kept")
