"""The first file of the training process; a file, because `-m` would let modules in the current folder hide detrain's
own.
"""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # this file's folder; the program's takes its place later

from detrain.runtime.session.launch import main

main()
