"""What goes on beside the loop: jobs of thread pools, threads that fill queues, libraries that keep books over
trainings.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from detrain.base import errors
from tests.e2e.forkserver import Server
from tests.e2e.programs import PRELUDE
from tests.e2e.refused import starting_twice
from tests.e2e.runs import Run, after_deaths, bare_python, compared, library, ran


@pytest.fixture
def detrain(server: Server) -> Run:
    """Each start that is refused is made twice, and the ways out that it names are taken."""
    return starting_twice(server.detrain)


AHEAD = {
    "one job ahead": """
class Prefetcher:
    def __init__(self):
        self.rng = np.random.default_rng(1)
        self.pool = ThreadPoolExecutor(1)
        self.next = self.pool.submit(self.prepare)
    def prepare(self):
        time.sleep(0.002)
        return self.rng.normal(size=3), int(self.rng.integers(9))
    def get(self):
        batch = self.next.result()
        self.next = self.pool.submit(self.prepare)
        return batch

loader = Prefetcher()
for step in range(20):
    x, y = loader.get()
    die(str(step))
    optimizer.apply_gradients(x * y)
""",
    "in the line of the update": """
def prepare(seed):
    return np.random.default_rng(seed).normal(size=3)

pool, seed = ThreadPoolExecutor(2), 0
waiting = deque()
for epoch in range(4):
    for step in range(5):
        while len(waiting) < 3:
            waiting.append(pool.submit(prepare, seed))
            seed += 1
        die(str(5 * epoch + step))
        optimizer.apply_gradients(waiting.popleft().result())
""",
    "a pool in each epoch": """
rng = np.random.default_rng(2)
for epoch in range(4):
    with ThreadPoolExecutor(1) as pool:
        for x in pool.map(lambda scale: scale * rng.normal(size=3), range(5)):
            die(str(optimizer.steps))
            optimizer.apply_gradients(x)
""",
    "a job that hands over another": """
rng, pool, second = np.random.default_rng(3), ThreadPoolExecutor(1), ThreadPoolExecutor(1)
def scale(x):
    time.sleep(0.02)
    return x * rng.normal()
def load():
    return second.submit(scale, rng.normal(size=3))
ahead = pool.submit(load)
for epoch in range(4):
    for step in range(5):
        batch = ahead.result().result()
        ahead = pool.submit(load)
        die(str(5 * epoch + step))
        optimizer.apply_gradients(batch)
""",
    "what is called when a job is done": """
rng, pool, done = np.random.default_rng(4), ThreadPoolExecutor(1), []
def keep(job):
    time.sleep(0.02)
    done.append(job.result() * rng.normal())
def get():
    while not done:
        time.sleep(0.001)
    return done.pop()
pool.submit(rng.normal, size=3).add_done_callback(keep)
for epoch in range(4):
    for step in range(5):
        batch = get()
        pool.submit(rng.normal, size=3).add_done_callback(keep)
        die(str(5 * epoch + step))
        optimizer.apply_gradients(batch)
""",
}
HEAD = f"{PRELUDE}import time\nfrom collections import deque\nfrom concurrent.futures import ThreadPoolExecutor\n"
START = "optimizer = Optimizer(np.ones(3))\n"
END = "show(optimizer.weights)\n"


@pytest.mark.parametrize("name", AHEAD)
@pytest.mark.parametrize("every", ["1", "3b"])
def test_batches_that_a_pool_prepares_ahead_come_back(name: str, every: str, tmp_path: Path, detrain: Run) -> None:
    """The job's result was lost, and the resumed run trained on another batch, in silence.

    What is killed is a process.
    """
    text = HEAD + START + AHEAD[name] + END
    whole, died, run = compared(detrain, tmp_path, text, every=every, at=("6", "13"), whole="bare")

    assert run.out == whole.out
    assert "not captured" not in run.err + died.err


LEFT = {
    "an epoch": (
        """
for epoch in range(4):
    for step in range(100):  # digests are put on record up to 64 at a time
        optimizer.apply_gradients(np.full(3, 0.1))
        die(str(optimizer.steps))
        if epoch == 3 and str(step) == os.environ.get("LEAVE"):
            break
""",
        "390",
        "epoch 3 has ended before 3:3; the first run had a batch there",
    ),
    "a loop": (
        """
def train(epochs, last):
    for epoch in range(epochs):
        for step in range(6):
            optimizer.apply_gradients(np.full(3, 0.1))
            die(str(optimizer.steps))
            if step == last:
                return

