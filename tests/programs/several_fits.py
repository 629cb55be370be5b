# Three calls of fit one after another, compiled anew in between, with callbacks that go on from one to the next.
import hashlib

import keras
import numpy as np

x = np.random.normal(size=(64, 6)).astype("float32")
y = (x.sum(axis=1) > 0).astype("float32")
body = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.2)])
model = keras.Sequential([body, keras.layers.Dense(1, activation="sigmoid")])


class Log(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen, self.losses = 0, []

    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1

    def on_epoch_end(self, epoch, logs=None):
        self.losses.append(logs["loss"])
        print(f"epoch {epoch} seen {self.seen} loss {logs['loss']!r} {np.random.rand()!r}", flush=True)


log, plateau = Log(), keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=0.01)
model.compile(keras.optimizers.Adam(1e-2), "binary_crossentropy", metrics=["accuracy"])
first = model.fit(x, y, batch_size=16, epochs=2, verbose=0, callbacks=[log, plateau])
body.trainable = False
model.compile(keras.optimizers.SGD(1e-1, momentum=0.9), "binary_crossentropy")
second = model.fit(x[::-1], y[::-1], batch_size=16, epochs=4, initial_epoch=2, verbose=0, callbacks=[log, plateau], validation_split=0.25)
third = model.fit(x, y, batch_size=32, epochs=2, verbose=0, shuffle=False, callbacks=[log])
weights = hashlib.sha256(b"".join(np.asarray(v).tobytes() for v in model.variables)).hexdigest()
print("weights", weights, log.seen, [h.history["loss"][-1] for h in (first, second, third)], len(log.losses))
