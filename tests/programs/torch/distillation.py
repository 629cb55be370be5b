"""One function trains the teacher, then the student, in two phases; the student hears the teacher through a hook."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(12)
x = torch.randn(40, 5)
loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), 8, shuffle=True)
teacher = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
student = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
heard = {}
teacher[1].register_forward_hook(lambda _module, _inputs, output: heard.update(last=output.detach().mean().item()))


def train(model, loss_of, epochs):
    optimizer = torch.optim.RAdam(model.parameters(), 1e-2)
    for epoch in range(epochs):  # <- epoch loop
        model.train()
        for a, b in loader:  # <- batch loop
            loss = loss_of(a, b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item(), heard)


def distilled(a, b):
    with torch.no_grad():
        target = teacher(a).div(2).softmax(1)
    return nn.functional.kl_div(student(a).div(2).log_softmax(1), target, reduction="batchmean")


train(teacher, lambda a, b: nn.functional.cross_entropy(teacher(a), b), 3)
teacher.eval()
train(student, distilled, 3)
print(sum(p.sum().item() for p in student.parameters()))
