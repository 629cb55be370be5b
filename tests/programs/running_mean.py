# No gradients: a compiled function moves a mean towards each batch.
import tensorflow as tf

data = tf.data.Dataset.range(40).map(lambda i: tf.cast(i, tf.float32)).shuffle(40).batch(4)
mean, count = tf.Variable(0.0), tf.Variable(0.0)


@tf.function
def step(batch):
    count.assign_add(1.0)
    mean.assign_add((tf.reduce_mean(batch) - mean) / count * 0.9)


for epoch in range(4):  # <- epoch loop
    for batch in data:  # <- batch loop
        step(batch)  # <- update
    print(epoch, float(mean).hex(), flush=True)
