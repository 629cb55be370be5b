"""What a loop changes comes back, or is named: of no kind of object neither."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runtime.changed_objects import CASES
from tests.runtime.state_values import baseline_of, encode, restore

NEVER_SAY = {
    *("OwnSimpleQueue", "OwnContext", "OwnBytesIO", "Ownbytearray", "OwnEvent", "Ownenumerate", "Ownzip", "scanner", "matches"),
    *("zlib", "bz2", "lzma", "encoder of C", "iterator pairwise", "iterator deque", "iterator numbered"),
    *("asynchronous generator", "coroutine", "parser of XML", "pickler", "cursor", "folder"),
}
"""Those that show nothing: they are named whether they have moved or not."""
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("name", CASES)
def test_it_comes_back_or_is_named(name: str) -> None:
    make, change, show = CASES[name]
    after: dict[str, Any] = {"value": make()}
    before: dict[str, Any] = {"value": make()}
    baseline, other = baseline_of(after), baseline_of(before)

    change(after["value"])
    encoded = encode(after, baseline)

    if encoded.not_captured == [] and restore(encoded, before, other) == []:
        assert repr(show(before["value"])) == repr(show(after["value"]))


@pytest.mark.parametrize("name", CASES)
def test_one_that_has_not_moved_is_not_named(name: str) -> None:
    make, _change, _show = CASES[name]
    world = {"value": make()}
    baseline = baseline_of(world)

    assert (encode(world, baseline).not_captured == []) == (name not in NEVER_SAY)
