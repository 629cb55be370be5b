"""The state of a process beside objects: random streams, settings, environment, signals, threads and children."""
