import numpy as np
import tensorflow as tf

rng = np.random.default_rng(11)
x_all = rng.normal(size=(140, 10)).astype("float32")
y_all = (x_all[:, 0] + rng.normal(size=140) > 0).astype("int32")
train = tf.data.Dataset.from_tensor_slices((x_all[:100], y_all[:100])).shuffle(100).batch(20)
x_val, y_val = x_all[100:], y_all[100:]

model = tf.keras.Sequential([tf.keras.Input((10,)), tf.keras.layers.Dense(32, activation="relu"), tf.keras.layers.Dense(2)])
optimizer = tf.keras.optimizers.Adam(0.05)
crit = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

best, best_weights, wait, patience = np.inf, None, 0, 1
for epoch in range(100):  # <- epoch loop
    for x, y in train:  # <- batch loop
        with tf.GradientTape() as tape:
            loss = crit(y, model(x, training=True))
        if not np.isfinite(loss):
            print("diverged")
            break
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))  # <- update
    else:
        val = float(crit(y_val, model(x_val)))
        print(f"epoch {epoch}: val loss {val:.4f}")
        if val < best:
            best, best_weights, wait = val, model.get_weights(), 0
            continue
        wait += 1
        if wait > patience:
            print("early stop")
            break

model.set_weights(best_weights)
print("restored best", best)
