"""From the user's program to its process: find it and its loops, settle how it runs, become it."""
