import tensorflow as tf

# Linear regression with nothing but tf.Variable.
w = tf.Variable([[0.0], [0.0]])
b = tf.Variable(0.0)
params = [w, b]
lr = 0.1

g = tf.random.Generator.from_seed(4)
features = g.normal((100, 2))
labels = features @ [[2.0], [-3.4]] + 4.2 + g.normal((100, 1), stddev=0.01)


def data_iter(batch_size):
    order = tf.random.shuffle(tf.range(100))
    for i in range(0, 100, batch_size):
        j = order[i:i + batch_size]
        yield tf.gather(features, j), tf.gather(labels, j)


def linreg(X):
    return X @ w + b


for epoch in range(3):  # <- epoch loop
    for X, y in data_iter(20):  # <- batch loop
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((linreg(X) - y) ** 2) / 2
        grads = tape.gradient(loss, params)
        for grad, v in zip(grads, params):
            v.assign_sub(lr * grad)  # <- update
    print(f"epoch {epoch + 1}, loss {float(tf.reduce_mean((linreg(features) - labels) ** 2)) / 2:f}")
print("w", w.numpy().ravel(), "b", b.numpy())
