"""Profiles: counts against sums by hand, kinds of steps, files."""

from __future__ import annotations

from math import prod
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detrain.base.cursor import Address
from detrain.base.errors import FaultInvalid
from detrain.campaign.planning.profiling import representatives
from detrain.faults.population.frame import Selection, frame_of
from detrain.faults.population.groups import Group
from detrain.faults.population.profile import (
    MemoryTotal,
    Profile,
    memory_totals,
    profile_of,
    read_profile,
    totals,
    work_of,
    write_profile,
)
from detrain.faults.sites import Access, Site, memory_site
from detrain.reports.campaign.about import MemoryClass, memory_of
from tests.population import made


def test_a_group_comes_to_all_its_elements_in_the_whole_run() -> None:
    found = {each.group: each for each in totals(made.profile())}

    rows = 9 * 8 + 3 * 3  # of all batches
    assert found[Group.FFMA_OP].in_all == rows * 6 + 12 * 30
    assert found[Group.MISC_OP].in_all == rows * 6
    assert found[Group.SETP_OP].in_all == found[Group.PR].in_all == found[Group.SETP_OP].bytes_in_all == rows
    assert found[Group.LDS_OP].in_all == rows * 12 * 3
    assert (found[Group.IADD_IMUL_OP].in_all, found[Group.IADD_IMUL_OP].bytes_in_all) == (12, 12 * 8)
    assert found[Group.STORE_OP].in_all == 12 * 31
    assert found[Group.GPR].in_all == rows * (6 + 6 + 36) + 12 * (30 + 30 + 1)
    assert found[Group.GPR].dead == rows * 100
    assert found[Group.LDS_OP].in_step == rows * 36 / 12


def test_memory_is_of_no_group() -> None:
    profile = made.profile()

    assert memory_totals(profile) == [MemoryTotal("slot", 1, 8.0), MemoryTotal("weight", 1, 120.0)]
    assert not any(each.site.stage == "memory" for each in (*profile.outputs, *profile.dead))


def test_memory_that_a_step_writes_over_is_no_trial_and_is_counted() -> None:
    plain = [each for each in made.sites(8) if each.stage != "memory"]
    held = [
        memory_site("last", "statistic", (4,), "float32", Access(0, 4, 0)),
        memory_site("part", "statistic", (5,), "float32", Access(2, 2, 1)),
        memory_site("idle", "weight", (3,), "float64", Access(0, 0, 3)),
        memory_site("unknown", "weight", (2,), "float32"),
    ]
    profile = profile_of("toy", (), [((0, 0, 0), [*plain, *held], made.STEPS)])
    left = frame_of(profile, Selection(modes=("RF",), strata=())).left

    assert [each.site.layer for each in profile.overwritten] == ["last"]
    assert {each.site.layer for each in profile.memory} == {"part", "idle", "unknown"}
    statistic, weight = memory_totals(profile)
    assert statistic == MemoryTotal("statistic", 2, 36.0, overwritten=24.0, untouched=4.0, masked=16.0)
    assert weight == MemoryTotal("weight", 2, 32.0, untouched=24.0)
    assert left.dead == pytest.approx(4 / 14)
    found = memory_of(profile, device_bytes=680.0)
    assert found["statistic"] == MemoryClass(live=1 - 16 / 36, derating=36 / 680)
    assert found["weight"] == MemoryClass(live=1.0, derating=32 / 680)


def test_steps_that_do_other_things_with_a_variable_are_of_two_kinds() -> None:
    def listed(access: Access) -> list[Site]:
        return [*made.sites(8), memory_site("sum", "statistic", (1,), "float32", access)]

    steps = [((0, 0, 0), listed(Access(0, 1, 0)), made.STEPS[:1]), ((0, 0, 1), listed(Access(1, 0, 0)), made.STEPS[1:])]
    assert [kind.steps for kind in profile_of("toy", (), steps).kinds] == [1, 11]


def test_steps_with_the_same_shapes_are_of_one_kind() -> None:
    profile = made.profile()
    one = profile_of("toy", (), [((0, 0, 0), made.sites(8), made.STEPS[:5]), ((0, 0, 3), made.sites(8), made.STEPS[5:])])

    assert [kind.steps for kind in profile.kinds] == [9, 3]
    assert [kind.steps for kind in one.kinds] == [12]
    for kind, steps in zip(profile.kinds, ([s for s in made.STEPS if s[2] < 3], [s for s in made.STEPS if s[2] == 3]), strict=True):
        assert [kind.cursor(number) for number in range(kind.steps)] == steps


RUNS = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=3)


@given(RUNS)
def test_each_step_is_like_one_of_those_whose_sites_are_listed(run: list[list[int]]) -> None:
    steps: list[Address] = [
        (phase, epoch, batch) for phase, epochs in enumerate(run) for epoch, length in enumerate(epochs) for batch in range(length)
    ]
    listed = list(representatives(steps))

    assert sorted(step for _, like in listed for step in like) == steps
    assert all(at == like[0] for at, like in listed)
    chosen = [at for at, _ in listed]
    for phase, epochs in enumerate(run):
        assert (phase, 0, 0) in chosen
        for length in set(epochs):
            assert any(at[0] == phase and at[2] == length - 1 for at in chosen)


