# The body augments its batch with np.random; the loader permutes at the start of an epoch from the same stream.
import numpy as np


class Momentum:
    def __init__(self, weights):
        self.weights, self.velocity = weights, np.zeros_like(weights)

    def apply_gradients(self, gradient):
        self.velocity = 0.9 * self.velocity - 0.01 * gradient
        self.weights += self.velocity


class Loader:
    def __init__(self, images, labels, size):
        self.images, self.labels, self.size = images, labels, size

    def __len__(self):
        return len(self.images) // self.size

    def __iter__(self):
        order = np.random.permutation(len(self.images))
        for k in range(len(self)):
            chosen = order[k * self.size : (k + 1) * self.size]
            yield self.images[chosen], self.labels[chosen]


images, labels = np.random.normal(size=(30, 4, 4)), np.random.normal(size=30)
loader, optimizer = Loader(images, labels, 6), Momentum(np.zeros((4, 4)))
for epoch in range(4):
    for image, label in loader:
        if np.random.rand() < 0.5:
            image = image[:, :, ::-1]
        image = np.roll(image, np.random.randint(-1, 2), axis=1) + np.random.normal(scale=0.1, size=image.shape)
        error = (image * optimizer.weights).sum(axis=(1, 2)) - label
        optimizer.apply_gradients((error[:, None, None] * image).mean(axis=0))
    print(f"epoch {epoch} error {float(np.abs(error).mean())!r}", flush=True)
print("weights", optimizer.weights.tobytes().hex(), np.random.rand())
