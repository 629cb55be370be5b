"""No optimizer: weights moved by hand, in place and through `.data`, on batches that the body draws."""
import torch

torch.manual_seed(3)
x = torch.randn(60, 5)
y = x @ torch.randn(5, 1) + 0.1 * torch.randn(60, 1)
w = torch.zeros(5, 1, requires_grad=True)
b = torch.zeros(1, requires_grad=True)
speed = torch.zeros(5, 1)
for epoch in range(4):  # <- epoch loop
    for start in range(0, 60, 10):  # <- batch loop
        chosen = torch.randint(60, (10,))  # <- load
        loss = ((x[chosen] @ w + b - y[chosen]) ** 2).mean()
        loss.backward()
        with torch.no_grad():
            speed.mul_(0.9).add_(w.grad)
            w -= 0.05 * speed
            b.data -= 0.05 * b.grad
            w.grad.zero_()
            b.grad = None
    print(epoch, loss.item())
print(w.flatten().tolist(), b.item())
