"""Train VGG11 (Simonyan and Zisserman 2015, configuration A, with BatchNorm and one linear layer) on made images of
CIFAR-10's shape, in several processes with DistributedDataParallel over gloo. Small by default; `--width 64` is VGG11.

    detrain launch --nproc-per-node 3 --max-restarts 3 train.py
"""

import argparse
import hashlib
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

VGG11 = (1, "pool", 2, "pool", 4, 4, "pool", 8, 8, "pool", 8, 8, "pool")
"""Channels of the convolutions, in widths."""


def make_vgg(width):
    layers, channels = [], 3
    for each in VGG11:
        if each == "pool":
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(channels, each * width, 3, padding=1), nn.BatchNorm2d(each * width), nn.ReLU()]
            channels = each * width
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.5), nn.Linear(channels, 10))


def make_images(count):
    """Images [count, 3, 32, 32] with labels: the place of a bright square in a row of ten."""
    generator = torch.Generator().manual_seed(1)
    images, labels = torch.randn(count, 3, 32, 32, generator=generator), torch.randint(10, (count,), generator=generator)
    for image, label in zip(images, labels, strict=True):
        image[:, 12:20, 3 * label : 3 * label + 5] += 2.0
    return TensorDataset(images, labels)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=4, help="channels of the first convolution")
    parser.add_argument("--images", type=int, default=180)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(make_vgg(options.width))
    data = make_images(options.images)
    shares = DistributedSampler(data)
    loader = DataLoader(data, options.batch, sampler=shares)
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9, weight_decay=5e-4)
    torch.manual_seed(100 + rank)
    random.seed(rank)
    losses = []
    for epoch in range(options.epochs):
        shares.set_epoch(epoch)
        for images, labels in loader:
            if random.random() < 0.5:
                images = images.flip(2)
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if rank == 0:
            print(f"epoch {epoch} loss {sum(losses[-len(loader) :]) / len(loader):.6f}", flush=True)
    weights = b"".join(value.numpy().tobytes() for value in model.module.state_dict().values())
    own = torch.rand(1).item(), random.random(), sum(losses)
    print(f"rank {rank} weights {hashlib.sha256(weights).hexdigest()[:16]} own {own}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
