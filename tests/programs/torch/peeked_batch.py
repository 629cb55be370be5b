"""A batch is looked at before the loop, so that the iterator, and its workers that live on, are there before it."""
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self):
        self.rows = torch.randn(30, 4)

    def __len__(self):
        return 30

    def __getitem__(self, index):
        return self.rows[index] + 0.1 * torch.randn(4) + 0.01 * random.random()


torch.manual_seed(17)
loader = DataLoader(Rows(), 4, shuffle=True, num_workers=2, persistent_workers=True)
held = DataLoader(Rows(), 8)
first = next(iter(loader))
model = nn.Sequential(nn.Linear(first.shape[1], 6), nn.ReLU(), nn.Linear(6, 4))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for epoch in range(5):  # <- epoch loop
    for batch in loader:  # <- batch loop
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        val = sum((model(each) - each).square().mean().item() for each in held)
    print(epoch, loss.item(), val)
