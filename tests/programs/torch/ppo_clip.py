"""After seungeunrho/minimalRL: PPO, a policy and a value by methods of one module, an environment of its own stream."""
import numpy as np
import torch
from packaging.version import Version
from torch import nn
from torch.distributions import Categorical

assert Version(torch.__version__) >= Version("2.0")  # by a library that may keep a state: batches are loaded again
torch.manual_seed(3)


class World:
    def __init__(self):
        self.rng, self.last = np.random.default_rng(4), 4

    def reset(self):
        self.state, self.turn, self.last = self.rng.normal(size=3), 0, 12 - self.last
        return self.state

    def step(self, action):
        self.state = self.state * 0.9 + self.rng.normal(size=3) * 0.3 + (0.2 if action else -0.2)
        self.turn += 1
        return self.state, float(-abs(self.state[0])), self.turn >= self.last


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = []
        self.first, self.last, self.worth = nn.Linear(3, 16), nn.Linear(16, 2), nn.Linear(16, 1)
        self.optimizer = torch.optim.Adam(self.parameters(), 1e-2)

    def pi(self, x, dim=0):
        return torch.softmax(self.last(torch.relu(self.first(x))), dim)

    def v(self, x):
        return self.worth(torch.relu(self.first(x)))

    def learn(self):
        s, a, r, then, old = (torch.tensor(np.array(each), dtype=torch.float) for each in zip(*self.seen))
        self.seen = []
        for i in range(3):  # <- batch loop
            target = r[:, None] + 0.9 * self.v(then)
            advantage = (target - self.v(s)).detach()
            pi = self.pi(s, dim=1)  # <- load
            ratio = pi.gather(1, a.long()[:, None]) / old[:, None]
            loss = -torch.min(ratio * advantage, ratio.clamp(0.9, 1.1) * advantage)
            loss = loss + nn.functional.smooth_l1_loss(self.v(s), target.detach())
            self.optimizer.zero_grad()
            loss.mean().backward()
            self.optimizer.step()  # <- update


world, agent, score = World(), Agent(), 0.0
for episode in range(7):
    s, done = world.reset(), False
    while not done:  # <- epoch loop
        for t in range(4):
            p = agent.pi(torch.from_numpy(s).float())
            a = Categorical(p).sample().item()
            then, r, done = world.step(a)
            agent.seen.append((s, a, r, then, p[a].item()))
            s = then
            score += r
            if done:
                break
        agent.learn()
    print(episode, score)
print(sum(float(p.detach().sum()) for p in agent.parameters()))
