import numpy as np
import tensorflow as tf
from sklearn.model_selection import StratifiedKFold

rng = np.random.default_rng(1)
X = rng.normal(size=(90, 5)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int32")


def create():
    m = tf.keras.Sequential([tf.keras.Input((5,)), tf.keras.layers.Dense(8, "relu"), tf.keras.layers.Dense(1, "sigmoid")])
    m.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return m


accuracies = []
for fold, (train_index, test_index) in enumerate(StratifiedKFold(n_splits=2).split(X, Y)):
    model = create()
    hist = model.fit(X[train_index], Y[train_index], epochs=2, batch_size=15, verbose=0)
    loss, acc = model.evaluate(X[test_index], Y[test_index], verbose=0)
    accuracies.append(acc)
    print("fold", fold, "train", hist.history["loss"], "test", round(loss, 4), round(acc, 3))
print("mean accuracy", np.mean(accuracies))
