"""The artifact's files: reading them, and finding their elements in our tensors."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detrain.base.errors import FaultInvalid
from detrain.faults.bits import DTYPES
from detrain.faults.isca2023_csv import ArtifactFault, layout, mapped_back, parse_fault, plan_of, read_fault
from detrain.faults.limits import Convolution, ConvPass
from detrain.faults.models import PUBLISHED
from detrain.faults.plan import Kind, Operand
from tests.faults.convolutions import computed, convolutions

FLOAT32 = DTYPES["float32"]
ROWS = {
    "model": "resnet18",
    "stage": "fwrd_inject",
    "fmodel": "RD",
    "target_worker": "1",
    "target_layer": "basicblock_2_basic_0_conv2",
    "target_epoch": "19",
    "target_step": "38",
    "inj_pos": "107/3/3/85",
    "inj_values": "2.86871514043344e24",
    "learning_rate": "0.001",
    "seed": "123",
}


def lines(**changes: str | None) -> list[list[str]]:
    return [[name, *cells.split(",")] for name, cells in {**ROWS, **changes}.items() if cells is not None]


def fault(**changes: str | None) -> ArtifactFault:
    return parse_fault(lines(**changes), "f.csv")


def convolution(stage: ConvPass, x: tuple[int, ...], kernel: tuple[int, ...], stride: int) -> Convolution:
    y = (x[0], *(-(-size // stride) for size in x[1:3]), kernel[3])
    return Convolution.of(stage, x=x, kernel=kernel, y=y, strides=(stride, stride), dilations=(1, 1), padding="SAME")


def test_a_file_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "inj.csv"
    path.write_bytes(
        b"\xef\xbb\xbf" + "\r\n".join(",".join(line) for line in lines()[::-1]).encode() + b"\r\nnote,by hand,,\r\n,,\r\n"
    )

    read = read_fault(path)

    assert read == ArtifactFault(
        workload="resnet18",
        fmodel="RD",
        stage=ConvPass.FORWARD,
        worker=1,
        layer="basicblock_2_basic_0_conv2",
        epoch=19,
        step=38,
        positions=((107, 3, 3, 85),),
        values=(2.86871514043344e24,),
        learning_rate=0.001,
        seed=123,
        ignored=("note",),
    )
    assert read.operand is Operand.OUTPUT
    assert read.target == "basicblock_2_basic_0_conv2"


# The examples of the publication that the definitions quote: their op at full size, and where the element is.
EXAMPLES = [
    ("resnet18 fwrd RD basicblock_2_basic_0_conv2 107/3/3/85", (8, 8, 128), (3, 3, 128, 128), 1, (107, 3, 3, 85)),
    ("resnet18 fwrd WT basicblock_4_basic_0_conv2 2/2/383/201", (2, 2, 512), (3, 3, 512, 512), 1, (2, 2, 383, 201)),
    ("resnet18 bkwd INPUT basicblock_4_basic_0_downsample_grad_in 124/3/1/450", (4, 4, 256), (1, 1, 256, 512), 2, None),
    ("resnet18_sgd bkwd WT basicblock_1_basic_0_conv1_grad_in 2/2/56/40", (16, 16, 64), (3, 3, 64, 64), 1, (0, 0, 40, 56)),
    ("resnet18_nobn bkwd WT basicblock_2_basic_1_conv2_grad_in 0/0/76/24", (8, 8, 128), (3, 3, 128, 128), 1, (2, 2, 24, 76)),
    ("effnet bkwd RD block2_mbconv_0_conv1_grad_in 71/0/7/3", (16, 16, 16), (1, 1, 16, 96), 1, (71, 0, 7, 3)),
]


@pytest.mark.parametrize(("words", "space", "kernel", "stride", "element"), EXAMPLES)
def test_the_published_examples_find_their_elements_or_say_that_they_fall_on_padding(
    words: str, space: tuple[int, int, int], kernel: tuple[int, ...], stride: int, element: tuple[int, ...] | None
) -> None:
    model, stage, fmodel, target, position = words.split()
    read = fault(model=model, stage=f"{stage}_inject", fmodel=fmodel, target_layer=target, inj_pos=position, inj_values="3.5e12")
    op = convolution(read.stage, (128, *space), kernel, stride)

    assert read.target == target
    if element is None:
        with pytest.raises(
            FaultInvalid, match=rf"{position} of {target} falls on a zero.*128/4/4/512.*\n.*nearest .* is 124/1/0/450"
        ):
            plan_of(read, op, FLOAT32)
        element = (124, 1, 0, 450)
    plan = plan_of(read, op, FLOAT32, takes_nearest=True)
    assert np.unravel_index(plan.positions, op.shape_of(read.operand)) == tuple(np.array([index]) for index in element)
    assert plan.kind is Kind.SET
    assert plan.operands.view(np.float32).tolist() == [np.float32(3.5e12)]


@given(op=convolutions(ranks=(2,)))
def test_the_artifacts_layout_computes_the_same_gradient_and_holds_dy_where_it_is_mapped_back_to(op: Convolution) -> None:
    """Builds the padded dY and the turned kernel, convolves them with stride 1, and compares with the gradient by
    definition.
    """
    op = Convolution(ConvPass.GRAD_IN, op.x, op.kernel, op.y, op.strides, op.dilations, op.before)
    rng = np.random.Generator(np.random.PCG64(1))
    dy, kernel = rng.uniform(1, 2, op.y), rng.uniform(1, 2, op.kernel)
    padded = np.zeros(layout(op, Operand.INPUT))
    for position in np.ndindex(padded.shape):
        element, nearest = mapped_back(op, Operand.INPUT, position)
        padded[position] = 0.0 if element is None else dy[element]
        assert element in (None, nearest)
        assert all(0 <= index < size for index, size in zip(nearest, op.y, strict=True))
    turned = np.zeros(layout(op, Operand.WEIGHT))
    for position in np.ndindex(turned.shape):
        turned[position] = kernel[mapped_back(op, Operand.WEIGHT, position)[1]]

    height, width = op.x[1:3]
    gradient = np.zeros(op.x)
    for down, across in np.ndindex(*op.kernel[:2]):
        top, left = down * op.dilations[0], across * op.dilations[1]
        gradient += padded[:, top : top + height, left : left + width] @ turned[down, across]

    np.testing.assert_allclose(gradient, computed(op)(dy, kernel), rtol=1e-12)


@given(op=convolutions())
def test_all_other_operands_are_where_they_are(op: Convolution) -> None:
    for operand in (Operand.INPUT, Operand.WEIGHT, Operand.OUTPUT):
        if op.stage is ConvPass.GRAD_IN and operand is not Operand.OUTPUT:
            continue
        last = tuple(size - 1 for size in op.shape_of(operand))
        assert layout(op, operand) == op.shape_of(operand)
        assert mapped_back(op, operand, last) == (last, last)


def test_the_values_go_with_their_positions_in_ascending_order() -> None:
    read = fault(inj_pos="1/0/0/3,0/1/0/0,0/0/0/9", inj_values="1,2,nan")
    op = convolution(ConvPass.FORWARD, (2, 2, 2, 4), (3, 3, 4, 16), 1)

    plan = plan_of(read, op, FLOAT32)

    assert plan.positions.tolist() == [9, 32, 67]
    assert plan.operands.tolist() == [0x7FC0_0000, 0x4000_0000, 0x3F80_0000]


@pytest.mark.parametrize("position", ["128/0/0/0", "0/8/0/0", "0/0/0/128", "0/0/0", "0/0/0/0/0"])
def test_a_position_outside_of_the_tensor_is_refused(position: str) -> None:
    op = convolution(ConvPass.FORWARD, (128, 8, 8, 128), (3, 3, 128, 128), 1)

    with pytest.raises(
        FaultInvalid, match=f"{position} is outside of the output of basicblock_2_basic_0_conv2, which is 128/8/8/128"
    ):
        plan_of(fault(inj_pos=position), op, FLOAT32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "resnet50"}, "f.csv: model: 'resnet50' is none of resnet18,"),
        ({"stage": "forward"}, "stage: 'forward' is none of fwrd_inject, bkwd_inject"),
        ({"fmodel": "RDD"}, "fmodel: 'RDD' is none of INPUT"),
        ({"target_worker": "-1"}, "target_worker: '-1' is not a whole number"),
        ({"target_worker": "one"}, "target_worker: 'one' is not a whole number"),
        ({"target_epoch": "1_0"}, "target_epoch: '1_0' is not a whole number"),
        ({"target_step": "1.5"}, "target_step: '1.5' is not a whole number"),
        ({"target_step": "1,2"}, "target_step has 2 values, expected one"),
        ({"target_step": ""}, "target_step has no value"),
        ({"target_step": None, "seed": None}, "no row 'target_step'\n"),
        ({"target_layer": "conv9"}, "'conv9' is not a layer of resnet18 in fwrd_inject\n  one is conv1|"),
        ({"target_layer": "conv1_grad_in"}, "'conv1_grad_in' is not a layer of resnet18 in fwrd_inject"),
        ({"stage": "bkwd_inject"}, "is not a layer of resnet18 in bkwd_inject\n  one is conv1|basicblock_[1-4]_basic_[01]_"),
        ({"model": "densenet"}, "is not a layer of densenet in fwrd_inject"),
        ({"inj_pos": "1/2/x/4"}, "inj_pos: '1/2/x/4' is not a position such as 107/3/3/85"),
        ({"inj_pos": "1//2/4"}, "'1//2/4' is not a position"),
        ({"inj_pos": "1/-2/3/4"}, "'1/-2/3/4' is not a position"),
        ({"inj_pos": "0/0/0/0,0/0/0/1"}, "2 positions in inj_pos and 1 values in inj_values"),
        ({"inj_values": "1,2"}, "1 positions in inj_pos and 2 values in inj_values"),
        ({"inj_pos": "0/0/0/7,0/0/0/7", "inj_values": "1,2"}, "position 0/0/0/7 is in inj_pos twice"),
        ({"inj_values": "1e400"}, "inj_values: '1e400' is larger than any number"),
        ({"inj_values": "0x10"}, "inj_values: '0x10' is not a number"),
        ({"inj_values": "1_0"}, "inj_values: '1_0' is not a number"),
        ({"inj_values": "1,,2", "inj_pos": "1,2,3"}, "inj_values: '' is not a number"),
        ({"learning_rate": "fast"}, "learning_rate: 'fast' is not a number"),
        ({"seed": "1.0"}, "seed: '1.0' is not a whole number"),
        ({"target_epcoh": "3"}, "row 12: there is no field 'target_epcoh'\n  write it 'target_epoch'"),
        ({"Seed": "3"}, "there is no field 'Seed'\n  write it 'seed'"),
    ],
)  # fmt: skip
def test_a_row_that_is_not_as_it_should_be_is_refused_by_name(changes: dict[str, str | None], message: str) -> None:
    with pytest.raises(FaultInvalid, match=re.escape(message)):
        fault(**changes)


def test_a_second_row_of_a_name_is_refused() -> None:
    with pytest.raises(FaultInvalid, match=r"f\.csv, row 12: a second row 'seed'"):
        parse_fault([*lines(), ["seed", "5"]], "f.csv")


@pytest.mark.parametrize(
    "content", [None, b"\xff\xfe\x00", b'model,"resnet18\n', b"\x00"], ids=["none", "encoding", "quote", "zero"]
)
def test_a_file_that_cannot_be_read_is_refused_by_name(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "inj.csv"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(FaultInvalid, match=r"inj\.csv"):
        read_fault(path)


@given(
    st.lists(st.lists(st.sampled_from([*ROWS, *ROWS.values(), "", "1/2", "x,y"]) | st.text(max_size=4), max_size=4), max_size=14)
)
def test_whatever_is_in_a_file_it_is_read_or_refused(content: list[list[str]]) -> None:
    with contextlib.suppress(FaultInvalid):
        assert parse_fault(content, "f.csv").fmodel in PUBLISHED