train(1, int(os.environ.get("LEAVE", 4)))
train(3, None)
""",
        "13",
        "the training loop of phase 0 was left before 0:3; the first run went on to 0:4",
    ),
}


@pytest.mark.fast
@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_earlier_than_in_the_first_run_is_an_error(name: str, tmp_path: Path, detrain: Run) -> None:
    """A resume that decides otherwise went on in silence: what decides may be out of sight.

    What is killed is a process.
    """
    body, death, said = LEFT[name]
    ran(detrain, tmp_path, HEAD + START + body + END, DIE_AT=death).died()
    run = detrain("run", "program.py", cwd=tmp_path, LEAVE="2")

    assert run.status == errors.Diverged.exit_code, run.err
    assert said in run.err


TUNER = '''
import threading

class Study:
    """Stops trials that are worse than those before."""
    def __init__(self):
        self.lock, self.seen = threading.Lock(), [[]]
        self.thread = threading.Thread()  # what is no data
    def report(self, value):
        with self.lock:
            self.seen[-1].append(value)
    def is_worse(self):
        *others, values = self.seen
        return any(len(other) >= len(values) and other[len(values) - 1] < values[-1] for other in others)
    def end(self):
        self.seen.append([])
'''
BOOKS = """
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "site-packages"))
import tuner
study = tuner.Study()
for number in range(5):
    optimizer = Optimizer(np.full(3, float(number % 3)))
    for epoch in range(4):
        for step in range(3):
            optimizer.apply_gradients(np.full(3, 0.1 * number))
        die(f"{number}:{epoch}")
        study.report(float(optimizer.weights.sum()))
        ASK
    study.end()
    print(number, epoch, optimizer.weights.tolist(), flush=True)
show(optimizer.weights)
"""


@pytest.mark.parametrize("asks", ["if study.is_worse(): break", "pass"], ids=["read", "told"])
def test_the_books_of_a_library_are_refused_whether_the_program_reads_them_or_not(asks: str, tmp_path: Path, detrain: Run) -> None:
    """Trials that were passed over had not reported, and others went on for longer, in silence.

    What is killed is a process.
    """
    library(tmp_path, {"tuner/__init__.py": TUNER})
    died, run = after_deaths(detrain, tmp_path, PRELUDE + BOOKS.replace("ASK", asks), at="3:2")

    assert "a resumed run will be REFUSED from here on: study (tuner.Study: it has moved on)" in died.err
    assert run.status == errors.NotCapturable.exit_code, run.err
    assert "--allow-lost study" in run.err


def test_the_books_of_a_library_that_holds_a_lock_are_exact(tmp_path: Path, detrain: Run) -> None:
    """Each resume was refused."""
    folder = tmp_path / "site-packages" / "tuner"
    folder.mkdir(parents=True)
    lines = TUNER.splitlines(keepends=True)
    (folder / "__init__.py").write_text("".join(line for line in lines if "Thread()" not in line))
    body = PRELUDE + BOOKS.replace("ASK", "if study.is_worse(): break")
    whole, died, _ = compared(detrain, tmp_path, body, at=["0:2", "3:2"], whole="bare")

    assert "not captured" not in died.err
    assert whole.out


IN_BODIES = """
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "site-packages"))
import tuner
study, optimizer = tuner.Study(), Optimizer(np.ones(3))
def numbers():
    yield from range(12)
for step in LOADS:
    optimizer.apply_gradients(np.full(3, 0.1))
    study.report(float(optimizer.weights.sum()))
    die(str(step))
    if study.is_worse():
        break
"""


@pytest.mark.parametrize(("loads", "only_counts"), [("range(12)", True), ("numbers()", False)])
def test_what_bodies_tell_a_library_that_the_program_reads_is_refused(
    loads: str, only_counts: bool, tmp_path: Path, detrain: Run
) -> None:
    """Where loads run code, it may be that which moves the study: that it is not shows when batches are loaded again.

    What is killed is a process.
    """
    library(tmp_path, {"tuner/__init__.py": TUNER})
    died, run = after_deaths(detrain, tmp_path, PRELUDE + IN_BODIES.replace("LOADS", loads), at="7", every="2b")

    named = "a resumed run will be REFUSED from here on: study (tuner.Study: it has moved on)"
    assert (named in died.err) == only_counts, died.err
    assert run.status == errors.NotCapturable.exit_code, run.err
    assert only_counts or "study (tuner.Study) is not where the first run had it" in run.err


POOLED = """
from multiprocessing.pool import ThreadPool
pool, rng = ThreadPool(1), np.random.default_rng(5)
ahead = pool.apply_async(rng.normal, (0.0, 1.0, 3))
for epoch in range(4):
    for step in range(5):
        x = ahead.get()
        ahead = pool.apply_async(rng.normal, (0.0, 1.0, 3))
        die(f"{epoch}:{step}")
        optimizer.apply_gradients(x)
