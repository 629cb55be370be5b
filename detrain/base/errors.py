"""The errors of detrain: one tree, each with a slug (its paragraph in docs/reference/messages.md) and an exit code.

Codes start at 64 (the range of sysexits.h) so that they are not mistaken for the program's own exit status.
"""

from __future__ import annotations

from typing import ClassVar, Final

_ERROR: Final = "detrain: error: "
_EXPLAINED: Final = "  explained by "


def last_printed(text: str) -> tuple[str, str] | None:
    """Return what the last error that a process has printed says, and what to do about it; None if it printed none."""
    _before, found, said = text.rpartition(_ERROR)
    if not found:
        return None
    what, _, rest = said.partition("\n")
    todo = rest.partition("\n")[0]
    return what, todo.strip() if todo.startswith("  ") and not todo.startswith(_EXPLAINED) else ""


class DetrainError(Exception):
    """Root of every error that detrain raises itself. `what` says what is wrong, `todo` what to do about it."""

    slug: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 70

    def __init__(self, what: str, todo: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.todo = todo

    def __str__(self) -> str:
        return f"{self.what}\n  {self.todo}" if self.todo else self.what

    def printed(self) -> str:
        """Return the lines that are shown to people: the error, and where it is explained."""
        return f"{_ERROR}{self}\n{_EXPLAINED}`detrain explain {self.slug}`"


class UsageError(DetrainError):
    """An option or argument that cannot be taken."""

    slug = "usage"
    exit_code = 64


class ProgramNotFound(DetrainError):
    """The program to run is not there."""

    slug = "no-program"
    exit_code = 66


class NoStructure(DetrainError):
    """No training loop was found in the program."""

    slug = "no-loop"
    exit_code = 65


class StructureInvalid(DetrainError):
    """An inst.info that cannot be read, or that does not fit the program."""

    slug = "structure"
    exit_code = 67


class CannotRewrite(DetrainError):
    """A loop of a shape for which no right rewriting is known."""

    slug = "shape"
    exit_code = 68


class StoreError(DetrainError):
    """The checkpoint home cannot be written or read."""

    slug = "store"
    exit_code = 73


class HomeInUse(StoreError):
    """Another process runs the same program with the same checkpoint home."""

    slug = "in-use"
    exit_code = 81


class MirrorFailed(StoreError):
    """The mirror of a checkpoint home cannot be read or written, or what is in it is damaged."""

    slug = "mirror"
    exit_code = 71


class CheckpointDamaged(StoreError):
    """A checkpoint whose bytes are not those that were written."""

    slug = "damaged"
    exit_code = 74


class CheckpointTooNew(StoreError):
    """A checkpoint written by a later version of detrain."""

    slug = "newer-format"
    exit_code = 75


class AnotherProgram(DetrainError):
    """The checkpoints are of the program with other arguments, or with another source."""

    slug = "another-program"
    exit_code = 76


class EnvironmentChanged(DetrainError):
    """The machine or the versions differ from those of the run to be resumed."""

    slug = "environment"
    exit_code = 77


class Diverged(DetrainError):
    """The resumed run does not do what the first run did: other data, or a program that is not deterministic."""

    slug = "diverged"
    exit_code = 78

    def __init__(self, what: str, todo: str = "", *, at: tuple[int, int, int] | None = None, may_go_back: bool = True) -> None:
        """`at` is the address of the first batch that was another one, where that is what differs.

        `may_go_back`: an earlier checkpoint may do.
        """
        super().__init__(what, todo)
        self.at = at
        self.may_go_back = may_go_back


class NotCapturable(DetrainError):
    """State that the loop changes and that no checkpoint can hold."""

    slug = "not-captured"
    exit_code = 79
    may_go_back: ClassVar[bool] = True


class AdditionChanges(DetrainError):
    """A statement that was added to a program, to look at a run that is over, changes the training."""

    slug = "addition"
    exit_code = 99


class ReducerInvalid(DetrainError):
    """A reducer of another package that is none, fails, or does not bring back what it saved."""

    slug = "reducer"
    exit_code = 98


class RanksDisagree(DetrainError):
    """The processes of one job do not go on together: one has not come, or was asked for something else."""

    slug = "ranks"
    exit_code = 94


class FaultPersists(DetrainError):
    """An alarm of the guard that came again when the steps before it were run again."""

    slug = "alarm"
    exit_code = 85


class CannotExport(DetrainError):
    """A checkpoint, or a model in it, that cannot be written in the format that was asked for."""

    slug = "export"
    exit_code = 87


class FrameworkUnsupported(DetrainError):
    """A framework, or a part or version of one, that the adapters were not written for."""

    slug = "framework"
    exit_code = 80


class SiteUnknown(DetrainError):
    """No site of the program's step fits, or none at which a fault could matter."""

    slug = "site"
    exit_code = 90


class FaultInvalid(DetrainError):
    """A fault that cannot be: an unknown model, a tensor that is too small for it, a value or bit that the dtype has
    not.
    """

    slug = "fault"
    exit_code = 82


class FaultNotFired(DetrainError):
    """An armed fault that the run has passed without executing its site."""

    slug = "not-fired"
    exit_code = 92


class LedgerInvalid(DetrainError):
    """The ledger of a campaign is of another plan, or says two things of one trial."""

    slug = "ledger"
    exit_code = 95


class CampaignStopped(DetrainError):
    """A campaign cannot go on: its plan is of another program, another driver has it, or its workers are gone."""

    slug = "campaign"
    exit_code = 96


class ReplayDiffers(DetrainError):
    """A replayed fault did not do what its record says."""

    slug = "replay"
    exit_code = 93


class CannotSeek(DetrainError):
    """A loader cannot come back exactly in the way that `--loader` asks for."""

    slug = "loader"
    exit_code = 86


class RanksApart(DetrainError):
    """The ranks of a job have not found each other."""

    slug = "ranks-apart"
    exit_code = 97
