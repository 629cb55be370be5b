"""Faults in JAX: what the injected step gives is what a step gives that has the fault in its own text, bit for bit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.runs import said_by

pytest.importorskip("jax")
pytest.importorskip("optax")


def said(module: str, *arguments: str, given: str = "", **settings: str) -> Any:
    """Run a module in a process of its own: an adapter changes JAX for good. XLA compiles fast there."""
    flags = "--xla_backend_optimization_level=0 --xla_force_host_platform_device_count=8"
    return json.loads(said_by(f"faults.{module}", *arguments, given=given, XLA_FLAGS=flags, **settings).splitlines()[-1])


@pytest.mark.parametrize("every", [pytest.param(5, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)])
def test_a_fault_is_that_which_the_function_itself_has(every: int) -> None:
    """Forward and backward, in a loop, a branch, a `while`, what is computed again, and in the update of AdamW."""
    sites = json.dumps(said("jax_by_hand", "sites"))
    found = said("jax_by_hand", "faults", str(every), given=sites)
    assert found["wrong"] == []
    assert len(found["apart"]) <= 1, "of 14 places, thirteen are compared"
    assert found["tried"] >= (3 if every > 1 else 90)
    assert found["unarmed"] >= found["tried"] * 0.6, "a site in place changes bits more often than where it parts a fusion"


@pytest.mark.slow
@pytest.mark.parametrize(("most", "parts"), [(1, 1), (20, 6)], ids=["once", "all"])
def test_each_site_fires_where_it_says(most: int, parts: int) -> None:
    """All are in place, one is armed: the step is what its jaxpr gives, by equations, with the fault by NumPy.

    In several processes: what XLA compiles stays mapped, and Linux maps 65,530 pieces of memory for a process at most.
    """
    sites = json.dumps(said("jax_by_hand", "sites", OPTIMIZER="sgd"))
    found = [said("jax_each_site", str(most), str(parts), str(part), given=sites, OPTIMIZER="sgd") for part in range(parts)]
    assert [each["wrong"] for each in found] == [[]] * parts
    assert sum(each["sites"] for each in found) > 90  # 101 with JAX 0.10, 98 with 0.12
    assert sum(each["tried"] for each in found) > (400 if most > 1 else 90)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "layers"),
    [
        ("jax_recurrent", {"RNN.GRUCell.dense_i", "RNN.GRUCell.dense_h", "RNN.cell.scan_fn.cell.hi"}),
        ("jax_attention", {"self.words", "self.attention.query", "self.behind", "self.wide"}),
        ("jax_residual", {"Residual.Conv_0", "Residual.BatchNorm_1", "Residual.Dense_0"}),
    ],
)
def test_sites_of_layers_fire_where_they_say(program: str, layers: set[str]) -> None:
    """Of an LSTM and two GRUs, attention, convolutions with batch norms: forward, backward and in the update."""
    pytest.importorskip("flax")
    pytest.importorskip("equinox")
    sites = json.dumps(listed := said("jax_by_hand", "sites", PROGRAM=program))
    assert layers <= {each["layer"] for each in listed}, "a layer has its name"
    found = said("jax_each_site", "1", "29", given=sites, PROGRAM=program)
    assert found["wrong"] == []
    assert found["sites"] >= 7


@pytest.mark.slow
def test_a_fault_at_one_of_eight_devices_is_that_which_the_function_itself_has_there() -> None:
    sites = json.dumps(said("jax_on_devices", "sites"))
    assert said("jax_on_devices", "faults", given=sites) == {"wrong": []}


@pytest.mark.slow
def test_values_of_all_dtypes_can_be_hit() -> None:
    assert said("jax_dtypes", JAX_ENABLE_X64="1") == []


def test_two_outputs_of_one_equation_share_a_copy() -> None:
    """The second one ended a campaign: its cells were taken before they were there."""
    assert said("jax_two_outputs") == {"wrong": [], "sites": 2, "copies": [4, 4]}


def test_a_condition_of_a_loop_that_is_turned_round_ends_it_or_goes_on() -> None:
    """At each of its runs, the last one included; also in loops that `vmap` has made one of, which ended `sites`."""
    assert said("jax_conditions") == {"wrong": [], "decisions": [12, 7]}


@pytest.mark.slow
def test_a_fault_at_one_device_of_a_mesh_in_a_mesh_is_that_which_the_function_itself_has_there() -> None:
    """In a branch of a loop; a value whose type makes it the same on all devices of its mesh was a site."""
    assert said("jax_nested_devices") == {"wrong": [], "tried": 8}
