"""After accelerate#4071 and pytorch-lightning#21938: a sampler with `set_epoch` keeps the permutation of its epoch."""
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.manual_seed(2)
data = TensorDataset(torch.randn(30, 3))
sampler = DistributedSampler(data, num_replicas=1, rank=0, shuffle=True, seed=7)
loader = DataLoader(data, 4, sampler=sampler, num_workers=2)
model = nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.4), nn.Linear(5, 3))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for epoch in range(4):  # <- epoch loop
    sampler.set_epoch(epoch)
    first = None
    for (batch,) in loader:  # <- batch loop
        first = batch[0, 0].item() if first is None else first
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, first, loss.item())
print(sum(p.sum().item() for p in model.parameters()))
