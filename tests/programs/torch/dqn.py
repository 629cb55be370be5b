"""After CleanRL's dqn: one loop over steps, a replay buffer, a target network, actions by chance."""
import random
from collections import deque

import numpy as np
import torch
from torch import nn

random.seed(1)
np.random.seed(1)
torch.manual_seed(1)


class Env:
    def __init__(self):
        self.rng, self.at = np.random.default_rng(2), 0.0

    def reset(self):
        self.at = float(self.rng.normal())
        return np.array([self.at, 0.0], np.float32)

    def step(self, action):
        self.at += (0.3 if action else -0.3) + float(self.rng.normal(scale=0.05))
        done = abs(self.at) > 2 or self.rng.random() < 0.05
        return np.array([self.at, 1.0], np.float32), -abs(self.at), done


q = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
target = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
target.load_state_dict(q.state_dict())
optimizer = torch.optim.Adam(q.parameters(), 1e-2)
buffer, env = deque(maxlen=50), Env()
obs, returns, total = env.reset(), [], 0.0
for step in range(120):  # <- batch loop
    epsilon = max(0.05, 1 - step / 60)
    if random.random() < epsilon:
        action = random.randrange(2)
    else:
        action = int(q(torch.from_numpy(obs)).argmax())
    after, reward, done = env.step(action)
    buffer.append((obs, after, action, reward, done))
    total += reward
    obs = after
    if done:
        returns.append(total)
        obs, total = env.reset(), 0.0
    if step >= 20 and step % 2 == 0:
        rows = random.sample(buffer, 8)
        a, b, actions, rewards, dones = (torch.as_tensor(np.array(part)) for part in zip(*rows))
        with torch.no_grad():
            goal = rewards + 0.9 * target(b).max(1).values * (1 - dones.float())
        loss = nn.functional.mse_loss(q(a).gather(1, actions[:, None]).squeeze(1), goal.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            for kept, now in zip(target.parameters(), q.parameters()):
                kept.data.copy_(0.5 * now.data + 0.5 * kept.data)
print(len(returns), sum(returns), loss.item())
