"""A learning rate that the program lowers by hand in the optimizer's state, when the loss stays."""
import jax
import jax.numpy as jnp
import numpy as np
import optax

x = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
y = np.tanh(x @ np.arange(6.0, dtype=np.float32))
optimizer = optax.inject_hyperparams(optax.adamw)(learning_rate=3e-2, weight_decay=1e-3)


class Trainer:
    def __init__(self, key):
        self.params = {"w": jax.random.normal(key, (6,)), "b": jnp.zeros(())}
        self.opt_state = optimizer.init(self.params)
        self.best, self.waited, self.history = float("inf"), 0, []

    @staticmethod
    @jax.jit
    def _step(params, opt_state, rows, targets):
        def loss_of(params):
            return ((jnp.tanh(rows @ params["w"] + params["b"]) - targets) ** 2).mean()

        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    def train_step(self, rows, targets):
        self.params, self.opt_state, loss = self._step(self.params, self.opt_state, rows, targets)
        return float(loss)

    def after(self, loss):
        self.history.append(loss)
        self.waited = 0 if loss < self.best - 1e-3 else self.waited + 1
        self.best = min(self.best, loss)
        if self.waited >= 1:
            self.opt_state.hyperparams["learning_rate"] = self.opt_state.hyperparams["learning_rate"] * 0.5
            self.waited = 0


trainer = Trainer(jax.random.key(0))
for epoch in range(5):  # <- epoch loop
    order = np.random.permutation(40)
    total = 0.0
    for rows in np.split(order, 5):  # <- batch loop
        total += trainer.train_step(x[rows], y[rows])  # <- load, update
    trainer.after(total / 5)
    print(epoch, total / 5, float(trainer.opt_state.hyperparams["learning_rate"]))
print(trainer.history, float(jnp.abs(trainer.params["w"]).sum()))
