"""The loop's variables have names that held the data before the loop, as ordinary scripts do."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset


class Images(Dataset):
    def __init__(self):
        self.images = torch.randn(1200, 112)  # large: read again, not stored
        self.labels = (self.images[:, 0] > 0).long()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


def main():
    torch.manual_seed(3)
    images = Subset(Images(), torch.randperm(1200).tolist()[:96])
    train = DataLoader(images, 16, shuffle=True)
    model = nn.Linear(112, 2)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for epoch in range(3):  # <- epoch loop
        for images, labels in train:  # <- batch loop
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())
    print(sum(float(p.sum()) for p in model.parameters()))


main()
