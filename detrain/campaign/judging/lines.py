"""Lines of a program's output, as far as they are compared: without what changes from run to run.

Left out are lines between `:::` (as in SASSIFI), lines that fit a pattern of the user's, what detrain says, and lines
that a progress bar writes over. Of others, words that are times, or addresses of objects, and words that differ between
two runs without a fault, may be any.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

_COLONS: Final = ":::"
_OURS: Final = "detrain: "
_ANY: Final = "…"
_DIGITS: Final = re.compile(r"\d+")
_UNIT: Final = r"(?:ns|us|µs|ms|s|sec|secs|seconds?|min|minutes?|h|hours?|it/s|s/it|(?:ms|us|s)/(?:step|it|batch|epoch))"
_TIME: Final = re.compile(
    rf"[\[(]?(?:\d+(?:\.\d+)?(?:e-?\d+)?{_UNIT}|\d+:\d\d(?::\d\d)?(?:\.\d+)?|\d{{4}}-\d\d-\d\d(?:T\S*)?|\S*0x[0-9a-f]{{6,}}\S*)[\]),;.]*"
)
_NUMBER: Final = re.compile(r"[\[(]?\d+(?:\.\d+)?(?:e-?\d+)?")
_UNIT_ALONE: Final = re.compile(
    r"(?:ns|us|µs|ms|s|secs?|seconds?|minutes?|hours?|it/s|s/it|(?:ms|us|s)/(?:step|it|batch|epoch))[\]),;.]*"
)


@dataclass
class Masks:
    """Which words of lines differ between runs without a fault.

    A line is known again by its words that are the same in both, with any number for each number in them. So a time
    that was the same in both runs by chance, in one step, is masked by another step's.
    """

    ignored: Sequence[str] = ()
    """Patterns of the user's; lines in which one is found are left out."""
    _varying: dict[str, tuple[re.Pattern[str], set[int]]] = field(default_factory=dict)
    """Patterns of lines that differ, and the numbers of the words that do."""
    _gone: set[str] = field(default_factory=set)
    """Shapes of lines that one of the runs has alone, or at another place."""

    def learn(self, one: str, other: str) -> None:
        """Note by which words and lines two texts, of the same stretch of two runs, differ."""
        for mine, its in zip(self._shown(one), self._shown(other), strict=False):
            words, other_words = mine.split(), its.split()
            if words != other_words and len(words) == len(other_words):
                differing = {place for place, (a, b) in enumerate(zip(words, other_words, strict=True)) if a != b}
                shape = _shape(words, differing)
                self._varying[shape] = re.compile(shape), differing
        while (lines := self.compared(one)) != (others := self.compared(other)):
            counts, other_counts = Counter(lines), Counter(others)
            alone = [line for line in {*lines, *others} if counts[line] != other_counts[line]]
            self._gone |= {_shape(line.split()) for line in alone or lines}  # or their order differs

    def compared(self, text: str) -> list[str]:
        """Return the lines of a text that are compared, with a sign for each word that may be any."""
        found = []
        for line in self._shown(text):
            words = line.split()
            masked: set[int] = set()
            for pattern, places in self._varying.values():
                if pattern.fullmatch(" ".join(words)):
                    masked |= places
            words = [_ANY if place in masked else word for place, word in enumerate(words)]
            if not self._gone or _shape(words) not in self._gone:
                found.append(" ".join(words) if masked else line)
        return found

    def _shown(self, text: str) -> list[str]:
        """Return the lines without those that are left out, whatever two runs say, with times masked."""
        ignored = [re.compile(pattern) for pattern in self.ignored]
        lines = []
        for line in text.replace("\r\n", "\n").split("\n"):
            is_between = line.startswith(_COLONS) and line.endswith(_COLONS) and len(line) >= 2 * len(_COLONS)
            if not line or is_between or line.startswith(_OURS) or "\r" in line or any(each.search(line) for each in ignored):
                continue
            words = line.split()
            timed = [_is_time(words, place) for place in range(len(words))]
            lines.append(" ".join(_ANY if each else w for each, w in zip(timed, words, strict=True)) if any(timed) else line)
        return lines


def _is_time(words: Sequence[str], place: int) -> bool:
    following = words[place + 1] if place + 1 < len(words) else ""
    return bool(_TIME.fullmatch(words[place]) or (_NUMBER.fullmatch(words[place]) and _UNIT_ALONE.fullmatch(following)))


def _shape(words: Sequence[str], masked: Iterable[int] = ()) -> str:
    """Return a pattern of lines with any number for each number, and any words at some places."""
    numbered = (_DIGITS.sub("0", word) for word in words)
    any_number = [re.escape(word).replace("0", r"\d+") for word in numbered]
    return " ".join(r"\S+" if place in set(masked) else word for place, word in enumerate(any_number))
