"""The errors of detrain: one tree, each with a slug (its paragraph in docs/reference/messages.md) and an exit code.

Codes start at 64 (the range of sysexits.h) so that they are not mistaken for the program's own exit status.
"""

from __future__ import annotations

from typing import ClassVar, Final

_ERROR: Final = "detrain: error: "
_EXPLAINED: Final = "  explained by "


def last_printed(text: str) -> tuple[str, str] | None:
    """Return the last error in a process's output, and its advice (empty if it has none); None without an error."""
    _before, found, said = text.rpartition(_ERROR)
    if not found:
        return None
    what, _, rest = said.partition("\n")
    todo = rest.partition("\n")[0]
    return what, todo.strip() if todo.startswith("  ") and not todo.startswith(_EXPLAINED) else ""


class DetrainError(Exception):
    """Root of every error that detrain raises itself. `what` describes the error, `todo` the remedy."""

    slug: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 70

    def __init_subclass__(cls, *, slug: str = "", exit_code: int = 0) -> None:
        """Give a class its slug and its exit code. A class that names none has those of its base class."""
        cls.slug, cls.exit_code = slug or cls.slug, exit_code or cls.exit_code

    def __init__(self, what: str, todo: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.todo = todo

    def __str__(self) -> str:
        return f"{self.what}\n  {self.todo}" if self.todo else self.what

    def printed(self) -> str:
        """Return the lines to show to people: the error, and the command that explains it."""
        return f"{_ERROR}{self}\n{_EXPLAINED}`detrain explain {self.slug}`"


class UsageError(DetrainError, slug="usage", exit_code=64):
    """An option or argument that detrain does not accept."""


class ProgramNotFound(DetrainError, slug="no-program", exit_code=66):
    """The program to run does not exist."""


class NoStructure(DetrainError, slug="no-loop", exit_code=65):
    """No training loop was found in the program."""


class StructureInvalid(DetrainError, slug="structure", exit_code=67):
    """An inst.info that cannot be read, or that does not fit the program."""


class CannotRewrite(DetrainError, slug="shape", exit_code=68):
    """A loop with a shape that detrain cannot rewrite correctly."""


class StoreError(DetrainError, slug="store", exit_code=73):
    """The checkpoint home cannot be written or read."""


class HomeInUse(StoreError, slug="in-use", exit_code=81):
    """Another process runs the same program with the same checkpoint home."""


class MirrorFailed(StoreError, slug="mirror", exit_code=71):
    """The mirror of a checkpoint home cannot be read or written, or its content is damaged."""


class CheckpointDamaged(StoreError, slug="damaged", exit_code=74):
    """A checkpoint that no longer holds the bytes that were written."""


class CheckpointTooNew(StoreError, slug="newer-format", exit_code=75):
    """A checkpoint written by a later version of detrain."""


class AnotherProgram(DetrainError, slug="another-program", exit_code=76):
    """The checkpoints belong to the program with other arguments, or with another source."""


class EnvironmentChanged(DetrainError, slug="environment", exit_code=77):
    """The machine or the versions differ from those of the run to be resumed."""


class Diverged(DetrainError, slug="diverged", exit_code=78):
    """The resumed run differs from the first run: other data, or a program that is not deterministic."""

    def __init__(self, what: str, todo: str = "", *, at: tuple[int, int, int] | None = None, may_go_back: bool = True) -> None:
        """`at` is the address of the first batch that differs, if a batch does.

        `may_go_back`: whether resuming from an earlier checkpoint may help.
        """
        super().__init__(what, todo)
        self.at = at
        self.may_go_back = may_go_back


class NotCapturable(DetrainError, slug="not-captured", exit_code=79):
    """State that the loop changes and that no checkpoint can hold."""

    may_go_back: ClassVar[bool] = True


class AdditionChanges(DetrainError, slug="addition", exit_code=99):
    """A statement that the user added to look at a finished run changes the training."""


class ReducerInvalid(DetrainError, slug="reducer", exit_code=98):
    """A reducer of another package that has the wrong form, fails, or does not restore the values that it saved."""


class RanksDisagree(DetrainError, slug="ranks", exit_code=94):
    """The processes of one job cannot go on together: one is missing, or was started with other options."""


class FaultPersists(DetrainError, slug="alarm", exit_code=85):
    """An alarm of the guard that came again when its steps were run again."""


class CannotExport(DetrainError, slug="export", exit_code=87):
    """A checkpoint, or a model in it, that cannot be written in the requested format."""


class FrameworkUnsupported(DetrainError, slug="framework", exit_code=80):
    """A framework, or a part or version of one, that the adapters do not support."""


class SiteUnknown(DetrainError, slug="site", exit_code=90):
    """No site of the program's step fits the request, or no fitting site is one at which a fault could matter."""


class FaultInvalid(DetrainError, slug="fault", exit_code=82):
    """An impossible fault: an unknown model, a tensor that is too small for it, a value or bit that the dtype does not
    have.
    """


class FaultNotFired(DetrainError, slug="not-fired", exit_code=92):
    """The run passed an armed fault's cursor without executing its site."""


class LedgerInvalid(DetrainError, slug="ledger", exit_code=95):
    """The ledger of a campaign belongs to another plan, or has two results for one trial."""


class CampaignStopped(DetrainError, slug="campaign", exit_code=96):
    """A campaign cannot go on: its plan is for another program, another driver runs it, or its workers are gone."""


class ReplayDiffers(DetrainError, slug="replay", exit_code=93):
    """The replay of a fault differs from its record."""


class CannotSeek(DetrainError, slug="loader", exit_code=86):
    """A loader cannot be restored exactly in the way that `--loader` asks for."""


class RanksApart(DetrainError, slug="ranks-apart", exit_code=97):
    """The ranks of a job have not found each other."""
