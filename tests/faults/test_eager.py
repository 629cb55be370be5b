"""Ops that are hit in eager code: a fault that changes nothing changes nothing, gradients included, whatever the op."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.runs import said_by

pytest.importorskip("tensorflow")


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return dict(json.loads(said_by("faults.eager_ops").splitlines()[-1]))


def test_each_op_that_is_hit_gives_the_gradients_that_belong_to_what_was_put_in(found: dict[str, Any]) -> None:
    results = {name: result for name, result in found.items() if name != "names"}
    assert len(results) == 20
    assert {name for name, result in results.items() if result != {"same": True, "count": 1}} == set()


def test_names_are_those_of_this_thread_in_the_order_of_the_step(found: dict[str, Any]) -> None:
    assert found["names"] == [
        "eager/forward/MatMul",
        "eager/forward/Relu",
        "eager/backward/ReluGrad",
        "eager/backward/MatMul",
        "eager/backward/MatMul#1",
    ]
