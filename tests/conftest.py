"""Settings of all tests, and their two lanes: the fast one, and the long suites, which can be run in parts."""

from __future__ import annotations

import pytest
import xxhash
from hypothesis import settings

from tests.store.servers import s3_server, ssh_server  # noqa: F401 fixtures

# Machines are busy: no test is timed. The fast lane fails only by a change of code; the long suites search for more.
settings.register_profile("fixed", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("search", deadline=None, max_examples=200)
settings.load_profile("fixed")


_RUN_PROGRAMS = ("tests/e2e/", "tests/faults/", "tests/guard/", "tests/runtime/test_held.py", "tests/tracer/test_events.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the long suites, too")
    parser.addoption("--slice", metavar="K/N", help="with --slow: run the K-th of N parts of the long suites, and nothing else")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("search" if config.getoption("--slow") else "fixed")
    _part(config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _sample(items)
    part = _part(config)
    if config.getoption("--slow") and part is None:
        return
    chosen: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in items:
        chosen[_is_chosen(item, part)].append(item)
    config.hook.pytest_deselected(items=chosen[False])
    items[:] = chosen[True]


def _sample(items: list[pytest.Item]) -> None:
    """Mark as slow all cases but the first of each test that runs whole programs: they try the same with other
    programs.
    """
    seen: set[str] = set()
    for item in items:
        name = item.nodeid.partition("[")[0]
        if not name.startswith(_RUN_PROGRAMS) or item.get_closest_marker("slow") is not None:
            continue
        if name in seen and item.get_closest_marker("fast") is None:
            item.add_marker(pytest.mark.slow)
        seen.add(name)


def _is_chosen(item: pytest.Item, part: tuple[int, int] | None) -> bool:
    """Return True if a test is in the given part of the long suites; without a part, if it is in the fast lane."""
    is_slow = item.get_closest_marker("slow") is not None
    if part is None:
        return not is_slow
    number, count = part
    return is_slow and xxhash.xxh32_intdigest(item.nodeid.encode()) % count == number - 1


def _part(config: pytest.Config) -> tuple[int, int] | None:
    """Return the number of the part of the long suites to run, and of all parts: a test is always in the same part."""
    text = config.getoption("--slice")
    if text is None:
        return None
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise pytest.UsageError(f"--slice {text}: expected K/N with 1 <= K <= N, as 3/60")
    if not config.getoption("--slow"):
        raise pytest.UsageError("--slice is a part of the long suites: give --slow, too")
    return int(number), int(count)
