"""Objects of Python's library where the table of samples does not say all: iterators that do not tell where they are,
generators, caches, queues beside threads, files that are closed.
"""

from __future__ import annotations

import array
import contextlib
import contextvars
import fnmatch
import functools
import io
import itertools
import operator
import queue
import random
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tqdm import tqdm

from detrain.python.loaders.generator_replay import LoopGenerators
from tests.codec.sample import into, resumed
from tests.codec.samples import DATA, taken
from tests.runtime.state_values import World, baseline_of, encode, restore

UNTOLD: dict[str, Any] = {
    "pairwise": lambda: itertools.pairwise(itertools.count()),
    "words": lambda: re.finditer("a", "aaa"),
    "numbers": lambda: np.ndenumerate(np.ones(3)),
    "counted": lambda: generators_of("library")["counted"](DATA),
    "held": lambda: generators_of("library")["held"](map(operator.neg, DATA)),
}


@pytest.mark.parametrize("name", UNTOLD)
def test_what_does_not_say_where_it_is_is_named_though_batches_are_loaded_again(name: str) -> None:
    world: World = {"it": UNTOLD[name]()}
    baseline = baseline_of(world)
    next(world["it"])

    [said] = encode(world, baseline, are_loads_replayed=True).not_captured

    assert ("nothing tells where that is" in said) != ("what an extension keeps in it cannot be read" in said)


def test_a_generator_inside_of_an_iterator_is_named() -> None:
    world: World = {"pairs": zip((number for number in DATA), DATA, strict=False)}
    baseline = baseline_of(world)
    next(world["pairs"])

    assert any("generator" in loss for loss in encode(world, baseline).not_captured)


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
def bar(rows, shown_at):
    for each in rows: yield each
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


def test_the_counters_of_a_bar_do_not_tell_where_it_is() -> None:
    after, before = (World(it=generators_of("tqdm.std")["bar"](iter(DATA), shown_at)) for shown_at in (5, 6))
    baselines = baseline_of(after), baseline_of(before)
    taken(after["it"], 3), taken(before["it"], 3)

    encoded = encode(after, baselines[0], are_loads_replayed=True)

    assert encoded.not_captured == []
    assert restore(encoded, before, baselines[1]) == []


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


@given(
    st.sampled_from("bHlqfd"), st.lists(st.integers(0, 9)), st.sampled_from("bHlqfd"), st.lists(st.integers(0, 9)), st.booleans()
)
def test_an_array_of_python_comes_back_in_the_memory_that_others_look_at(
    code: str, content: list[int], other_code: str, other: list[int], is_looked_at: bool
) -> None:
    after: World = {"numbers": array.array(code, content)}
    before: World = {"numbers": array.array(other_code, other)}
    live, view = before["numbers"], memoryview(before["numbers"]) if is_looked_at and len(content) == len(other) else None

    resumed(after, before, baseline=baseline_of({"numbers": None}))

    assert (before["numbers"], before["numbers"].typecode) == (after["numbers"], code)
    assert (before["numbers"] is live) == (code == other_code)
    assert view is None or code != other_code or view.tolist() == content


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
    world: World = {"queue": queue.Queue()}
    with tqdm(total=1, file=io.StringIO()):
        baseline = baseline_of(world)
        world["queue"].put(1)

        assert type(tqdm.monitor).__module__ in {thread.__class__.__module__ for thread in threading.enumerate()}
        assert encode(world, baseline).not_captured == []


def test_a_variable_of_a_context_that_is_unset_stays_so() -> None:
    after, before = (
        {"unset": contextvars.ContextVar("unset"), "default": contextvars.ContextVar("value", default=5)} for _ in "12"
    )
    into(encode(after, baseline_of(after)), before)
    assert (before["unset"].get(None), before["default"].get()) == (None, 5)


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
