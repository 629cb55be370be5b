"""A VAE whose weight of the KL term grows by steps, with samples drawn at each epoch's end."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward, self.outward = nn.Linear(8, 6), nn.Linear(3, 8)

    def forward(self, x):
        mean, log = self.inward(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (0.5 * log).exp()
        return self.outward(z), -0.5 * (1 + log - mean**2 - log.exp()).sum(1).mean()


torch.manual_seed(11)
loader = DataLoader(TensorDataset(torch.rand(36, 8)), 6, shuffle=True)
model, step, samples = Vae(), 0, []
optimizer = torch.optim.NAdam(model.parameters(), 1e-2)
for epoch in range(4):  # <- epoch loop
    for (x,) in loader:  # <- batch loop
        out, divergence = model(x)
        loss = (out - x).square().sum(1).mean() + min(1.0, step / 15) * divergence
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
    with torch.no_grad():
        samples.append(model.outward(torch.randn(2, 3)))
    print(epoch, step, loss.item(), samples[-1].sum().item())
