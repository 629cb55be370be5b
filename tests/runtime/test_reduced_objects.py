"""Objects of extensions that say their whole state: images of PIL."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from detrain.python.codec.graph_files import unpack
from tests.runtime.state_values import baseline_of, encode, restore

Image = pytest.importorskip("PIL.Image")


def picture(shade: int) -> Any:
    return Image.new("RGB", (2, 3), (shade, 0, 1))


def test_one_that_the_loop_has_made_comes_back() -> None:
    world: dict[str, Any] = {}

    encoded = encode({"last": picture(7), "all": [picture(1)]}, baseline_of({}))

    assert encoded.not_captured == []
    assert restore(encoded, world) == []
    assert (world["last"], world["all"]) == (picture(7), [picture(1)])


def test_one_from_before_the_loop_is_written_only_where_it_has_changed_and_filled_in_place() -> None:
    after, before = {"value": picture(1)}, {"value": picture(1)}
    baseline, live = baseline_of(after), before["value"]

    kept = encode(after, baseline)
    after["value"].putpixel((0, 0), (9, 9, 9))
    changed = encode(after, baseline)

    assert b"restored" not in kept.graph
    assert restore(changed, before, baseline_of(before)) == []
    assert before["value"] is live
    assert live == after["value"]


def test_a_file_gives_a_state_to_no_other_class() -> None:
    graph = unpack((encoded := encode({"value": picture(1)}, baseline_of({}))).graph)
    node = next(each for each in graph.nodes if each.kind == "restored")
    node.items[0] = "subprocess:Popen"

    assert restore(msgspec.structs.replace(encoded, graph=graph.pack()), {}) != []
