"""What a process has beside objects: random streams, settings, environment, signals, threads and children."""
