"""Data that change between epochs: a subset that grows, batches that grow, a loader made anew in each epoch."""
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

torch.manual_seed(16)
easy, hard = (TensorDataset(torch.randn(24, 3) * scale) for scale in (1.0, 3.0))
data = ConcatDataset([easy, hard])
model = nn.Sequential(nn.Linear(3, 8), nn.SELU(), nn.AlphaDropout(0.1), nn.Linear(8, 3))
optimizer = torch.optim.RMSprop(model.parameters(), 3e-3, momentum=0.5, centered=True)
size, losses = 4, []
for epoch in range(5):  # <- epoch loop
    chosen = torch.randperm(24 + 6 * epoch)[: 20 + 4 * epoch].tolist()
    loader = DataLoader(Subset(data, chosen), size, shuffle=epoch % 2 == 1)
    for (rows,) in loader:  # <- batch loop
        loss = (model(rows) - rows.tanh()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    size += int(losses[-1] < losses[0])
    print(epoch, size, len(loader), losses[-1])
print(len(losses), sum(losses))
