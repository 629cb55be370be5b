"""Models and optimizers that a loop makes: each program is killed at a cut, run again, and compared with the
whole run.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from detrain.base.errors import NotCapturable
from tests.e2e.forkserver import Server
from tests.e2e.programs import TENSORFLOW
from tests.e2e.runs import after_deaths, compared

PRELUDE = TENSORFLOW("""\
import copy
from keras import layers

x = np.random.default_rng(0).normal(size=(30, 5)).astype("float32")
y = (x.sum(1) > 0).astype("int32")
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(30).batch(6)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

def net(width=8):
    return keras.Sequential([keras.Input((5,)), layers.Dense(width, "relu"), layers.Dropout(0.3), layers.BatchNormalization(),
                             layers.Dense(2)])

def train(model, optimizer, a, b):
    with tf.GradientTape() as tape:
        loss = loss_of(b, model(a, training=True))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss

def turn(epoch, step, *models):
    print(epoch, step, *(float(loss_of(y, model(x))) for model in models), flush=True)
    die(f"{epoch}:{step}")
""")

EXACT = {
    "a clone of the best model so far": """
model, optimizer, best_model, best = net(), keras.optimizers.Adam(0.01), None, 9.0
for epoch in range(4):
    for step, (a, b) in enumerate(data):
        loss = float(train(model, optimizer, a, b))
        if loss < best:
            best, best_model = loss, keras.models.clone_model(model)
            best_model.set_weights(model.get_weights())
            best_model.trainable = False
        turn(epoch, step, model, best_model)
show(*model.variables, *best_model.variables, *optimizer.variables)
""",
    "a model that is loaded, and goes on with an optimizer of its own": """
model, optimizer, best = net(), keras.optimizers.Adam(0.05), 9.0
for epoch in range(4):
    for step, (a, b) in enumerate(data):
        loss = float(train(model, optimizer, a, b))
        turn(epoch, step, model)
    if loss < best:
        best = loss
        model.save("best.keras")
    else:
        model = keras.models.load_model("best.keras")
        optimizer = keras.optimizers.Adam(0.05 / (epoch + 1))
show(*model.variables, *optimizer.variables)
""",
    "an ensemble of snapshots, one of a compiled model": """
model, optimizer, ensemble, by_name = net(), keras.optimizers.SGD(0.1, momentum=0.9), [], {}
for epoch in range(4):
    for step, (a, b) in enumerate(data):
        train(model, optimizer, a, b)
        if step == 2:
            snapshot = keras.Sequential.from_config(model.get_config())
            snapshot.set_weights(model.get_weights())
            snapshot.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
            ensemble.append(snapshot)
            by_name[snapshot.name] = snapshot.layers[0].kernel
        turn(epoch, step, *ensemble)
    print([each.evaluate(x, y, verbose=0) for each in ensemble], sum(float(tf.reduce_sum(each)) for each in by_name.values()))
show(*model.variables, *(variable for each in ensemble for variable in each.variables))
""",
    "copies of all kinds, compiled, trained by calls for one batch, frozen and predicting": """
model, optimizer, bag = net(), keras.optimizers.Adam(0.01), []
for epoch in range(4):
    for step, (a, b) in enumerate(data):
        train(model, optimizer, a, b)
        if step == 1:
            one = keras.models.clone_model(model) if epoch % 2 else copy.deepcopy(model)
            rate = keras.optimizers.schedules.ExponentialDecay(0.01, 5, 0.9)
            one.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"])
            bag.append(one)
        for each in bag:
            print(each.train_on_batch(a, b), each.optimizer.iterations.numpy())
            each.layers[1].rate = 0.1 * step
            each.layers[0].trainable = step != 2
        turn(epoch, step, model, *bag)
    print([float(each.predict(x, verbose=0).sum()) for each in bag])
    bag = bag[-2:]
show(*model.variables, *(variable for each in bag for variable in (*each.variables, *each.optimizer.variables)))
""",
    "a functional model with another inside, trained by a compiled function that is made for it": """
def wide(width):
    given = keras.Input((5,))
    inner = net(width)
    out = layers.Dense(2)(layers.Concatenate()([inner(given), layers.Dense(3, "tanh")(given)]))
    return keras.Model(given, out)

def stepper(model, optimizer):
    @tf.function
    def step(a, b):
        return train(model, optimizer, a, b)
    return step

