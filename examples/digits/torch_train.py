"""Train a small convolutional network on scikit-learn's handwritten digits with PyTorch: workers that augment, dropout,
AdamW, OneCycle, and an end when the held-out accuracy no longer grows.
"""

import argparse
import hashlib
import random

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset


class Digits(Dataset):
    """Images [1, 8, 8] float32 in 0..1 with labels int64; with `augments`, shifted and with noise."""

    def __init__(self, augments):
        images, labels = load_digits(return_X_y=True)
        self.images = torch.tensor(images / 16.0, dtype=torch.float32).reshape(-1, 1, 8, 8)
        self.labels = torch.tensor(labels, dtype=torch.int64)
        self.augments = augments

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        if self.augments:
            image = torch.roll(image, random.randint(-1, 1), dims=random.choice([1, 2]))
            image = image * np.random.uniform(0.8, 1.2) + 0.05 * torch.randn(image.shape)
            image = image.float()
        return image, self.labels[index]


def make_model():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(64 * 4 * 4, 10),
    )


@torch.no_grad()
def accuracy_of(model, loader):
    model.eval()
    right = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in loader)
    return right / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--patience", type=int, default=3)
    args = parser.parse_args()

    order = torch.randperm(1797).tolist()
    train = DataLoader(Subset(Digits(True), order[:1437]), args.batch_size, shuffle=True, num_workers=args.workers)
    held_out = DataLoader(Subset(Digits(False), order[1437:]), args.batch_size)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, epochs=args.epochs, steps_per_epoch=len(train))
    loss_of = nn.CrossEntropyLoss()

    best, since_best, history = 0.0, 0, []
    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for step, (images, labels) in enumerate(train):
            loss = loss_of(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
            if step % 15 == 0:
                print(f"epoch {epoch} step {step:2d} loss {loss.item():.6f}", flush=True)
        accuracy = accuracy_of(model, held_out)
        history.append(accuracy)
        best, since_best = (accuracy, 0) if accuracy > best else (best, since_best + 1)
        print(f"epoch {epoch} train loss {total / len(train):.6f} held out {accuracy:.4f} best {best:.4f}", flush=True)
        if since_best == args.patience:
            print("no better for", args.patience, "epochs")
            break

    weights = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
    print("held out by epoch:", " ".join(f"{value:.4f}" for value in history))
    print("weights", hashlib.sha256(weights).hexdigest())


if __name__ == "__main__":
    main()
