"""Sites in TensorFlow's steps, and the faults and measurements there."""
