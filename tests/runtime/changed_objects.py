# ruff: noqa: SIM115 - what is made here stays open
"""Objects of Python's library and of NumPy, each with a change by a loop and a function that shows the change."""

from __future__ import annotations

import argparse
import array
import asyncio
import bz2
import calendar
import cmd
import codecs
import collections
import concurrent.futures
import configparser
import contextlib
import contextvars
import csv
import ctypes
import decimal
import difflib
import email.message
import enum
import functools
import graphlib
import gzip
import hashlib
import hmac
import html.parser
import http.cookies
import io
import itertools
import json
import logging
import lzma
import mimetypes
import mmap
import multiprocessing
import operator
import optparse
import os
import pathlib
import pickle
import pprint
import queue
import random
import re
import reprlib
import sched
import shlex
import sqlite3
import statistics
import string
import sys
import tarfile
import tempfile
import textwrap
import threading
import time
import tokenize
import types
import unittest.mock
import urllib.request
import urllib.robotparser
import weakref
import xml.dom.minidom
import xml.etree.ElementTree as ET
import xml.parsers.expat
import zipfile
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from multiprocessing import shared_memory
from typing import Any

import numpy as np

Change = Callable[[Any], object]
Case = tuple[Callable[[], Any], Change, Change]
"""Functions that make the object, change it, and show the change."""


class Key:
    """An object that is referenced weakly."""


class Colour(enum.Enum):
    RED = 1


KEY = Key()
_COUNTS = "_".join(("cache", "info"))
"""Joined here: a source with the full name counts as reading counters (`detrain/python/inspect/pure_functions.py`)."""
VARIABLE: contextvars.ContextVar[int] = contextvars.ContextVar("variable")


def walk() -> Iterator[int]:
    yield 1
    yield 2
    yield 3


async def walk_later() -> AsyncIterator[int]:
    yield 1
    yield 2


async def wait() -> None:
    await asyncio.sleep(0)


def drive(coroutine: Any) -> object:
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    return None


def call(name: str, *arguments: Any, **keywords: Any) -> Change:
    return lambda value: getattr(value, name)(*arguments, **keywords)


def put(name: str, item: object) -> Change:
    return lambda value: setattr(value, name, item)


def get(name: str) -> Change:
    return lambda value: getattr(value, name, None)


def item(value: Any) -> None:
    value[0] = 3


def derived(*bases: type) -> Iterator[type]:
    """Yield each class, and a class of the program that derives from it."""
    for base in bases:
        yield base
        yield type(f"Own{base.__name__}", (base,), {"__module__": __name__})


def record(name: str = "a") -> logging.LogRecord:
    return logging.LogRecord(name, logging.INFO, "file", 1, "message", (), None)


class Parser(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, _attributes: object) -> None:
        self.tags.append(tag)


