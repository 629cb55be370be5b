"""After accelerate#4233 and transformers#46628: augmentation of the first resumed batches draws from the cut's streams,
of Python, NumPy and PyTorch, in the workers, and the permutation is the epoch's.
"""
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Augmented(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index] * random.uniform(0.8, 1.2) + float(np.random.normal(scale=0.1))
        return row + 0.1 * torch.randn_like(row)


torch.manual_seed(3)
random.seed(3)
np.random.seed(3)
loader = DataLoader(Augmented(torch.randn(40, 4)), 6, shuffle=True, num_workers=2, prefetch_factor=3)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
for epoch in range(3):  # <- epoch loop
    for batch in loader:  # <- batch loop
        noisy = batch + random.gauss(0, 0.1) + np.random.rand()
        loss = (model(noisy) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item(), random.random(), np.random.rand(), torch.rand(1).item())
