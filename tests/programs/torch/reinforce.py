"""After pytorch/examples reinforce: episodes of chance length, log probabilities kept on the policy, one update each."""
from collections import deque

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(543)
rng = np.random.default_rng(543)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(3, 16), nn.Dropout(0.6), nn.Linear(16, 2)
        self.saved, self.rewards = [], []

    def forward(self, x):
        return torch.softmax(self.last(torch.relu(self.drop(self.first(x)))), 1)


policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), 1e-2)


def act(state):
    m = Categorical(policy(torch.from_numpy(state).float().unsqueeze(0)))
    action = m.sample()
    policy.saved.append(m.log_prob(action))
    return action.item()


def finish():
    total, losses, returns = 0, [], deque()
    for r in policy.rewards[::-1]:
        total = r + 0.9 * total
        returns.appendleft(total)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-8)
    for log_prob, r in zip(policy.saved, returns):
        losses.append(-log_prob * r)
    optimizer.zero_grad()
    torch.cat(losses).sum().backward()
    optimizer.step()
    del policy.rewards[:]
    del policy.saved[:]


running = 10.0
for episode in range(25):  # <- batch loop
    state, total = rng.normal(size=3), 0
    for t in range(1, 20):
        action = act(state)
        state = state * 0.9 + rng.normal(size=3) * 0.3 + (0.2 if action else -0.2)
        reward = float(-abs(state[0]))
        policy.rewards.append(reward)
        total += reward
        if abs(state[0]) > 2 and t > 3:
            break
    running = 0.05 * total + 0.95 * running
    finish()  # <- update
    if episode % 5 == 0:
        print(episode, t, total, running)
print(running, sum(float(p.sum()) for p in policy.parameters()))
