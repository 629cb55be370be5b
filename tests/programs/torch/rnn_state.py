"""After word_language_model: hidden state carried from batch to batch, learning rate annealed, LSTM with tied weights."""
import torch
from torch import nn

torch.manual_seed(11)
data = torch.randint(12, (61, 4))


class RNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop, self.encoder = nn.Dropout(0.2), nn.Embedding(12, 8)
        self.rnn, self.decoder = nn.LSTM(8, 8, 2, dropout=0.2), nn.Linear(8, 12)
        self.decoder.weight = self.encoder.weight

    def forward(self, rows, hidden):
        out, hidden = self.rnn(self.drop(self.encoder(rows)), hidden)
        return self.decoder(self.drop(out)).view(-1, 12), hidden


def repackage(h):
    return h.detach() if isinstance(h, torch.Tensor) else tuple(repackage(v) for v in h)


model, lr, best = RNN(), 2.0, None


def train():
    model.train()
    total, hidden = 0.0, tuple(torch.zeros(2, 4, 8) for _ in range(2))
    for batch, i in enumerate(range(0, 60, 10)):  # <- batch loop
        rows, targets = data[i : i + 10], data[i + 1 : i + 11].reshape(-1)
        hidden = repackage(hidden)
        model.zero_grad()
        out, hidden = model(rows, hidden)
        loss = nn.functional.cross_entropy(out, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
        total += loss.item()
        if batch % 3 == 2:
            print("batch", batch, total / 3)
            total = 0


@torch.no_grad()
def evaluate():
    model.eval()
    hidden = tuple(torch.zeros(2, 4, 8) for _ in range(2))
    return nn.functional.cross_entropy(model(data[:60], hidden)[0], data[1:61].reshape(-1)).item()


for epoch in range(1, 5):  # <- epoch loop
    train()
    val = evaluate()
    print(epoch, val)
    if best is None or val < best:
        best = val
        torch.save(model.state_dict(), "model.pt")
    else:
        lr /= 4.0
model.load_state_dict(torch.load("model.pt", weights_only=True))
print(best, lr, evaluate())
