"""After time_sequence_prediction: LBFGS with a closure, float64, LSTM cells."""
import numpy as np
import torch
from torch import nn

np.random.seed(2)
torch.manual_seed(0)
data = torch.from_numpy(np.sin(np.arange(20)[None] / 3.0 + np.random.randint(-4, 4, 5)[:, None]).astype("float64"))


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.linear = nn.LSTMCell(1, 6), nn.LSTMCell(6, 6), nn.Linear(6, 1)

    def forward(self, rows):
        h1, c1, h2, c2 = (torch.zeros(rows.size(0), 6, dtype=torch.double) for _ in range(4))
        out = []
        for t in rows.split(1, dim=1):
            h1, c1 = self.one(t, (h1, c1))
            h2, c2 = self.two(h1, (h2, c2))
            out.append(self.linear(h2))
        return torch.cat(out, dim=1)


seq = Sequence().double()
criterion, optimizer = nn.MSELoss(), torch.optim.LBFGS(seq.parameters(), lr=0.8, max_iter=4)
for i in range(6):  # <- batch loop
    print("STEP:", i)

    def closure():
        optimizer.zero_grad()
        loss = criterion(seq(data[:, :-1]), data[:, 1:])
        print("loss:", loss.item())
        loss.backward()
        return loss

    optimizer.step(closure)  # <- update
    with torch.no_grad():
        print("test loss:", criterion(seq(data[:2, :-1]), data[:2, 1:]).item())
print(sum(float(p.sum()) for p in seq.parameters()))
