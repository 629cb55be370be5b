# Models of Keras 2 (tf_keras) whose layers and slots are made when first needed, and which hold dictionaries that the loop changes.
import hashlib
import tempfile

import numpy as np
import tensorflow as tf
import tf_keras as keras

x = np.random.normal(size=(64, 4)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1] - x[:, 1:2])).shuffle(64).batch(8)


class Scale(keras.layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight("scale", shape=shape[-1:], initializer="random_normal")

    def call(self, a):
        return a * self.scale


class Eager(keras.Model):
    def __init__(self, kind):
        super().__init__()
        self.inner = keras.Sequential([Scale(), keras.layers.Dropout(0.2), Scale()])
        self.outer = keras.layers.Dense(1)
        self.adam = kind(0.05)
        self.config = {"sizes": [4], "rates": {"first": 0.2}, "epochs": 0, "best": 9.0}

    def call(self, a, training=None):
        return self.outer(self.inner(a, training=training))


nets, names = [Eager(keras.optimizers.Adam), Eager(keras.optimizers.legacy.Adam)], []
for epoch in range(4):  # <- epoch loop
    nets[0].config["epochs"] = epoch
    if epoch == 1:
        del nets[1].config["epochs"]
        nets[0].inner.layers[1].rate, nets[1].adam.clipnorm = 0.4, 0.1  # once, and for good
    for a, b in data:  # <- batch loop
        for net in nets:
            if epoch:  # what is asked of the layers then is there, and an optimizer is given fewer variables than it was made for
                net.inner.layers[0].trainable = epoch != 2
                names = [v.name for v in net.trainable_variables]
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((net(a, training=True) - b) ** 2)
            net.adam.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))  # <- update
            net.config["best"] = min(net.config["best"], float(loss))
    print(f"epoch {epoch} loss {float(loss)!r} {names} {nets[0].config['epochs']} {nets[1].config['best']!r}", flush=True)
for net in nets:
    tf.train.Checkpoint(net=net).write(f"{tempfile.mkdtemp()}/net")  # TensorFlow refuses dicts that were changed behind its back
held = [*nets[0].variables, *nets[0].adam.variables, *nets[1].variables, *nets[1].adam.weights]
print("slots", [v.name for v in nets[0].adam.variables][-2:], [dict(net.config) for net in nets])
print("weights", hashlib.sha256(b"".join(np.asarray(v).tobytes() for v in held)).hexdigest())
