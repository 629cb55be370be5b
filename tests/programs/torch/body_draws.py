"""The step draws its batch itself, from an iterator that is made before the loop: the loop's header only counts."""
import hashlib

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

torch.manual_seed(5)
x = torch.randn(40, 4)
data = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
batches = iter(DataLoader(data, 8, sampler=RandomSampler(data, replacement=True, num_samples=10**9)))


def held_out():
    with torch.no_grad():
        return sum(nn.functional.mse_loss(model(a), b).item() for a, b in DataLoader(data, 10, shuffle=True))


def train_step():
    a, b = next(batches)
    loss = nn.functional.mse_loss(model(a), b)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def train():
    step = 0
    while step < 14:  # <- batch loop
        loss = train_step()  # <- update
        print(step, f"{loss:.6f}", f"{held_out():.6f}" if step % 5 == 0 else "", flush=True)
        step += 1


train()
digest = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters()))
print("weights", digest.hexdigest())
