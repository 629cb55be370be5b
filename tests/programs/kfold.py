import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import KFold

X, y = load_digits(n_class=4, return_X_y=True)
X, y = X[:240].astype("float32") / 16, y[:240]
scores = []

for fold, (tr, va) in enumerate(KFold(3, shuffle=True, random_state=0).split(X)):
    model = tf.keras.Sequential([tf.keras.Input((64,)), tf.keras.layers.Dense(12, activation="relu"), tf.keras.layers.Dense(4)])
    opt = tf.keras.optimizers.Adam(0.01)
    train_ds = tf.data.Dataset.from_tensor_slices((X[tr], y[tr])).batch(40)
    for epoch in range(2):  # <- epoch loop
        for xb, yb in train_ds:  # <- batch loop
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(yb, model(xb)))
            opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))  # <- update
        print(f"fold {fold} epoch {epoch} loss {loss.numpy():.4f}")
    scores.append(np.mean(np.argmax(model(X[va]), 1) == y[va]))
    print(f"fold {fold} accuracy {scores[-1]:.3f}")

print("CV: %.3f +- %.3f" % (np.mean(scores), np.std(scores)))
