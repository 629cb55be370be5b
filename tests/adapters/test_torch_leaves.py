"""The value of any tensor, by which batches are told from one another."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

torch = pytest.importorskip("torch")

from detrain.adapters.torch.devices import TorchDevices  # noqa: E402  PyTorch may be missing
from detrain.adapters.torch.distributed.spread_tensors import SpreadTensors  # noqa: E402
from detrain.adapters.torch.leaves import TorchLeaves  # noqa: E402

KINDS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda x: x,
    "bfloat16": lambda x: x.bfloat16(),
    "float8": lambda x: x.to(torch.float8_e4m3fn),
    "with gradients": lambda x: x.clone().requires_grad_(),
    "conjugate": lambda x: torch.complex(x, x).conj(),
    "negative": lambda x: torch.complex(x, x).conj().imag,
    "sparse": lambda x: x.to_sparse(),
    "compressed": lambda x: x.to_sparse_csr(),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.5, 0, torch.quint8),
    "parameter": torch.nn.Parameter,
    "transposed": lambda x: x.T,
}


@pytest.mark.parametrize("kind", KINDS)
def test_equal_tensors_have_equal_values_and_others_have_others(kind: str) -> None:
    loaders = SimpleNamespace(parts_of_new=lambda _value: None, parts_of_ended=lambda _value: None)
    leaves = TorchLeaves(cast(Any, loaders), SpreadTensors(cast(Any, None)), TorchDevices())
    first, same, other = (KINDS[kind](torch.tensor(values)) for values in ([[1.0, 2.0]], [[1.0, 2.0]], [[1.0, 3.0]]))
    values = [leaves.to_array(each) for each in (first, same, other)]
    assert all(each is not None and each.size for each in values)
    one, two, three = (cast(Any, each).tobytes() for each in values)
    assert one == two != three
