"""`break` out of both loops, `continue`, `for` … `else`, the best weights restored at the end."""
import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(14)
x = torch.randn(48, 4)
train = DataLoader(TensorDataset(x[:36], x[:36] ** 2), 6, shuffle=True)
model = nn.Sequential(nn.Linear(4, 10), nn.Tanh(), nn.Linear(10, 4))
optimizer = torch.optim.Adamax(model.parameters(), 0.05)
best, kept, bad, skipped = float("inf"), None, 0, 0
for epoch in range(30):  # <- epoch loop
    for a, b in train:  # <- batch loop
        if a[0, 0] > 1.2:
            skipped += 1
            continue
        loss = (model(a) - b).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        val = (model(x[36:]) - x[36:] ** 2).square().mean().item()
    print(epoch, val, skipped)
    if val < best - 1e-2:
        best, kept, bad = val, copy.deepcopy(model.state_dict()), 0
    else:
        bad += 1
    if bad == 2:
        break
else:
    print("ran out")
model.load_state_dict(kept)
print(best, sum(p.sum().item() for p in model.parameters()))
