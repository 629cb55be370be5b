"""What is built is what a stranger gets: the wheel installs clean, its command runs, and a user's mypy sees its types.

Processes, as an installation is one: an environment of its own, which borrows the dependencies of this one.
"""

from __future__ import annotations

import ast
import collections
import datetime
import importlib.util
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import release
from detrain.base import VERSION

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv*", "build", "dist", "ckpt-torch", "ckpt-jax", "*.egg-info", "__pycache__", ".*_cache", "*.h5"
)

USER = """
from detrain import DetrainError, batch_loop, epoch_loop, guard_run, record_batch, record_epoch

guard_run("detect")
for epoch in epoch_loop(range(3)):
    record_epoch(epoch)
    for batch in batch_loop([1.0, 2.0]):
        if record_batch():
            reveal_type(batch)
error: DetrainError = DetrainError("what")
reveal_type(error.exit_code)
epoch_loop(3)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel and a source distribution."""
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("setuptools is not installed")
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"
    shutil.copytree(ROOT, source, symlinks=True, ignore=LEFT_OUT)
    build = "from setuptools import build_meta as b; b.build_sdist('../dist'); b.build_wheel('../dist')"
    (folder / "dist").mkdir()
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    return folder / "dist"


@pytest.fixture(scope="module")
def python(built: Path) -> Path:
    """The interpreter of a fresh environment with the wheel in it."""
    home = built.parent / "venv"
    venv.create(home, with_pip=False)
    packages = next(home.glob("lib/python*/site-packages"))
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        wheel.extractall(packages)  # what pip does with a wheel of pure Python, without its scripts
    others = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "others.pth").write_text("\n".join(others) + "\n")
    return home / "bin" / "python"


def _run(python: Path, *command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, *map(str, command)], cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_wheel_has_the_package_its_types_and_its_license_and_no_tests(built: Path) -> None:
    names = zipfile.ZipFile(next(built.glob("*.whl"))).namelist()

    assert {"detrain/__init__.py", "detrain/py.typed", "detrain/cli/run.py"} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"detrain"}
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "detrain").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == modules


@pytest.mark.slow
def test_the_source_distribution_can_be_built_from(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert {"pyproject.toml", "setup.py", "README.md", "LICENSE", "detrain/py.typed", "docs/reference/messages.md"} <= names


@pytest.mark.slow
def test_the_installed_command_runs_where_there_is_no_source(python: Path, tmp_path: Path) -> None:
    where = _run(python, "-c", "import detrain; print(detrain.__file__)", cwd=tmp_path)
    assert where.stdout.startswith(str(python.parents[1])), where.stderr

    assert "What people do with detrain" in _run(python, "-m", "detrain", cwd=tmp_path).stdout
    assert "Exit code 81." in _run(python, "-m", "detrain", "explain", "in-use", cwd=tmp_path).stdout
    (tmp_path / "train.py").write_text("print('trained')\n")
    run = _run(python, "-m", "detrain", "run", "--bare", "train.py", cwd=tmp_path)
    assert (run.returncode, run.stdout) == (0, "trained\n"), run.stderr


@pytest.mark.slow
def test_a_users_mypy_sees_the_types(python: Path, tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text(USER)

    checked = _run(Path(sys.executable), "-m", "mypy", "--strict", "--python-executable", python, "user.py", cwd=tmp_path)

    lines = checked.stdout.splitlines()
    assert 'Revealed type is "float"' in checked.stdout.replace("builtins.", ""), checked.stdout + checked.stderr
    assert 'Revealed type is "int"' in checked.stdout.replace("builtins.", "")
    errors = [line for line in lines if ": error:" in line]
    assert len(errors) == 1, checked.stdout
    assert '"epoch_loop" has incompatible type "int"' in errors[0]


LOG = """# Changelog

## [Unreleased]
What will be 0.2.0.

### Added
- A thing.

## [0.1.0] - 2026-01-01
- The first.
"""


def test_a_release_dates_what_was_not_released() -> None:
    found = release.released(LOG, "0.2.0", datetime.date(2026, 2, 3))

    new = "## [Unreleased]\n\n## [0.2.0] - 2026-02-03\n"
    assert found == LOG.replace("## [Unreleased]\n", new).replace("What will be 0.2.0.\n", "")
    with pytest.raises(release.RefusedError, match="nothing has changed"):
        release.released(found, "0.3.0", datetime.date(2026, 2, 3))
    with pytest.raises(release.RefusedError, match="has a section"):
        release.released(LOG, "0.1.0", datetime.date(2026, 2, 3))


def test_the_version_of_a_release_stands_once_in_each_of_its_files_and_is_the_same() -> None:
    found = {re.search(pattern, (ROOT / name).read_text())[1] for name, pattern in release.PLACES.items()}  # type: ignore[index]

    assert found == {VERSION}
    for name, pattern in release.PLACES.items():
        text = (ROOT / name).read_text()
        changed = release.with_version(text, pattern, "9.8.7")
        assert release.with_version(changed, pattern, VERSION) == text
    with pytest.raises(release.RefusedError, match="no version"):
        release.numbers("1.2")


def test_the_name_of_a_class_stands_for_one_class() -> None:
    """A name in two rooms makes a reader ask which of them is meant."""
    files = collections.defaultdict(list)
    for path in (ROOT / "detrain").rglob("*.py"):
        for statement in ast.parse(path.read_text()).body:
            if isinstance(statement, ast.ClassDef):
                files[statement.name].append(path.relative_to(ROOT).as_posix())
    assert {name: places for name, places in files.items() if len(places) > 1} == {}
