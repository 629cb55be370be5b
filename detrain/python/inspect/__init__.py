"""Facts from the interpreter: frames, names, which names are read, and which code owns an object."""
