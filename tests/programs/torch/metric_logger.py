"""A generator logs between its loader and the loop, from meters that the loop fills: without them it divides by zero."""
from collections import defaultdict, deque

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Meter:
    def __init__(self):
        self.recent, self.total, self.count = deque(maxlen=3), 0.0, 0

    def update(self, value):
        self.recent.append(value)
        self.total += value
        self.count += 1

    def __str__(self):
        return f"{sorted(self.recent)[len(self.recent) // 2]:.6f} ({self.total / self.count:.6f})"


class Logger:
    def __init__(self):
        self.meters = defaultdict(Meter)

    def update(self, **values):
        for name, value in values.items():
            self.meters[name].update(value)

    def log_every(self, loader, header):
        for number, batch in enumerate(loader):
            yield batch
            if number % 2 == 0:
                print(header, number, len(loader), " ".join(f"{name} {meter}" for name, meter in self.meters.items()))


def train(model, optimizer, loader, epoch):
    logger = Logger()
    logger.meters["norm"] = Meter()
    for number, (x, y) in enumerate(logger.log_every(loader, f"epoch {epoch}")):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        logger.update(loss=loss.item(), norm=float(norm))
    print(epoch, number, logger.meters["loss"])


torch.manual_seed(2)
x = torch.randn(48, 4)
loader = DataLoader(TensorDataset(x, x[:, :1] * 2), 6, shuffle=True)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
for epoch in range(3):
    train(model, optimizer, loader, epoch)
print(sum(float(each.double().sum()) for each in model.parameters()).hex())
