"""`python -m detrain` is the command `detrain`."""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # this folder: a file of the program in it may have the name of a module that is imported here

from detrain.cli import main

if __name__ == "__main__":
    sys.exit(main())
