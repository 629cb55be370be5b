# Every third batch the body evaluates on a batch that it takes from the training loader's own stream.
import random

import numpy as np


class Adagrad:
    def __init__(self, weights):
        self.weights, self.seen = weights, np.zeros_like(weights)

    def apply_gradients(self, gradient):
        self.seen += gradient**2
        self.weights -= 0.1 * gradient / np.sqrt(self.seen + 1e-8)


class Songs:
    def __init__(self):
        self.items = [[random.gauss(0, 1) for _ in range(4)] for _ in range(40)]
        self.served = 0

    def batch(self, size):
        self.served += size
        return np.array(random.sample(self.items, size))


songs, optimizer = Songs(), Adagrad(np.ones(4))
held_out = []
for epoch in range(3):
    for step in range(7):
        x = songs.batch(5)
        error = x @ optimizer.weights - x.sum(axis=1) * 0.3
        optimizer.apply_gradients(x.T @ error / 5)
        if step % 3 == 0:
            x = songs.batch(3)
            held_out.append(float(np.abs(x @ optimizer.weights - x.sum(axis=1) * 0.3).mean()))
            print(f"{epoch}:{step} held out {held_out[-1]!r} served {songs.served}", flush=True)
print("weights", optimizer.weights.tobytes().hex(), songs.served, sum(held_out).hex())
