# A PyDataset fetched by several workers, whose items draw at random, from np.random and from a stream of the set's own.
import hashlib

import keras
import numpy as np


class Crops(keras.utils.PyDataset):
    def __init__(self, images, labels, **settings):
        super().__init__(**settings)
        self.images, self.labels = images, labels
        self.order, self.rng, self.served = np.arange(len(images)), np.random.default_rng(3), 0

    def __len__(self):
        return len(self.images) // 8

    def __getitem__(self, index):
        chosen = self.order[index * 8 : (index + 1) * 8]
        row, column = np.random.randint(0, 3, 2)
        self.served += 1
        return self.images[chosen, row : row + 6, column : column + 6] + self.rng.normal(scale=0.01), self.labels[chosen]

    def on_epoch_end(self):
        np.random.shuffle(self.order)


images, labels = np.random.normal(size=(48, 8, 8, 1)).astype("float32"), np.random.randint(0, 2, 48)
model = keras.Sequential([keras.Input((6, 6, 1)), keras.layers.Conv2D(4, 3), keras.layers.Flatten(), keras.layers.Dense(1)])
model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True))
crops = Crops(images, labels, workers=3, max_queue_size=4)
history = model.fit(crops, validation_data=Crops(images[:16], labels[:16], workers=2), epochs=4, verbose=0)
print("weights", hashlib.sha256(b"".join(np.asarray(v).tobytes() for v in model.variables)).hexdigest())
print(history.history, crops.served, np.random.rand())
