"""Q-learning: a replay buffer of arrays that are replaced, a target network, updates only after some steps."""
import collections
import random

import jax
import jax.numpy as jnp
import numpy as np
import optax

random.seed(0)
optimizer = optax.adam(5e-3)


def q_values(params, state):
    return jnp.tanh(state @ params["a"]) @ params["b"]


params = {"a": jax.random.normal(jax.random.key(0), (3, 8)), "b": jnp.zeros((8, 2))}
target, opt_state = params, optimizer.init(params)
buffer = jnp.zeros((64, 3 + 1 + 1 + 3))
filled, recent = 0, collections.deque(maxlen=8)


@jax.jit
def learn(params, target, opt_state, batch):
    state, action, reward, following = batch[:, :3], batch[:, 3].astype(int), batch[:, 4], batch[:, 5:]

    def loss_of(params):
        chosen = jnp.take_along_axis(q_values(params, state), action[:, None], 1)[:, 0]
        return ((chosen - reward - 0.9 * q_values(target, following).max(1)) ** 2).mean()

    loss, grads = jax.value_and_grad(loss_of)(params)
    updates, opt_state = optimizer.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss


key = jax.random.key(1)
for episode in range(6):  # <- epoch loop
    state = np.full(3, 0.1 * episode, np.float32)
    for t in range(12):  # <- batch loop
        greedy = int(q_values(params, state).argmax())
        action = random.randrange(2) if random.random() < 0.3 else greedy
        following = np.tanh(state + (0.2 if action else -0.1)).astype(np.float32)
        reward = float(following.sum())
        buffer = buffer.at[filled % 64].set(jnp.concatenate([state, jnp.array([action, reward]), following]))
        filled, state = filled + 1, following
        recent.append(reward)
        if filled >= 16:
            key, sub = jax.random.split(key)
            rows = jax.random.randint(sub, (8,), 0, min(filled, 64))  # <- load
            params, opt_state, loss = learn(params, target, opt_state, buffer[rows])  # <- update
        if filled % 10 == 0:
            target = params
    print(episode, sum(recent), float(optax.global_norm(params)))
