"""After pytorch#80119: a validation loader's iterator draws a seed, and so moves the next epoch's order; and
pytorch#51366: gradients of an indexed table.
"""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(9)
words = torch.randint(0, 20, (48, 6))
train = DataLoader(TensorDataset(words[:40]), 5, shuffle=True)
held = DataLoader(TensorDataset(words[40:]), 4)
table = nn.Parameter(torch.randn(20, 7) * 0.3)
head = nn.Linear(7, 20)
optimizer = torch.optim.Adagrad([table, *head.parameters()], 0.1)
for epoch in range(4):  # <- epoch loop
    for number, (batch,) in enumerate(train):  # <- batch loop
        loss = nn.functional.cross_entropy(head(table[batch[:, :-1]].mean(1)), batch[:, -1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number % 3 == 0:
            with torch.no_grad():
                seen = sum(nn.functional.cross_entropy(head(table[b[:, :-1]].mean(1)), b[:, -1]).item() for (b,) in held)
    print(epoch, loss.item(), seen)
