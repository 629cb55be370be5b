"""Sites in TensorFlow's steps, and what is done there."""
