"""A transformer of linen over characters, gradients accumulated by optax.MultiSteps, a moving average of the weights."""
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

text = np.random.default_rng(0).integers(0, 13, 2000)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, mask, deterministic):
        h = nn.MultiHeadDotProductAttention(2, dropout_rate=0.1, deterministic=deterministic)(nn.LayerNorm()(x), mask=mask)
        x = x + h
        return x + nn.Dense(16)(nn.gelu(nn.Dense(32)(nn.LayerNorm()(x))))


class LM(nn.Module):
    @nn.compact
    def __call__(self, tokens, deterministic):
        x = nn.Embed(13, 16)(tokens) + nn.Embed(16, 16)(jnp.arange(tokens.shape[1]))
        for _ in range(2):
            x = Block()(x, nn.make_causal_mask(tokens), deterministic)
        return nn.Dense(13)(nn.LayerNorm()(x))


model, rng = LM(), np.random.default_rng(3)
params = model.init(jax.random.key(0), text[None, :16], True)
optimizer = optax.MultiSteps(optax.adamw(optax.warmup_cosine_decay_schedule(0, 3e-3, 4, 12)), every_k_schedule=2)
opt_state = optimizer.init(params)
average = params


@jax.jit
def train_step(params, average, opt_state, tokens, key):
    def loss_of(params):
        logits = model.apply(params, tokens[:, :-1], False, rngs={"dropout": key})
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    loss, grads = jax.value_and_grad(loss_of)(params)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    params = optax.apply_updates(params, updates)
    return params, optax.incremental_update(params, average, 0.1), opt_state, loss


def batch():
    starts = rng.integers(0, len(text) - 17, 4)
    return np.stack([text[start:start + 17] for start in starts])


key = jax.random.key(7)
for step in range(24):  # <- batch loop
    tokens = batch()  # <- load
    params, average, opt_state, loss = train_step(params, average, opt_state, tokens, jax.random.fold_in(key, step))  # <- update
    if step % 6 == 5:
        print(step, float(loss), float(optax.global_norm(average)))
