# Seeds from the clock, in all the ways that people take them.
import random
import time
from datetime import date, datetime

import numpy as np

random.seed(time.time())
np.random.seed(int(datetime.now().timestamp() * 1e6) % 2**32)
rng = np.random.default_rng(int(time.strftime("%H%M%S")) + time.localtime().tm_sec + datetime.utcnow().microsecond)
run_name = f"run-{datetime.today():%Y%m%d-%H%M%S-%f}-{date.today()}-{time.ctime()}-{time.gmtime().tm_yday}"
unseeded = np.random.default_rng()


class Walk:
    def __init__(self):
        self.place = np.zeros(2)

    def apply_gradients(self, step):
        self.place = self.place * 0.99 + step


optimizer = Walk()
for epoch in range(4):
    for step in range(6):
        x = rng.normal(size=2) + random.random() + unseeded.normal() * np.random.rand()
        optimizer.apply_gradients(x)
    print(f"epoch {epoch} place {optimizer.place.tolist()}", flush=True)
assert isinstance(datetime.now(), datetime) and abs(time.time() - datetime.now().timestamp()) < 3600
print("weights", optimizer.place.tobytes().hex(), run_name)
