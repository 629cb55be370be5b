"""The adapter contract: what an adapter is. tests/adapters/contract.py has the promises in words and code."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.adapters.contract import NEEDS, SUBJECTS
from tests.e2e.runs import said_by

LACKING = {
    "tensorflow": {"shared"},
    "torch": {"variables"},
    "jax": {"shared", "random", "loaders", "variables"},
}
"""Parts that an adapter does not have: there is no such thing in its framework, or not yet."""


def tried(*arguments: str) -> Any:
    """An adapter changes its framework for good, and takes up its faults when it is made: so a process each."""
    return json.loads(said_by("adapters.contract", *arguments).splitlines()[-1])


@pytest.mark.parametrize("name", SUBJECTS)
def test_an_adapter_keeps_its_promises(name: str) -> None:
    pytest.importorskip(name)
    promises, plan = tried(name)
    of_faults = tried(name, plan)[0] if plan else {}

    found = {**promises, **of_faults}
    assert found.keys() == {promise.__name__ for promise, part in NEEDS.items() if part not in LACKING[name]}
    assert [f"{promise}:\n{error}" for promise, error in found.items() if error is not None] == []
