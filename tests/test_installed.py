"""What is installed: as `importlib.metadata` says it."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from detrain.base.installed import entry_points, versions

GROUP = "detrain.frameworks"


def test_versions_are_those_of_the_standard_library() -> None:
    names = {each.metadata["Name"] for each in metadata.distributions()}

    assert versions([*names, "no-such-package"]) == {name: metadata.version(name) for name in names}


def test_a_package_is_found_however_its_name_is_written() -> None:
    assert set(versions(["msgspec", "MsgSpec", "import_linter", "Import.Linter"])) == {
        "msgspec",
        "MsgSpec",
        "import_linter",
        "Import.Linter",
    }


@pytest.mark.parametrize(("end", "file"), [("dist-info", "METADATA"), ("egg-info", "PKG-INFO")])
def test_what_is_installed_later_is_seen(end: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    assert entry_points(GROUP) == []
    about = tmp_path / f"Some.Thing-1.2.{end}"
    about.mkdir()
    (about / file).write_text("Metadata-Version: 2.1\nName: Some.Thing\nVersion: 1.2\n\nVersion: 3\n")
    (about / "entry_points.txt").write_text(f"[{GROUP}]\nthing = some.thing:NAMES\n")

    assert versions(["some-thing"]) == {"some-thing": "1.2"}
    assert entry_points(GROUP) == list(metadata.entry_points(group=GROUP)) != []


def test_the_first_on_the_path_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("1", "2"):
        about = tmp_path / version / f"thing-{version}.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: thing\nVersion: {version}\n")
        monkeypatch.syspath_prepend(tmp_path / version)

    assert versions(["thing"]) == {"thing": "2"} == {"thing": metadata.version("thing")}


def test_what_another_finder_finds_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A package may lie in an archive, or be installed by what finds it itself."""
    about = tmp_path / "thing-4.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 4\n")
    (about / "entry_points.txt").write_text(f"[{GROUP}]\nthing = thing:NAMES\n")

    class Finder:
        @staticmethod
        def find_distributions(context: metadata.DistributionFinder.Context) -> list[metadata.Distribution]:
            return [metadata.Distribution.at(about)] if context.name in (None, "thing") else []

        @staticmethod
        def find_spec(*_: object) -> None:
            return None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    monkeypatch.syspath_prepend(tmp_path / "so that it is looked again")

    assert versions(["thing", "numpy"]) == {"thing": "4", "numpy": metadata.version("numpy")}
    assert [each.name for each in entry_points(GROUP)] == ["thing"]


def test_the_command_starts_without_what_it_does_not_need() -> None:
    heavy = {"importlib.metadata", "email", "numpy", "h5py", "rich", "libcst"}
    program = "import sys, detrain.cli.run; print(*sys.modules)"

    loaded = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}; {program}"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert heavy.isdisjoint(loaded.stdout.split())
