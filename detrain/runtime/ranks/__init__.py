"""Just-in-time checkpoints of a job of several ranks: who notices a death, what is agreed, who saves. Knows no
framework.

`vote` and `machine` decide and do no I/O; `watcher` is the thread that does it for them; `room` is what the program's
own thread calls. The protocol is explained in docs/explanation/just-in-time.md.
"""
