"""Limited faults of convolutions with their channels first: which outputs read an element, found by changing it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detrain.base.errors import FaultInvalid
from detrain.faults.drawing import artifact_injection, draw_injection
from detrain.faults.isca2023_csv import read_fault
from detrain.faults.models import model_named
from detrain.faults.plan import trial_rng
from detrain.faults.sites import OperandShape, Role, Site

X, KERNEL, Y = (2, 3, 7, 6), (20, 3, 3, 2), (2, 20, 4, 4)
STRIDES, PADDING, DILATIONS = [2, 1], [1, 0], [1, 2]


def convolved(x: Any, kernel: Any) -> Any:
    """Y [batch, out, *space] by its definition."""
    padded = np.pad(x, [(0, 0), (0, 0), *((each, each) for each in PADDING)])
    y = np.zeros(Y)
    for out_h in range(Y[2]):
        for out_w in range(Y[3]):
            for tap_h in range(KERNEL[2]):
                for tap_w in range(KERNEL[3]):
                    at = padded[:, :, out_h * 2 + tap_h, out_w + tap_w * 2]
                    y[:, :, out_h, out_w] += at @ kernel[:, :, tap_h, tap_w].T
    return y


def gradients(dy: Any, x: Any, kernel: Any) -> tuple[Any, Any]:
    """dX and dW by their definition."""
    padded = np.pad(x, [(0, 0), (0, 0), *((each, each) for each in PADDING)])
    dpadded, dkernel = np.zeros(padded.shape), np.zeros(KERNEL)
    for out_h in range(Y[2]):
        for out_w in range(Y[3]):
            for tap_h in range(KERNEL[2]):
                for tap_w in range(KERNEL[3]):
                    place = (slice(None), slice(None), out_h * 2 + tap_h, out_w + tap_w * 2)
                    dpadded[place] += dy[:, :, out_h, out_w] @ kernel[:, :, tap_h, tap_w]
                    dkernel[:, :, tap_h, tap_w] += dy[:, :, out_h, out_w].T @ padded[place]
    return dpadded[:, :, PADDING[0] : PADDING[0] + X[2], :], dkernel


COMPUTED: dict[str, tuple[Role, tuple[Any, Any, Any], Any]] = {
    "forward": ("", (X, KERNEL, Y), convolved),
    "grad_in": ("grad_in", (Y, KERNEL, X), lambda dy, kernel: gradients(dy, np.ones(X), kernel)[0]),
    "grad_wt": ("grad_wt", (X, Y, KERNEL), lambda x, dy: gradients(dy, x, np.ones(KERNEL))[1]),
}


def site(kind: str, **attributes: Any) -> Site:
    role, shapes, _compute = COMPUTED[kind]
    places = {"": (0, 1), "grad_in": (0, 2), "grad_wt": (1, 0)}[role]
    names = ("input", "weight", "output")
    operands = {name: OperandShape(place, shape, "float32") for name, place, shape in zip(names, (*places, 0), shapes, strict=True)}
    plain = {"stride": STRIDES, "padding": PADDING, "dilation": DILATIONS, "transposed": False, "groups": [1]}
    op = "convolution_backward" if role else "convolution"
    stage: Any = "backward" if role else "forward"
    return Site("s", "model.0", op, stage, role, operands, 1, is_alive=True, attributes=plain | attributes)


@pytest.mark.parametrize("model", ["INPUT_16", "WT_16", "N64_INPUT_16", "N64_WT_16"])
@pytest.mark.parametrize("kind", COMPUTED)
def test_the_outputs_that_see_a_limited_fault_are_16_that_read_the_element(kind: str, model: str) -> None:
    role, shapes, compute = COMPUTED[kind]
    rng = np.random.default_rng(1)
    operands = [rng.uniform(1, 2, shape) for shape in shapes[:2]]
    golden = compute(*operands)
    for number in range(12):
        drawn = draw_injection(site(kind), model_named(model), 0, trial_rng(number, 0))
        which = 0 if drawn.operand == "input" else 1
        changed = [each.copy() for each in operands]
        changed[which].reshape(-1)[drawn.array("positions")] += 100.0
        readers = np.flatnonzero(compute(*changed) != golden)
        limited = drawn.array("limited")
        axis = 0 if role == "grad_wt" else 1  # of the output channels: the first of dW, the second of Y and dX
        place = list(np.unravel_index(limited, shapes[2]))
        channel = place.pop(axis)
        if "INPUT" in model:
            assert set(limited) <= set(readers), "outputs that do not read it"
            assert len(limited) == min(16, shapes[2][axis])
            assert all(len(set(each)) == 1 for each in place), "several positions"
        else:
            assert len(set(channel)) == 1, "several channels"
            assert set(channel) <= set(np.unravel_index(readers, shapes[2])[axis])
            assert len(limited) <= 16


@pytest.mark.parametrize("attributes", [{"groups": [3]}, {"transposed": True}])
def test_grouped_and_transposed_ones_are_refused(attributes: dict[str, Any]) -> None:
    with pytest.raises(FaultInvalid, match="transposed, or has groups"):
        draw_injection(site("forward", **attributes), model_named("INPUT_16"), 0, trial_rng(0, 0))


CSV = """model,resnet18
stage,{stage}
fmodel,{fmodel}
target_worker,0
target_layer,{layer}
target_epoch,1
target_step,2
inj_pos,{positions}
inj_values,{values}
"""


@pytest.mark.parametrize(
    ("kind", "fmodel", "cells", "elements"),
    [
        ("forward", "INPUT", ["1/6/2/0", "0/1/5/2"], [(0, 2, 1, 5), (1, 0, 6, 2)]),
        ("forward", "WT", ["2/1/0/19"], [(19, 0, 2, 1)]),
        ("forward", "RD", ["1/3/0/17"], [(1, 17, 3, 0)]),
        ("grad_in", "WT", ["0/1/19/2"], [(19, 2, 2, 0)]),  # the artifact's kernel is turned, its channels exchanged
        ("grad_wt", "RD", ["2/0/1/7"], [(7, 1, 2, 0)]),
    ],
)
def test_positions_of_the_artifact_are_carried_over(
    tmp_path: Path, kind: str, fmodel: str, cells: list[str], elements: list[tuple[int, ...]]
) -> None:
    _role, shapes, _compute = COMPUTED[kind]
    layer = "conv1" if kind == "forward" else f"conv1_{kind}"
    stage = "fwrd_inject" if kind == "forward" else "bkwd_inject"
    numbers = [1.5 + number for number in range(len(cells))]
    text = CSV.format(stage=stage, fmodel=fmodel, layer=layer, positions=",".join(cells), values=",".join(map(str, numbers)))
    (tmp_path / "fault.csv").write_text(text)

    drawn = artifact_injection(site(kind), read_fault(tmp_path / "fault.csv"), takes_nearest=False)

    shape = shapes[["INPUT", "WT"].index(fmodel) if fmodel in ("INPUT", "WT") else 2]
    flat = [int(np.ravel_multi_index(element, shape)) for element in elements]
    assert drawn.array("positions").tolist() == sorted(flat)
    by_position = dict(zip(drawn.array("positions").tolist(), drawn.array("flip").view(np.float32).tolist(), strict=True))
    order = list(reversed(flat)) if len(flat) == 2 else flat  # as the cells are written
    assert [by_position[position] for position in order] == numbers
