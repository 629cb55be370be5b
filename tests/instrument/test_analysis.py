"""Static analysis: the structure of small programs, as a person would write it down with markers behind the lines."""

from __future__ import annotations

import re
import textwrap
from itertools import product
from pathlib import Path

import pytest

from detrain.base.errors import CannotRewrite
from detrain.base.source_files import sources
from detrain.base.structure import Structure
from detrain.instrument.find_loops import analyse
from detrain.instrument.rewriter import edits_for

# `#E1` marks an epoch loop, `#B1` a batch loop, `#L1` the statement that loads, `#U1` the update; the number is the
# nest's.
Found = dict[str, str]


def marked(folder: Path) -> list[Found]:
    """Return, for each nest that the markers name, where its parts stand (`file:line`)."""
    nests: dict[str, Found] = {}
    for path in sorted(folder.rglob("*.py")):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            for kind, nest in re.findall(r"#([EBLU])(\d)", line):
                nests.setdefault(nest, {})[kind] = f"{path.relative_to(folder)}:{number}"
    return [nests[number] for number in sorted(nests)]


def found(structure: Structure, folder: Path) -> list[Found]:
    nests = []
    for nest in structure.nests:
        file = Path(nest.batch_loop.file).relative_to(folder.resolve())
        parts = {"B": f"{file}:{nest.batch_loop.line}"}
        if nest.epoch_loop is not None:
            parts["E"] = f"{Path(nest.epoch_loop.file).relative_to(folder.resolve())}:{nest.epoch_loop.line}"
        if nest.load_line is not None:
            parts["L"] = f"{file}:{nest.load_line}"
        if nest.update_line is not None:
            parts["U"] = f"{file}:{nest.update_line}"
        nests.append(parts)
    return sorted(nests, key=lambda parts: parts["B"])


