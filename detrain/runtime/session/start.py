"""The first file of the training process; a file, because `-m` would let modules in the current folder hide detrain's
own.
"""

import gc
import sys

if not sys.flags.safe_path:
    del sys.path[0]  # this file's folder; the program's takes its place later

is_collecting = gc.isenabled()
gc.disable()  # nothing that is imported here is garbage; to look for it takes a tenth of the time

from detrain.runtime.session.launch import main  # noqa: E402 (what is above is for it)

gc.freeze()
gc.unfreeze()  # all that is there is old now: the program's first objects are looked at alone
if is_collecting:
    gc.enable()
main()
