"""The program's input from outside: clock and randomness of the system, recorded and replayed, and folder listings, in
a fixed order.

Clock and randomness are recorded if the program itself asks for them (or Python's and NumPy's libraries for it) outside
of its training loops: that code runs again when a run resumes, and must get the same values. Randomness for a loop, or
for a library (an environment that nobody has seeded), is drawn from one recorded number, the place in the run and the
asker: killed and resumed, a run draws the same. Clock readings in a loop are state, or are only shown.
"""

from __future__ import annotations

import atexit
import base64
import collections
import ctypes
import datetime
import functools
import gc
import hashlib
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import FrameType, TracebackType
from typing import Any, Final

from detrain.base.cursor import Cursor
from detrain.base.in_place import in_place_of
from detrain.base.libraries import said
from detrain.python.inspect.frames import is_user_file, outwards
from detrain.python.inspect.names import FRAMEWORKS

_PASSED: Final = ("random", "secrets", "uuid", "tempfile", "numpy", "os", "time")
"""Modules through which the program may ask for clock and randomness."""
_MOST_CHARACTERS: Final = 1 << 18
"""The most characters in each group of readings: clock and randomness, counting clocks, files (kinds with a space)."""
_COUNTERS: Final = ("perf_counter", "monotonic", "process_time", "thread_time", "clock_gettime")
_COUNTING: Final = tuple(f"{name}{unit}" for name in _COUNTERS for unit in ("", "_ns"))
"""Clocks that count from an arbitrary point; programs read them often."""
_real_time: Final = functools.partial(time.clock_gettime, time.CLOCK_REALTIME)
_PROGRAM: Final = "__main__"
_OWN: Final = (
    *(__name__, "detrain.python.outside.fs_answers", "detrain.python.outside.open_files"),
    *("detrain.adapters.torch.streams", "torch.random"),
)
"""Modules that replace functions of the system, or that only pass the program's question on."""
_LOOP: Final = "in a loop: "
_ENTERED: Final = "entered"
_STARTED: Final = "started"
_FORK: Final = "os.fork"
_NAMES: Final = "uuid"
"""The module by which a library of experiment records names its own records (a run of MLflow). The killed process
already has a record under the recorded name."""
CLOCK_AND_RANDOMNESS: Final = ("time", "time_ns", "urandom", "entropy", *_COUNTING)
"""Kinds of readings that do not concern files."""

Readings = dict[str, list[str]]
"""Readings in order, by kind: of functions of `time`, of `urandom` (base64), and answers of `fs_answers`. `entropy` is
the number from which other randomness is drawn, `started` and `entered` are the times of the run's start and of
entering the first training loop."""


