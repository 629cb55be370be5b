"""Each group of instructions that SASSIFI has can be hit: in the six networks, or in steps that have what they lack."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from detrain.faults.population.groups import Group
from tests.e2e.runs import said_by

pytestmark = pytest.mark.slow
"""A process a network, with TensorFlow in it, which an adapter changes for good; the fast lane has its like."""

ALL = {group.label for group in Group}
OF_NETWORKS = ALL - {"CC", "DADD_DMUL", "MAD", "DFMA"}
"""They have no branches or loops, no products of integers, and nothing in float64."""
NETWORKS = ("resnet18", "resnet18_sgd", "resnet18_nobn", "efficientnet_b0", "densenet121", "nf_resnet")


@pytest.mark.parametrize("name", [*NETWORKS, "control"])
def test_each_group_that_a_step_of_tensorflow_has_is_hit(name: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    said_by("faults.in_groups", name, tmp_path / "groups.json")
    found = json.loads((tmp_path / "groups.json").read_text())
    assert {group: hits for group, (_sites, hits) in found.items()} == dict.fromkeys(found, 1)
    assert set(found) >= ({"CC", "DADD_DMUL", "MAD", "DFMA"} if name == "control" else OF_NETWORKS)


def test_each_group_is_hit_in_a_step_of_pytorch() -> None:
    pytest.importorskip("torch")
    found = json.loads(said_by("faults.torch_groups").splitlines()[-1])
    assert {group: hits for group, (_sites, hits) in found.items()} == dict.fromkeys(ALL, 1), found
