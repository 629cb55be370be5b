import tensorflow as tf

ACCUM = 3
tf.keras.utils.set_random_seed(1)
x = tf.random.normal((144, 6))
y = tf.reduce_sum(x[:, :2], axis=1, keepdims=True)
loader = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)

model = tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(12, activation="swish"), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.AdamW(0.02)
buffers = [tf.Variable(tf.zeros_like(v), trainable=False) for v in model.trainable_variables]


def backward(xb, yb):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.abs(model(xb, training=True) - yb)) / ACCUM
    for buf, g in zip(buffers, tape.gradient(loss, model.trainable_variables)):
        buf.assign_add(g)
    return loss * ACCUM


for epoch in range(2):  # <- epoch loop
    running = 0.0
    for i, (xb, yb) in enumerate(loader):  # <- batch loop
        running += float(backward(xb, yb))
        if (i + 1) % ACCUM == 0:
            optimizer.apply_gradients(zip(buffers, model.trainable_variables))  # <- update
            for buf in buffers:
                buf.assign(tf.zeros_like(buf))
    print(f"epoch {epoch}: mae {running / (i + 1):.4f}, {int(optimizer.iterations)} updates")
