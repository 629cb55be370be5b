import numpy as np
import tensorflow as tf


def batches(seed, count=5, size=16):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count * size, 10)).astype(np.float32)
    y = np.argmax(x[:, :3], axis=1)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(size)
