"""Ordinary programs that use `torch.compile`, each in one way: `python compiled_ways.py WAY [BACKEND]`."""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

BATCHES = 4


class Cube(torch.autograd.Function):
    """A function with a gradient of its own."""

    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        """Return the cube."""
        context.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        """Return its gradient."""
        (x,) = context.saved_tensors
        return gradient * 3 * x * x


class Dense(nn.Module):
    """A small network of dense layers."""

    def __init__(self, way: str = "") -> None:
        super().__init__()
        self.first, self.norm, self.drop, self.last = nn.Linear(6, 16), nn.LayerNorm(16), nn.Dropout(0.1), nn.Linear(16, 3)
        self.inner = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16))
        self.way = way

    def forward(self, x: Any) -> Any:
        """Return scores."""
        x = torch.relu(self.first(x))
        if self.way == "autograd function":
            x = Cube.apply(x)
        x = x + (checkpoint(self.inner, x, use_reentrant=False) if self.way == "checkpointing" else self.inner(x))
        return self.last(self.drop(self.norm(x)))


class Pictures(nn.Module):
    """Convolutions with batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 8, 3, 2), nn.BatchNorm2d(8))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        """Return scores."""
        return self.head(functional.relu(self.body(x)).mean((2, 3)))


class Attention(nn.Module):
    """A block of a transformer, with positions of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(12, 16), nn.Embedding(8, 16)
        self.before, self.mixed, self.out, self.behind = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)
        self.widened, self.back = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Any) -> Any:
        """Return scores."""
        rows, length = x.shape
        h = self.words(x) + self.places(torch.arange(length))
        parts = self.mixed(self.before(h)).reshape(rows, length, 3, 2, 8).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*parts, is_causal=True)
        h = h + self.out(seen.transpose(1, 2).reshape(rows, length, 16))
        h = h + self.back(functional.gelu(self.widened(self.behind(h))))
        return h @ self.words.weight.t()


class Recurrent(nn.Module):
    """A recurrent network."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(5, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        """Return scores."""
        return self.head(self.cells(x)[0][:, -1])


class Training:
    """A program: a model, an optimizer, and a step."""

    def __init__(self, way: str, backend: str = "inductor") -> None:
        torch._dynamo.reset()
        torch.manual_seed(3)
        self.way, kinds = way, {"conv and batch norm": Pictures, "transformer": Attention, "lstm": Recurrent}
        self.net = kinds[way]() if way in kinds else Dense(way)
        how: dict[str, Any] = {"backend": backend}
        if way == "reduce-overhead" and backend == "inductor":
            how = {"mode": way}
        how |= {"fullgraph": {"fullgraph": True}, "ragged batches": {"dynamic": True}}.get(way, {})
        parameters = list(self.net.parameters())
        self.run: Any
        self.loss: Any
        self.critic: Any
        self.run, self.loss, self.critic = self.net, functional.cross_entropy, None
        if way == "loss":
            self.loss = torch.compile(functional.cross_entropy, **how)
        elif way == "step function":
            self.whole_loss = torch.compile(self.whole_loss, **how)
        elif way == "submodule":
            self.net.inner = torch.compile(self.net.inner, **how)
        elif way == "in place":
            self.net.compile(**how)
        else:
            self.run = torch.compile(self.net, **how)
        if way == "two models":
            self.critic = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
            self.judge = torch.compile(self.critic, **how)
            parameters += self.critic.parameters()
        fused = {"fused": True} if way == "transformer" else {}
        self.optimizer = (torch.optim.SGD if way == "conv and batch norm" else torch.optim.AdamW)(parameters, 0.01, **fused)
        self.update = torch.compile(self.optimizer.step, **how) if way == "optimizer" else self.optimizer.step
        self.batches = [self.batch(turn) for turn in range(BATCHES)]

    def batch(self, turn: int) -> tuple[Any, Any]:
        """Return rows and labels."""
        rows = 8 - turn if self.way == "ragged batches" else 8
        if self.way == "transformer":
            return torch.randint(0, 12, (rows, 8)), torch.randint(0, 12, (rows, 8))
        shape = {"conv and batch norm": (rows, 1, 8, 8), "lstm": (rows, 4, 5)}.get(self.way, (rows, 6))
        return torch.randn(shape), torch.randint(0, 3, (rows,))

    def whole_loss(self, x: Any, y: Any) -> Any:
        """Return the loss."""
        scores = self.run(x)
        if self.critic is not None:
            return self.loss(scores, y) + self.judge(scores).square().mean()
        return self.loss(scores.flatten(0, -2), y.flatten())

    def one_step(self, x: Any, y: Any, turn: int) -> Any:
        """Train on a batch; return the loss."""
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.way == "amp"):
            loss = self.whole_loss(x, y)
        if self.way == "accumulation":
            (loss / 2).backward()
            if turn % 2:
                self.update()
                self.optimizer.zero_grad()
            return loss
        self.optimizer.zero_grad()
        loss.backward()
        self.update()
        return loss

    def one(self, turn: int) -> Any:
        """Train a step; return its loss."""
        return self.one_step(*self.batches[turn], turn)

    def state(self) -> bytes:
        """Return the weights and the optimizer's state as bytes."""
        held = [*self.net.state_dict().values(), *(v for kept in self.optimizer.state.values() for v in kept.values())]
        return b"".join(value.detach().numpy().tobytes() for value in held)


WAYS = (
    *("model", "in place", "step function", "loss", "reduce-overhead", "fullgraph", "ragged batches", "submodule"),
    *("autograd function", "checkpointing", "amp", "conv and batch norm", "transformer", "lstm", "accumulation"),
    *("two models", "optimizer"),
)


def main(way: str, backend: str = "inductor") -> None:
    """Train two epochs, and print the losses."""
    training = Training(way, backend)
    for epoch in range(2):
        for turn in range(BATCHES):
            loss = training.one(turn)
            print(epoch, turn, loss.item())
    print("state", hashlib.sha256(training.state()).hexdigest())


if __name__ == "__main__":
    main(*sys.argv[1:])
