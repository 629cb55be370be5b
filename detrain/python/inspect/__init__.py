"""What the interpreter tells: frames, names, which names are read, whose an object is."""
