import random

import numpy as np
import tensorflow as tf

TEXT = "the quick brown fox jumps over the lazy dog and runs away from the angry bear " * 3
VOCAB = sorted(set(TEXT))
IDS = [VOCAB.index(c) for c in TEXT]


def windows(ids, length, batch_size):
    starts = list(range(0, len(ids) - length - 1, length // 2))
    random.shuffle(starts)
    for lo in range(0, len(starts) - batch_size + 1, batch_size):
        chosen = starts[lo : lo + batch_size]
        x = np.array([ids[s : s + length] for s in chosen])
        y = np.array([ids[s + 1 : s + length + 1] for s in chosen])
        yield x, y


class CharRNN(tf.keras.Model):
    def __init__(self, vocab):
        super().__init__()
        self.embed = tf.keras.layers.Embedding(vocab, 8)
        self.rnn = tf.keras.layers.GRU(12, return_sequences=True)
        self.out = tf.keras.layers.Dense(vocab)

    def call(self, x):
        return self.out(self.rnn(self.embed(x)))


model = CharRNN(len(VOCAB))
opt = tf.keras.optimizers.Adam(0.02)


@tf.function
def train_on(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.keras.losses.sparse_categorical_crossentropy(y, model(x), from_logits=True))
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


for epoch in range(3):  # <- epoch loop
    history = []
    for x, y in windows(IDS, 12, 6):  # <- batch loop
        history.append(train_on(x, y).numpy())  # <- update
    print(f"Epoch {epoch}: {np.mean(history):.3f} nats/char")
