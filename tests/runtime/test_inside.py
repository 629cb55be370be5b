"""A digest of what an object of a library leads to."""

from __future__ import annotations

import asyncio
import codecs
import concurrent.futures
import email.message
import graphlib
import gzip
import html.parser
import io
import logging
import sched
import tempfile
import threading
import zipfile
from collections.abc import Callable
from typing import Any

import click
import numpy as np
import pandas as pd
import pytest

from detrain.python.inspect import named
from detrain.python.inspect.fingerprint import inside, of_python
from detrain.python.inspect.progress import position


def test_a_number_that_python_does_not_write_in_decimal_shows_that_it_changes() -> None:
    option: Any = click.Option(["--of-a-library"])
    option.number = 10**5000
    before = inside(option)
    option.number += 1

    assert inside(option) != before


@pytest.mark.parametrize(
    "index",
    [
        pd.Index([0.0, 1.0, 2.0]),
        pd.date_range("2020", periods=3),
        pd.period_range("2020-01", periods=3, freq="M"),
        pd.IntervalIndex.from_breaks([0, 1, 2, 3]),
        pd.CategoricalIndex(["a", "b", "c"]),
        pd.MultiIndex.from_product([[1], ["a", "b", "c"]]),
    ],
    ids=lambda index: type(index).__name__,
)
def test_labels_that_are_looked_up_stay_as_they_are(index: Any) -> None:
    """Of such an index, a resumed run was refused: pandas caches what it has computed."""
    before = position(index)

    assert index.get_loc(index[1]) in (1, slice(1, 2))
    assert (index.is_monotonic_increasing, index.is_unique, len(repr(index))) > (False, False, 0)

    assert position(index) == before
    index.names = ["other"] * index.nlevels
    assert position(index) != before


def test_a_normal_number_that_a_generator_has_kept_shows_when_it_is_drawn() -> None:
    option: Any = click.Option(["--of-a-library"])
    option.numbers = np.random.RandomState(0)
    option.numbers.normal()  # the second of the pair is kept beside the bits
    before = inside(option)
    option.numbers.normal()

    assert inside(option) != before


def test_a_number_beside_very_many_others_shows_that_it_changes() -> None:
    option: Any = click.Option(["--of-a-library"])
    option.at, option.rows = 0, [(float(number), -1) for number in range(60_000)]
    before = inside(option)
    option.at = 1

    assert inside(option) != before


def test_a_change_of_an_object_in_a_record_of_an_array_shows() -> None:
    records = np.array([([1], 2.0)], [("list", object), ("number", float)])
    before = position(records)
    records[0]["list"].append(2)

    assert position(records) != before


def _zipped() -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(), "w")


def _scheduler() -> sched.scheduler:
    return sched.scheduler(lambda: 0.0, lambda _seconds: None)


class _OwnAdapter(logging.LoggerAdapter):  # type: ignore[type-arg]
    """As dill's: it does not call the `__init__` of its class."""

    def __init__(self) -> None:
        self.logger = logging.getLogger()


CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "archive": (_zipped, lambda archive: archive.writestr("a", "text")),
    "compressed": (lambda: gzip.GzipFile(fileobj=io.BytesIO(), mode="wb"), lambda file: file.write(b"text")),
    "spooled": (tempfile.SpooledTemporaryFile, lambda file: file.write(b"text")),
    "named temporary": (tempfile.NamedTemporaryFile, lambda file: file.write(b"text")),
    "scheduler": (_scheduler, lambda scheduler: scheduler.enter(1, 1, print)),
    "message": (email.message.Message, lambda message: message.add_header("epoch", "1")),
    "sorter": (graphlib.TopologicalSorter, lambda sorter: sorter.add("a", "b")),
    "future": (concurrent.futures.Future, lambda future: future.set_result(1)),
    "queue": (asyncio.Queue, lambda queue: queue.put_nowait(1)),
    "decoder": (codecs.getincrementaldecoder("utf-8"), lambda decoder: decoder.decode(b"\xc3")),
    "adapter without extra": (_OwnAdapter, lambda adapter: setattr(adapter, "extra", {"seen": 1})),
    "parser": (html.parser.HTMLParser, lambda parser: parser.feed("<a")),
}


@pytest.mark.parametrize("case", CASES)
def test_an_object_of_pythons_library_has_moved_where_it_was_used_and_not_else(case: str) -> None:
    make, use = CASES[case]
    value = make()
    before = position(value)
    again = position(value)
    use(value)

    assert before is not None
    assert again == before
    assert position(value) != before


@pytest.mark.parametrize(
    "value", [threading.Lock(), threading.Thread(), logging.getLogger(), concurrent.futures.ThreadPoolExecutor(1)]
)
def test_objects_of_the_process_are_not_looked_into(value: object) -> None:
    assert of_python(value) is None


def test_the_constant_of_numpy_for_a_masked_value_is_read() -> None:
    assert position(np.ma.masked) == position(np.ma.masked)


class StandsForADict:
    """A proxy, as TensorFlow puts one in the place of a dict that it follows: it says that it is one, and is none."""

    __class__ = property(lambda _self: dict)  # type: ignore[assignment]

    def __init__(self, held: dict[str, object]) -> None:
        self.held = held

    def __len__(self) -> int:
        return len(self.held)

    def items(self) -> object:
        return self.held.items()


def test_a_proxy_that_stands_for_a_dict_is_asked_for_its_items() -> None:
    part = object()

    assert list(named.inside(StandsForADict({"a": part}))) == [(("[", "a"), part)]
