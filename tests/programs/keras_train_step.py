import keras
import numpy as np
import tensorflow as tf


class VAE(keras.Model):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = keras.layers.Dense(4), keras.layers.Dense(16, activation="sigmoid")
        self.seed = keras.random.SeedGenerator(5)
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def call(self, x):
        mean, logvar = tf.split(self.enc(x), 2, axis=-1)
        z = mean + tf.exp(0.5 * logvar) * keras.random.normal((x.shape[0], 2), seed=self.seed)
        return self.dec(z), mean, logvar

    def train_step(self, x):
        with tf.GradientTape() as tape:
            out, mean, logvar = self(x)
            kl = -0.5 * tf.reduce_mean(1 + logvar - mean**2 - tf.exp(logvar))
            loss = tf.reduce_mean(keras.losses.binary_crossentropy(x, out)) + 0.1 * kl
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_weights), self.trainable_weights))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}


x = np.random.binomial(1, 0.3, (96, 16)).astype("float32")
x[:, 8:] = x[:, :8]
vae = VAE()
vae.compile(optimizer=keras.optimizers.Adam(0.02))
vae(x[:1])

for epoch in range(3):  # <- epoch loop
    vae.loss_tracker.reset_state()
    for batch in np.split(x, 6):  # <- batch loop
        logs = vae.train_step(tf.constant(batch))  # <- update
    print(f"epoch {epoch}", {k: round(float(v), 4) for k, v in logs.items()})
