"""`torch.func`: parameters in a dict that each step binds anew."""
import torch
from torch import nn

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
params = {name: value.detach().clone() for name, value in model.named_parameters()}
momentum = {name: torch.zeros_like(value) for name, value in params.items()}
x = torch.randn(48, 4)
y = x.prod(1, keepdim=True)


def loss_of(params, a, b):
    return ((torch.func.functional_call(model, params, (a,)) - b) ** 2).mean()


step = torch.func.grad_and_value(loss_of)
for epoch in range(3):  # <- epoch loop
    order = torch.randperm(48)
    for part in order.split(8):  # <- batch loop
        grads, loss = step(params, x[part], y[part])
        momentum = {name: 0.9 * momentum[name] + grads[name] for name in params}
        params = {name: params[name] - 0.05 * momentum[name] for name in params}
    print(epoch, loss.item())
print(sum(float(value.sum()) for value in params.values()))
