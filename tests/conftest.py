"""Settings of all tests."""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("detrain", deadline=None)  # machines are busy: no test is timed
settings.load_profile("detrain")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the long suites, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--slow"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="a long suite: --slow runs it"))
