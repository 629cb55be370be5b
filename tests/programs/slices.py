import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

digits = load_digits()
x = digits.data[:256].astype(np.float32) / 16
y = tf.one_hot(digits.target[:256], 10)
batch = 64

W = tf.Variable(tf.zeros([64, 10]))
b = tf.Variable(tf.zeros([10]))
opt = tf.keras.optimizers.Adagrad(0.5)

for epoch in range(4):  # <- epoch loop
    cost = 0.0
    for i in range(0, len(x), batch):  # <- batch loop
        xb = x[i:i + batch]  # <- load
        yb = y[i:i + batch]  # <- load
        with tf.GradientTape() as tape:
            logits = tf.matmul(xb, W) + b
            loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels=yb, logits=logits))
        dW, db = tape.gradient(loss, [W, b])
        opt.apply_gradients([(dW, W), (db, b)])  # <- update
        cost += loss.numpy() / (len(x) // batch)
    print("Epoch:", "%04d" % (epoch + 1), "cost =", "{:.9f}".format(cost))
print("Optimization Finished!")
