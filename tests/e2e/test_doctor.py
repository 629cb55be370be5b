"""`detrain doctor`: this machine repeats what is measured under the settings of `detrain run`."""

from __future__ import annotations

import json

import pytest

from tests.e2e.runs import detrain


@pytest.mark.slow
def test_deterministic_algorithms_of_pytorch_give_the_same_bits() -> None:
    run = detrain("doctor", "--framework", "torch", "--json", "--repeats", 4).ok()

    said = json.loads(run.out)
    assert said["torch"].startswith("2.")
    rows = {row["computation"]: row for row in said["rows"] if row["device"] == "CPU"}
    assert {"matmul", "convolution, gradients", "indexing, gradient", "attention, gradients", "dropout of one seed"} <= rows.keys()
    assert all(row["deterministic"] == {"runs": "yes", "processes": "yes"} for row in rows.values())


@pytest.mark.slow
def test_deterministic_ops_give_the_same_bits() -> None:
    run = detrain("doctor", "--framework", "tensorflow", "--json", "--repeats", 4).ok()

    said = json.loads(run.out)
    assert said["tensorflow"].startswith("2.21")
    rows = {row["computation"]: row for row in said["rows"] if row["device"] == "CPU"}
    assert {"matmul", "convolution, gradients", "sum over all", "scatter, added", "XLA", "two replicas, all-reduced"} <= rows.keys()
    assert all(row["deterministic"] == {"runs": "yes", "processes": "yes"} for row in rows.values())
    assert rows["random numbers in a parallel map"]["stock"]["runs"] == "no"


@pytest.mark.slow
def test_jax_gives_the_same_bits_over_several_devices_too() -> None:
    run = detrain("doctor", "--framework", "jax", "--json", "--repeats", 3, XLA_FLAGS="--xla_force_host_platform_device_count=4")

    assert run.status == 0, run.err
    rows = {row["computation"]: row for row in json.loads(run.out)["rows"] if row["device"] == "CPU"}
    of_devices = {"mean over 4 devices", "matmul over 4 devices, gradients"}
    assert {"matmul", "convolution, gradients", "steps of a scan, gradients", "numbers of a key", *of_devices} <= rows.keys()
    assert all(row["deterministic"] == {"runs": "yes", "processes": "yes"} for row in rows.values())
