"""A framework of one file: parameters over NumPy's arrays, dropout from its own stream, an optimizer with slots."""

import numpy as np

__version__ = "1.2.3"
_stream = np.random.Generator(np.random.PCG64(0))


def seed(number):
    """Begin the stream anew."""
    _stream.bit_generator.state = np.random.PCG64(number).state


class Parameter:
    """Weights [row, column] and their gradients."""

    __slots__ = ("data", "grad")

    def __init__(self, *shape):
        self.data, self.grad = _stream.normal(size=shape), np.zeros(shape)


class Linear:
    """A layer: `rows @ weight`, each input left out with a probability."""

    def __init__(self, inputs, outputs, dropout):
        self.weight, self.dropout = Parameter(inputs, outputs), dropout

    def loss(self, rows, wanted):
        """Return the mean square of the error, and add its gradients."""
        kept = rows * (_stream.random(rows.shape) >= self.dropout)
        error = kept @ self.weight.data - wanted
        self.weight.grad += 2 * kept.T @ error / len(rows)
        return float((error**2).mean())


class Momentum:
    """Stochastic gradient descent with momentum."""

    def __init__(self, parameters, rate):
        self.parameters, self.rate, self.steps = list(parameters), rate, 0
        self.velocities = [np.zeros_like(each.data) for each in self.parameters]

    def step(self):
        """Move the weights, and begin the gradients anew."""
        self.steps += 1
        for each, velocity in zip(self.parameters, self.velocities, strict=True):
            velocity[...] = 0.9 * velocity + each.grad
            each.data -= self.rate * velocity
            each.grad[...] = 0
