#!/usr/bin/env python
# coding: utf-8

# # Digits with a tiny CNN

# In[1]:


import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits


# In[2]:


digits = load_digits()
X = digits.images[:400, :, :, np.newaxis] / 16.
y = digits.target[:400]
X.shape, y.shape


# In[3]:


model = tf.keras.Sequential([
    tf.keras.layers.Conv2D(8, 3, activation='relu', input_shape=(8, 8, 1)),
    tf.keras.layers.MaxPool2D(),
    tf.keras.layers.Flatten(),
    tf.keras.layers.Dense(10),
])
model.compile(optimizer=tf.keras.optimizers.Adam(0.005), loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))


# ## Training

# In[7]:


history = []
for epoch in range(3):  # <- epoch loop
    perm = np.random.permutation(len(X))
    for i in range(0, len(X), 80):  # <- batch loop
        history.append(model.train_on_batch(X[perm[i:i+80]], y[perm[i:i+80]]))  # <- load, update
    print(epoch, np.mean(history[-5:]))


# In[8]:


(model.predict(X, verbose=0).argmax(-1) == y).mean()
