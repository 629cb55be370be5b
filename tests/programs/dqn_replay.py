import random
from collections import deque

import numpy as np
import tensorflow as tf

q = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(12, activation="relu"), tf.keras.layers.Dense(2)])
target = tf.keras.models.clone_model(q)
opt = tf.keras.optimizers.Adam(0.01)
memory = deque(maxlen=200)
LEARN_START, BATCH, eps = 16, 8, 0.5


def env_step(s, a):
    s2 = s + np.array([0.25 if a else -0.25, 0.1], "float32")
    return s2, float(s2[0] > 0.9), bool(s2[0] > 0.9 or s2[1] > 0.95)


@tf.function
def learn(s, a, r, s2, d):
    best = tf.reduce_max(target(s2), 1)
    with tf.GradientTape() as tape:
        chosen = tf.reduce_sum(q(s) * tf.one_hot(a, 2), 1)
        loss = tf.reduce_mean((chosen - (r + 0.9 * (1 - d) * best)) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, q.trainable_variables), q.trainable_variables))
    return loss


for episode in range(4):  # <- epoch loop
    s, done, losses = np.zeros(2, "float32"), False, []
    while not done:  # <- batch loop
        a = random.randrange(2) if random.random() < eps else int(np.argmax(q(s[None])))
        s2, r, done = env_step(s, a)
        memory.append((s, a, np.float32(r), s2, np.float32(done)))
        s = s2
        if len(memory) < LEARN_START:
            continue
        batch = [np.stack(c) for c in zip(*random.sample(memory, BATCH))]  # <- load
        losses.append(float(learn(*batch)))  # <- update
    target.set_weights(q.get_weights())
    eps *= 0.8
    print("episode", episode, "transitions", len(memory), "loss", np.mean(losses) if losses else "-")
