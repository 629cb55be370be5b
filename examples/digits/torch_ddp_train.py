"""Train a small convolutional network on scikit-learn's handwritten digits in several processes with PyTorch: one share
of the data for each (DistributedSampler), DistributedDataParallel over gloo, dropout, BatchNorm, AdamW, OneCycle.

    torchrun --standalone --nproc-per-node 3 torch_ddp_train.py
"""

import argparse
import hashlib
import random

import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Subset
from torch.utils.data.distributed import DistributedSampler


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
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(32 * 4 * 4, 10),
    )


@torch.no_grad()
def accuracy_of(model, loader):
    model.eval()
    right = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in loader)
    return right / len(loader.dataset)


def sum_of(value):
    """Return the sum of a number over all processes."""
    total = torch.tensor(float(value))
    dist.all_reduce(total)
    return total.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--patience", type=int, default=3)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    order = torch.randperm(1797).tolist()
    model = DistributedDataParallel(make_model())
    random.seed(rank)
    np.random.seed(rank)
    torch.manual_seed(100 + rank)  # dropout and augmentation of one's own

    digits = Subset(Digits(True), order[:1437])
    shares = DistributedSampler(digits, world, rank)
    train = DataLoader(digits, args.batch_size, sampler=shares, num_workers=args.workers)
    held_out = DataLoader(Subset(Digits(False), order[1437:]), args.batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, epochs=args.epochs, steps_per_epoch=len(train))
    loss_of = nn.CrossEntropyLoss()

    best, since_best = 0.0, 0
    for epoch in range(args.epochs):
        shares.set_epoch(epoch)
        model.train()
        total = 0.0
        for step, (images, labels) in enumerate(train):
            loss = loss_of(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
            if rank == 0 and step % 5 == 0:
                print(f"epoch {epoch} step {step:2d} loss {loss.item():.6f}", flush=True)
        mean = sum_of(total / len(train)) / world
        verdict = torch.zeros(1)
        if rank == 0:  # one validates, all hear of it
            accuracy = accuracy_of(model.module, held_out)
            best, since_best = (accuracy, 0) if accuracy > best else (best, since_best + 1)
            print(f"epoch {epoch} train loss {mean:.6f} held out {accuracy:.4f} best {best:.4f}", flush=True)
            verdict += since_best == args.patience
        dist.broadcast(verdict, 0)
        if verdict:
            break

    weights = b"".join(value.numpy().tobytes() for value in model.module.state_dict().values())
    own = np.random.random(), random.random(), torch.rand(1).item()
    print(f"rank {rank} streams {own} weights {hashlib.sha256(weights).hexdigest()}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
