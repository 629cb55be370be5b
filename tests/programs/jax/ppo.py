"""Rollouts by lax.scan, several epochs over each in minibatches, all state in one named tuple."""
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax


class Runner(NamedTuple):
    params: Any
    opt_state: Any
    env: Any
    key: Any


tx = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(3e-3))


def policy(params, obs):
    h = jnp.tanh(obs @ params["h"])
    return h @ params["pi"], (h @ params["v"])[..., 0]


@jax.jit
def rollout(runner):
    def step(carry, _):
        env, key = carry
        key, sub = jax.random.split(key)
        logits, value = policy(runner.params, env)
        action = jax.random.categorical(sub, logits)
        following = jnp.tanh(env + jnp.where(action[:, None] == 1, 0.2, -0.2))
        return (following, key), (env, action, jax.nn.log_softmax(logits)[jnp.arange(4), action], value, following.sum(-1))

    (env, key), data = jax.lax.scan(step, (runner.env, runner.key), None, 8)
    return runner._replace(env=env, key=key), jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), data)


@jax.jit
def update(runner, batch):
    obs, action, old, value, reward = batch

    def loss_of(params):
        logits, now = policy(params, obs)
        ratio = jnp.exp(jax.nn.log_softmax(logits)[jnp.arange(len(action)), action] - old)
        gain = reward - value
        return -jnp.minimum(ratio * gain, jnp.clip(ratio, 0.8, 1.2) * gain).mean() + 0.5 * ((now - reward) ** 2).mean()

    loss, grads = jax.value_and_grad(loss_of)(runner.params)
    updates, opt_state = tx.update(grads, runner.opt_state)
    return runner._replace(params=optax.apply_updates(runner.params, updates), opt_state=opt_state), loss


keys = jax.random.split(jax.random.key(0), 4)
params = {"h": jax.random.normal(keys[0], (3, 8)), "pi": jnp.zeros((8, 2)), "v": jax.random.normal(keys[1], (8, 1))}
runner = Runner(params, tx.init(params), jax.random.normal(keys[2], (4, 3)), keys[3])
for iteration in range(3):
    runner, data = rollout(runner)
    for epoch in range(2):  # <- epoch loop
        order = np.random.permutation(32)
        for start in range(0, 32, 8):  # <- batch loop
            rows = order[start:start + 8]  # <- load
            runner, loss = update(runner, jax.tree.map(lambda x: x[rows], data))  # <- update
    print(iteration, float(loss), float(optax.global_norm(runner.params)))
