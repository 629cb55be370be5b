"""The closed codec of Python state: object graph -> data, and back into the live objects, in place.

No pickle: only the kinds listed in encoder and decoder go in, and reading runs no code from the file (classes are
looked up among modules that the program has already imported; none is imported by name). Shared references and cycles
are kept. Objects that do not fit (models, threads, open files, generators) stay as the process has them; when the loop
made such an object itself, so that a resumed process would not have it, it is named in `Encoded.not_captured`.

The graph is a list of nodes `[kind, ...]`; an item is a scalar (None, bool, int of 64 bits, float, str, bytes) or a
reference, a list of one node number.
"""
