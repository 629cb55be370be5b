"""Ops that PyTorch takes apart, and does not in inference mode: as much is known of them as of their parts."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from detrain.adapters.torch.faults.op_operands import attributes_of, name_of
from detrain.adapters.torch.updates import scores_of
from detrain.faults.drawing import linear_op
from detrain.faults.sites import OperandShape, Site


class _Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops: list[tuple[str, dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append((name_of(func), attributes_of(func, args)))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "module",
    [
        torch.nn.Conv2d(2, 3, 3),
        torch.nn.Conv2d(2, 4, (3, 1), stride=2, padding=(1, 0), dilation=2, groups=2),
        torch.nn.Conv1d(2, 3, 3, padding=1),
        torch.nn.Conv3d(2, 3, 2, stride=(1, 2, 1)),
    ],
    ids=["plain", "all", "1d", "3d"],
)
def test_a_convolution_has_the_attributes_of_what_it_is_taken_apart_into(module: Any) -> None:
    axes = len(module.kernel_size)
    images = torch.randn(2, 2, *[7] * axes)
    with torch.no_grad(), _Seen() as apart:
        module(images)
    with torch.inference_mode(), _Seen() as whole:
        module(images)

    [(op, mine)] = [each for each in whole.ops if each[0].startswith("conv")]
    [(other, its)] = [each for each in apart.ops if each[0].startswith("conv")]
    assert (op, other) == (f"conv{axes}d", "convolution")
    its.pop("output_padding")
    assert mine == its


def test_what_reads_an_element_of_a_linear_layer_is_what_changes_with_it() -> None:
    given, layer = torch.randn(2, 3, 4), torch.nn.Linear(4, 5)
    site = Site(
        name="forward/l/linear", layer="l", op="linear", stage="forward", role="", executions=1, is_alive=True, replicas=1,
        operands={"input": OperandShape(0, (2, 3, 4), "float32"), "weight": OperandShape(1, (5, 4), "float32"),
                  "output": OperandShape(0, (2, 3, 5), "float32")},
    )  # fmt: skip
    with torch.inference_mode():
        usual = layer(given)
        for place in range(given.numel()):
            other = given.clone()
            other.view(-1)[place] += 1
            changed = (layer(other) != usual).any(-1).flatten().nonzero().flatten()
            assert linear_op(site).readers(np.array([place])).tolist() == changed.tolist()
        for place in range(layer.weight.numel()):
            before = layer.weight.clone()
            layer.weight.view(-1)[place] += 1
            [channel] = (layer(given) != usual).flatten(0, 1).any(0).nonzero().flatten().tolist()
            layer.weight.copy_(before)
            assert [each.channel for each in linear_op(site).columns(np.array([place]))] == [channel]


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        (torch.zeros(2, 7), (2, 7)),
        ({"loss": torch.zeros(()), "logits": torch.zeros(2, 3, 7)}, (2, 3, 7)),
        (types.SimpleNamespace(loss=None, logits=torch.zeros(2, 7)), (2, 7)),
        ((torch.zeros(2, 7), torch.zeros(9)), (2, 7)),
        ([torch.zeros(2, dtype=torch.int64), torch.zeros(3, 7)], (3, 7)),
        (torch.zeros(2, 7, 4, 5), (2, 4, 5, 7)),
    ],
    ids=["a tensor", "a dictionary", "an object", "several", "the first of numbers", "of pixels"],
)
def test_scores_have_the_class_on_their_last_axis(given: Any, shape: tuple[int, ...]) -> None:
    [scores] = scores_of(given)
    assert scores.shape == shape


def test_what_has_no_scores_gives_none() -> None:
    assert scores_of({"boxes": torch.zeros(2, dtype=torch.int64)}) == []
