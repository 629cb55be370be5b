"""The documentation reads easily: the median sentence of each part, and the README's length."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _sentences(page: str) -> list[str]:
    """The sentences of a page's prose: no code, tables, headings or links' targets."""
    text = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    text = re.sub(r"`[^`]*`", "code", text)
    text = re.sub(r"^( *\|.*|#+ .*|\[\w+\]: .*)$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^ *[-*>] |^ *\d+\. ", "\n\n", text, flags=re.MULTILINE)
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
    found = (sentence for part in paragraphs for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z`*])", part))
    return [sentence for sentence in found if len(sentence.split()) > 2]


@pytest.mark.parametrize("part", ["tutorials", "how-to", "reference", "explanation"])
def test_the_median_sentence_of_each_part_is_short(part: str) -> None:
    sentences = [sentence for page in (ROOT / "docs" / part).glob("*.md") for sentence in _sentences(page.read_text())]

    assert len(sentences) > 20
    assert median(len(sentence.split()) for sentence in sentences) <= 18


def test_the_readme_is_short() -> None:
    readme = (ROOT / "README.md").read_text()

    assert len(readme.splitlines()) <= 150
    assert median(len(sentence.split()) for sentence in _sentences(readme)) <= 18
