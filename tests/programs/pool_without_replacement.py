# Batches are drawn from a pool without replacement; it is filled again whenever it runs dry, in the middle of an epoch.
import random

import numpy as np


class Pool:
    def __init__(self, rows):
        self.rows = rows
        self.left = []
        self.fillings = 0

    def take(self, count):
        taken = []
        while len(taken) < count:
            if not self.left:
                self.left = list(range(len(self.rows)))
                random.shuffle(self.left)
                self.fillings += 1
            taken.append(self.left.pop())
        return self.rows[taken]


class Perceptron:
    def __init__(self):
        self.weights, self.errors = np.zeros(3), 0

    def apply_gradients(self, x):
        for row in x:
            if (row @ self.weights > 0) != (row[0] > row[1]):
                self.weights += row * (1 if row[0] > row[1] else -1)
                self.errors += 1


pool, optimizer = Pool(np.random.normal(size=(11, 3))), Perceptron()
for epoch in range(5):
    for step in range(4):
        x = pool.take(3)
        optimizer.apply_gradients(x)
    print(f"epoch {epoch} errors {optimizer.errors} left {pool.left} filled {pool.fillings}", flush=True)
print("weights", optimizer.weights.tobytes().hex())
