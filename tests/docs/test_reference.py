"""The reference says what the code says: messages, versions, public names, links."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import detrain
from detrain.base import errors
from detrain.base.framework_names import FRAMEWORKS
from detrain.cli import COMMANDS, FIRST, main

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
MESSAGES = DOCS / "reference/messages.md"
PAGES = sorted({*DOCS.rglob("*.md"), *ROOT.glob("*.md"), ROOT / "ckpt" / "README.md"})


def _all_errors(error: type[errors.DetrainError]) -> Iterator[type[errors.DetrainError]]:
    yield error
    for child in error.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from _all_errors(child)


def _anchors(page: str) -> set[str]:
    """The anchors that GitHub and the site make of headings."""
    headings = re.findall(r"^#{1,6} (.*)$", re.sub(r"```.*?```", "", page, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("error", list(_all_errors(errors.DetrainError)), ids=lambda error: error.slug)
def test_each_error_is_explained_under_the_anchor_that_it_prints(error: type[errors.DetrainError]) -> None:
    slug = error("wrong").printed().rpartition("`detrain explain ")[2].removesuffix("`")
    text = MESSAGES.read_text()

    assert f"\n### {slug}\nExit code {error.exit_code}" in text
    assert f"| {error.exit_code} | [{slug}](#{slug}) |" in text


def test_no_error_is_explained_that_does_not_exist() -> None:
    slugs = {error.slug for error in _all_errors(errors.DetrainError)}

    assert set(re.findall(r"^### (.*)$", MESSAGES.read_text(), re.MULTILINE)) == slugs


def test_each_public_name_is_shown_in_an_example() -> None:
    examples = "\n".join(re.findall(r"```python\n(.*?)```", (DOCS / "reference/api.md").read_text(), re.DOTALL))

    assert [name for name in detrain.__all__ if not re.search(rf"\b{name}\b", examples)] == []


def test_the_doctor_knows_the_versions_that_the_extras_install() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    for each in FRAMEWORKS:
        low, high = (".".join(map(str, version)) for version in each.versions)
        assert f"{each.imported}>={low},<{high}" in extras[each.imported]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_link_between_pages_leads_somewhere(page: Path) -> None:
    text = page.read_text()
    if page.name in ("architecture.md", "changelog.md"):
        return  # they include a page of the root
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        assert not anchor or anchor in _anchors(linked.read_text()), target


def test_without_a_command_the_five_things_that_people_do_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0

    said = capsys.readouterr().out
    assert said == f"{FIRST}\n"
    commands = re.findall(r"^  detrain (\w+)", said, re.MULTILINE)
    assert len(commands) == 5
    assert set(commands) <= set(COMMANDS)


@pytest.mark.parametrize("todo", ["run it again", ""])
def test_what_an_error_says_can_be_read_again_from_what_a_process_has_printed(todo: str) -> None:
    printed = f"epoch 0\n{errors.StoreError('first', 'x').printed()}\n{errors.FaultInvalid('no such bit', todo).printed()}\n"

    assert errors.last_printed(printed) == ("no such bit", todo)
    assert errors.last_printed("Traceback (most recent call last):\n  File x\n") is None