width, model, optimizer = 4, wide(4), keras.optimizers.Adam(0.02)
go = stepper(model, optimizer)
for epoch in range(4):
    if epoch in (1, 3):
        width += 2
        model, optimizer = wide(width), keras.optimizers.Adam(0.02, clipnorm=1.0)
        go = stepper(model, optimizer)
    for step, (a, b) in enumerate(data):
        go(a, b)
        turn(epoch, step, model)
show(*model.variables, *optimizer.variables)
""",
}
REFUSED = {
    "layers that two models share, under a moving average": """
model = net()
optimizer, head = keras.optimizers.Adam(0.01, use_ema=True), None
for epoch in range(4):
    for step, (a, b) in enumerate(data):
        train(model, optimizer, a, b)
        if step == 1:
            head = keras.Sequential([keras.Input((5,)), *model.layers[:2], layers.Dense(2)])
        turn(epoch, step, model)
show(*model.variables, *head.variables)
""",
    "an optimizer with a moving average": """
model, optimizer = net(), keras.optimizers.Adam(0.01, use_ema=True)
for epoch in range(4):
    for step, (a, b) in enumerate(data):
        if step == 1:
            optimizer = keras.optimizers.Adam(0.01 / (1 + epoch), use_ema=True)
        train(model, optimizer, a, b)
        turn(epoch, step, model)
show(*model.variables)
""",
    "a loss that two models share": """
model, optimizer, pair = net(), keras.optimizers.Adam(0.01), []
for epoch in range(4):
    for step, (a, b) in enumerate(data):
        train(model, optimizer, a, b)
        if step == 1:
            loss, pair = keras.losses.SparseCategoricalCrossentropy(from_logits=True), [net(), net()]
            for each in pair:
                each.compile("sgd", loss)
        turn(epoch, step, model)
show(*model.variables, *pair[0].variables)
""",
    "a wrapper": """
model, optimizer = net(), keras.optimizers.Adam(0.01)
for epoch in range(4):
    for step, (a, b) in enumerate(data):
        train(model, optimizer, a, b)
        if step == 1:
            other = keras.Sequential([keras.Input((5,)), layers.SpectralNormalization(layers.Dense(2))])
        turn(epoch, step, model, *([other] if epoch else []))
show(*model.variables, *other.variables)
""",
    "a model on which the program puts something": """
model, optimizer, best = net(), keras.optimizers.Adam(0.01), None
for epoch in range(4):
    for step, (a, b) in enumerate(data):
        train(model, optimizer, a, b)
        if step == 1:
            best = keras.models.clone_model(model)
            best.taken_at = epoch
        turn(epoch, step, model)
show(*model.variables, *best.variables)
""",
    "a layer of the program's": """
class Scale(layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],))
    def call(self, rows):
        return rows * self.scale

model, optimizer, best = keras.Sequential([keras.Input((5,)), Scale(), layers.Dense(2)]), keras.optimizers.Adam(0.01), None
for epoch in range(4):
    for step, (a, b) in enumerate(data):
        train(model, optimizer, a, b)
        if step == 1:
            best = keras.models.clone_model(model)
        turn(epoch, step, model)
show(*model.variables, *best.variables)
""",
}


@pytest.mark.slow
@pytest.mark.parametrize(("every", "place"), [("1", "2:1"), ("2b", "2:3")], ids=["at an epoch", "inside of one"])
@pytest.mark.parametrize("name", EXACT)
def test_what_the_loop_makes_is_made_again(name: str, every: str, place: str, server: Server, tmp_path: Path) -> None:
    """That a model is there again, with its optimizer and under its names, only a resumed run shows."""
    text = PRELUDE + EXACT[name]
    _, killed, run = compared(server, tmp_path, text, every=every, at=place, is_tail=True, is_apart=True)

    assert "captured" not in killed.err
    assert "resuming" in run.err


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_made_again_is_said_to_be_refused(name: str, server: Server, tmp_path: Path) -> None:
    """What the run says is only right if a resumed run refuses: so it is killed, and run again."""
    killed, run = after_deaths(server, tmp_path, PRELUDE + REFUSED[name], at="2:3", every="2b")
    info = server.detrain("info", "program.py", cwd=tmp_path)

    assert run.status == NotCapturable.exit_code, run.err
    assert "REFUSED from here on" in killed.err
    assert "REFUSED" in info.out
