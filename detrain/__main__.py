"""`python -m detrain` is the command `detrain`."""

import sys

from detrain.cli import main

if __name__ == "__main__":
    sys.exit(main())
