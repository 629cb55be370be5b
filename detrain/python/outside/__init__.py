"""What comes from outside the process and goes there: clock, entropy, files."""
