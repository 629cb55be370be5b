import keras
from sklearn.datasets import load_digits

x, y = load_digits(return_X_y=True)
x = x[:300] / 16.0
y = y[:300]

inputs = keras.Input(shape=(64,))
hidden = keras.layers.Dense(16, activation="relu")(inputs)
hidden = keras.layers.Dropout(0.1)(hidden)
outputs = keras.layers.Dense(10, activation="softmax")(hidden)
model = keras.Model(inputs, outputs)
model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(x, y, batch_size=50, epochs=3, verbose=0, validation_split=0.1)
for epoch, loss in enumerate(history.history["loss"]):
    print(f"epoch {epoch}: {loss:.4f}")
