"""Make a release: the version in its files, the changelog's section with its date, wheel and source in `dist/`.

    ./run.sh release 0.2.0

Changes files and builds; commits, tags and uploads nothing, but says how. Refuses where the tree has changes, where the
version is none or no later one, and where nothing is said to have changed.
"""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
PLACES = {
    "pyproject.toml": r'(?m)^version = "(.+)"$',
    "detrain/base/__init__.py": r'(?m)^VERSION: Final = "(.+)"$',
    "CITATION.cff": r"(?m)^version: (.+)$",
}
"""Where the version stands, by file."""
_HEAD = "## [Unreleased]\n"
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")


class RefusedError(Exception):
    """The release cannot be made; the message says why."""


def numbers(version: str) -> tuple[int, ...]:
    """Return a version `1.2.3` as numbers. Raises RefusedError for any other text."""
    found = _VERSION.fullmatch(version)
    if found is None:
        raise RefusedError(f"{version!r} is no version: give three numbers, as 0.2.0")
    return tuple(map(int, found.groups()))


def with_version(text: str, pattern: str, version: str) -> str:
    """Return a file's text with another version. Raises RefusedError unless the pattern is there once."""
    found = list(re.finditer(pattern, text))
    if len(found) != 1:
        raise RefusedError(f"the version stands {len(found)} times where {pattern} is looked for, not once")
    return text[: found[0].start(1)] + version + text[found[0].end(1) :]


def released(changelog: str, version: str, day: datetime.date) -> str:
    """Return a changelog whose unreleased section is that of a version. Raises RefusedError where it has none."""
    before, head, after = changelog.partition(_HEAD)
    if not head:
        raise RefusedError("the changelog has no section [Unreleased]")
    if f"## [{version}]" in changelog:
        raise RefusedError(f"the changelog has a section [{version}] already")
    section, mark, older = after.partition("\n## [")
    if not re.search(r"(?m)^- ", section):
        raise RefusedError("the changelog's section [Unreleased] has no line: nothing has changed")
    section = re.sub(r"(?m)^What will be .*\n", "", section)
    return f"{before}{head}\n## [{version}] - {day.isoformat()}\n{section}{mark}{older}"


def main(arguments: list[str]) -> int:
    """Make the release that the command names."""
    if len(arguments) != 1:
        print("usage: ./run.sh release VERSION", file=sys.stderr)
        return 64
    version = arguments[0]
    try:
        changed = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        if changed:
            raise RefusedError(f"the tree has changes: commit them first\n{changed.rstrip()}")
        log = (ROOT / "CHANGELOG.md").read_text()
        old = re.findall(PLACES["pyproject.toml"], (ROOT / "pyproject.toml").read_text())[0]
        if numbers(version) < numbers(old):
            raise RefusedError(f"{version} is no later version than {old}")
        texts = {ROOT / name: with_version((ROOT / name).read_text(), pattern, version) for name, pattern in PLACES.items()}
        texts[ROOT / "CHANGELOG.md"] = released(log, version, datetime.datetime.now(datetime.UTC).date())
    except RefusedError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    for path, text in texts.items():
        path.write_text(text)
    dist = ROOT / "dist"
    dist.mkdir(exist_ok=True)
    build = "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')"
    subprocess.run([sys.executable, "-c", build], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    for path in sorted(dist.glob(f"detrain-{version}*")):
        print(path.relative_to(ROOT))
    print(f"""look at `git diff`, run .ci/run, then:
  git commit -am "Release {version}" && git tag -a v{version} -m "{version}"
  git push --follow-tags
  python -m twine upload dist/detrain-{version}*""")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
