"""Ops that PyTorch takes apart, and does not in inference mode: as much is known of them as of their parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from detrain.adapters.torch.faults.op_operands import attributes_of, name_of


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
