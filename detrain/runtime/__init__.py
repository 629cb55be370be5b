"""The code inside the user's process: session, probes, state capture, journal, determinism. Imports no framework."""
