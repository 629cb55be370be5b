"""After torchtitan#4615: moments in bfloat16 stay so, whatever dtype the weights have."""
import torch
from torch import nn


class Halved(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state["m"], state["n"] = torch.zeros_like(weight, dtype=torch.bfloat16), 0
                state["n"] += 1
                state["m"].lerp_(weight.grad.to(torch.bfloat16), 0.1)
                weight.sub_(state["m"].float(), alpha=group["lr"])


torch.manual_seed(6)
x = torch.randn(60, 4)
model = nn.Sequential(nn.Linear(4, 8), nn.ELU(), nn.Linear(8, 4))
optimizer = Halved(model.parameters(), 0.3)
for epoch in range(4):  # <- epoch loop
    for rows in torch.randperm(60).split(7):  # <- batch loop
        loss = (model(x[rows]) - x[rows].roll(1, 1)).square().mean()
        model.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item(), {str(state["m"].dtype) for state in optimizer.state.values()})
print(sum(state["m"].double().sum().item() for state in optimizer.state.values()))