class Outside:
    """The readings of one run, over all its processes."""

    def __init__(self, earlier: Mapping[str, list[str]], place: Callable[[], Cursor | None]) -> None:
        """`place` returns the program's place in its loops; None outside of them."""
        self.readings: Readings = {kind: list(values) for kind, values in earlier.items()}
        self.readings.setdefault("entropy", [_to_text(os.urandom(16))])
        self.readings.setdefault(_STARTED, [repr(now())])
        self._used: dict[str, int] = {}
        self._sizes: collections.Counter[str] = collections.Counter()
        for kind, values in self.readings.items():
            self._sizes[_sort_of(kind)] += sum(len(kind) + len(value) for value in values)
        self._place = place
        self._drawn_at: Cursor | None = None
        self._drawn: dict[str, int] = {}
        """How often each asker has drawn, in a loop at `_drawn_at`."""
        self._fork: tuple[Cursor | None, int] = None, 0
        """The place of the program's last fork, and the number of forks there so far."""
        self._lineage = ""
        """In a child process, the forks that led to it: each child draws other numbers, and the same in each run."""
        self._thread, self._is_over = threading.get_ident(), False

    def watch(self) -> None:
        """Replace clock and randomness by the recorded ones."""
        atexit.register(self._end)
        for name in ("time", "time_ns", *_COUNTING):
            setattr(time, name, self._replayed(name, getattr(time, name), repr, int if name.endswith("_ns") else float))
        urandom = self._settled(os.urandom, self._replayed("urandom", os.urandom, _to_text, base64.b64decode))
        os.urandom = random._urandom = urandom  # type: ignore[attr-defined]
        for name in ("localtime", "gmtime", "ctime"):
            setattr(time, name, _of_now(getattr(time, name), lambda moment: moment))
        time.asctime = _of_now(time.asctime, time.localtime)
        time.strftime = _of_now(time.strftime, time.localtime, given=1)
        _watch_datetime()
        _watch_seeds(urandom)
        os.register_at_fork(before=self._before_fork, after_in_child=self._begin_child)

    def _end(self) -> None:
        """Stop replaying as the process ends: objects that Python then deletes may still ask, when modules are gone."""
        self._is_over = True

    def enter(self, at: float | None = None) -> None:
        """Note that the program enters a training loop, or did so without probes (`at`, seconds since 1970)."""
        self.readings.setdefault(_ENTERED, [repr(now() if at is None else at)])

    def forget_rest(self, asked: Mapping[str, int]) -> None:
        """Forget readings of an earlier process for which this one has not asked when it enters its first loop.

        The earlier process had no probes yet, and read them inside the loop: code after the loop must not get them.
        `asked` has, for questions of which only some turns are recorded, how often each was asked.
        """
        for kind in [kind for kind in self.readings if kind not in ("entropy", _STARTED, _ENTERED)]:
            values, used = self.readings[kind], self._used.get(kind, 0)
            heard = [turn for turn in values if int(turn) <= asked[kind]] if kind in asked else values[:used]
            unheard = values[len(heard) :]
            values[:] = heard
            self._sizes[_sort_of(kind)] -= sum(len(kind) + len(value) for value in unheard)

    @property
    def entered_at(self) -> float:
        """The time when the run first entered a training loop (seconds since 1970); infinite before that."""
        return float(self.readings.get(_ENTERED, ["inf"])[0])

    @property
    def started_at(self) -> float:
        """The time when the first process of the run was started (seconds since 1970)."""
        return min(float(self.readings[_STARTED][0]), self.entered_at)

    @property
    def is_recording(self) -> bool:
        """Whether a resumed run will repeat the questions asked now: outside of training loops,
        in the program's thread.
        """
        return not self._is_over and self._place() is None and threading.get_ident() == self._thread

    @property
    def is_in_loop(self) -> bool:
        """Whether the program's thread is in a training loop with probes."""
        return not self._is_over and self._place() is not None and threading.get_ident() == self._thread

    def read(self, kind: str, real: Callable[[], str]) -> str:
        """Return the recorded reading of a kind at this turn; if there is none, read by `real` and record it."""
        place = self._used.get(kind, 0)
        known = self.readings.get(kind, [])
        if place < len(known):
            self._used[kind] = place + 1
            return known[place]
        value = real()
        if self.note(kind, value):
            self._used[kind] = place + 1
        return value

    def note(self, kind: str, value: str) -> bool:
        """Append a reading of a kind to the record; return whether there was room."""
        # Once over the limit, always over: no reading may take the turn of one that was left out.
        self._sizes[_sort_of(kind)] += len(kind) + len(value)
        has_room = self._sizes[_sort_of(kind)] <= _MOST_CHARACTERS
        if has_room:
            self.readings.setdefault(kind, []).append(value)
        return has_room

    def _replayed(self, kind: str, real: Any, pack: Callable[[Any], str], unpack: Callable[[str], Any]) -> Any:
        def read(*arguments: Any) -> Any:
            frame = sys._getframe(1)
            asker = None
            if self.is_recording:
                asker = _dated_by(frame) if frame.f_globals.get("__name__") == __name__ else _asker(frame)
            if asker is None or (asker != _PROGRAM and frame.f_globals.get("__name__") != __name__):
                return real(*arguments)
            return unpack(self.read(kind if asker == _PROGRAM else f"{kind}: {asker}", lambda: pack(real(*arguments))))

        read.__name__ = read.__qualname__ = kind
        read.__module__ = real.__module__  # so that a file can name it like the real one
        read.__doc__ = real.__doc__
        return read

    def _settled(self, real: Callable[[int], bytes], replayed: Callable[[int], bytes]) -> Callable[[int], bytes]:
        """Return a function like `os.urandom`: it replays for the program outside of its loops, and draws for other
        askers.
        """

        def urandom(count: int) -> bytes:
            frame = sys._getframe(1)
            asker = _asker(frame) if threading.get_ident() == self._thread else None
            if asker is None or (said(asker, "output") == "records" and frame.f_globals.get("__name__") == _NAMES):
                return real(count)
            place = self._place()
            is_replayed = place is None and asker == _PROGRAM and not self._lineage
            return replayed(count) if is_replayed else self._draw(count, asker, place)

        return urandom

    def _draw(self, count: int, asker: str, place: Cursor | None) -> bytes:
        turn = self._turn(asker, place)
        who = asker if place is None else f"{_LOOP}{asker}"
        return hashlib.shake_128(f"{self.readings['entropy'][0]} {self._lineage}{place} {who} {turn}".encode()).digest(count)

    def _turn(self, asker: str, place: Cursor | None) -> int:
        """Return how often an asker has drawn, this time included: at this place in a loop, or outside of all loops."""
        if place is not None and place != self._drawn_at:
            self._drawn_at = place
            self._drawn = {who: turn for who, turn in self._drawn.items() if not who.startswith(_LOOP)}
        who = asker if place is None else f"{_LOOP}{asker}"
        turn = self._drawn[who] = self._drawn.get(who, 0) + 1
        return turn

    def _before_fork(self) -> None:
        if threading.get_ident() == self._thread:
            place = self._place()
            self._fork = place, self._turn(_FORK, place)

    def _begin_child(self) -> None:
        if threading.get_ident() == self._thread:
            place, turn = self._fork
            self._lineage += f"child {turn} of {place}, "
            self._drawn.clear()
            # Python has just seeded this generator from the system.
            random.seed(int.from_bytes(self._draw(32, _FORK, self._place()), "big"))


