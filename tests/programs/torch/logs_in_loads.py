"""A generator prints between its loader and the loop, from meters that the loop fills and that it moves itself."""
from collections import defaultdict, deque

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Meter:
    def __init__(self):
        self.recent, self.count = deque(maxlen=3), 0

    def update(self, value):
        self.recent.append(value)
        self.count += 1

    def __str__(self):
        return f"{torch.tensor(list(self.recent)).median().item()!r} of {self.count}"


class Logger:
    def __init__(self):
        self.meters = defaultdict(Meter)

    def log_every(self, loader, header):
        turns = Meter()
        print(header, "begins")
        for number, batch in enumerate(loader):
            yield batch
            turns.update(number)
            if number % 2 == 0:
                print(header, number, turns, {name: str(meter) for name, meter in self.meters.items()})


def train(model, optimizer, loader, epoch):
    logger = Logger()
    logger.meters["loss"] = Meter()
    for x, y in logger.log_every(loader, f"epoch {epoch}"):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        logger.meters["loss"].update(loss.item())
    print(epoch, logger.meters["loss"])


torch.manual_seed(2)
x = torch.randn(48, 4)
loader = DataLoader(TensorDataset(x, x[:, :1] * 2), 6, shuffle=True)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
for epoch in range(3):
    train(model, optimizer, loader, epoch)
print(sum(float(each.double().sum()) for each in model.parameters()).hex())
