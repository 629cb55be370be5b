"""After torchtitan#2864: each epoch shuffles the order of the one before, so that no seed alone makes it."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset


class Chained(Sampler):
    def __init__(self, size):
        self.order = list(range(size))
        self.generator = torch.Generator().manual_seed(11)

    def __len__(self):
        return len(self.order)

    def __iter__(self):
        turned = torch.randperm(len(self.order), generator=self.generator).tolist()
        self.order = [self.order[place] for place in turned]
        return iter(self.order)


torch.manual_seed(5)
data = TensorDataset(torch.randn(33, 3))
sampler = Chained(33)
loader = DataLoader(data, 4, sampler=sampler)
model = nn.Linear(3, 3)
optimizer = torch.optim.Adam(model.parameters(), 0.02)
for epoch in range(4):  # <- epoch loop
    for (batch,) in loader:  # <- batch loop
        loss = (model(batch) - batch.flip(1)).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, sampler.order[:6], loss.item())
