"""After huggingface/accelerate#2823: an epoch that is resumed gives its own rest, not the next epoch's batches."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
rows = torch.arange(37.0).reshape(-1, 1)
model, seen = nn.Linear(1, 1), []
optimizer = torch.optim.SGD(model.parameters(), 1e-4)
loader = DataLoader(TensorDataset(rows), 5, shuffle=True)
for epoch in range(4):  # <- epoch loop
    order = []
    for (batch,) in loader:  # <- batch loop
        optimizer.zero_grad()
        (model(batch) - batch).square().mean().backward()
        optimizer.step()
        order += batch.flatten().tolist()
    seen.append(order)
    print(epoch, sorted(order) == rows.flatten().tolist(), order[:4])
print(hash(str(seen)) != 0, [order[-1] for order in seen], model.weight.item())
