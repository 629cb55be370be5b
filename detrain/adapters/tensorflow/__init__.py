"""TensorFlow and Keras."""
