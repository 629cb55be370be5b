"""The code for Python itself: objects, names, streams, files. It knows no framework."""
