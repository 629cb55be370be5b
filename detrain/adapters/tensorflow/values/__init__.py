"""TensorFlow's values: how tensors, tables and objects with parts are read and made."""
