"""The first file of the training process. It runs as a file because with `-m`, modules in the current folder would hide
detrain's own.
"""

import gc
import sys

if not sys.flags.safe_path:
    del sys.path[0]  # this file's folder; the program's takes its place later

is_collecting = gc.isenabled()
gc.disable()  # the imports make no garbage, and the search for it would take a tenth of their time

from detrain.runtime.session.launch import main  # noqa: E402 (the lines above prepare this import)

gc.freeze()
gc.unfreeze()  # detrain's objects now count as old: the next collections look only at the program's new objects
if is_collecting:
    gc.enable()
main()
