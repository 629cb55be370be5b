# A bandit that learns from a replay buffer: a deque, priorities in a dict, a random generator of its own, an exploring rate.
import random
from collections import Counter, deque
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Agent:
    values: np.ndarray = field(default_factory=lambda: np.zeros(4))
    explore: float = 1.0
    memory: deque = field(default_factory=lambda: deque(maxlen=16))
    pulls: Counter = field(default_factory=Counter)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(9))

    def act(self):
        arm = random.randrange(4) if random.random() < self.explore else int(np.argmax(self.values))
        self.pulls[arm] += 1
        self.memory.append((arm, float(self.rng.normal(arm * 0.1))))

    def apply_gradients(self, samples):
        for arm, reward in samples:
            self.values[arm] += 0.05 * (reward - self.values[arm])
        self.explore *= 0.98


optimizer = Agent()
for episode in range(5):
    for step in range(8):
        optimizer.act()
        if len(optimizer.memory) < 6:
            continue
        samples = random.sample(list(optimizer.memory), 4)
        optimizer.apply_gradients(samples)
    print(f"episode {episode} pulls {sorted(optimizer.pulls.items())} explore {optimizer.explore!r}", flush=True)
print("weights", optimizer.values.tobytes().hex(), sum(reward for _, reward in optimizer.memory).hex())
