"""What a checkpoint says of the program: the sources that were executed, whatever is written into their files
meanwhile.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

from detrain.base.byte_digests import digest_source

_PROGRAM = """
import inspect, pathlib, sys
import helper
from detrain.runtime.state.identity import Identity
from detrain.adapters.group import Adapters
for file in (__file__, helper.__file__):
    path = pathlib.Path(file)
    path.write_text("# a line more\\n" + path.read_text().replace("1.0", "100.0"))
    path.touch()
print(Identity({}, Adapters(), may_differ=False).sources())
print(repr(inspect.getsource(helper.step)))
STEP = 1.0
"""


def test_sources_are_those_that_were_executed(tmp_path: Path) -> None:
    """A process, because the launcher changes how its own modules are loaded.

    Bytecode of another text does not count.
    """
    program, helper = tmp_path / "train.py", tmp_path / "helper.py"
    program.write_text(_PROGRAM)
    helper.write_text("def step():\n    return 2.0\n")
    stat = helper.stat()
    subprocess.run([sys.executable, "-c", "import helper"], cwd=tmp_path, check=True)
    helper.write_text("def step():\n    return 1.0\n")
    os.utime(helper, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    expected = {file.name: digest_source(file.read_bytes()) for file in (program, helper)}
    start = (
        "import sys, pathlib, detrain.runtime.session.launch as launch; from detrain.base.config import Config;"
        "config = Config(target=sys.argv[1], is_module=False, entry=sys.argv[1], shown='', arguments=(), program='train', run=1,"
        "home='.', seed=0, threads=1);"
        "launch._watch_sources(config); sys.path.insert(0, ''); launch._run_file(config)"
    )
    done = subprocess.run([sys.executable, "-c", start, program], cwd=tmp_path, check=True, capture_output=True, text=True)
    sources, text = done.stdout.splitlines()
    assert ast.literal_eval(sources) == expected
    assert "return 1.0" in ast.literal_eval(text)