def check(folder: Path, **files: str) -> Structure:
    """Analyse `main` with the other files beside it, and compare with the markers."""
    for name, text in files.items():
        path = folder / (name if name.endswith(".py") else f"{name}.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), "utf-8")
    structure = analyse(folder / "main.py")
    expected = sorted(marked(folder), key=lambda parts: parts["B"])
    assert found(structure, folder) == expected
    return structure


STEP = """
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_fn(y, model(x))
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    return loss
"""


def with_step(program: str, decorator: str = "@tf.function") -> str:
    return f"import tensorflow as tf\n{decorator}{STEP}\n{textwrap.dedent(program)}"


PROGRAMS = {
    "a distributed step around the step is the update": """
#plain step
@tf.function
def distributed_step(x, y):
    return strategy.reduce("sum", strategy.run(train_step, args=(x, y)), axis=None)

with strategy.scope():
    for epoch in range(3): #E1
        for x, y in dataset: #B1
            distributed_step(x, y) #U1
""",
    "train on batch is the update": """
model.compile("sgd", "mse")
for e in range(epochs): #E1
    for b in range(len(files) // 2): #B1
        x, y = dataset.slide_seq2seq_batch(2, 64) #L1
        result = model.train_on_batch(x, y) #U1
        if b % 100 == 0:
            eval_x, eval_y = dataset.slide_seq2seq_batch(2, 64, "eval")
""",
    "an update in the loop itself is found": """
def main():
    for epoch in range(3): #E1
        for step, (x, y) in enumerate(train_dataset): #B1
            with tf.GradientTape() as tape:
                loss = loss_fn(y, model(x, training=True))
            grads = tape.gradient(loss, model.trainable_weights)
            optimizer.apply_gradients(zip(grads, model.trainable_weights)) #U1
            metric.update_state(y, loss)
        for x, y in validation:
            metric.update_state(y, model(x))
main()
""",
    "keras optimizers may apply": """
for epoch in range(3): #E1
    for x in data: #B1
        opt.apply(gradients(x), weights) #U1
    for x in validation:
        transform.apply(x)
""",
    "methods of a trainer are followed": """
class Trainer:
    def __init__(self):
        self.train_step = tf.function(self._train_step)

    def _train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = self.loss(y, self.model(x))
        grads = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.model.trainable_variables))

    def test_step(self, batch):
        return self.loss(batch[1], self.model(batch[0]))

    def train_epoch(self):
        for batch in self.loader: #B1
            self.train_step(batch) #U1

    def evaluate(self):
        for batch in self.validation:
            self.test_step(batch)

    def train(self):
        for epoch in range(self.epochs): #E1
            self.train_epoch()
            self.evaluate()

Trainer().train()
""",
    "a strategy may run a method": """
class Trainer:
    def step(self, x):
        self.optimizer.minimize(self.loss, x)

    def train(self):
        for epoch in range(3): #E1
            for x in self.data: #B1
                self.strategy.run(self.step, args=(x,)) #U1
""",
    # The loop over validation data was taken for one that trains: the trainer has a `run` of its own.
    "what a strategy runs is not the run of the program": """
class Trainer:
    def step(self, x):
        self.optimizer.minimize(self.loss, x)

    def check(self, x):
        self.model(x)

    def validate(self):
        for x in self.held_out:
            self.strategy.run(self.check, args=(x,))

    def run(self):
        for epoch in range(3): #E1
            for x in self.data: #B1
                self.strategy.run(self.step, args=(x,)) #U1
            self.validate()
""",
    "the epoch loop may be two calls away": """
#step
def one_epoch(data):
    for x, y in data: #B1
        train_step(x, y) #U1

def train_and_evaluate(data):
    one_epoch(data)
    for x, y in data:
        model(x)

for epoch in range(3): #E1
    train_and_evaluate(data)
""",
    "packages beside the program are read": """
from lib.training import engine

for epoch in range(3): #E1
    engine.train_one_epoch(loader)
#file lib/__init__.py

#file lib/training/__init__.py

#file lib/training/engine.py
from ..steps import train_step

def train_one_epoch(loader):
    for x, y in loader: #B1
        train_step(x, y) #U1
#file lib/steps.py
#step

""",
    "a loop that warms up is a nest of its own only if it updates": """
#step
for x, y in dataset.take(1):
    model(x)
for variable in model.variables:
    print(variable)
for epoch in range(3): #E1
    for x, y in dataset: #B1
        train_step(x, y) #U1
""",
    "a loop over gradients is no batch loop": """
for epoch in range(3): #E1
    for x, y in dataset: #B1
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x))
        grads = tape.gradient(loss, model.trainable_variables)
        clipped = []
        for g in grads:
            clipped.append(tf.clip_by_norm(g, 1.0))
        for g, v in zip(clipped, model.trainable_variables):
            optimizer.apply_gradients([(g, v)]) #U1
""",
    "a loop over optimizers under one tape is no batch loop": """
for epoch in range(3): #E1
    for step in range(9): #B1
        x, y = random_batch(data) #L1
        with tf.GradientTape(persistent=True) as tape:
            loss = loss_fn(y, model(x))
        for layers, optimizer in ((lower, first), (upper, second)):
            weights = [weight for layer in layers for weight in layer.trainable_variables]
            gradients = tape.gradient(loss, weights)
            optimizer.apply_gradients(zip(gradients, weights)) #U1
        del tape
""",
    "a loop that steps several optimizers is a part of the step": """
for epoch in range(3): #E1
    for x, y in loader: #B1
        for net, opt, losses in zip(nets, optimizers, all_losses):
            loss = loss_fn(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step() #U1
            losses.append(loss.item())
""",
    "a loop over batches is one whatever its loader is called": """
for epoch in range(3): #E1
    for options in opt_loader: #B1
        loss_fn(net(options), 0).backward()
        optimizer.step(options) #U1
""",
    "a loop over optimizers around whole trainings is none": """
for seed in range(2):
    for net, optimizer in zip(nets, optimizers): #E1
        for x, y in loader: #B1
            loss_fn(net(x), y).backward()
            optimizer.step() #U1
""",
    "a loop that enters a tape which was made before it is a batch loop": """
tape = tf.GradientTape(persistent=True)
for epoch in range(3): #E1
    for x, y in dataset: #B1
        with tape:
            loss = loss_fn(y, model(x))
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights)) #U1
        tape.reset()
""",
    "a loop over gradients in a step is no batch loop": """
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_fn(y, model(x))
    grads = tape.gradient(loss, model.trainable_variables)
    for g, v in zip(grads, model.trainable_variables):
        optimizer.apply_gradients([(g, v)])

for epoch in range(3): #E1
    for x, y in dataset: #B1
        train_step(x, y) #U1
""",
    "gradient descent by hand is an update": """
for epoch in range(3): #E1
    for x, y in dataset: #B1
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x))
        dw, db = tape.gradient(loss, [w, b])
        w.assign_sub(0.1 * dw) #U1
        b.assign_sub(0.1 * db)
    for x in validation:
        average.assign_sub(x)
""",
    "gradient descent by hand in a loop over variables is an update": """
@tf.function
def gradients_of(x): ...

def train(x):
    grads = tape.gradient(loss_of(x), weights)
    for w, g in zip(weights, grads):
        w.assign_sub(rate * g)

for epoch in range(3): #E1
    for x in dataset: #B1
        train(x) #U1
""",
    "where nothing takes gradients what sets weights is an update": """
for layer, values in zip(model.layers, saved):
    layer.set_weights(values)
for name in names:
    layer = model.get_layer(name)
    layer.kernel.assign(values[name])

def move(centre, x): ...

for epoch in range(3): #E1
    for x in data: #B1
        centres.assign(move(centres, x)) #U1
""",
    "where something takes gradients what sets weights is none": """
for step in range(3):
    centres.assign(0.9 * centres)
model.fit(data)
""",
    "loops of compiled functions are no batch loops": """
#step
@tf.function(jit_compile=True)
def several(iterator):
    for _ in tf.range(10):
        train_step(*next(iterator))

def more(iterator):
    for _ in tf.range(10):
        train_step(*next(iterator))

more_compiled = tf.function(more)
for epoch in range(3): #E1
    for step in range(10): #B1
        several(iterator) #U1
        more_compiled(iterator)
""",
    "loops of functions that JAX traces, and of those that only such functions call, are no batch loops": """
def inner(theta, state, x):
    updates, state = opt.update(jax.grad(loss)(theta, x), state)
    return optax.apply_updates(theta, updates), state

def outer(eta, theta, state, samples):
    for x in samples[:-1]:
        theta, state = inner(theta, state, x)
    return loss(theta, samples[-1]), (theta, state)

@partial(jax.jit, donate_argnums=0)
def step(eta, theta, meta, state, samples):
    grad, (theta, state) = jax.grad(outer, has_aux=True)(eta, theta, state, samples)
    updates, meta = meta_opt.update(grad, meta)
    return optax.apply_updates(eta, updates), theta, meta, state

for i in range(2000): #B1
    samples = [next(g) for _ in range(7)] #L1
    eta, theta, meta, state = step(eta, theta, meta, state, samples) #U1
""",
    "two optimizers update in one nest": """
@tf.function
def train_step(images):
    noise = tf.random.normal([16, 100])
    with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
        losses = loss_of(generator(noise), images)
    generator_optimizer.apply_gradients(zip(gen_tape.gradient(losses, g), g))
    discriminator_optimizer.apply_gradients(zip(disc_tape.gradient(losses, d), d))

def train(dataset, epochs):
    for epoch in range(epochs): #E1
        for image_batch in dataset: #B1
            train_step(image_batch) #U1
train(data, 50)
""",
    "a gan by train on batch has one nest": """
for epoch in range(3): #E1
    for i in range(n_batches): #B1
        real = data[i * 16:(i + 1) * 16] #L1
        noise = np.random.normal(0, 1, (16, 100))
        fake = generator.predict(noise)
        d_loss = discriminator.train_on_batch(real, ones) #U1
        g_loss = gan.train_on_batch(noise, ones)
""",
    "a step that trains its critic in a loop is a step": """
class Gan:
    def train_step(self, real):
        for i in range(self.d_steps):
            noise = tf.random.normal([16, 100])
            loss = self.critic_loss(real, noise)
            self.d_optimizer.apply_gradients(zip(self.gradients(loss), self.d.trainable_variables))
        self.g_optimizer.apply_gradients(zip(self.generator_gradients(), self.g.trainable_variables))
    def train(self, data):
        for epoch in range(3): #E1
            for real in data: #B1
                self.train_step(real) #U1
""",
    "a function that builds with one step and then trains is no step": """
#step
def train(data, seed):
    train_step(*data[0])
    for i in range(100): #B1
        x, y = next_batch(data, i) #L1
        train_step(x, y) #U1
for seed in range(3): #E1
    train(load(), seed)
""",
    "noise beside a batch from the header is no load": """
#step
for epoch in range(3): #E1
    for x, y in dataset: #B1
        noise = tf.random.normal([16, 100])
        x = tf.cast(x, "float32")
        train_step(x + noise, y) #U1
""",
    "a step after accumulated gradients is a batch": """
for epoch in range(3): #E1
    for step in range(steps): #B1
        total = zeros()
        for micro in range(4):
            x, y = next(iterator)
            with tf.GradientTape() as tape:
                loss = loss_fn(y, model(x))
            total = add(total, tape.gradient(loss, weights))
        optimizer.apply_gradients(zip(total, weights)) #U1
""",
    "an update every few batches is in the batch loop": """
for epoch in range(3): #E1
    for i, (x, y) in enumerate(dataset): #B1
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x))
        total = add(total, tape.gradient(loss, weights))
        if i % 4 == 3:
            optimizer.apply_gradients(zip(total, weights)) #U1
            total = zeros()
""",
    "folds stand outside the epochs": """
#step
for fold, (train, test) in enumerate(folds.split(data)):
    model = make_model()
    for epoch in range(3): #E1
        for x, y in batches(train): #B1
            train_step(x, y) #U1
        for x, y in batches(test):
            model(x)
""",
    "a step that is defined in the loop over folds runs where it is called": """
for fold in range(5):
    def step(x):
        optimizer.apply_gradients(pairs(x))
    for epoch in range(3): #E1
        for x in data: #B1
            step(x) #U1
""",
    "a critic trained in a loop of its own is a part of the body": """
for epoch in range(3): #E1
    for batch in dataset: #B1
        for _ in range(5):
            critic.train_on_batch(batch) #U1
        generator.train_on_batch(noise())
""",
    "two phases are two nests": """
#step
for epoch in range(3): #E1
    for x, y in pretraining: #B1
        train_step(x, y) #U1
model.trainable = True
epoch = 0
while epoch < 5: #E2
    for x, y in dataset: #B2
        train_step(x, y) #U2
    epoch += 1
""",
    "one batch loop may have several epoch loops": """
#step
def search(rate):
    for x, y in dataset: #B1 #B2
        train_step(x, y) #U1 #U2

for rate in (0.1, 0.2): #E1
    search(rate)
for rate in (0.3, 0.4): #E2
    search(rate)
""",
    "a step and a training function of one name are told apart": """
class Agent:
    def train(self, batch):
        self.optimizer.apply_gradients(self.gradients(batch))

def train(agent):
    for episode in range(3): #E1
        for t in range(100): #B1
            batch = memory.sample(32) #L1
            agent.train(batch) #U1
train(Agent())
""",
    "the step of a schedule is no update": """
for i in range(3):
    scheduler.step()
    lr_scheduler.step(i)
""",
    # Optax's `freezing_parameters` begins its optimizer anew in the middle; a resume compared its state as a batch.
    "what turns carry on and begin anew now and then is no load": """
import torch
for i in range(9): #B1
    if i == 4:
        mask = {"bias": True}
        state = begin(net, mask)
    loss = model(x, state)
    loss.backward()
    state = advance(state)
    optimizer.step() #U1
""",
    "a batch flows into a loss that is an attribute": """
import torch
class Trainer:
    def run(self):
        while True: #B1
            try:
                batch = next(data_iter) #L1
            except StopIteration:
                data_iter = iter(train_loader)
                batch = next(data_iter)
            batch = [t.to(self.device) for t in batch]
            x, y = batch
            logits, self.loss = model(x, y)
            self.loss.backward()
            self.optimizer.step() #U1
""",
    "a batch may be loaded in the call that updates": """
#step
for i in range(3): #B1
    train_step(*next(it)) #L1 #U1
""",
    "loops over seeds and folds stay outside": """
#step
for fold in range(5):
    for train, test in splits(fold): #E1
        for x, y in data: #B1
            train_step(x, y) #U1
""",
    "the load is found where the update is in the block of the tape": """
for step in range(100): #E1
    for _ in range(10): #B1
        x, y = next(source) #L1
        x = tf.cast(x, tf.float32)
        with tf.GradientTape() as tape:
            loss = loss_of(model(x), y)
            variables = model.trainable_variables
            gradients = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, variables)) #U1
""",
    "noise is the load where there is no other": """
#step
for step in range(100): #B1
    x = tf.random.normal([32, 8]) #L1
    train_step(x, x) #U1
""",
    "noise that a network takes is no load": """
import torch
of_d, of_g = torch.optim.Adam(D.parameters()), torch.optim.Adam(G.parameters())
for i in range(8): #B1
    real = images[i * 8 : i * 8 + 8] #L1
    fake = G(torch.randn(8, 2))
    loss = D(fake.detach()).mean() - D(real).mean()
    loss.backward()
    of_d.step() #U1
""",
}
"""By what they show: programs, marked. `#step` stands for a compiled step `train_step`, `#plain step` for one that is
not; `#file` begins another file."""


def written(text: str) -> dict[str, str]:
    """Return the files of a program of the table."""
    files = {"main.py": ""}
    for part in re.split(r"^#file ", "main.py\n" + text.lstrip("\n"), flags=re.M):
        name, _, content = part.partition("\n")
        for mark, decorator in (("#step\n", "@tf.function"), ("#plain step\n", "")):
            content = with_step(content.removeprefix(mark), decorator) if content.startswith(mark) else content
        files[name] = content
    return files


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_loops_that_train_and_where_they_load_and_update_are_found(name: str, tmp_path: Path) -> None:
    check(tmp_path, **written(PROGRAMS[name]))


# Where the update is.


def test_a_compiled_step_is_the_update(tmp_path: Path) -> None:
    structure = check(
        tmp_path,
        main=with_step("""
        for epoch in range(3): #E1
            total = 0.0
            for x, y in dataset: #B1
                total += train_step(x, y) #U1
            print(total)
        """),
    )

    (nest,) = structure.nests
    assert nest.loader == "dataset"
    assert (nest.batch_loop.kind, nest.batch_loop.column, nest.batch_loop.function) == ("for", 4, "")
    assert "train_step" in nest.evidence[0]
    assert structure.source == "static analysis"
    assert structure.fits == ()


@pytest.mark.parametrize(
    ("alias", "call"),
    [
        ("step = tf.function(train_step)", "step(x, y)"),
        ("step = tf.function(train_step, jit_compile=True)", "step(x, y)"),
        ("step = tf.function(train_step) if args.graph else train_step", "step(x, y)"),
        ("step = train_step", "step(x, y)"),
        ("step = tf.function(functools.partial(train_step, training=True))", "step(x, y)"),
        ("step: object = tf.function(train_step)", "step(x, y)"),
        ("step = tf.function(func=train_step)", "step(x, y)"),
        ("", "loss = strategy.run(train_step, args=(x, y))"),
        ("", "loss = strategy.reduce('sum', strategy.run(train_step, args=(x, y)), axis=None)"),
        ("", "loss = strategy.run(fn=train_step, args=(x, y))"),
    ],
)
@pytest.mark.parametrize("data", ["dataset", "strategy.experimental_distribute_dataset(dataset)"])
def test_a_step_is_the_update_under_another_name_and_by_a_strategy(tmp_path: Path, alias: str, call: str, data: str) -> None:
    check(
        tmp_path,
        main=with_step(
            f"""
{alias}
for epoch in range(3): #E1
    for i, (x, y) in enumerate({data}): #B1
        {call} #U1
    for x, y in validation:
        value = model.loss(x, y)
        loss(x)
        loss_fn(y, model(x))
""",
            "",
        ),
    )


def test_the_epoch_loop_may_be_in_another_module_than_the_batch_loop(tmp_path: Path) -> None:
    structure = check(
        tmp_path,
        main="""
        from engine import evaluate, train_one_epoch

        def main():
            for epoch in range(3): #E1
                train_one_epoch(model, loader)
                evaluate(model, loader)

        if __name__ == "__main__":
            main()
        """,
        engine=with_step("""
        def train_one_epoch(model, loader):
            model.reset()
            for x, y in loader: #B1
                train_step(x, y) #U1

        def evaluate(model, loader):
            for x, y in loader:
                model(x)
        """),
    )

    assert structure.nests[0].batch_loop.function == "train_one_epoch"


def test_a_module_in_a_package_finds_the_package_by_its_own_name(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "steps.py").write_text(with_step(""))
    (package / "main.py").write_text("from package.steps import train_step\nfor x, y in data:\n    train_step(x, y)\n")

    structure = analyse(package / "main.py")

    assert [nest.batch_loop.line for nest in structure.nests] == [2]


def test_each_module_is_read_once_and_those_with_errors_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("import a, b, missing\nimport a\n")
    (tmp_path / "a.py").write_text("import main, b\n")
    (tmp_path / "b.py").write_text("def\n")

    names = [Path(file).name for file, _tree in sources(tmp_path / "main.py")]

    assert sorted(names) == ["a.py", "main.py"]


@pytest.mark.parametrize("inside", ["", "scripts"], ids=["run with -m", "run in the folder of the entry"])
def test_modules_are_found_from_where_a_package_without_init_is_run(
    inside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A generator of theirs had no probes: what bodies had drawn from it was refused at each resume."""
    for name in ("scripts", "lib", "numpy"):
        (tmp_path / name).mkdir()
    (tmp_path / "scripts" / "main.py").write_text("import numpy\nfrom lib.data import loader\n")
    (tmp_path / "lib" / "data.py").write_text("")
    (tmp_path / "numpy" / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path / inside)

    names = [Path(file).name for file, _tree in sources(tmp_path / "scripts" / "main.py")]

    assert sorted(names) == ["data.py", "main.py"]


def test_of_a_program_that_is_installed_its_own_package_alone_is_read(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "steps.py").write_text("import library\n")
    (package / "main.py").write_text("import library\nfrom package import steps\n")
    (tmp_path / "site-packages" / "library.py").write_text("")

    names = [Path(file).name for file, _tree in sources(package / "main.py")]

    assert sorted(names) == ["__init__.py", "main.py", "steps.py"]


# Which loop is the batch loop.


@pytest.mark.parametrize(
    ("header", "step"),
    [
        ("optimizer in (slow, quick)", "scaler.step(optimizer)"),
        ("opt in (slow, quick)", "opt.step()"),
        ("net, g_opt in pairs", "scaler.step(g_opt)"),
    ],
)
def test_a_loop_that_steps_several_optimizers_is_known_by_its_names(header: str, step: str, tmp_path: Path) -> None:
    check(
        tmp_path,
        main=f"""
        for epoch in range(3): #E1
            for x, y in loader: #B1
                loss_fn(net(x), y).backward()
                for {header}:
                    {step} #U1
        """,
    )


def test_a_loop_over_steps_has_no_epoch_loop(tmp_path: Path) -> None:
    structure = check(
        tmp_path,
        main=with_step("""
        step = 0
        while step < 100: #B1
            x, y = next(iterator) #L1
            train_step(x, y) #U1
            step += 1
        """),
    )

    assert structure.nests[0].batch_loop.kind == "while"
    assert structure.nests[0].loader == "next(iterator)"


def test_an_async_loop_is_found_and_left_to_the_rewriter_to_refuse(tmp_path: Path) -> None:
    structure = check(
        tmp_path,
        main=with_step("""
        async def train():
            for epoch in range(3): #E1
                async for x, y in dataset: #B1
                    train_step(x, y) #U1
        """),
    )

    path = tmp_path / "main.py"
    with pytest.raises(CannotRewrite, match="async for"):
        edits_for(path.read_bytes(), structure.nests, str(path.resolve()))


# Where the batch is loaded.


COUNTING = ["for i in range(3):", "for i in tqdm(range(3)):", "for i in trange(3):", "while i < 3:"]
LOADING = [
    "x, y = next(it) #L1",
    "x, y = loader.next() #L1",
    "batch = loader.get_batch(i) #L1\n    x, y = batch",
    "x = data[i * 4:(i + 1) * 4] #L1\n    y = 1",
    "x = data[i * 4:(i + 1) * 4]\n    y = labels[i * 4:(i + 1) * 4] #L1",
    "start = i * 4\n    x, y = data[start:start + 4] #L1",
    "index = np.random.randint(0, 10, 4)\n    x, y = data[index] #L1",
    "x, y = next(it) #L1\n    x = tf.cast(x, 'float32')",
    "x, y = next(it) #L1\n    x = augment(x)\n    y = y[0]",
    "try:\n        x, y = loader.next() #L1\n    except StopIteration:\n        continue",
    "if it is None:\n        it = iter(data)\n    x, y = next(it) #L1",
    "print(i)\n    x, y = next(it) #L1\n    print(x)",
    "x: object = next(it) #L1\n    y = x[1]",
    "with lock:\n        x, y = queue.get() #L1",
    "x, y = [next(it) for _ in range(2)] #L1",
    "x = [n for n in range(3)]\n    x, y = next(it) #L1",
]
LOADED_BY_THE_HEADER = [
    ("for x, y in dataset:", "pass"),
    ("for x, y in dataset:", "x = augment(x)"),
    ("for batch in dataset:", "x, y = batch['x'], batch['y']"),
    ("for i, (x, y) in enumerate(dataset):", "x = tf.reshape(x, [-1])"),
    ("for i, batch in zip(range(10), dataset):", "x, y = unpack(batch)"),
    ("for _, (x, y) in zip(range(10), dataset):", "with writer.as_default(): tf.summary.scalar('x', x)"),
    ("for i in range(10):", "x = y = None"),
    ("for i in range(10):", "rate = i / 10"),
]


@pytest.mark.parametrize(("header", "body"), [*product(COUNTING, LOADING), *LOADED_BY_THE_HEADER])
def test_the_statement_that_loads_is_found_or_none_where_the_header_loads(tmp_path: Path, header: str, body: str) -> None:
    check(tmp_path, main=with_step(f"\n{header} #B1\n    {body}\n    train_step(x, y) #U1\n"))


TORCH_STEPS = {
    "backward": "loss = loss_of(model(x), y)\n    loss.backward()\n    optimizer.step() #U1",
    "scaler": "loss = loss_of(model(x), y)\n    scaler.scale(loss).backward()\n    scaler.step(optimizer) #U1\n    scaler.update()",
    "gradients asked for": "grads = torch.autograd.grad(loss_of(model(x), y), weights)\n    optimizer.step() #U1",
    "closure": "def closure():\n        return loss_of(model(x), y)\n    optimizer.step(closure) #U1",
    "every third": "loss_of(model(x), y).backward()\n    if i % 3 == 0:\n        opt.step() #U1",
}


@pytest.mark.parametrize("load", ["x, y = next(it) #L1", "n = gradient_accumulation_steps\n    x, y = self.get(it, n) #L1"])
@pytest.mark.parametrize("step", TORCH_STEPS.values(), ids=TORCH_STEPS)
def test_a_batch_flows_into_the_step_of_an_optimizer_by_way_of_its_loss(tmp_path: Path, step: str, load: str) -> None:
    check(tmp_path, main=f"\nfor i in range(3): #B1\n    {load}\n    {step}\n")


@pytest.mark.parametrize(
    ("made", "used"),
    [
        ("adam = torch.optim.Adam(weights)", "adam"),
        ("import torch.optim as optim\n    self.inner = optim.SGD(weights)", "self.inner"),
        ("a, b = torch.optim.SGD(weights), torch.optim.SGD(biases)", "b"),
        ("trainer = getattr(torch.optim, args.name)(weights)", "trainer"),
        ("from torch.optim import AdamW\n    trainer = AdamW(weights)", "trainer"),
        ("from torch.optim import AdamW as Rule\n    trainer = Rule(weights)", "trainer"),
    ],
)
def test_an_optimizer_is_known_by_its_class_whatever_its_name(tmp_path: Path, made: str, used: str) -> None:
    """The second of two loops had no probes, as the run finds out by itself about the first one alone."""
    check(
        tmp_path,
        main=f"""
def run(self):
    import torch
    {made}
    for x, y in pairs: #B1
        loss_of(model(x), y).backward()
        {used}.step() #U1
        self.clock = torch.optim.lr_scheduler.StepLR(weights)
    for x in range(3):
        self.clock.step()
""",
    )


@pytest.mark.parametrize(
    ("before", "body"),
    [
        ("", "y_pred = model(x)\n    loss = criterion(y_pred, y)"),
        ("", "goodness = self.forward(x).pow(2).mean(1)\n    loss = torch.log1p(goodness).mean()"),
        ("", "loss = model(x, y)"),
        ("", "loss = model(data[i])"),
        ("", "out = model(data[i : i + 8])\n    loss = criterion(out, y[i : i + 8])"),
        ("", "loss = criterion(classify(data[i]), y[i])"),
        ("", "loss = ((weights * data[i]).sum() - y[i]) ** 2"),
        ("", "loss = model(next(it)) #L1"),
        ("adam = torch.optim.Adam(classify.parameters())", "out = classify(x[i : i + 8])\n    loss = loss_of(out, y[i : i + 8])"),
        ("self.actor.train()", "out = self.actor(x[i : i + 8])\n    loss = loss_of(out, y[i : i + 8])"),
        ("w = torch.randn(4, 2, requires_grad=True)", "out = x[i : i + 8] @ w\n    loss = loss_of(out, y[i : i + 8])"),
        ("w = torch.nn.Parameter(torch.zeros(4))", "out = (w * x[i]).sum()\n    loss = (out - y[i]) ** 2"),
        ("w = torch.zeros(4).requires_grad_()", "out = w * x[i]\n    loss = (out - y[i]).sum()"),
    ],
)
def test_a_forward_pass_over_all_data_and_what_is_computed_by_weights_are_no_loads(tmp_path: Path, before: str, body: str) -> None:
    step = "loss.backward()\n    optimizer.step() #U1"
    check(tmp_path, main=f"import torch\n{before}\nfor i in range(0, 24, 8): #B1\n    {body}\n    {step}\n")


# Programs without a nest.


def test_a_program_that_only_fits_has_fit_lines_and_no_nests(tmp_path: Path) -> None:
    structure = check(
        tmp_path,
        main="""
        import model
        net = model.build()
        net.compile("adam", "mse")
        for trial in range(3):
            net.fit(x, y)
        fit(x)
        """,
        model="""
        import keras

        class Net(keras.Model):
            def train_step(self, data):
                self.optimizer.apply_gradients(self.gradients(data))

        def build():
            model = Net()
            model.fit_generator(warm_up)
            return model
        """,
    )

    assert sorted(fit.place for fit in structure.fits) == ["main.py:6", "model.py:10"]


@pytest.mark.parametrize(("imports", "is_told"), [("import torch", False), ("import jax", False), ("import torch, keras", True)])
def test_beside_a_framework_without_keras_a_fit_is_another_librarys(tmp_path: Path, imports: str, is_told: bool) -> None:
    structure = check(tmp_path, main=f"{imports}\nx = StandardScaler().fit(data).transform(data)\n")

    assert bool(structure.fits) is is_told


@pytest.mark.parametrize("text", ["", "x = 1\n", "for x in range(3):\n    print(x)\n", "model.predict(x)\n", "for\n"])
def test_a_program_without_training_has_no_nests(tmp_path: Path, text: str) -> None:
    structure = check(tmp_path, main=text)

    assert structure.nests == ()
    assert structure.fits == ()


@pytest.mark.parametrize(
    ("header", "loader"),
    [
        ("for x, y in data", "data"),
        ("for i, (x, y) in enumerate(data, 1)", "data"),
        ("for i, (x, y) in tqdm(enumerate(data.take(5)), total=5)", "data"),
        ("for (x, y), w in zip(data.prefetch(2), weights[:100])", "(data, weights)"),
        ("for x, y in make_batches(path, 32)", "make_batches(path, 32)"),
        ("for x, y in self.loaders['train'].batch(8)", "self.loaders['train']"),
        ("for x, y in iter(data.shuffle(9).repeat())", "data"),
    ],
)
def test_the_loader_is_what_the_batches_come_from(tmp_path: Path, header: str, loader: str) -> None:
    (tmp_path / "main.py").write_text(with_step(f"{header}:\n    train_step(x, y)\n"))

    (nest,) = analyse(tmp_path / "main.py").nests

    assert nest.loader == loader


def test_a_loop_over_files_between_epochs_and_batches_is_no_epoch_loop_and_that_is_said(tmp_path: Path) -> None:
    structure = check(
        tmp_path,
        main=with_step("""
        for epoch in range(3): #E1
            for name in files:
                x = load(name)
                for batch in x: #B1
                    train_step(batch, batch) #U1
        """),
    )

    assert "goes over parts of the data" in structure.nests[0].remarks[0]


def test_a_loop_in_a_train_step_that_only_fit_calls_is_no_batch_loop(tmp_path: Path) -> None:
    text = """
    class Gan(keras.Model):
        def train_step(self, real):
            for i in range(3):
                noise = tf.random.normal([16, 100])
                self.optimizer.apply_gradients(zip(self.gradients(real, noise), self.trainable_variables))
    Gan().fit(data)
    """

    assert check(tmp_path, main=text).fits[0].place == "main.py:7"


IN_THE_ARGUMENT = """
for epoch in range(3): #E1
    source = iter(data)
    for _ in range(10): #B1
        total += train_step(*{}) #L1 #U1
"""
LOADERS = {
    "a range that has a name is none": ("epochs = range(3)\nfor epoch in epochs: #B1\n    train_step(x, y) #U1\n", ""),
    "a name that is a range only at times": (
        "data = range(3)\ndata = load_data()\nfor x, y in data: #B1\n    train_step(x, y) #U1\n",
        "data",
    ),
    "an index from the header": (
        "order = rng.permutation(10)\nfor i in order: #B1\n    x, y = data[i] #L1\n    train_step(x, y) #U1\n",
        "data[i]",
    ),
    **{call: (IN_THE_ARGUMENT.format(call), call) for call in ("next(source)", "source.get_next()", "sample_batch(rng, 32)")},
}
"""Programs whose loader is not plain in the header, with it."""


@pytest.mark.parametrize(("program", "loader"), LOADERS.values(), ids=LOADERS)
def test_the_loader_is_found_where_the_header_does_not_name_it(program: str, loader: str, tmp_path: Path) -> None:
    assert check(tmp_path, main=with_step(program)).nests[0].loader == loader


@pytest.mark.parametrize(("call", "arguments"), [
    ("net.fit(x, y, 32, 5)", {"x": "x", "y": "y", "batch_size": "32", "epochs": "5"}),
    ("net.fit(data, epochs=N, steps_per_epoch=None)", {"x": "data", "epochs": "N"}),
    ("self.net.fit(*pair, verbose=0, **options)", {"more": "**options"}),
    ("net.fit_generator(make(1), callbacks=[stop])", {"x": "make(1)", "callbacks": "[stop]"}),
])  # fmt: skip
def test_the_arguments_of_fit_that_matter_are_named(call: str, arguments: dict[str, str], tmp_path: Path) -> None:
    (fit,) = check(tmp_path, main=f"{call}\n").fits

    assert fit.arguments == arguments
    assert fit.function == call.partition("(")[0]


@pytest.mark.parametrize("noise", ["tf.random.uniform([32, 8])", "rng.standard_normal((32, 8)) * 0.1", "np.random.randn(32, 8)"])
def test_noise_that_is_drawn_after_the_batch_was_loaded_is_no_load(noise: str, tmp_path: Path) -> None:
    check(
        tmp_path,
        main=with_step(f"""
        for step in range(100): #B1
            x = next(source) #L1
            y = {noise}
            train_step(x, y) #U1
        """),
    )
