"""Values of TensorFlow: how tensors, tables and what is made of parts are read and made."""
