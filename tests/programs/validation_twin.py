import tensorflow as tf
from sklearn.datasets import load_digits

x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32")
train = tf.data.Dataset.from_tensor_slices((x[:256], y[:256])).batch(64)
valid = tf.data.Dataset.from_tensor_slices((x[256:512], y[256:512])).batch(64)

model = tf.keras.Sequential([tf.keras.Input((64,)), tf.keras.layers.Dense(20, activation="relu"), tf.keras.layers.Dense(10)])
opt = tf.keras.optimizers.Adam(5e-3)
loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

for epoch in range(3):  # <- epoch loop
    losses = []
    for x, y in train:  # <- batch loop
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = loss_fn(y, logits)
        grads = tape.gradient(loss, model.trainable_variables)
        opt.apply_gradients(zip(grads, model.trainable_variables))  # <- update
        losses.append(float(loss))
    print(f"epoch {epoch} train {sum(losses) / len(losses):.3f}", end="  ")

    losses = []
    for x, y in valid:
        logits = model(x, training=False)
        loss = loss_fn(y, logits)
        losses.append(float(loss))
    print(f"valid {sum(losses) / len(losses):.3f}")
