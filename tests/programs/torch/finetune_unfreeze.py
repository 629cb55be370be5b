"""Layers are unfrozen as training goes on, with a group of parameters for each, and weight decay of their own."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(13)
x = torch.randn(40, 6)
loader = DataLoader(TensorDataset(x, x[:, :1].sin()), 8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 12), nn.LayerNorm(12), nn.GELU(), nn.Linear(12, 6), nn.GELU(), nn.Linear(6, 1))
for layer in model[:-1]:
    layer.requires_grad_(False)
optimizer = torch.optim.AdamW(model[5].parameters(), 1e-2)
for epoch in range(5):  # <- epoch loop
    if epoch in (1, 3):
        layer = model[3 if epoch == 1 else 0]
        layer.requires_grad_(True)
        optimizer.add_param_group({"params": list(layer.parameters()), "lr": 1e-3 * epoch, "weight_decay": 0.1})
    for a, b in loader:  # <- batch loop
        loss = nn.functional.huber_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item(), len(optimizer.param_groups), [float(p.sum()) for p in model[3].parameters()])