"""
FILLED = """
import queue, threading
def fill(q):
    rng = np.random.default_rng(5)
    while True:
        q.put(rng.normal(size=3))

q = queue.Queue(3)
threading.Thread(target=fill, args=(q,), daemon=True).start()
for epoch in range(4):
    for step in range(5):
        x = q.get()
        die(f"{epoch}:{step}")
        optimizer.apply_gradients(x)
"""


@pytest.mark.parametrize(("every", "death"), [("1", "2:0"), ("2b", "1:3")])
@pytest.mark.parametrize("body", [FILLED, POOLED], ids=["a queue", "a pool of multiprocessing"])
def test_what_goes_on_beside_the_loop_and_is_read_is_refused(
    body: str, every: str, death: str, tmp_path: Path, detrain: Run
) -> None:
    """What does it begins anew in a resumed run: what it gives is not what comes next. In the first epoch it is, so
    a run may go back to there. What is killed is a process.
    """
    died, run = after_deaths(detrain, tmp_path, HEAD + START + body + END, at=death, every=every)

    assert "a resumed run will be REFUSED from here on" in died.err
    if run.status == 0:
        assert "going back from 1:" in run.err
        assert " to 0:" in run.err
        assert run.last_line() == bare_python(tmp_path / "program.py").last_line()
    else:
        assert run.status == errors.NotCapturable.exit_code, run.err


FILLED_IN_EACH_EPOCH = """
import queue, threading
def fill(q, seed):
    rng = np.random.default_rng(seed)
    for _ in range(5):
        q.put(rng.normal(size=3))

for epoch in range(4):
    q = queue.Queue(2)
    threading.Thread(target=fill, args=(q, epoch), daemon=True).start()
    for step in range(5):
        x = q.get()
        die(f"{epoch}:{step}")
        optimizer.apply_gradients(x)
"""


def test_a_thread_that_each_epoch_starts_to_fill_its_queue_is_brought_back_without_a_word(tmp_path: Path, detrain: Run) -> None:
    """A resumed run starts it again and loads the epoch's batches again. What is killed is a process."""
    _, died, run = compared(detrain, tmp_path, HEAD + START + FILLED_IN_EACH_EPOCH + END, at="1:3", every="2b", whole="bare")

    assert "resuming program at 1:3" in run.err
    assert "not captured" not in died.err + run.err


LEFT_BEHIND = """
import queue, threading
class Ahead(threading.Thread):
    def __init__(self, seed):
        super().__init__(daemon=True)
        self.rows, self.rng = queue.Queue(2), np.random.default_rng(seed)
        self.start()
    def run(self):
        for _ in range(9):
            self.rows.put(self.rng.normal(size=3))
        self.rows.put(None)
    def __iter__(self):
        while (row := self.rows.get()) is not None:
            yield row

for epoch in range(4):
    for step, x in enumerate(Ahead(epoch)):
        die(f"{epoch}:{step}")
        optimizer.apply_gradients(x)
        if step == 4:
            break
    for seen in Ahead(100 + epoch):
        optimizer.weights += 0.01 * seen
        break
"""


@pytest.mark.parametrize(("every", "death"), [("1", "2:3"), ("2b", "2:3")])
def test_a_thread_that_a_loop_has_left_behind_is_nobodys(every: str, death: str, tmp_path: Path, detrain: Run) -> None:
    """It waits for ever to put something into a queue that nobody has any more. What is killed is a process."""
    _, died, run = compared(detrain, tmp_path, HEAD + START + LEFT_BEHIND + END, at=death, every=every, whole="bare")

    assert "resuming program at 2:" in run.err
    assert "not captured" not in died.err + run.err


REFUSED_AT_A_LATER_BATCH = """
x = np.arange(24.0).reshape(8, 3)
def batches(epoch):
    for row in x:
        yield row if len(sys.argv) < 2 else row + 0
for epoch in range(4):
    for step, row in enumerate(batches(epoch)):
        if (epoch, step) == (2, 6) and os.path.exists("other"):
            x[7] += 1
        die(f"{epoch}:{step}")
        optimizer.apply_gradients(row)
"""


def test_a_second_start_does_not_pass_what_the_first_refused(tmp_path: Path, detrain: Run) -> None:
    """The digests that the first run had recorded were gone with the first batch that was equal.

    What is killed is a process.
    """
    ran(detrain, tmp_path, HEAD + START + REFUSED_AT_A_LATER_BATCH + END, "--every", "3b", DIE_AT="3:0").died()
    (tmp_path / "other").touch()
    runs = [detrain("run", "--from", "2:5", "program.py", cwd=tmp_path) for _ in range(3)]

    for run in runs:
        assert run.status == errors.Diverged.exit_code, run.err
        assert "batch 2:7 has digest" in run.err
