# The body augments its batch in functions compiled by numba, which draw from generators of their own, and an odd number of Gaussians.
import random

import numba
import numpy as np


@numba.njit
def noisy(image):
    out = image.copy()
    for i in range(out.shape[0]):
        if random.random() < 0.5:
            out[i] = out[i, :, ::-1]
        out[i] += np.random.normal(0.0, 0.1)
    return out


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


images, labels = np.random.normal(size=(35, 4, 4)), np.random.normal(size=35)
loader, optimizer = Loader(images, labels, 7), Momentum(np.zeros((4, 4)))
for epoch in range(4):
    for image, label in loader:
        image = noisy(image)
        error = (image * optimizer.weights).sum(axis=(1, 2)) - label
        optimizer.apply_gradients((error[:, None, None] * image).mean(axis=0))
    print(f"epoch {epoch} error {float(np.abs(error).mean())!r}", flush=True)
print("weights", optimizer.weights.tobytes().hex(), np.random.rand())
