"""The comparison of a trial's text, files and warnings with the golden run's over the same steps.

Lines are compared without parts that change from run to run. Left out are lines between `:::` (as in SASSIFI), lines
that fit a pattern of the user's, detrain's own messages, and lines that a progress bar overwrites. In the other lines,
times and addresses of objects may have any value. Two runs without a fault show further differences to leave out:
words, lines and files.

A trial that ends at its horizon has printed its text up to there, and has not written its files yet. It may share its
process with others; so text that a process prints only once (warnings of Python, lines of a framework's log) is left
out, and files are not judged. A trial to the program's end is judged by all of it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final, Literal

import msgspec

from detrain.base.cursor import Address
from detrain.campaign.judging.categories import are_only_warnings, is_warning
from detrain.campaign.trial_log import TrialResult
from detrain.runtime.observers.said import BEHIND, Said, WrittenFile

Judgement = Literal["equal", "differs", "not judged"]
_PROGRAM: Final = "program"
_LOOP: Final = "loop"
_CUT: Final = "non-finite loss"
_END: Final = (BEHIND, BEHIND, BEHIND, True)
_NONE: Final = (-1, -1, -1, False)
_Place = tuple[int, int, int, bool]

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


class Masks(msgspec.Struct):
    """Words and lines that differ between runs without a fault, and so are not compared.

    A line is recognized by the words that both runs share, with any number for each number in them. So a time that
    was the same in both runs by chance, in one step, is masked by another step's.
    """

    ignored: Sequence[str] = ()
    """The user's patterns; lines in which one is found are left out."""
    _varying: dict[str, tuple[re.Pattern[str], set[int]]] = {}
    """Patterns of lines that differ, and the positions of the differing words."""
    _gone: set[str] = set()
    """Patterns of lines that only one of the runs has, or that the two have in another order."""

    def learn(self, one: str, other: str) -> None:
        """Learn the words and lines in which two texts, of the same stretch of two runs, differ."""
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
        """Return the lines of a text that are compared, with `…` for each word that may have any value."""
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
        """Return the lines without those that are always left out, with times masked."""
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
    """Return a pattern of lines with any number for each number, and any word at the masked places."""
    numbered = (_DIGITS.sub("0", word) for word in words)
    any_number = [re.escape(word).replace("0", r"\d+") for word in numbered]
    return " ".join(r"\S+" if place in set(masked) else word for place, word in enumerate(any_number))


class TrialComparison(msgspec.Struct, frozen=True):
    """The result of a trial's comparison with the golden run, by part."""

    stdout: Judgement
    stderr: Judgement
    has_only_warnings: bool
    """True if stderr differs only in warnings."""
    files: Judgement
    text: str
    """The program's whole output from the fault on."""


class Judge(msgspec.Struct, dict=True):
    """Compares trials with the golden run, and learns from a second golden run which differences do not count."""

    golden: TrialResult
    again: TrialResult | None
    """The second golden run; None: the program prints and writes nothing, so none was needed."""
    ignored: Sequence[str] = ()
    """Patterns of lines that the user wants left out."""

    def seen(self, at: Address, done: TrialResult, golden: TrialResult) -> TrialComparison:
        """Return the comparison of a trial, with its fault at a cursor, with the run beside it."""
        first, last = (*at, True), _last(done) if done.end != _CUT else _before_last(done)
        is_whole = done.end == _PROGRAM
        mine, its = (_texts(run.said, first, last) for run in (golden, done))
        known, found = (self._out.compared(text) for text, _ in (mine, its))
        known_errors, found_errors = (self._errors(text, is_whole=is_whole) for _, text in (mine, its))
        has_other_errors = known_errors != found_errors
        # In a step in which the trial was ended, the rest of the program's output is missing.
        is_cut = not done.is_whole or done.crash != "" or done.end == _CUT
        usual: Judgement = "not judged" if is_cut else "equal"
        return TrialComparison(
            stdout="differs" if known != found else usual,
            stderr="differs" if has_other_errors else usual,
            has_only_warnings=has_other_errors and are_only_warnings(known_errors, found_errors),
            files=self._files(at, done, golden) if is_whole else "not judged",
            text="\n".join(its),
        )

    @cached_property
    def _out(self) -> Masks:
        masks, its = Masks(self.ignored), self._again_by_place
        for said in self.golden.said if self.again is not None else ():
            masks.learn(said.out, its[said.place].out if said.place in its else "")
        return masks

    @cached_property
    def _err(self) -> Masks:
        masks, its = Masks(self.ignored), self._again_by_place
        for said in self.golden.said if self.again is not None else ():
            masks.learn(said.err, its[said.place].err if said.place in its else "")
        return masks

    @property
    def _again_by_place(self) -> dict[_Place, Said]:
        return {said.place: said for said in self.again.said} if self.again is not None else {}

    @cached_property
    def _warnings(self) -> frozenset[str]:
        """Warnings that the golden run gives anywhere: a process gives each once, and a trial's process is another."""
        lines = (line for said in self.golden.said for line in self._err.compared(said.err))
        return frozenset(filter(is_warning, lines))

    def _errors(self, text: str, *, is_whole: bool) -> list[str]:
        lines = self._err.compared(text)
        return [line for line in lines if line not in self._warnings and (is_whole or not is_warning(line))]

    @cached_property
    def _varying_files(self) -> frozenset[str]:
        known, its = _by_path(self.golden.files), _by_path(self.again.files if self.again is not None else None)
        return frozenset(path for path in {*known, *its} if self.again is not None and _other(known.get(path), its.get(path)))

    def _files(self, at: Address, done: TrialResult, golden: TrialResult) -> Judgement:
        """Compare the contents of all files that the trial has written, or should have."""
        if done.files is None or golden.files is None:
            return "not judged"
        known, its = _by_path(golden.files), _by_path(done.files)
        varying = self._varying_files
        paths = {path for path, file in known.items() if file.last is None or file.last >= at} | set(its)
        if any(path not in known for path in varying):  # names that differ from run to run
            paths &= set(known)
        paths -= varying
        return _judged(any(_other(known.get(path), its.get(path)) for path in paths))


def _judged(differs: object) -> Judgement:
    return "differs" if differs else "equal"


def _by_path(files: Iterable[WrittenFile] | None) -> dict[str, WrittenFile]:
    return {file.path: file for file in files or ()}


def _other(one: WrittenFile | None, other: WrittenFile | None) -> bool:
    return one is None or other is None or one.digest != other.digest


def _last(done: TrialResult) -> _Place:
    """Return the last stretch of a run that is over; `_NONE` if it ended in its first step."""
    if done.end == _PROGRAM:
        return _END
    last = max(((step.phase, step.epoch, step.batch if step.batch >= 0 else BEHIND, True) for step in done.steps), default=_NONE)
    return (*last[:2], BEHIND, True) if done.end == _LOOP else last


def _before_last(done: TrialResult) -> _Place:
    """Return the last stretch before a run's last step."""
    return *_last(done)[:3], False


def said_by(run: TrialResult, at: Address, end: Address | None) -> str:
    """Return the text that a run printed to stdout from one body to the end of another; None: to the program's end."""
    return _texts(run.said, (*at, True), _END if end is None else (*end, True))[0]


def _texts(said: Iterable[Said], first: _Place, last: _Place) -> tuple[str, str]:
    """Return the text of a run on stdout and on stderr between two places."""
    chosen = sorted((each for each in said if first <= each.place <= last), key=lambda each: each.place)
    return "".join(each.out for each in chosen), "".join(each.err for each in chosen)
