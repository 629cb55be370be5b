import numpy as np
import tensorflow as tf
from tensorflow.keras import Sequential, layers, optimizers

a = np.random.rand(64, 2).astype('float32')
b = (a[:, :1] > a[:, 1:]).astype('float32')
m = Sequential([layers.Input((2,)), layers.Dense(4, 'relu'), layers.Dense(1, 'sigmoid')])
o = optimizers.SGD(.3)

loss = lambda x, y: tf.reduce_mean(tf.keras.losses.binary_crossentropy(y, m(x)))
def grad(x, y):
    with tf.GradientTape() as t:
        l = loss(x, y)
    return t.gradient(l, m.trainable_variables)
step = lambda x, y: o.apply_gradients(zip(grad(x, y), m.trainable_variables))
batches = lambda n: ((a[i::n], b[i::n]) for i in range(n))

for e in range(4):  # <- epoch loop
    for x, y in batches(4): step(x, y)  # <- batch loop, update
    print(e, loss(a, b).numpy())
