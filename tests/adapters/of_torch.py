"""A training with PyTorch, for the adapter contract."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from detrain.adapters.api import Settings
from detrain.adapters.instruments import TakesInstruments
from detrain.adapters.torch.adapter import Torch
from detrain.base.digest import Array
from detrain.python.process.random_streams import Streams


class Training:
    """See `tests.adapters.contract.Subject`."""

    def __init__(self, trial: TakesInstruments) -> None:
        self.adapter = Torch(Settings(seed=3, threads=1, experiment=trial), Streams())
        self.model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.01)
        self._loader = DataLoader(TensorDataset(torch.randn(64, 6)), 8, shuffle=True)
        self._iterator = iter(self._loader)
        self._own = torch.Generator().manual_seed(9)
        self.adapter.begin_phase()

    def step(self) -> None:
        rows = next(self._iterator, None)
        if rows is None:
            self._iterator = iter(self._loader)
            rows = next(self._iterator)
        self._step(rows[0])

    def _step(self, rows: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.model(rows).square().mean().backward()
        self.optimizer.step()

    def state(self) -> Mapping[str, Array]:
        found = {name: value.numpy().copy() for name, value in self.model.state_dict().items()}
        for number, state in self.optimizer.state_dict()["state"].items():
            found |= {f"{number} {name}": value.numpy().copy() for name, value in state.items()}
        return found

    def constants(self) -> list[Any]:
        return []

    def tensors(self) -> list[Any]:
        odd = torch.tensor([0x7FC00001, -0x800000, -0x80000000, 1], dtype=torch.int32).view(torch.float32)
        kinds = ("int8", "int64", "bool", "float16", "bfloat16", "float64", "complex64", "float8_e4m3fn")
        plain = [torch.arange(6).reshape(2, 3).to(getattr(torch, kind)) for kind in kinds]
        whole = torch.arange(24.0).reshape(4, 6)
        views = [whole.t()[1:3], whole.expand(2, 4, 6), whole[::2, 1], plain[6].conj(), plain[6].conj().imag]
        images = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
        grown = nn.Parameter(torch.ones(3))
        grown.grad = torch.tensor([1.0, 2.0, 3.0])
        return [odd, *plain, *views, images, grown, torch.zeros(0, 3), torch.tensor(1.5), torch.empty(2, device="meta")]

    def bytes_of(self, value: Any) -> bytes:
        if isinstance(value, list):  # a batch
            return b"".join(map(self.bytes_of, value))
        form = repr((type(value), value.dtype, value.shape, value.stride(), value.requires_grad, value.is_conj(), value.is_neg()))
        if value.device.type == "meta":
            return form.encode()
        flat = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        return form.encode() + bytes(flat.tolist()) + (b"" if value.grad is None else self.bytes_of(value.grad))

    def change(self, value: Any) -> None:
        if value.numel() and value.device.type != "meta":
            value.untyped_storage()[0] = value.untyped_storage()[0] ^ 1

    def draw(self) -> bytes:
        return struct.pack("<4f", *torch.randn(4).tolist())

    def generator(self) -> tuple[object, Callable[[], bytes]]:
        return self._own, lambda: struct.pack("<4f", *torch.randn(4, generator=self._own).tolist())

    def loader(self) -> Iterator[Any]:
        return self._iterator

    def objects(self) -> list[object]:
        return [self.model, self.optimizer]

    def watched(self) -> Mapping[str, Array]:
        path = next(each.key for each in self.adapter.norms.norms()[0]).removesuffix("model.0.weight")
        found = {f"{path}model.{name}": value.detach().numpy() for name, value in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for kind in ("exp_avg", "exp_avg_sq"):
                found[f"{path}optimizer.{kind} of {path}model.{name}"] = self.optimizer.state[parameter][kind].numpy()
        return found

    def spoil(self) -> None:
        self._step(torch.full((8, 6), float("nan")))


def subject(trial: TakesInstruments) -> Training:
    """Return the training."""
    return Training(trial)
