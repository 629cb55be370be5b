"""A search without gradients: a strategy is asked for candidates, and told how good they are (after evosax's interface)."""
import functools

import jax
import jax.numpy as jnp


class Strategy:
    def __init__(self, size, spread):
        self.size, self.spread, self.generations = size, spread, 0

    @functools.partial(jax.jit, static_argnames=("self",))
    def ask(self, key, mean):
        return mean + self.spread * jax.random.normal(key, (self.size, mean.size))

    def tell(self, candidates, losses, mean):
        self.generations += 1
        best = candidates[jnp.argsort(losses)[: self.size // 4]].mean(0)
        return 0.5 * mean + 0.5 * best


def worth(candidates):
    return jnp.sum((candidates - jnp.arange(candidates.shape[1])) ** 2, axis=1)


strategy = Strategy(size=16, spread=0.3)
key = jax.random.key(0)
mean = jnp.zeros(5)
history = []
for generation in range(24):  # <- batch loop
    key, asked = jax.random.split(key)
    candidates = strategy.ask(asked, mean)
    losses = worth(candidates)
    mean = strategy.tell(candidates, losses, mean)  # <- update
    history.append(losses.min())
    print(generation, strategy.generations, float(history[-1]))
print(mean, sum(map(float, history)))
