"""Self-supervision: a momentum encoder, a queue of keys that is a buffer, two views of each row."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Contrast(nn.Module):
    def __init__(self):
        super().__init__()
        make = lambda: nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
        self.query, self.key = make(), make()
        self.key.load_state_dict(self.query.state_dict())
        self.key.requires_grad_(False)
        self.register_buffer("queue", nn.functional.normalize(torch.randn(4, 32), dim=0))
        self.register_buffer("at", torch.zeros(1, dtype=torch.long))

    def forward(self, one, other):
        q = nn.functional.normalize(self.query(one), dim=1)
        with torch.no_grad():
            for kept, now in zip(self.key.parameters(), self.query.parameters()):
                kept.mul_(0.9).add_(now, alpha=0.1)
            k = nn.functional.normalize(self.key(other), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone()], 1) / 0.2
        at = int(self.at)
        self.queue[:, at : at + len(k)] = k.T
        self.at[0] = (at + len(k)) % 32
        return nn.functional.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))


torch.manual_seed(10)
loader = DataLoader(TensorDataset(torch.randn(40, 6)), 8, shuffle=True, drop_last=True)
model = Contrast()
optimizer = torch.optim.SGD(model.query.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
for epoch in range(5):  # <- epoch loop
    for (rows,) in loader:  # <- batch loop
        loss = model(rows + 0.1 * torch.randn_like(rows), rows * (1 + 0.1 * torch.randn_like(rows)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item(), int(model.at), model.queue.sum().item())
