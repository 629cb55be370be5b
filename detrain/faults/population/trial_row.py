"""The result of one trial of a campaign, as a row of its ledger. It holds only numbers and names; a trial's record is
made again from its number.
"""

from __future__ import annotations

from typing import Final

import msgspec

from detrain.faults.population.facts import Facts

OUTSIDE: Final = "address outside"
"""The outcome of a wrong address behind its tensor's end: no trial is run, and it is neither masked nor harmful."""


class TrialRow(Facts, frozen=True, kw_only=True):
    """One trial. All but `early_after`, `seconds` and `host` are the same for every worker and every order."""

    bits: tuple[int, ...]
    """Bits in which the first element differs from before; 0 is the least significant."""
    golden: str
    """Pattern of the first element before the fault, hexadecimal; empty if it was not read."""
    injected: str
    outcome: str
    """The class of the ISCA 2023 publication (`faults/outcome_classes.py`)."""
    category: int
    """SASSIFI's category, 1 to 18; 0 if it is unknown."""
    status: int
    """Exit status of the program; 0 if the trial ended at its horizon."""
    error: str
    """Class of the exception, or the text that decided the category; empty for none."""
    stdout: str
    """The program's stdout from the fault on, beside the golden run's: equal, differs, not judged (cut off)."""
    stderr: str
    """The same for stderr. A trial that ended at its horizon is judged without warnings, which a process gives once."""
    files: str
    """The same for the files that the program has written at its end; not judged if it did not reach its end."""
    check: str
    """The verdict of the user's check at the program's end: passes, fails; empty if there was none."""
    steps: int
    """Steps done from the fault on, including the faulty one."""
    is_equal: bool
    """True if all variables were the golden run's at the end of the trial."""
    equal_after: int
    """Steps, including the faulty one, after which all variables were the golden run's again; -1: never seen."""
    loss: float | None
    """Loss of the last step; None if it is not finite, and `end` says so."""
    golden_loss: float | None
    accuracy: float | None
    golden_accuracy: float | None
    nonfinite_after: int
    """Steps, including the faulty one, up to the first loss or metric that is not finite; -1: none."""
    alarm_after: int
    """Steps, including the faulty one, up to the guard's first alarm; -1: none; -2: no guard looked."""
    end: str
    """Why the trial ended: until, program, non-finite loss, crash: …, hang."""
    digest: str
    """xxh3-128, hex, of the steps' losses and metrics, and of the digests of their variables."""
    early_after: int
    """Steps after which the trial was ended, as its whole state was the golden run's; -1: it ran to its end. The rest
    of the row does not depend on it."""
    seconds: float
    """Wall time of the trial; the rest of the row does not depend on it."""
    host: str
    """The machine that ran it; the rest of the row does not depend on it."""

    inputs: int = 0
    """Of inference: inputs with a prediction in the steps from the fault on; 0: the program does no inference."""
    sdc_1: int = 0
    """Inputs whose predicted class is another; for this and the next fields see `faults/predictions.py`."""
    sdc_5: int = 0
    sdc_10: int = 0
    sdc_20: int = 0
    nonfinite: int = 0

    def timeless(self) -> TrialRow:
        """Return the row without the fields that differ from run to run."""
        return msgspec.structs.replace(self, early_after=-1, seconds=0.0, host="")