def _sort_of(kind: str) -> str:
    return "files" if " " in kind else "counting" if kind in _COUNTING else "clock"


def now() -> float:
    """Return the real time (seconds since 1970), which nothing records."""
    return _real_time()


def _of_now(real: Any, form: Callable[[float], Any], given: int = 0) -> Any:
    """Wrap a function of `time`: if its last argument is left out, that is the moment that `time.time` gives its
    caller, converted by `form`.

    `given` is the number of arguments before that one.
    """

    @functools.wraps(real)
    def read(*arguments: Any) -> Any:
        if len(arguments) == given and _dated_by(sys._getframe(1)) is not None:
            arguments = (*arguments, form(time.time()))
        return real(*arguments)

    return read


def _watch_datetime() -> None:
    """Have `datetime.now` and `utcnow` ask `time.time`, as `today` does.

    Their class is written in C: `gc` gives its dictionary.
    """
    [methods] = gc.get_referents(vars(datetime.datetime))
    real_now, real_utcnow = methods["now"], methods["utcnow"]

    def now(cls: Any, tz: Any = None) -> Any:
        asked = _dated_by(sys._getframe(1)) is not None
        return cls.fromtimestamp(time.time(), tz) if asked else real_now.__get__(None, cls)(tz)

    def utcnow(cls: Any) -> Any:
        asked = _dated_by(sys._getframe(1)) is not None
        return cls.fromtimestamp(time.time(), datetime.UTC).replace(tzinfo=None) if asked else real_utcnow.__get__(None, cls)()

    methods["now"], methods["utcnow"] = classmethod(now), classmethod(utcnow)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime.datetime))


def _watch_seeds(urandom: Callable[[int], bytes]) -> None:
    """Have generators of `random` without a seed take one from recorded randomness: their C code asks the system
    directly.
    """
    real = random.Random.seed

    @functools.wraps(real)
    def seed(self: Any, a: Any = None, version: int = 2) -> None:
        real(self, int.from_bytes(urandom(32), "big") if a is None else a, version)

    random.Random.seed = seed  # type: ignore[method-assign]
    random.seed = seed.__get__(random._inst)  # type: ignore[attr-defined]


def fix_listings() -> None:
    """Have listings of folders sorted by name, not in the order of the file system."""
    listdir, scandir = os.listdir, os.scandir

    @in_place_of(os, "listdir")
    def list_names(*arguments: Any, **keywords: Any) -> Any:
        return sorted(listdir(*arguments, **keywords))

    @in_place_of(os, "scandir")
    def scan(*arguments: Any, **keywords: Any) -> Any:
        with scandir(*arguments, **keywords) as entries:
            return sorted_entries(entries)


def sorted_entries(entries: Iterable[Any]) -> Iterator[Any]:
    """Return an iterator like that of `os.scandir` over these entries, sorted by name."""
    return _Entries(sorted(entries, key=lambda entry: entry.name))


class _Entries(Iterator[Any]):
    """An iterator like that of `os.scandir`, over a list of entries."""

    def __init__(self, entries: list[Any]) -> None:
        self._left = iter(entries)

    def __next__(self) -> Any:
        return next(self._left)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the listing."""
        self._left = iter(())


def _to_text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _dated_by(frame: FrameType | None) -> str | None:
    """Return the asker for the date: the program, or a library or framework, which may name a folder by it. None for
    Python's own modules, and for libraries of experiment records, which name their records by it.
    """
    top = _top_asker(frame)
    return None if top is None or said(top, "output") == "records" or top in sys.stdlib_module_names else top


def is_record(frame: FrameType | None, through: Collection[str]) -> bool:
    """Return whether a library of experiment records asks, itself or through these modules."""
    top = _top_asker(frame, through)
    return top is not None and said(top, "output") == "records"


def is_asked_by_library(frame: FrameType | None, through: Collection[str]) -> bool:
    """Return whether a library or framework asks, itself or through these modules of Python; libraries of experiment
    records do not count.
    """
    top = _top_asker(frame, through)
    is_other = top in (None, _PROGRAM, "detrain") or top in sys.stdlib_module_names
    return not is_other and not is_record(frame, through)


def is_asked_by_program(frame: FrameType | None, through: Collection[str]) -> bool:
    """Return whether the program asks, itself or through these modules of Python."""
    return _asker(frame, through) == _PROGRAM


def _asker(frame: FrameType | None, through: Collection[str] = _PASSED) -> str | None:
    """Return the asker, itself or through Python's own modules: the program, or a library by its
    name; None for all others.
    """
    top = _top_asker(frame, through)
    return None if top in FRAMEWORKS or top in sys.stdlib_module_names else top


def _top_asker(frame: FrameType | None, through: Collection[str] = _PASSED) -> str | None:
    """Return the asker, itself or through Python's own modules: the program, or the top-level module."""
    for each in outwards(frame):
        name = each.f_globals.get("__name__", "")
        top = name.partition(".")[0]
        if name not in _OWN and top not in through and name not in through:
            return _PROGRAM if is_user_file(each.f_code.co_filename) else str(top)
    return None
