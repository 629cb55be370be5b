"""Pre-training, then fine-tuning: layers frozen and unfrozen, a head and optimizers made in between, folds."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.manual_seed(7)
x = torch.randn(48, 4)
y = (x[:, 0] * x[:, 1] > 0).long()
data = TensorDataset(x, y)


def train(model, rows, epochs, lr):
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for epoch in range(epochs):  # <- epoch loop
        for a, b in DataLoader(Subset(data, rows), 8, shuffle=True):  # <- batch loop
            loss = nn.functional.cross_entropy(model(a), b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    return loss.item()


body = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Dropout(0.1))
print("pre-trained", train(nn.Sequential(body, nn.Linear(12, 2)), range(48), 2, 0.02))
scores = []
for fold in range(2):
    model = nn.Sequential(body, nn.Linear(12, 2))
    for p in body.parameters():
        p.requires_grad_(fold == 1)
    scores.append(train(model, [i for i in range(48) if i % 2 != fold], 3, 0.01))
    print("fold", fold, scores[-1])
print(scores, sum(float(p.sum()) for p in body.parameters()))
