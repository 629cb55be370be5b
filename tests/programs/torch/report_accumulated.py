"""After transformers#22143 and #34053: gradients that were accumulated before the cut, and the scale of the loss, are
state.
"""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(4)
loader = DataLoader(TensorDataset(torch.randn(44, 5)), 4, shuffle=True)
model = nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 5))
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=4)
scales = []
for epoch in range(4):  # <- epoch loop
    for number, (batch,) in enumerate(loader):  # <- batch loop
        with torch.autocast("cpu", torch.bfloat16):
            loss = (model(batch).float() - batch).square().mean() / 3
        scaler.scale(loss).backward()
        if number % 3 == 2:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)  # <- update
            scaler.update()
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
    print(epoch, loss.item(), scales[-1])
print(scales, sum(p.sum().item() for p in model.parameters()))
