"""After pytorch#119168: making a SequentialLR sets the rate anew; a resumed run has that of the cut."""
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(8)
loader = DataLoader(TensorDataset(torch.randn(25, 3)), 5, shuffle=True)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.5)
warm = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=6)
rest = lr_scheduler.CosineAnnealingLR(optimizer, 14)
schedule = lr_scheduler.SequentialLR(optimizer, [warm, rest], [6])
rates = []
for epoch in range(4):  # <- epoch loop
    for (batch,) in loader:  # <- batch loop
        optimizer.zero_grad()
        (model(batch) - batch.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
        schedule.step()
        rates.append(optimizer.param_groups[0]["lr"])
    print(epoch, rates[-5:])
print(len(rates), model.weight.tolist())
