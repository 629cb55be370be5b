"""A recurrent network of nnx whose state is carried from batch to batch."""
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

text = np.random.default_rng(0).integers(0, 11, 600).reshape(4, 150)


class CharRNN(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(11, 8, rngs=rngs)
        self.cell = nnx.GRUCell(8, 12, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)
        self.out = nnx.Linear(12, 11, rngs=rngs)

    def __call__(self, carry, tokens):
        outputs = []
        for t in range(tokens.shape[1]):
            carry, y = self.cell(carry, self.embed(tokens[:, t]))
            outputs.append(y)
        return carry, self.out(self.drop(jnp.stack(outputs, 1)))


model = CharRNN(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.chain(optax.clip_by_global_norm(1.0), optax.rmsprop(1e-2)), wrt=nnx.Param)


@nnx.jit
def train_step(model, optimizer, carry, tokens):
    def loss_fn(model):
        new, logits = model(carry, tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean(), new

    (loss, carry), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model)
    optimizer.update(model, grads)
    return loss, carry


for epoch in range(3):  # <- epoch loop
    carry = jnp.zeros((4, 12))
    for start in range(0, 144, 24):  # <- batch loop
        loss, carry = train_step(model, optimizer, carry, text[:, start:start + 25])  # <- load, update
    print(epoch, float(loss), float(carry.sum()))
