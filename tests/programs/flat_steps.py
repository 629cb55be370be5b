import tensorflow as tf

MAX_STEPS = 20
x = tf.random.stateless_uniform((64, 3), seed=(1, 2))
y = tf.math.sin(6.0 * tf.reduce_sum(x, 1, keepdims=True))
ds = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64).batch(16)

net = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(24, activation="relu"), tf.keras.layers.Dense(1)])
schedule = tf.keras.optimizers.schedules.CosineDecay(0.02, MAX_STEPS)
opt = tf.keras.optimizers.Adam(schedule)

for step, batch in enumerate(ds.repeat().take(MAX_STEPS)):  # <- batch loop
    xb, yb = batch
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.keras.losses.huber(yb, net(xb)))
    opt.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))  # <- update
    if (step + 1) % 5 == 0:
        print(f"step {step + 1:3d} loss {loss:.4f} lr {schedule(step):.4f}")
