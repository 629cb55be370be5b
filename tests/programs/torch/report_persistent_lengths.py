"""After huggingface/datasets#7447 and meta-pytorch/data#1437: with persistent workers later epochs are whole, and none
comes twice.
"""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 26

    def __getitem__(self, index):
        return torch.full((2,), float(index)) + torch.rand(2)


torch.manual_seed(7)
loader = DataLoader(Rows(), 4, shuffle=True, num_workers=2, persistent_workers=True)
model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 1e-4)
counts = []
for epoch in range(4):  # <- epoch loop
    found = []
    for batch in loader:  # <- batch loop
        optimizer.zero_grad()
        (model(batch) - batch).square().mean().backward()
        optimizer.step()
        found += batch[:, 0].floor().int().tolist()
    counts.append((len(found), len(set(found))))
    print(epoch, counts[-1], found[:3])
print(counts, model.weight.sum().item())
