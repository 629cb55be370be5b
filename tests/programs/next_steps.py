import tensorflow as tf
from tensorflow.keras import layers

STEPS_PER_EPOCH = 6
EPOCHS = 2


def synth(_):
    x = tf.random.normal([12, 12, 1])
    return x, tf.cast(tf.reduce_mean(x) > 0, tf.int32)


train_ds = tf.data.Dataset.range(10_000).map(synth).batch(8).repeat()
cnn = tf.keras.Sequential([layers.Conv2D(4, 3, activation="relu"), layers.GlobalAveragePooling2D(), layers.Dense(2)])
criterion = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optim = tf.keras.optimizers.Adam()
it = iter(train_ds)

for epoch in range(EPOCHS):  # <- epoch loop
    running = 0
    for step in range(STEPS_PER_EPOCH):  # <- batch loop
        x, y = next(it)  # <- load
        with tf.GradientTape() as tape:
            loss = criterion(y, cnn(x, training=True))
        variables = cnn.trainable_variables
        optim.apply_gradients(zip(tape.gradient(loss, variables), variables))  # <- update
        running += loss.numpy()
    print("Epoch: {} Loss: {:.4f}".format(epoch + 1, running / STEPS_PER_EPOCH))
