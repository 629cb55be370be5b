from sklearn.datasets import load_digits
from tensorflow import keras
import numpy as np

imgs, labels = load_digits(return_X_y=True)
imgs = imgs.reshape(-1, 8, 8, 1)[:320] / 16.0
labels = keras.utils.to_categorical(labels[:320], 10)

model = keras.Sequential()
model.add(keras.Input((8, 8, 1)))
model.add(keras.layers.Conv2D(6, 3, activation='relu'))
model.add(keras.layers.Flatten())
model.add(keras.layers.Dense(10, activation='softmax'))
model.compile('adam', 'categorical_crossentropy', metrics=['accuracy'])

bs = 64
for e in range(3):  # <- epoch loop
  L = []
  for X, Y in zip(np.array_split(imgs, len(imgs) // bs), np.array_split(labels, len(labels) // bs)):  # <- batch loop
    l, acc = model.train_on_batch(X, Y)  # <- update
    L.append(l)
  print('epoch', e, 'loss', np.mean(L), 'acc', acc)
