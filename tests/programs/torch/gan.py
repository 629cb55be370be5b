"""Two optimizers, a critic trained several times, fresh noise, spectral norm, samples kept in a list."""
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
real = torch.randn(80, 2) * 0.5 + 2
loader = DataLoader(TensorDataset(real), batch_size=16, shuffle=True, drop_last=True)
maker = nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
critic = nn.Sequential(spectral_norm(nn.Linear(2, 16)), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(16, 1))
opt_g = torch.optim.Adam(maker.parameters(), 1e-2, betas=(0.5, 0.9))
opt_d = torch.optim.RMSprop(critic.parameters(), 1e-2)
fixed = torch.randn(4, 3)
samples, history = [], []
for epoch in range(4):  # <- epoch loop
    for i, (rows,) in enumerate(loader):  # <- batch loop
        for _ in range(2):
            fake = maker(torch.randn(16, 3)).detach()
            loss_d = critic(fake).mean() - critic(rows).mean()
            opt_d.zero_grad()
            loss_d.backward()
            opt_d.step()
        if i % 2 == 0:
            loss_g = -critic(maker(torch.randn(16, 3))).mean()
            opt_g.zero_grad(set_to_none=True)
            loss_g.backward()
            opt_g.step()
            history.append((loss_d.item(), loss_g.item()))
    maker.eval()
    with torch.no_grad():
        samples.append(maker(fixed))
    maker.train()
    print(epoch, history[-1], samples[-1].sum().item())
print(torch.stack(samples).sum().item(), len(history))