class Handler(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(record.getMessage())


def _file() -> str:
    path = os.path.join(tempfile.gettempdir(), f"detrain-rows-{os.getpid()}")
    pathlib.Path(path).write_text("a\nb\nc\n")
    return path


def _of_classes() -> Iterator[tuple[str, Case]]:
    """Yield cases for classes that programs derive from, and for derived classes."""
    kinds: list[tuple[tuple[type, ...], Callable[[Any], Any], Change, Change]] = [
        ((argparse.ArgumentParser,), lambda c: c(prog="p"), call("set_defaults", a=1), lambda v: vars(v.parse_args([]))),
        ((configparser.ConfigParser,), lambda c: c(), call("read_dict", {"a": {"b": "1"}}), lambda v: v.sections()),
        ((json.JSONEncoder,), lambda c: c(), put("sort_keys", True), call("encode", {"b": 1, "a": 2})),
        ((email.message.Message,), lambda c: c(), call("add_header", "X", "y"), call("as_string")),
        ((string.Template,), lambda c: c("$a"), put("template", "$b"), get("template")),
        ((cmd.Cmd,), lambda c: c(), lambda v: v.cmdqueue.append("x"), get("cmdqueue")),
        ((queue.Queue, queue.LifoQueue, queue.PriorityQueue, queue.SimpleQueue), lambda c: c(), call("put", 3), call("qsize")),
        ((statistics.NormalDist,), lambda c: c(), put("_mu", 3.0), get("mean")),
        ((collections.UserDict, collections.Counter, collections.OrderedDict), lambda c: c(), call("update", a=1), dict),
        ((collections.UserList,), lambda c: c(), call("append", 1), list),
        ((collections.deque,), lambda c: c([1], maxlen=3), call("append", 1), lambda v: (list(v), v.maxlen)),
        ((collections.defaultdict,), lambda c: c(list), lambda v: v["x"].append(1), dict),
        ((collections.ChainMap,), lambda c: c(), call("__setitem__", "a", 1), get("maps")),
        ((set,), lambda c: c(), call("add", 1), sorted),
        ((sched.scheduler,), lambda c: c(time.time, time.sleep), call("enterabs", 1, 1, print), lambda v: len(v.queue)),
        ((calendar.Calendar,), lambda c: c(), call("setfirstweekday", 3), get("firstweekday")),
        ((unittest.mock.Mock,), lambda c: c(), lambda v: v(1), get("call_count")),
        ((contextlib.ExitStack,), lambda c: c(), call("callback", print), lambda v: len(v._exit_callbacks)),
        ((random.Random,), lambda c: c(1), call("random"), call("random")),
        ((decimal.Context,), lambda c: c(), put("prec", 4), get("prec")),
        ((reprlib.Repr,), lambda c: c(), put("maxlist", 2), call("repr", [1, 2, 3])),
        ((threading.local, types.SimpleNamespace), lambda c: c(), put("a", 1), get("a")),
        ((types.ModuleType,), lambda c: c("made"), put("a", 1), get("a")),
        ((weakref.WeakKeyDictionary,), lambda c: c(), call("__setitem__", KEY, 1), len),
        ((io.StringIO,), lambda c: c(), call("write", "abc"), call("getvalue")),
        ((io.BytesIO,), lambda c: c(), call("write", b"abc"), call("getvalue")),
        ((functools.partial,), lambda c: c(max), lambda v: v.keywords.update(default=3), get("keywords")),
        ((bytearray,), lambda c: c(2), item, bytes),
        ((array.array,), lambda c: c("i", [1]), item, list),
        ((threading.Event,), lambda c: c(), call("set"), call("is_set")),
        (
            (ET.ElementTree,),
            lambda c: c(ET.Element("a")),
            lambda v: v.getroot().append(ET.Element("b")),
            lambda v: len(v.getroot()),
        ),
        ((textwrap.TextWrapper,), lambda c: c(), put("width", 3), call("wrap", "a bc de f")),
        ((enumerate,), lambda c: c("abc"), next, next),
        ((zip,), lambda c: c([1, 2], [3, 4]), next, next),
        ((itertools.count,), lambda c: c(), next, next),
        ((ValueError,), lambda c: c("a"), put("extra", 1), get("extra")),
        ((np.ndarray,), lambda c: np.zeros(2).view(c), item, list),
        ((np.ma.MaskedArray,), lambda c: c([1.0, 2.0], mask=[0, 1]), item, lambda v: v.filled().tolist()),
        ((np.random.RandomState,), lambda c: c(0), call("normal"), call("normal")),
    ]
    for bases, make, change, show in kinds:
        for cls in derived(*bases):
            globals()[cls.__name__] = cls
            yield cls.__name__, (functools.partial(make, cls), change, show)


CASES: dict[str, Case] = {
    **dict(_of_classes()),
    "parser of a class": (Parser, call("feed", "<a><b"), lambda v: (v.tags, v.rawdata)),
    "handler of a class": (Handler, lambda v: v.handle(record()), get("heard")),
    "scanner": (lambda: re.compile("a").scanner("aaa"), call("match"), lambda v: v.match().span()),
    "matches": (lambda: re.finditer("a", "aaa"), next, lambda v: next(v).span()),
    "rows": (lambda: csv.reader(iter(["a", "b", "c"])), next, next),
    "named rows": (lambda: csv.DictReader(iter(["a", "b", "c"])), next, next),
    "view of memory": (lambda: memoryview(bytearray(2)), item, bytes),
    "numbers of C": (ctypes.c_int * 2, item, list),
    "pointer of C": (lambda: ctypes.pointer(ctypes.c_int(1)), lambda v: put("value", 3)(v.contents), lambda v: v.contents.value),
    "hash": (hashlib.sha256, call("update", b"x"), call("hexdigest")),
    "hash with a key": (lambda: hmac.new(b"k", digestmod="sha1"), call("update", b"x"), call("hexdigest")),
    "zlib": (zlib.compressobj, call("compress", b"x"), call("flush")),
    "bz2": (bz2.BZ2Compressor, call("compress", b"x"), call("flush")),
    "lzma": (lzma.LZMACompressor, call("compress", b"x"), call("flush")),
    "encoder": (codecs.getincrementalencoder("utf-16"), call("encode", "a"), call("encode", "b")),
    "decoder": (codecs.getincrementaldecoder("utf-8"), call("decode", b"\xc3"), call("decode", b"\xa4")),
    "encoder of C": (codecs.getincrementalencoder("iso2022_jp"), call("encode", "\u3042"), call("encode", "\u3042")),
    "variable of a context": (lambda: contextvars.ContextVar("some"), call("set", 3), lambda v: v.get(None)),
    "context": (contextvars.Context, call("run", VARIABLE.set, 3), lambda v: v.get(VARIABLE)),
    "cache": (lambda: functools.lru_cache(lambda number: [number]), lambda v: v(1), lambda v: getattr(v, _COUNTS)().currsize),
    "dispatch": (lambda: functools.singledispatch(lambda _: 0), call("register", int, lambda _: 1), lambda v: v(3)),
    **{
        f"iterator {name}": (make, next, next)
        for name, make in {
            "cycle": lambda: itertools.cycle([1, 2, 3]),
            **({"tee": lambda: itertools.tee(iter([1, 2, 3]))[0]} if sys.version_info < (3, 14) else {}),
            "pairwise": lambda: itertools.pairwise([1, 2, 3]),
            "islice": lambda: itertools.islice([1, 2, 3], 3),
            "map": lambda: map(str, [1, 2, 3]),
            "filter": lambda: filter(None, [1, 2]),
            "reversed": lambda: reversed([1, 2]),
            "dict": lambda: iter({"a": 1, "b": 2}),
            "set": lambda: iter({1, 2}),
            "text": lambda: iter("abc"),
            "bytes": lambda: iter(b"abc"),
            "range": lambda: iter(range(3)),
            "deque": lambda: iter(collections.deque([1, 2])),
            "array": lambda: iter(np.arange(3)),
            "flat": lambda: np.arange(3).flat,
            "places": lambda: np.ndindex(2, 2),
            "numbered": lambda: np.ndenumerate(np.arange(3)),
            "broadcast": lambda: np.broadcast([1, 2], [3, 4]),
            "generator": walk,
            "expression": lambda: (number for number in [1, 2, 3]),
        }.items()
    },
    "asynchronous generator": (walk_later, lambda v: drive(v.__anext__()), lambda v: drive(v.__anext__())),
    "coroutine": (wait, call("send", None), lambda v: v.cr_frame.f_lasti),
    "library of C": (lambda: ctypes.CDLL(None), lambda v: v.getpid(), get("_name")),
    "function of C": (lambda: ctypes.CDLL(None).getpid, lambda v: v(), get("__name__")),
    "archive": (lambda: zipfile.ZipFile(io.BytesIO(), "w"), call("writestr", "a", "b"), call("namelist")),
    "tar": (lambda: tarfile.open(fileobj=io.BytesIO(), mode="w"), call("addfile", tarfile.TarInfo("a")), call("getnames")),
    "compressed file": (lambda: gzip.GzipFile(fileobj=io.BytesIO(), mode="w"), call("write", b"x"), call("tell")),
    "words": (lambda: shlex.shlex("a b c"), call("get_token"), call("get_token")),
    "element": (lambda: ET.Element("a"), call("set", "b", "c"), ET.tostring),
    "builder of trees": (ET.TreeBuilder, call("start", "a", {}), lambda v: v.end("a").tag),
    "document": (xml.dom.minidom.Document, lambda v: v.appendChild(v.createElement("a")), call("toxml")),
    "parser of XML": (xml.parsers.expat.ParserCreate, call("Parse", "<a>"), get("CurrentByteIndex")),
    "cookies": (http.cookies.SimpleCookie, call("__setitem__", "a", "b"), call("output")),
    "pickler": (lambda: pickle.Pickler(io.BytesIO()), call("dump", [1]), lambda v: len(v.memo.copy())),
    "database": (
        lambda: sqlite3.connect(":memory:"),
        call("execute", "create table t(a)"),
        lambda v: v.execute("select name from sqlite_master").fetchall(),
    ),
    "rows of a database": (lambda: sqlite3.connect(":memory:"), put("row_factory", sqlite3.Row), get("row_factory")),
    "cursor": (lambda: sqlite3.connect(":memory:").execute("values (1), (2)"), next, next),
    "semaphore": (threading.Semaphore, call("acquire"), get("_value")),
    "barrier": (lambda: threading.Barrier(1), call("abort"), get("broken")),
    "job": (concurrent.futures.Future, call("set_result", 3), lambda v: v.done() and v.result()),
    "queue of tasks": (asyncio.Queue, call("put_nowait", 1), call("qsize")),
    "event of tasks": (asyncio.Event, call("set"), call("is_set")),
    "types of files": (mimetypes.MimeTypes, call("add_type", "a/b", ".zz"), call("guess_type", "x.zz")),
    "order": (graphlib.TopologicalSorter, call("add", "a", "b"), lambda v: list(v.static_order())),
    "difference": (lambda: difflib.SequenceMatcher(None, "a", "b"), call("set_seqs", "x", "x"), call("ratio")),
    "options": (optparse.OptionParser, call("add_option", "--x", default=2), lambda v: vars(v.parse_args([])[0])),
    "weak set": (weakref.WeakSet, call("add", KEY), len),
    "weak values": (weakref.WeakValueDictionary, call("__setitem__", "a", KEY), len),
    "finalizer": (lambda: weakref.finalize(KEY, print), call("detach"), get("alive")),
    "printer": (pprint.PrettyPrinter, put("_depth", 1), call("pformat", [[1]])),
    "member": (lambda: Colour.RED, put("extra", 3), get("extra")),
    "mapped memory": (lambda: mmap.mmap(-1, 4), item, lambda v: v[:]),
    "file in memory": (tempfile.SpooledTemporaryFile, call("write", b"x"), call("tell")),
    "text file": (lambda: open(_file()), call("readline"), call("readline")),
    "file of bytes": (lambda: open(_file(), "rb"), call("read", 1), call("read", 1)),
    "file without a buffer": (lambda: open(_file(), "rb", buffering=0), call("read", 1), call("read", 1)),
    "folder": (lambda: os.scandir("/"), next, lambda v: next(v).name),
    "folders": (lambda: os.walk("/usr"), next, lambda v: next(v)[0]),
    "names of files": (lambda: pathlib.Path("/").glob("*"), next, next),
    "number of processes": (lambda: multiprocessing.Value("i", 0), put("value", 2), get("value")),
    "numbers of processes": (lambda: multiprocessing.Array("i", 2), item, list),
    "event of processes": (multiprocessing.Event, call("set"), call("is_set")),
    "queue of processes": (multiprocessing.SimpleQueue, call("put", 1), call("empty")),
    "memory of processes": (lambda: shared_memory.SharedMemory(create=True, size=2), lambda v: item(v.buf), lambda v: bytes(v.buf)),
    "lock of processes": (multiprocessing.Lock, call("acquire"), lambda v: v._semlock._is_zero()),
    "logger": (lambda: logging.Logger("own"), lambda v: v.addHandler(Handler()), lambda v: len(v.handlers)),
    "form of a log": (logging.Formatter, put("datefmt", "%Y"), get("datefmt")),
    "function of numbers": (lambda: np.vectorize(abs), put("extra", 1), get("extra")),
    "tokens": (lambda: tokenize.generate_tokens(io.StringIO("a b\n").readline), next, lambda v: next(v).string),
    "robots": (urllib.robotparser.RobotFileParser, call("parse", ["User-agent: *", "Disallow: /a"]), str),
    "request": (lambda: urllib.request.Request("http://x"), call("add_header", "A", "b"), call("header_items")),
    "getter": (lambda: [operator.itemgetter(1)], call("append", operator.attrgetter("a")), repr),
    "objects": (lambda: np.array([None, None]), item, list),
    "matrix": (lambda: np.matrix([[1]]), call("fill", 3), repr),
    "records": (lambda: np.rec.array([(1,)], dtype=[("a", int)]), lambda v: v.a.fill(3), repr),
    "record": (lambda: np.rec.array([(1,)], dtype=[("a", int)])[0], put("a", 3), lambda v: (type(v), v.a)),
    "texts": (lambda: np.char.array(["a"]), item, repr),
    "polynomial": (lambda: np.polynomial.Polynomial([1, 2]), lambda v: v.coef.fill(3), repr),
    "seeds": (lambda: np.random.SeedSequence(1), call("spawn", 1), get("n_children_spawned")),
    "generator of bits": (lambda: np.random.PCG64(0), call("random_raw"), call("random_raw")),
    "keys": (lambda: [{"a": 1}], lambda v: v.append(v[0].keys()), repr),
}
