"""Just-in-time checkpoints of a job of several ranks: how ranks notice a death, agree, and save. Knows no framework.

`vote` and `machine` decide and do no I/O; `watcher` is the thread that does their I/O; the program's own thread calls
`room`. docs/explanation/just-in-time.md explains the protocol.
"""
