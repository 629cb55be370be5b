"""`torch.compile` of the step's model, by the backend that runs the graph as it is."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(2)
x = torch.randn(40, 5)
loader = DataLoader(TensorDataset(x, x.abs().sum(1, keepdim=True)), 8, shuffle=True)
model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Dropout(0.2), nn.Linear(10, 1))
fast = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
schedule = torch.optim.lr_scheduler.SequentialLR(
    optimizer,
    [torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4), torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)],
    milestones=[4],
)
for epoch in range(3):  # <- epoch loop
    for a, b in loader:  # <- batch loop
        loss = ((fast(a) - b) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    print(epoch, loss.item(), schedule.get_last_lr())
print(sum(float(p.sum()) for p in model.parameters()))
