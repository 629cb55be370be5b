"""Steps of JAX for tests of faults: each as in a program, with places (`taps`) at which an oracle may put a fault
into the function itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax


@dataclass
class Hand:
    """A fault in the function itself: at a place, in some elements, only if `when` is true, in one turn."""

    place: str
    positions: Any
    sources: Any
    keep: Any
    flip: Any
    turn: int = 0

    def __post_init__(self) -> None:
        self.when: Any = False

    def change(self, value: Any, turn: Any) -> Any:
        def changed(value: Any) -> Any:
            bits = value.view(self.keep.dtype).reshape(-1)
            return bits.at[self.positions].set((bits[self.sources] & self.keep) ^ self.flip).view(value.dtype).reshape(value.shape)

        return lax.cond(self.when & (turn == self.turn), changed, lambda value: value, value)


class Taps:
    """Places in a function. Differentiation does not see a fault there: the gradient of a value passes unchanged."""

    hand: Hand | None = None

    def value(self, place: str, value: Any, turn: Any = 0) -> Any:
        """Return a value, with the fault if it is at this place."""
        hand = self.hand
        if hand is None or hand.place != place:
            return value
        return _faulty(lambda value, when, turn: _at(hand, when, value, turn), lambda _hand, gradient: gradient, value, hand, turn)

    def gradient(self, place: str, value: Any, turn: Any = 0) -> Any:
        """Return a value unchanged; a fault at this place goes into its gradient."""
        hand = self.hand
        if hand is None or hand.place != place:
            return value
        return _faulty(
            lambda value, _when, _turn: value, lambda kept, gradient: _at(hand, kept[0], gradient, kept[1]), value, hand, turn
        )

    def product(self, place: str, rows: Any, weight: Any) -> Any:
        """Return a product; a fault at `input of` or `weight of` the place goes into the operand that it alone sees."""
        hand = self.hand
        if hand is None or hand.place not in (f"input of {place}", f"weight of {place}"):
            return rows @ weight

        def faulty(rows: Any, weight: Any, when: Any) -> Any:
            if hand.place.startswith("input"):
                return _at(hand, when, rows, 0) @ weight
            return rows @ _at(hand, when, weight, 0)

        def back(kept: Any, gradient: Any) -> Any:
            rows, weight = kept
            return gradient @ weight.T, lax.dot_general(gradient, rows, (((0,), (0,)), ((), ()))).T, None

        product = jax.custom_vjp(faulty)
        product.defvjp(lambda rows, weight, when: (faulty(rows, weight, when), (rows, weight)), back)
        return product(rows, weight, hand.when)


def _faulty(forward: Any, backward: Any, value: Any, hand: Hand, turn: Any) -> Any:
    through = jax.custom_vjp(forward)
    through.defvjp(
        lambda value, when, turn: (forward(value, when, turn), (when, turn)),
        lambda kept, gradient: (backward(kept, gradient), None, None),
    )
    return through(value, hand.when, jnp.asarray(turn))


def _at(hand: Hand, when: Any, gradient: Any, turn: Any) -> Any:
    kept, hand.when = hand.when, when
    try:
        return hand.change(gradient, turn)
    finally:
        hand.when = kept


taps = Taps()


def init() -> Any:
    """Return parameters and optimizer state."""
    keys = jax.random.split(jax.random.key(3), 4)
    params = {
        "first": {"w": jax.random.normal(keys[0], (12, 16)) * 0.3, "b": jnp.zeros(16)},
        "loop": jax.random.normal(keys[1], (16, 16)) * 0.2,
        "last": {"w": jax.random.normal(keys[2], (16, 5)) * 0.3, "b": jnp.zeros(5)},
    }
    return params, OPTIMIZER.init(params)


OPTIMIZERS = {"adamw": optax.adamw(1e-2), "sgd": optax.sgd(1e-2, momentum=0.9)}
OPTIMIZER = OPTIMIZERS[os.environ.get("OPTIMIZER", "adamw")]
"""AdamW divides its moments by a number that is the same for all elements. XLA computes that differently if it sees it:
so, equation by equation, only SGD gives equal bits."""


def forward(params: Any, rows: Any, key: Any) -> Any:
    """Return scores: a dense layer with dropout, a `scan`, a branch, a `while`, a layer that is computed again."""
    with jax.named_scope("first"):
        hidden = taps.value("first product", taps.product("first product", rows, params["first"]["w"]))
        hidden = jnp.tanh(taps.gradient("dY of first", hidden + params["first"]["b"]))
    hidden = hidden * jax.random.bernoulli(key, 0.8, hidden.shape)

    def body(carry: Any, turn: Any) -> Any:
        product = taps.value("product in scan", carry @ params["loop"], turn)
        product = taps.gradient("dY in scan", product, turn)
        return taps.value("sin in scan", jnp.sin(product), turn), product.sum()

    hidden, sums = lax.scan(body, hidden, jnp.arange(3))
    hidden = lax.cond(sums[0] > 0, lambda h: taps.value("sin in cond", jnp.sin(h)), jnp.cos, hidden)
    halved, _count = lax.while_loop(
        lambda state: (jnp.abs(state[0]).max() > 0.3) & (state[1] < 20),
        lambda state: (taps.value("mul in while", state[0] * 0.7, state[1]), state[1] + 1),
        (lax.stop_gradient(hidden), 0),
    )
    hidden = jax.checkpoint(lambda h: jnp.tanh(taps.gradient("dY of last", h @ params["last"]["w"])))(hidden + halved)
    return taps.value("logits", hidden + params["last"]["b"])


def train_step(params: Any, state: Any, key: Any, rows: Any, labels: Any, when: Any) -> Any:
    """Return parameters, optimizer state and loss."""
    if taps.hand is not None:
        taps.hand.when = when

    def loss_of(params: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(forward(params, rows, key), labels).mean()

    loss, gradients = jax.value_and_grad(loss_of)(params)
    gradients["first"]["w"] = taps.value("dW of first", gradients["first"]["w"])
    updates, state = OPTIMIZER.update(gradients, state, params)
    updates["loop"] = taps.value("update of loop", updates["loop"])
    params = optax.apply_updates(params, updates)
    params["last"]["w"] = taps.value("last weight", params["last"]["w"])
    return params, state, loss


STEPS, FAULTY = 6, 3


def compiled(*given_away: int) -> Any:
    """Return the step, to be traced anew; it may reuse the memory of these arguments."""
    return jax.jit(lambda *arguments: train_step(*arguments), donate_argnums=given_away)  # noqa: PLW0108  another function


def nothing() -> None:
    """Arm nothing."""


def run(step: Any, arm: Callable[[], None] = nothing, disarm: Callable[[], None] = nothing, hand: Hand | None = None) -> Any:
    """Train, with a fault in one step; return parameters, optimizer state and losses. If the function itself has the
    fault (`hand`), that step alone uses it.
    """
    params, state = init()
    rng, losses = np.random.default_rng(0), []
    for number in range(STEPS):
        rows, labels = rng.normal(size=(8, 12)).astype(np.float32), rng.integers(0, 5, 8)
        if number == FAULTY:
            arm()
        taps.hand = hand if number == FAULTY else None
        function = step if taps.hand is None else compiled(0, 1)
        params, state, loss = function(params, state, jax.random.key(number), rows, labels, taps.hand is not None)
        if number == FAULTY:
            disarm()
        losses.append(loss)
    return [np.asarray(each) for each in jax.tree.leaves((params, state, losses))]


def given() -> tuple[Any, ...]:
    """Return arguments of the step."""
    rng = np.random.default_rng(FAULTY)
    rows, labels = rng.normal(size=(8, 12)).astype(np.float32), rng.integers(0, 5, 8).astype(np.int32)
    return *init(), jax.random.key(FAULTY), rows, labels, False
