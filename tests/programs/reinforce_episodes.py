import numpy as np
import tensorflow as tf


class Corridor:
    """Walk right to reach the goal."""

    def reset(self):
        self.pos, self.t = 0, 0
        return np.array([0.0, 0.0], "float32")

    def step(self, action):
        self.pos += 1 if action == 1 else -1
        self.t += 1
        done = self.pos >= 3 or self.t >= 10
        return np.array([self.pos / 3, self.t / 10], "float32"), float(self.pos >= 3), done


env = Corridor()
policy = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(8, activation="tanh"), tf.keras.layers.Dense(2)])
optimizer = tf.keras.optimizers.Adam(0.02)
gamma = 0.95
rng = np.random.default_rng(0)

for episode in range(12):  # <- batch loop
    states, actions, rewards = [], [], []
    state, done = env.reset(), False
    while not done:
        probs = tf.nn.softmax(policy(state[None]))[0].numpy().astype("float64")
        action = rng.choice(2, p=probs / probs.sum())
        states.append(state)
        actions.append(action)
        state, reward, done = env.step(action)
        rewards.append(reward)
    returns, G = [], 0.0
    for r in rewards[::-1]:
        G = r + gamma * G
        returns.insert(0, G)
    with tf.GradientTape() as tape:
        nll = tf.nn.sparse_softmax_cross_entropy_with_logits(np.array(actions), policy(np.array(states)))
        loss = tf.reduce_mean(nll * np.array(returns, "float32"))
    optimizer.apply_gradients(zip(tape.gradient(loss, policy.trainable_variables), policy.trainable_variables))  # <- update
    print(f"episode {episode:2d} length {len(rewards):2d} reward {sum(rewards):.0f} loss {loss:.4f}")
