"""Train the same network on scikit-learn's handwritten digits through Model.fit."""

import argparse
import hashlib
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

from train import make_data, make_model


class Gap(keras.callbacks.Callback):
    """Keep the gap between training and validation loss of each epoch."""

    def __init__(self):
        super().__init__()
        self.gaps = []

    def on_epoch_end(self, epoch, logs=None):
        self.gaps.append(logs["val_loss"] - logs["loss"])
        print(f"epoch {epoch} loss {logs['loss']:.6f} val_loss {logs['val_loss']:.6f} widest gap {max(self.gaps):.6f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    train_set, held_out_set = make_data(args.batch_size)
    model = make_model()
    model.compile(
        optimizer=keras.optimizers.Adam(2e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    callbacks = [
        Gap(),
        keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau(factor=0.3, patience=1),
    ]
    history = model.fit(train_set, validation_data=held_out_set, epochs=args.epochs, callbacks=callbacks, verbose=0)
    print("learning rates", " ".join(f"{rate:.2e}" for rate in history.history["learning_rate"]))
    print("weights", hashlib.sha256(b"".join(np.asarray(v).tobytes() for v in model.variables)).hexdigest())


if __name__ == "__main__":
    main()
