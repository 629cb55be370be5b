"""`detrain explain`: the meaning of an error or a warning, with advice, from the documentation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import click

from detrain.base.errors import UsageError

_PACKAGE: Final = Path(__file__).resolve().parents[1]
_PAGES: Final = {"messages.md": "reference", "read-a-warning.md": "how-to"}
"""The pages, and their folders in the documentation."""
_HEADING: Final = re.compile(r"^#{2,3} (.*)$", re.MULTILINE)
_LINK: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_CODE: Final = re.compile(r"Exit code (\d+)\b")


@click.command()
@click.argument("name", default="")
def command(name: str) -> int:
    """Say what an error or a warning means, and what to do.

    NAME is the word that it prints, or an exit code. Without one, all names are listed.

    \b
    Examples:
      detrain explain diverged
      detrain explain 78
    """
    paragraphs = _paragraphs()
    if not name:
        for known, text in paragraphs.items():
            code = _CODE.match(text)
            click.echo(f"{known:<46}{code.group(1) if code else ''}".rstrip())
        return 0
    by_code = {code.group(1): text for text in paragraphs.values() if (code := _CODE.match(text))}
    found = paragraphs.get(name) or by_code.get(name)
    if found is None:
        raise UsageError(f"nothing is called {name!r}", "`detrain explain` lists what there is")
    from rich.console import Console
    from rich.markdown import Markdown

    Console(highlight=False).print(Markdown(found))
    return 0


def _paragraphs() -> dict[str, str]:
    """Return the text under each heading of the pages, by the heading's anchor."""
    found = {}
    for page, folder in _PAGES.items():
        text = _read(page, folder)
        headings = list(_HEADING.finditer(text))
        for heading, following in zip(headings, [*headings[1:], None], strict=True):
            content = _LINK.sub(r"\1", text[heading.end() : following.start() if following else None]).strip()
            if content and not content.startswith("|"):
                found[heading.group(1).lower().replace(" ", "-")] = content
    return found


def _read(page: str, folder: str) -> str:
    """Return a page's text, as it was installed, or from the documentation of a checkout."""
    installed = _PACKAGE / "pages" / page
    return (installed if installed.is_file() else _PACKAGE.parent / "docs" / folder / page).read_text("utf-8")
