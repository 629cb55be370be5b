"""Frames: the locals of suspended frames are written, whatever the frame and the Python, and user code is told from
libraries.
"""

import gc
import json
import os
import subprocess
import sys
import sysconfig
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import detrain
from detrain.python.inspect.frames import has_known_frames, is_user_file, set_program, user_frames, write_locals
from tests.runtime import frame_cases, interpreters


@pytest.mark.parametrize("case", frame_cases.CASES)
def test_locals(case):
    frame_cases.CASES[case]()


@pytest.mark.parametrize("version", interpreters.OTHERS)
def test_locals_under_another_python(version):
    done = interpreters.run_module(version, "tests.runtime.frame_cases")
    assert (done.stdout.strip(), done.stderr, done.returncode) == (str(len(frame_cases.CASES)), "", 0)


@given(st.dictionaries(st.sampled_from("abcde"), st.integers(), max_size=5))
def test_written_names_have_their_values_and_the_others_theirs(values):
    a = b = c = d = e = "old"

    def hold():
        return a, b  # a and b are cells

    write_locals(sys._getframe(), values)
    assert dict(zip("abcde", (a, b, c, d, e), strict=True)) == dict.fromkeys("abcde", "old") | values
    assert hold() == (a, b)


@pytest.mark.parametrize(
    "name",
    ["", "<string>", "<frozen runpy>", "<stdin>", json.__file__, os.__file__, np.__file__, pytest.__file__, detrain.__file__],
)
def test_python_libraries_and_detrain_are_not_the_users(name):
    assert not is_user_file(name)


def test_what_autograph_generates_is_not_the_users(tmp_path):
    assert not is_user_file(str(tmp_path / "__autograph_generated_filex1.py"))
    assert not any(map(is_user_file, ("/proc/meminfo", "/proc/self/stat", "/sys/class/thermal")))


@pytest.fixture
def program(tmp_path):
    """The folder of a program's entry."""
    folder = tmp_path / "program"
    set_program(str(folder / "train.py"))
    yield folder
    set_program("")


@pytest.mark.parametrize("variable", ["TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "NUMBA_CACHE_DIR"])
@pytest.mark.parametrize("cache", ["caches/kernels", "program/.cache"])
def test_what_libraries_compile_into_their_caches_is_theirs(variable, cache, program, tmp_path, monkeypatch):
    monkeypatch.setenv(variable, str(tmp_path / cache))

    assert not is_user_file(str(tmp_path / cache / "ab" / "cabc.py"))
    assert is_user_file(str(tmp_path / f"{cache}-of-mine" / "train.py"))
    assert is_user_file(str(program / "train.py"))


def test_a_cache_that_the_program_lies_in_is_no_cache(program, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))

    assert is_user_file(str(program / "train.py"))
    assert is_user_file(str(program / "models" / "net.py"))
    assert is_user_file(str(tmp_path / "data" / "rows.py"))


def test_a_cache_that_is_named_later_is_known_by_then(program, tmp_path, monkeypatch):
    assert is_user_file(str(tmp_path / "first.py"))

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "kernels"))

    assert not is_user_file(str(tmp_path / "kernels" / "ab" / "cabc.py"))


def test_what_is_compiled_beside_its_source_is_no_file_of_the_users(tmp_path):
    assert not is_user_file(str(tmp_path / "__pycache__" / "fast.cp311.nbi"))


def test_a_folder_in_which_an_installer_has_left_its_notes_holds_libraries(program, tmp_path, monkeypatch):
    """As `pip install --target` makes one, on PYTHONPATH. One that the program lies in holds its files, too."""
    for folder in (tmp_path / "target", program):
        monkeypatch.syspath_prepend(folder)
        (folder / "six-1.17.dist-info").mkdir(parents=True)
        (folder / "six-1.17.dist-info" / "RECORD").touch()

    assert not is_user_file(str(tmp_path / "target" / "chex" / "types.py"))
    assert is_user_file(str(tmp_path / "targets" / "types.py"))
    assert is_user_file(str(program / "train.py"))
    assert is_user_file(str(program / "models" / "net.py"))


def test_libraries_of_another_environment_on_the_path_are_not_the_users(tmp_path):
    code = "import sys; from detrain.python.inspect.frames import is_user_file as user; print(*map(user, sys.argv[1:]))"
    libraries = tmp_path / "site-packages"
    path = os.pathsep.join([str(libraries), str(tmp_path / "own"), str(Path(detrain.__file__).parent.parent)])

    done = subprocess.run(
        [sys.executable, "-c", code, libraries / "six.py", tmp_path / "own" / "model.py"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == "False True\n", done.stderr


@pytest.mark.parametrize("folder", ["stdlib", "purelib", "platlib"])
def test_the_folders_of_libraries_are_known_also_through_a_link(tmp_path, folder):
    link = tmp_path / "link"
    link.symlink_to(sysconfig.get_paths()[folder])
    assert not is_user_file(str(link / "anything.py"))


def test_the_users_files_are_the_users(tmp_path):
    library = Path(sysconfig.get_paths()["stdlib"])
    assert is_user_file(__file__)
    assert is_user_file(str(tmp_path / "train.py"))
    assert is_user_file("train.py")
    assert is_user_file(str(library.with_name(library.name + "-mine") / "train.py"))


def test_user_frames_come_innermost_first():
    def inner():
        return user_frames(sys._getframe())

    def outer():
        return inner()

    assert [frame.f_code.co_name for frame in outer()[:3]] == ["inner", "outer", "test_user_frames_come_innermost_first"]


def test_what_a_caller_holds_does_not_live_on_where_frames_have_been_looked_at() -> None:
    """The iterator of a bar did, so that its count came late."""

    def call() -> weakref.ref[set[int]]:
        held = {1}
        has_known_frames.__wrapped__()
        return weakref.ref(held)

    gc.disable()
    try:
        assert call()() is None
    finally:
        gc.enable()
