"""The commands that put faults into a program: one file each."""
