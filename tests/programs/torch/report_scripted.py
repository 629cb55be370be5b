"""Functions and a module of TorchScript: the first call of each was differentiated by other formulas than later ones."""
import torch
from torch import nn

torch.manual_seed(0)


@torch.jit.script
def swish(rows: torch.Tensor) -> torch.Tensor:
    return rows * rows.sigmoid()


@torch.jit.script
def mish(rows: torch.Tensor) -> torch.Tensor:
    return rows.mul(nn.functional.softplus(rows).tanh())


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.inside = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inside(rows)) * torch.sigmoid(self.gate(rows))


first, gated, last = nn.Linear(4, 8), torch.jit.script(Gated()), nn.Linear(8, 1)
traced = torch.jit.trace(nn.Sequential(nn.Linear(8, 8), nn.SiLU()), torch.zeros(2, 8))
parts = nn.ModuleList([first, gated, traced, last])
optimizer = torch.optim.Adam(parts.parameters(), 1e-2)
rows, wanted = torch.randn(60, 4), torch.randn(60, 1)
for epoch in range(4):  # <- epoch loop
    order = torch.randperm(60)
    for at in range(0, 60, 12):  # <- batch loop
        chosen = order[at : at + 12]
        hidden = traced(gated(swish(first(rows[chosen]))))
        loss = (last(mish(hidden)) - wanted[chosen]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
print([part.abs().sum().item() for part in parts.parameters()])
