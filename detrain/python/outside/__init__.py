"""Input from outside the process, and output to it: clock, entropy, files."""
