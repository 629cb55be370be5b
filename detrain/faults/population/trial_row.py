"""What came of one trial of a campaign: the row of its ledger. Numbers and names alone; a trial's record is remade from
its number.
"""

from __future__ import annotations

from typing import Final

import msgspec

from detrain.faults.population.facts import Facts

OUTSIDE: Final = "address outside"
"""The outcome of a wrong address behind its tensor's end: no trial is run, and it is neither masked nor harmful."""


class TrialRow(Facts, frozen=True, kw_only=True):
    """One trial. All but `early_after`, `seconds` and `host` are the same whoever ran it, and in whatever order."""

    bits: tuple[int, ...]
    """Of the first element, bits that differ; 0 is the least significant."""
    golden: str
    """Pattern of the first element before the fault, hexadecimal; empty where it was not read."""
    injected: str
    outcome: str
    """The class of the ISCA 2023 publication (`faults/outcome_classes.py`)."""
    category: int
    """SASSIFI's category, 1 to 18; 0 where it is not told."""
    status: int
    """Exit status of the program; 0 where the trial ended at its horizon."""
    error: str
    """Class of the exception, or the text that the category is by; empty for none."""
    stdout: str
    """What the program printed from the fault on, beside the golden run: equal, differs, not judged (cut off)."""
    stderr: str
    """The same of stderr. Of a trial that ended at its horizon, without warnings, which a process gives once only."""
    files: str
    """The same of the files that the program has written in its end; not judged, where it did not come there."""
    check: str
    """What the user's check says of the program's end: passes, fails; empty where there was none."""
    steps: int
    """Steps done from the fault on, the faulty one counted."""
    is_equal: bool
    """Whether all variables were the golden run's at the end of the trial."""
    equal_after: int
    """Steps, the faulty one counted, behind which all variables were the golden run's again; -1: never seen."""
    loss: float | None
    """Of the last step. Not finite: None, and `end` says so."""
    golden_loss: float | None
    accuracy: float | None
    golden_accuracy: float | None
    nonfinite_after: int
    """Steps, the faulty one counted, up to the first loss or metric that is not finite; -1: none."""
    alarm_after: int
    """Steps, the faulty one counted, up to the guard's first alarm; -1: none; -2: no guard looked."""
    end: str
    """Why the trial ended: until, program, non-finite loss, crash: …, hang."""
    digest: str
    """xxh3-128, hex, of what each step has said and of the digests of its variables."""
    early_after: int
    """Steps behind which it was ended, as its whole state was the golden run's; -1: it was run to its end. Of no
    consequence for what the row says."""
    seconds: float
    """Wall time of the trial; of no consequence for what it says."""
    host: str
    """Who ran it; of no consequence, either."""

    inputs: int = 0
    """Of inference: inputs of the steps from the fault on of which the model says a class; 0: it is none."""
    sdc_1: int = 0
    """Of how many of them the class is another, and so on (`faults/predictions.py`)."""
    sdc_5: int = 0
    sdc_10: int = 0
    sdc_20: int = 0
    nonfinite: int = 0

    def timeless(self) -> TrialRow:
        """Return it without what differs from run to run."""
        return msgspec.structs.replace(self, early_after=-1, seconds=0.0, host="")
