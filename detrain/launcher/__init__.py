"""From the user's program to its process: find the program and its loops, settle how it runs, become it."""