@given(RUNS, st.data())
def test_steps_without_a_loss_stand_for_no_others(run: list[list[int]], data: st.DataObject) -> None:
    steps: list[Address] = [
        (phase, epoch, batch) for phase, epochs in enumerate(run) for epoch, length in enumerate(epochs) for batch in range(length)
    ]
    idle = data.draw(st.sets(st.sampled_from(steps)))
    listed = list(representatives(steps, idle))

    assert sorted(step for _, like in listed for step in like) == steps
    assert all((step in idle) == (at in idle) for at, like in listed for step in like)


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    profile = made.profile()
    write_profile(tmp_path / "profile.json", profile)

    again = read_profile(tmp_path / "profile.json")

    assert (again, again.digest) == (profile, profile.digest)
    assert again.digest != msgspec.structs.replace(profile, kinds=profile.kinds[:1]).digest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:40], "is no profile"),
        (lambda data: data.replace(b'"version":2', b'"version":7'), "of version 7, expected 2"),
        (lambda data: data.replace(b'"executions":3', b'"executions":4'), "was altered"),
    ],
)
def test_a_profile_that_is_damaged_is_refused(change: object, message: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    write_profile(path, made.profile())
    path.write_bytes(change(path.read_bytes()))  # type: ignore[operator]

    with pytest.raises(FaultInvalid, match=message):
        read_profile(path)


def test_a_profile_in_which_nothing_lives_is_refused_with_the_reason() -> None:
    dead = [made.site("exp", (3, 4), is_alive=False), made.site("add", (0, 4))]

    with pytest.raises(FaultInvalid, match="of 2 sites in 3 steps none has a live output"):
        profile_of("toy", (), [((0, 0, 0), dead, made.STEPS[:3])])


def test_the_work_of_a_product_is_its_inner_dimension() -> None:
    assert work_of(made.site("addmm", (8, 6), input=(8, 5), weight=(5, 6))) == 5
    assert work_of(made.site("bmm", (4, 8, 6), input=(4, 8, 5), weight=(4, 5, 6))) == 5
    assert work_of(made.site("BatchMatMulV2", (2, 3, 8, 6), input=(2, 3, 8, 7), weight=(2, 3, 7, 6))) == 7
    assert work_of(made.site("relu", (8, 6))) == 1


@pytest.mark.parametrize(
    ("of_input", "of_weight", "output", "inner"),
    [
        pytest.param((4, 8, 5), (5, 6), (4, 8, 6), 5, id="a layer over sequences"),
        pytest.param((4, 8, 5), (4, 8, 6), (5, 6), 4 * 8, id="its weight's gradient"),
        pytest.param((4, 8, 5), (5, 2, 3), (4, 8, 2, 3), 5, id="to several heads"),
        pytest.param((4, 8, 2, 3), (2, 3, 5), (4, 8, 5), 2 * 3, id="from several heads"),
        pytest.param((4, 8, 2, 3), (4, 7, 2, 3), (4, 2, 8, 7), 3, id="attention"),
    ],
)
def test_the_work_of_a_product_over_further_axes_is_its_inner_dimension(
    of_input: tuple[int, ...], of_weight: tuple[int, ...], output: tuple[int, ...], inner: int
) -> None:
    assert work_of(made.site("dot_general", output, input=of_input, weight=of_weight)) == inner


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(3, 6))
def test_the_work_of_a_convolution_is_that_of_its_loops(batch: int, into: int, out: int, window: int, size: int) -> None:
    """Valid padding, stride 1: the multiply-adds are counted by walking the loops of the definition."""
    left = size - window + 1
    x, y = (batch, into, size, size), (batch, out, left, left)
    kernel = (out, into, window, window)
    for_y = sum(1 for _ in np.ndindex(into, window, window))
    every = prod(y) * for_y

    forward = made.site("convolution", y, input=x, weight=kernel)
    grad_in = made.site("convolution_backward", x, stage="backward", role="grad_in", input=y, weight=kernel)
    grad_wt = made.site("convolution_backward", kernel, stage="backward", role="grad_wt", input=x, weight=y)
    last = made.site("Conv2D", (batch, left, left, out), input=(batch, size, size, into), weight=(window, window, into, out))

    assert work_of(forward) == work_of(last) == for_y
    assert work_of(grad_in) == max(every // prod(x), 1)
    assert work_of(grad_wt) == max(every // prod(kernel), 1)

    def of_jax(x: tuple[int, ...], kernel: tuple[int, ...], y: tuple[int, ...]) -> list[int]:
        forward = made.site("conv_general_dilated", y, input=x, weight=kernel)
        grad_in = made.site("conv_general_dilated", x, stage="backward", role="grad_in", input=y, weight=kernel)
        grad_wt = made.site("conv_general_dilated", kernel, stage="backward", role="grad_wt", input=x, weight=y)
        return [work_of(each) for each in (forward, grad_in, grad_wt)]

    expected = [work_of(each) for each in (forward, grad_in, grad_wt)]
    assert of_jax((batch, size, size, into), (window, window, into, out), (batch, left, left, out)) == expected
    if window != left:  # else its last axis might be the channels
        assert of_jax(x, kernel, y) == expected


def test_the_profile_of_other_sites_has_another_digest() -> None:
    profile: Profile = made.profile()
    other = profile_of("toy", (), [((0, 0, 0), made.sites(8), made.STEPS)])

    assert profile.digest != other.digest
