"""A Music Transformer: a decoder whose attention knows relative positions (Huang et al., 2018, arXiv:1809.04281)."""

import keras
import tensorflow as tf

from data import PAD


class RelativeAttention(keras.layers.Layer):
    """Causal self-attention with learned relative position embeddings (section 3.4.1, the skewing procedure)."""

    def __init__(self, width, heads, max_seq):
        super().__init__()
        self.width, self.heads, self.max_seq = width, heads, max_seq
        self.query, self.key, self.value = (keras.layers.Dense(width) for _ in range(3))
        self.out = keras.layers.Dense(width)

    def build(self, shape):
        self.positions = self.add_weight(name="positions", shape=(self.max_seq, self.width // self.heads))
        for layer in (self.query, self.key, self.value, self.out):
            layer.build(shape)

    def _split(self, x):
        shape = tf.shape(x)
        return tf.transpose(tf.reshape(x, (shape[0], shape[1], self.heads, -1)), (0, 2, 1, 3))

    def call(self, x):
        query, key, value = (self._split(layer(x)) for layer in (self.query, self.key, self.value))
        length = tf.shape(x)[1]
        relative = tf.einsum("bhld,md->bhlm", query, self.positions[self.max_seq - length :])
        scores = tf.matmul(query, key, transpose_b=True) + self._skew(relative, length)
        scores *= float(self.width // self.heads) ** -0.5
        mask = tf.linalg.band_part(tf.ones((length, length)), -1, 0)
        weights = tf.nn.softmax(scores - 1e9 * (1.0 - mask))
        heads = tf.transpose(tf.matmul(weights, value), (0, 2, 1, 3))
        return self.out(tf.reshape(heads, tf.shape(x)))

    def _skew(self, relative, length):
        shape = tf.shape(relative)
        padded = tf.pad(relative, [[0, 0], [0, 0], [0, 0], [1, 0]])
        return tf.reshape(padded, (shape[0], shape[1], length + 1, length))[:, :, 1:, :]


class Block(keras.layers.Layer):
    """Attention and a feed-forward network, each with dropout, a shortcut and normalisation."""

    def __init__(self, width, heads, max_seq, dropout):
        super().__init__()
        self.attention = RelativeAttention(width, heads, max_seq)
        self.wide, self.narrow = keras.layers.Dense(2 * width, activation="relu"), keras.layers.Dense(width)
        self.norms = [keras.layers.LayerNormalization(epsilon=1e-6) for _ in range(2)]
        self.dropouts = [keras.layers.Dropout(dropout) for _ in range(2)]

    def call(self, x, training=False):
        x = self.norms[0](x + self.dropouts[0](self.attention(x), training=training))
        return self.norms[1](x + self.dropouts[1](self.narrow(self.wide(x)), training=training))


class MusicTransformerDecoder(keras.Model):
    """Tokens [batch, length] -> logits [batch, length, vocabulary]."""

    def __init__(self, width, heads, layers, vocabulary, max_seq, dropout):
        super().__init__()
        self.width = width
        self.embedding = keras.layers.Embedding(vocabulary, width)
        self.dropout = keras.layers.Dropout(dropout)
        self.blocks = [Block(width, heads, max_seq, dropout) for _ in range(layers)]
        self.out = keras.layers.Dense(vocabulary)

    def call(self, tokens, training=False):
        x = self.dropout(self.embedding(tokens) * float(self.width) ** 0.5, training=training)
        for block in self.blocks:
            x = block(x, training=training)
        return self.out(x)


class CustomSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Warm up linearly, then decay with the inverse square root (Vaswani et al., 2017, section 5.3)."""

    def __init__(self, width, warmup_steps):
        self.width, self.warmup_steps = float(width), float(warmup_steps)

    def __call__(self, step):
        step = tf.cast(step, tf.float32) + 1.0
        return self.width**-0.5 * tf.minimum(step**-0.5, step * self.warmup_steps**-1.5)

    def get_config(self):
        return {"width": self.width, "warmup_steps": self.warmup_steps}


def loss_of(y, logits):
    """Cross-entropy a token, padding left out."""
    losses = tf.keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
    mask = tf.cast(y != PAD, losses.dtype)
    return tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)
