import time

import numpy as np
import tensorflow as tf
from tensorflow import keras

(inputs, targets) = np.random.rand(128, 20).astype("float32"), np.random.randint(0, 5, 128)
train_dataset = tf.data.Dataset.from_tensor_slices((inputs, targets)).shuffle(1024).batch(32)

model = keras.Sequential([keras.Input(shape=(20,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(5)])
optimizer = keras.optimizers.SGD(learning_rate=1e-2)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
train_acc_metric = keras.metrics.SparseCategoricalAccuracy()

epochs = 2
for epoch in range(epochs):  # <- epoch loop
    print("\nStart of epoch %d" % (epoch,))
    start_time = time.time()
    # Iterate over the batches of the dataset.
    for step, (x_batch_train, y_batch_train) in enumerate(train_dataset):  # <- batch loop
        with tf.GradientTape() as tape:
            logits = model(x_batch_train, training=True)
            loss_value = loss_fn(y_batch_train, logits)
        grads = tape.gradient(loss_value, model.trainable_weights)
        optimizer.apply_gradients(zip(grads, model.trainable_weights))  # <- update
        train_acc_metric.update_state(y_batch_train, logits)
        # Log every 2 batches.
        if step % 2 == 0:
            print("Training loss (for one batch) at step %d: %.4f" % (step, float(loss_value)))
    print("Training acc over epoch: %.4f" % (float(train_acc_metric.result()),))
    train_acc_metric.reset_state()
    print("Time taken: %.2fs" % (time.time() - start_time))
