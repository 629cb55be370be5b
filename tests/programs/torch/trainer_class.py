"""A trainer of the program's own: EMA, early stopping, the best weights, a history, a scheduler made lazily, hooks."""
import copy
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


@dataclass
class State:
    epoch: int = 0
    best: float = float("inf")
    bad: int = 0
    history: list = field(default_factory=list)


class Trainer:
    def __init__(self, model, train, val):
        self.model, self.train_loader, self.val_loader = model, train, val
        self.optimizer = torch.optim.AdamW(model.parameters(), 2e-2)
        self.ema, self.schedule, self.state, self.norms = copy.deepcopy(model), None, State(), []
        self.best = None
        model[0].register_forward_hook(self.note)

    def note(self, _module, _inputs, output):
        self.norms.append(float(output.detach().norm()))

    def step(self, a, b):
        loss = nn.functional.mse_loss(self.model(a), b)
        self.optimizer.zero_grad()
        loss.backward()
        grad = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        if self.schedule is None:
            self.schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(self.optimizer, 4)
        self.schedule.step()
        with torch.no_grad():
            for kept, now in zip(self.ema.parameters(), self.model.parameters()):
                kept.lerp_(now, 0.1)
        return loss.item(), float(grad)

    def run_epoch(self):
        self.model.train()
        found = []
        for a, b in self.train_loader:  # <- batch loop
            found.append(self.step(a, b))  # <- update
        return found

    @torch.no_grad()
    def validate(self):
        self.ema.eval()
        return sum(nn.functional.mse_loss(self.ema(a), b).item() for a, b in self.val_loader)

    def fit(self, epochs):
        while self.state.epoch < epochs:  # <- epoch loop
            steps = self.run_epoch()
            val = self.validate()
            self.state.history.append((steps[-1], val))
            if val < self.state.best:
                self.state.best, self.state.bad, self.best = val, 0, copy.deepcopy(self.model.state_dict())
            else:
                self.state.bad += 1
            self.state.epoch += 1
            print(self.state.epoch, steps[-1], val, self.state.bad)
            if self.state.bad > 2:
                break
        self.model.load_state_dict(self.best)


torch.manual_seed(5)
x = torch.randn(70, 6)
data = TensorDataset(x, x[:, :2].sin())
train, val = random_split(data, [50, 20])
trainer = Trainer(nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Dropout(0.1), nn.Linear(12, 2)), DataLoader(train, 10, shuffle=True), DataLoader(val, 20))
trainer.fit(5)
print(len(trainer.norms), sum(trainer.norms), sum(float(p.sum()) for p in trainer.model.parameters()), trainer.optimizer.param_groups[0]["lr"])
