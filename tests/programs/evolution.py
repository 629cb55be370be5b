import numpy as np
import tensorflow as tf

POPULATION, SIGMA, ALPHA = 6, 0.1, 0.05
rng = np.random.default_rng(10)
x = rng.normal(size=(96, 4)).astype("float32")
y = (x[:, 0] > x[:, 1]).astype("float32")
ds = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96).batch(32).repeat()
net = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])


def fitness(weights, xb, yb):
    net.set_weights(weights)
    return -float(tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(yb, net(xb)[:, 0])))


theta = net.get_weights()
for generation, (xb, yb) in enumerate(ds.take(8)):  # <- batch loop
    noises, rewards = [], []
    for _ in range(POPULATION):
        noise = [rng.normal(size=w.shape).astype("float32") for w in theta]
        noises.append(noise)
        rewards.append(fitness([w + SIGMA * n for w, n in zip(theta, noise)], xb, yb))
    advantage = (np.array(rewards) - np.mean(rewards)) / (np.std(rewards) + 1e-8)
    for i in range(len(theta)):
        direction = sum(a * n[i] for a, n in zip(advantage, noises))
        theta[i] = theta[i] + ALPHA / (POPULATION * SIGMA) * direction
    net.set_weights(theta)  # <- update
    print("generation", generation, "fitness", round(float(np.mean(rewards)), 4))
