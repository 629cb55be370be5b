"""What detrain knows of Python itself: objects, names, streams, files. It knows no framework."""
