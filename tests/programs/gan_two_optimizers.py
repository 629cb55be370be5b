import numpy as np
import tensorflow as tf
from tensorflow.keras.layers import Dense

noise_dim = 4
real = np.random.normal(loc=[2, -1], scale=0.3, size=(96, 2)).astype("float32")
train_dataset = tf.data.Dataset.from_tensor_slices(real).shuffle(96).batch(16)

generator = tf.keras.Sequential([Dense(8, activation="relu"), Dense(2)])
discriminator = tf.keras.Sequential([Dense(8, activation="leaky_relu"), Dense(1)])
generator_optimizer = tf.keras.optimizers.Adam(1e-3)
discriminator_optimizer = tf.keras.optimizers.Adam(1e-3)
cross_entropy = tf.keras.losses.BinaryCrossentropy(from_logits=True)


def train(dataset, epochs):
    for epoch in range(epochs):  # <- epoch loop
        for image_batch in dataset:  # <- batch loop
            noise = tf.random.normal([len(image_batch), noise_dim])
            with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
                fake = generator(noise, training=True)
                real_output = discriminator(image_batch, training=True)
                fake_output = discriminator(fake, training=True)
                gen_loss = cross_entropy(tf.ones_like(fake_output), fake_output)
                disc_loss = cross_entropy(tf.ones_like(real_output), real_output)
                disc_loss += cross_entropy(tf.zeros_like(fake_output), fake_output)
            gen_grads = gen_tape.gradient(gen_loss, generator.trainable_variables)
            disc_grads = disc_tape.gradient(disc_loss, discriminator.trainable_variables)
            generator_optimizer.apply_gradients(zip(gen_grads, generator.trainable_variables))  # <- update
            discriminator_optimizer.apply_gradients(zip(disc_grads, discriminator.trainable_variables))  # <- update
        print(f"epoch {epoch + 1}: gen {gen_loss:.3f} disc {disc_loss:.3f}")


train(train_dataset, 3)
