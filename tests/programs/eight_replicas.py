# Replicas: the cores of a TPU where there is one, eight logical processors elsewhere; dropout and random ops in their step.
import hashlib

import numpy as np
import tensorflow as tf

if tf.config.list_physical_devices("TPU"):
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver("local")
    tf.tpu.experimental.initialize_tpu_system(resolver)
    strategy = tf.distribute.TPUStrategy(resolver)
else:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 8)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{n}" for n in range(8)])
x = np.random.normal(size=(48, 5)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).shuffle(48).batch(16, drop_remainder=True)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((5,)), tf.keras.layers.Dropout(0.3), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD(1e-2, momentum=0.9)
    optimizer.build(model.trainable_variables)
    noise = tf.Variable(0.0, synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.SUM)


def replica_step(a, b):
    drawn = tf.random.normal(tf.shape(a), stddev=0.1)
    noise.assign_add(tf.reduce_sum(drawn))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((model(tf.nn.dropout(a + drawn, 0.1), training=True) - b) ** 2) / 16
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


@tf.function
def step(batch):
    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(replica_step, batch), axis=None)


for epoch in range(3):  # <- epoch loop
    for batch in strategy.experimental_distribute_dataset(data):  # <- batch loop
        loss = step(batch)  # <- update
    print(f"epoch {epoch} loss {float(loss)!r} noise {float(noise.read_value())!r}", flush=True)
print("weights", hashlib.sha256(b"".join(np.asarray(v).tobytes() for v in model.variables)).hexdigest())
