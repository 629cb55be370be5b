"""Train a transformer of two layers on scikit-learn's handwritten digits, an image as eight rows, with PyTorch: with
`--compile`, compiled by inductor.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """Of rows [image, 8, 8]: logits [image, 10]."""

    def __init__(self):
        super().__init__()
        self.wide, self.head = nn.Linear(8, 32), nn.Linear(32, 10)
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        return self.head(self.encoder(self.wide(x)).mean(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    images, labels = load_digits(return_X_y=True)
    rows, labels = torch.tensor(images / 16.0, dtype=torch.float32).reshape(-1, 8, 8)[:1440], torch.tensor(labels)[:1440]
    data = DataLoader(TensorDataset(rows, labels), args.batch_size, shuffle=True)
    model, loss_of = Net(), nn.CrossEntropyLoss()
    run = torch.compile(model) if args.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for epoch in range(args.epochs):
        total = 0.0
        for x, y in data:
            loss = loss_of(run(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(data):.6f}", flush=True)
    print("weights", sum(value.sum().item() for value in model.parameters()))


if __name__ == "__main__":
    main()
