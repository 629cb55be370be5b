from tensorflow import keras

from .data import batches
from .engine import run_one_epoch


def main():
    net = keras.Sequential([keras.Input((10,)), keras.layers.Dense(12, activation="gelu"), keras.layers.Dense(3)])
    opt = keras.optimizers.AdamW(5e-3)
    for epoch in range(3):  # <- epoch loop
        loss = run_one_epoch(net, opt, batches(seed=epoch))
        print(f"epoch={epoch} loss={loss:.4f}")


if __name__ == "__main__":
    main()
