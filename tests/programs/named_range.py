import tensorflow as tf

# All the data are one batch; the loop goes over a range that has a name.
x = tf.linspace(-2.0, 2.0, 201)
y = 3.0 * x + 2.0 + tf.random.normal([201])


class Line(tf.Module):
    def __init__(self):
        self.w = tf.Variable(5.0)
        self.b = tf.Variable(0.0)

    def __call__(self, x):
        return self.w * x + self.b


def train(line, x, y, learning_rate):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((y - line(x)) ** 2)
    dw, db = tape.gradient(loss, [line.w, line.b])
    line.w.assign_sub(learning_rate * dw)
    line.b.assign_sub(learning_rate * db)


line = Line()
epochs = range(6)
weights = []


def training_loop(line, x, y):
    for epoch in epochs:  # <- batch loop
        train(line, x, y, learning_rate=0.1)  # <- update
        weights.append(float(line.w))
        print(f"epoch {epoch}: w = {weights[-1]:.3f}")


training_loop(line, x, y)
print(dict(zip(epochs, weights)))
