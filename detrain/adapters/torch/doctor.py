"""Computations that test if PyTorch repeats results bit for bit (see `detrain.adapters.repeated_cases`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from detrain.adapters import repeated_cases
from detrain.adapters.repeated_cases import RNG, Case
from detrain.adapters.torch import settings
from detrain.base.digest import Array


def _gradients(function: Callable[..., Any], *inputs: Any) -> list[Any]:
    leaves = [each.detach().clone().requires_grad_() for each in inputs]
    function(*leaves).square().sum().backward()
    return [each.grad for each in leaves]


def cases(device: str) -> dict[str, Case]:
    """Return the computations by name. They are large enough for PyTorch to split the work among threads."""

    def normal(*shape: int) -> Any:
        return torch.from_numpy(repeated_cases.normal(*shape)).to(device)

    left, right = normal(384, 512), normal(512, 256)
    images, filters = normal(8, 16, 32, 32), normal(32, 16, 3, 3)
    rows, where = normal(20_000, 16), torch.from_numpy(RNG.integers(0, 50, 20_000)).to(device)
    scale, offset, heads = normal(16), normal(16), normal(4, 4, 64, 32)
    recurrent = torch.nn.GRU(8, 16, batch_first=True).to(device)
    sequence = normal(16, 20, 8)
    for parameter in recurrent.parameters():
        parameter.data = normal(*parameter.shape)

    def put(values: Any) -> Any:
        return torch.zeros(50, 16, device=device).index_put((where,), values, accumulate=True)

    def draw() -> Any:
        torch.manual_seed(1)
        return functional.dropout(rows, 0.3)

    return {
        "matmul": lambda: left @ right,
        "matmul, bfloat16": (left.bfloat16() @ right.bfloat16()).float,
        "matmul, gradients": lambda: _gradients(torch.matmul, left, right),
        "convolution": lambda: functional.conv2d(images, filters, padding=1),
        "convolution, gradients": lambda: _gradients(lambda x, w: functional.conv2d(x, w, padding=1), images, filters),
        "depthwise convolution, gradients": lambda: _gradients(
            lambda x, w: functional.conv2d(x, w, padding=1, groups=16), images, filters[:16, :1]
        ),
        "max pooling, gradient": lambda: _gradients(lambda x: functional.max_pool2d(x, 3, 2, 1), images),
        "batch normalisation, gradients": lambda: _gradients(
            lambda x, s, o: functional.batch_norm(x, None, None, s, o, training=True), images, scale, offset
        ),
        "layer normalisation, gradients": lambda: _gradients(
            lambda x, s, o: functional.layer_norm(x, (16,), s, o), rows, scale, offset
        ),
        "sum over all": rows.sum,
        "mean over rows": lambda: rows.mean(0),
        "running sum": lambda: rows.cumsum(0),
        "softmax cross-entropy, gradient": lambda: _gradients(lambda x: functional.cross_entropy(x, where % 16), rows),
        "indexing, gradient": lambda: _gradients(lambda table: table[where], rows[:50]),
        "index_put, accumulated": lambda: put(rows),
        "index_add": lambda: torch.zeros(50, 16, device=device).index_add(0, where, rows),
        "scatter, added": lambda: torch.zeros(50, 16, device=device).scatter_add(0, where[:, None].expand(-1, 16), rows),
        "embedding, gradient": lambda: _gradients(lambda table: functional.embedding(where, table), rows[:500]),
        "resizing of images, gradient": lambda: _gradients(lambda x: functional.interpolate(x, (45, 45), mode="bilinear"), images),
        "attention, gradients": lambda: _gradients(functional.scaled_dot_product_attention, heads, heads + 1, heads - 1),
        "recurrent steps, gradients": lambda: _gradients(lambda x: recurrent(x)[0], sequence),
        "dropout of one seed": draw,
    }


def _arrays(result: Any) -> list[Array]:
    parts = result if isinstance(result, list) else [result]
    return [part.detach().cpu().contiguous().numpy() for part in parts]


def main() -> None:
    """Repeat the computations on each kind of device of this machine, as the command line asks; print the digests."""
    is_deterministic, repeats = repeated_cases.asked()
    if is_deterministic:
        settings.fix(0, os.cpu_count() or 1)
    gpu = torch.accelerator.current_accelerator(check_available=True)
    devices = {"CPU": "cpu"} | ({"GPU": gpu.type} if gpu is not None else {})
    found = {name: repeated_cases.repeated(cases(device), repeats, _arrays, RuntimeError) for name, device in devices.items()}
    repeated_cases.say(torch.__version__, found)


if __name__ == "__main__":
    main()
