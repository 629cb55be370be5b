"""The rewriting of a source, by its structure, into a source with probes: in memory unless the user asks for a file."""
