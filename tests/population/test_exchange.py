"""Files of SASSIFI and NVBitFI: written and read again, and read as upstream's scripts read them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from detrain.base.errors import FaultInvalid
from detrain.campaign.engine.rows import told_row
from detrain.faults.bits import DTYPES
from detrain.faults.exchange.kernels import (
    NVBITFI_OPCODES,
    SASSIFI_OPCODES,
    escaped,
    kernel_of,
    nvbitfi_kernels,
    nvbitfi_profile,
    sassifi_kernels,
    sassifi_profile,
)
from detrain.faults.exchange.listed import ListLine, pattern_of, seed_of
from detrain.faults.exchange.lists import (
    ListName,
    listed,
    parse_name,
    plan_of_lines,
    read_list,
    results_text,
    write_list,
)
from detrain.faults.experiment import Experiment
from detrain.faults.population.frame import Selection
from detrain.faults.population.groups import SASSIFI_MODELS, Group, NvbitfiGroup
from detrain.faults.population.plan import sampled_plan
from detrain.faults.population.profile import totals
from tests.population import made, made_rows

PROFILE = made.profile()
KERNELS = sassifi_kernels(PROFILE)
ROWS = made_rows.rows(300)


def test_sassifis_counts_are_those_of_the_profile() -> None:
    lines = [line.split(":") for line in "".join(sassifi_profile(PROFILE)).splitlines()[1:]]

    assert [words[:2] for words in lines] == [["step", str(number)] for number in range(12)]
    for each in totals(PROFILE):
        assert sum(int(words[2 + each.group]) for words in lines) == each.in_all + each.dead


def test_sassifis_script_finds_the_same_total_in_the_opcodes() -> None:
    """As `get_total_insts` sums: what stands behind the groups and WILL_NOT_EXECUTE. Groups that overlap count once."""
    header, *lines = "".join(sassifi_profile(PROFILE)).splitlines()

    assert header.split(":")[2:17] == [*(group.name for group in Group), "WILL_NOT_EXECUTE"]
    for line in lines:
        words = line.rstrip().split(":")
        assert len(words) == len(header.split(":")) == 2 + 14 + 1 + len(SASSIFI_OPCODES)
        numbers = [int(word) for word in words[2:]]
        assert sum(numbers[15:]) == sum(numbers[group] for group in (Group.GPR, Group.PR))


def test_nvbitfis_script_reads_its_profile(tmp_path: Path) -> None:
    """As `read_inst_counts` splits, and `get_injection_site_info` finds the column of a group."""
    path = tmp_path / "nvbitfi-igprofile.txt"
    path.write_text("".join(nvbitfi_profile(PROFILE)))
    columns = 3 + len(NVBITFI_OPCODES) + len(NvbitfiGroup)
    kernels = nvbitfi_kernels(PROFILE)

    for line, launch in zip(path.read_text().splitlines(), kernels.launches, strict=True):
        parts = line.rstrip().split(";")
        row = [parts[2].split("kernel_name:")[1].strip(), int(parts[1].split(":")[1]), int(parts[4].split(":")[1])]
        row += [int(each.split(":")[1]) for each in parts[5].split(",") if each != ""]
        assert len(row) == columns
        assert (row[0], row[1]) == (launch.kernel, launch.count)
        for group in NvbitfiGroup:
            assert row[group + columns - len(NvbitfiGroup)] == kernels.total(launch, int(group))
        assert row[2] == sum(int(number) for number in row[3 : 3 + len(NVBITFI_OPCODES)])


def test_each_instruction_of_a_group_is_one_element() -> None:
    for launch in (KERNELS.launches[0], KERNELS.launches[3]):
        total = KERNELS.total(launch, int(Group.GPR))
        found = [KERNELS.instruction("step", launch.count, int(Group.GPR), number) for number in range(total)]
        places = {(one.output.site.name, one.occurrence, one.replica, one.element) for one in found}

        assert len(places) == total
        for number in (0, 17, total - 1):
            one = found[number]
            back = KERNELS.number(
                one.output.site.name, one.at, int(Group.GPR), occurrence=one.occurrence, replica=one.replica, element=one.element
            )
            assert back == ("step", launch.count, number)


def test_the_number_behind_the_last_is_refused() -> None:
    """Upstream draws it: its random numbers include the total."""
    total = KERNELS.total(KERNELS.launches[0], int(Group.GPR))

    with pytest.raises(FaultInvalid, match=rf"has {total} instructions of group 0, got number {total}"):
        KERNELS.instruction("step", 0, int(Group.GPR), total)
    with pytest.raises(FaultInvalid, match="no launch 12 of kernel 'step'"):
        KERNELS.instruction("step", 12, int(Group.GPR), 0)


@pytest.mark.parametrize("model", ["FLIP:1", "ZERO"])
def test_a_list_of_trials_does_the_same_faults(model: str, tmp_path: Path) -> None:
    of = made_rows.plan(300)
    trials = [of.trial(number) for number in range(300)]
    rows = [row for row in ROWS if row.model == model and row.group == Group.FFMA_OP and row.bits]
    name = ListName("IOV", int(Group.FFMA_OP), SASSIFI_MODELS.index(model), len(rows))
    path = tmp_path / name.list_name
    write_list(path, listed(rows, KERNELS, name.group))

    plan = made.plan_of_list(path, KERNELS, after=20)

    assert len(rows) > 10
    assert parse_name(path) == name
    assert plan.count == len(rows)
    for number, row in enumerate(rows):
        facts, experiment = plan.trial(number)
        before = trials[row.number][1]
        assert facts.site == row.site
        assert _what(experiment) == _what(before)


def test_a_list_of_wrong_addresses_does_the_same_faults(tmp_path: Path) -> None:
    of = sampled_plan(PROFILE, Selection(seed=2, modes=("IOA",), models=("ADJ:2",), groups=("GPR",)), 40, after=20)
    trials = [of.trial(number) for number in range(40)]
    rows = [replace(ROWS[0], **{name: getattr(facts, name) for name in facts.__struct_fields__}) for facts, _ in trials]
    path = tmp_path / "modeinst_address-igid0.bfm1.40.txt"
    with pytest.raises(FaultInvalid, match="where the value of trial 0 lands is not known"):
        listed(rows, KERNELS, 0)
    write_list(path, listed(rows, KERNELS, 0, lambda row: trials[row.number][1].injection))

    plan = made.plan_of_list(path, KERNELS, after=20)

    assert [_what(plan.trial(number)[1]) for number in range(40)] == [_what(experiment) for _, experiment in trials]
    assert [plan.trial(number)[0].position for number in range(40)] == [facts.position for facts, _ in trials]


def _what(experiment: Experiment) -> tuple[object, ...]:
    injection = experiment.injection
    assert injection is not None
    arrays = tuple(injection.array(name).tolist() for name in ("positions", "sources", "flip"))
    return experiment.at, experiment.occurrence, injection.site, injection.worker, arrays


@given(st.sampled_from(sorted(DTYPES)), st.floats(0, 1, exclude_max=True), st.integers(0, 2))
def test_a_seed_gives_a_mask_or_a_value_of_the_dtype(dtype: str, seed: float, what: int) -> None:
    kind = DTYPES[dtype]
    if what == 1 and kind.width == 1:
        with pytest.raises(FaultInvalid, match="no two adjacent bits"):
            pattern_of(seed, what, kind)
        return
    pattern = pattern_of(seed, what, kind)

    assert 0 <= pattern < 1 << kind.width
    assert pattern.bit_count() == (1, 2, pattern.bit_count())[what]
    if what < 2 or kind.width <= 32:
        bits = tuple(bit for bit in range(kind.width) if pattern >> bit & 1)
        assert pattern_of(seed_of(bits, pattern, what, kind), what, kind) == pattern


def test_warps_and_addresses_of_a_list_are_hit_whole(tmp_path: Path) -> None:
    warp = tmp_path / "modeinst_value-igid0.bfm7.10.txt"
    write_list(warp, [ListLine("step", 0, number, 0.5, 0.5) for number in (0, 50, 90)])
    for number in range(3):
        facts, experiment = made.plan_of_list(warp, KERNELS).trial(number)
        assert experiment.injection is not None
        positions = experiment.injection.array("positions")
        assert positions[0] % 32 == 0
        assert facts.elements == len(positions) == min(32, experiment.injection.elements - positions[0])

    address = tmp_path / "modeinst_address-igid0.bfm0.10.txt"
    write_list(address, [ListLine("step", 0, 0, 0.5, 0.0)])
    _, experiment = made.plan_of_list(address, KERNELS).trial(0)
    assert experiment.injection is not None
    assert experiment.injection.array("sources").tolist() == [0, 0]
    assert experiment.injection.array("positions").tolist() == [0, 1]


def test_addresses_outside_of_the_tensor_are_no_trials_and_are_counted() -> None:
    """The oracle counts index ^ mask over all addresses and seeds of a site whose size is no power of two."""
    launch = KERNELS.launches[0]
    lines, landed = [], []
    for output in KERNELS.outputs(launch, int(Group.GPR)):
        if output.elements & (output.elements - 1) == 0 or output.site.executions * output.site.replicas > 1:
            continue
        width = (output.elements - 1).bit_length()
        for element in range(0, output.elements, 7):
            for bit in range(width):
                place = KERNELS.number(output.site.name, launch.at, int(Group.GPR), occurrence=0, replica=0, element=element)
                lines.append(ListLine(*place, 0.5, (bit + 0.5) / width))
                landed.append(element ^ 1 << bit < output.elements)
    plan = plan_of_lines(ListName("IOA", int(Group.GPR), 0, len(lines)), lines, KERNELS, PROFILE.digest, group=0)

    told = [plan.told(number) for number in range(plan.count)]
    is_run = [plan.trial(number)[1].injection is not None for number in range(plan.count)]

    assert is_run == [not each for each in told]
    alive = [number for number, each in enumerate(told) if each != "never read"]
    assert [is_run[number] for number in alive] == [landed[number] for number in alive]
    assert {"", "address outside"} <= set(told)


def test_what_nothing_depends_on_is_masked_without_a_run() -> None:
    dead = next(iter(PROFILE.dead))
    launch = next(each for each in KERNELS.launches if each.kind == dead.kind)
    group = int(next(iter(sorted(dead.groups))))
    place = KERNELS.number(dead.site.name, launch.at, group, occurrence=0, replica=0, element=0)
    plan = plan_of_lines(ListName("IOV", group, 0, 1), [ListLine(*place, 0.5, 0.5)], KERNELS, PROFILE.digest, group=group)

    assert (plan.told(0), plan.trial(0)[1].injection) == ("never read", None)
    row = told_row(*plan.trial(0), plan.told(0), has_guard=False)
    assert (row.outcome, row.category, row.site) == ("masked", 1, dead.site.name)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("modeinst_value-igid8.bfm0.10.txt", "step 0 1 0.5\n", r"txt:1: 'step 0 1 0.5' is no injection"),
        ("modeinst_value-igid8.bfm0.10.txt", "step 0 1 0.5 0.5\n\nstep 0 99999 0.5 0.5 \n", r"txt:2: .*got number 99999"),
        ("modeinst_value-igid8.bfm0.10.txt", "step 0 1 0.5 1.5\n", r"txt:1: a seed of 1.5"),
        ("modeinst_value-igid8.bfm0.10.txt", " -1 -1 0.5 0.5\n", "is no injection"),
        ("modeinst_value-igid8.bfm0.10.txt", "", "is empty"),
        ("modeinst_address-igid8.bfm2.10.txt", "step 0 1 0.5 0.5\n", "no model of addresses"),
        ("moderf-igidrf.bfm0.10.txt", "step 0 1 0.5 0.5\n", "a list of registers"),
        ("modeinst_value-igid8.bfm9.10.txt", "step 0 1 0.5 0.5\n", "bit-flip model 9"),
        ("injections.txt", "step 0 1 0.5 0.5\n", "is no list of injections"),
    ],
)
def test_a_list_that_does_not_fit_is_refused_with_its_line(name: str, text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)

    with pytest.raises(FaultInvalid, match=message):
        made.plan_of_list(path, KERNELS)


def test_sassifis_script_reads_the_results() -> None:
    """As `parse_results_file` of NVlabs/sassifi splits them."""
    rows = [row for row in ROWS if row.group == Group.FFMA_OP]
    text = results_text(rows, KERNELS, int(Group.FFMA_OP), [row.category for row in rows], separator="-")

    for line, row in zip(text.splitlines(), rows, strict=True):
        words = line.split(":")
        site = words[0].split("-")
        kernel, launch, opcode, bit, seconds, outcome = (
            site[0],
            int(site[1]),
            words[2],
            int(words[4]),
            float(words[5]),
            int(words[6]),
        )
        assert (kernel, outcome, seconds) == ("step", row.category, row.seconds)
        assert made.STEPS[launch] == (row.phase, row.epoch, row.batch)
        assert opcode
        assert bit == min(row.bits, default=0)
        assert words[8:] == [f"value_before{row.golden}", f"value_after{row.injected}"]


def test_nvbitfis_script_reads_the_results() -> None:
    """As `parse_results_file` of NVlabs/nvbitfi splits them."""
    kernels, group = nvbitfi_kernels(PROFILE), int(NvbitfiGroup.FP32)
    rows = [row for row in ROWS if row.group in (Group.FFMA_OP, Group.FADD_FMUL_OP)]
    numbers = [row.category + (row.category >= 15) for row in rows]
    text = results_text(rows, kernels, group, numbers, separator=";")

    for index, (line, number) in enumerate(zip(text.splitlines(), numbers, strict=True)):
        words1 = line.split(";")
        words2 = words1[5].split(":")
        assert (int(words1[0]), words1[1], int(words2[6])) == (index, "step", number)
        assert float(words2[5]) > 0


@given(st.lists(st.text(min_size=1), min_size=2, max_size=8, unique=True))
def test_no_two_names_are_escaped_to_one(names: list[str]) -> None:
    found = [escaped(name) for name in names]

    assert len(set(found)) == len(names)
    for name in found:
        assert not set(name) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


def test_a_kernel_is_the_function_or_the_step() -> None:
    assert kernel_of("train_step/forward/conv/Conv2D") == "train__step"
    assert kernel_of("forward/model.1/relu") == "step"


def test_a_list_of_upstreams_form_is_read(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("_Z10simple_addi 0 23 0.506809798834 0.560204950825 \n")

    assert read_list(path) == [ListLine("_Z10simple_addi", 0, 23, 0.506809798834, 0.560204950825)]


def test_values_of_64_bits_are_listed_as_well_as_a_seed_can() -> None:
    kind = DTYPES["float64"]
    pattern = 0x4009_21FB_5444_2D18

    again = pattern_of(seed_of((), pattern, 2, kind), 2, kind)

    old, new = kind.numbers(np.array([pattern, again], np.uint64))
    assert new == pytest.approx(old, rel=1e-12)
