"""The probes: calls that the rewriter puts into a program, or that a program makes by hand.

    for epoch in epoch_loop(range(10)):
        record_epoch(epoch)
        for batch, (x, y) in batch_loop(enumerate(loader)):
            execute = record_batch(batch)
            if not execute:
                continue
            ...

Without a session (plain `python`, a forked child) they do nothing: loops run as they stand and `record_batch` returns
True.

`record_epoch` and `record_batch` are enough to mark the cuts. The loop wrappers do more: `epoch_loop` skips whole
epochs when a run resumes (without it the epochs' code outside of batch bodies runs again), and `batch_loop` sees the
end of a body before the next load, so that a loader which draws from the same random stream as the body comes back
exactly.

While a framework traces or compiles a function (JAX, `tf.function`, TorchDynamo), the probes in it do nothing, and the
wrappers return what they are given: such a loop is a part of one step, and its values cannot be saved.
"""

from __future__ import annotations

import atexit
import dis
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from detrain.base import messages
from detrain.base.cursor import FETCHED_IN_BODY, NOTHING
from detrain.base.errors import DetrainError, Diverged, UsageError
from detrain.python.inspect.frames import is_second_call, names_of
from detrain.python.inspect.progress import PassedOn
from detrain.python.inspect.tracing import is_traced
from detrain.python.loaders.shown_loads import ShownLoads, shown_loads
from detrain.python.loaders.strategy import WhileLoop

if TYPE_CHECKING:
    from detrain.runtime.session.session import Session

T = TypeVar("T")

_session: Session | None = None
_is_run = False


class _Loops:
    """The memory of the probes between calls: the open epoch loop, and the last wrapper's number and item."""

    def __init__(self) -> None:
        self.wrapped_epoch: int | None = None
        """Epoch that an `epoch_loop` wrapper has just handed out."""
        self.item: object = None
        """The item that it handed out."""
        self.is_while = False
        """True after `record_phase`: the next `record_epoch` starts a phase, and may jump."""
        self.hand_frame = 0
        self.epoch_call: tuple[CodeType | None, int] = None, 0
        self.hand_epoch = -1
        self.loaded_batch: int | None = None
        """Number of the batch that a wrapper loads or has loaded, until `record_batch` takes it."""
        self.loaded: object = None
        self.names: tuple[str, ...] = ()
        self.while_phase = -1
        """Number of a phase that is only a `while` loop over batches. No probe sees such a loop end: the next loop to
        begin ends it."""
        self.failed = False
        """Whether an error of the program has left the epoch loop on the way to a cut in it."""


_loops = _Loops()


def set_session(session: Session | None) -> None:
    """Make a session the process's own. Called once, before the program starts."""
    global _session  # noqa: PLW0603 - the probes of a process all share one session
    _session = session
    _loops.__init__()  # type: ignore[misc]


def fails_in_job(error: BaseException, show: Callable[[], None]) -> None:
    """End the process, as the program has raised, if it is one rank of a job that saves just in time."""
    if _session is not None and _session.parts.just_in_time is not None and isinstance(error, Exception):
        _session.parts.just_in_time.fails(error, show)


def _finish() -> None:
    if _session is not None:
        _guarded(_session.finish)


os.register_at_fork(after_in_child=lambda: set_session(None))
atexit.register(_finish)


def at_last_line() -> None:
    """Note that the program has run to its last line."""
    if _session is not None:
        _guarded(_session.at_last_line)


def has_session() -> bool:
    """Return whether this process is a detrain run (a `--bare` one included)."""
    return _is_run


def set_run() -> None:
    """Mark the process as one that detrain has started."""
    global _is_run  # noqa: PLW0603 - as above
    _is_run = True


def _guarded(act: Callable[..., T], *arguments: Any, **keywords: Any) -> T:
    """Run a piece of detrain inside the program. An error in it ends the process: the program must not swallow it."""
    try:
        return act(*arguments, **keywords)
    except DetrainError as error:
        fail(error)
    except Exception as error:  # an edge: the program must neither catch a defect of detrain, nor be blamed for it
        from detrain.python.process.defect_report import defect

        fail(defect(error, _session.parts.catalogue.folder if _session is not None else None))


def fail(error: DetrainError) -> NoReturn:
    """Print an error and end the process at once: no `finally` of the program runs on a state that is wrong."""
    if _session is not None:
        error.todo += _session.way_back(error)  # an earlier checkpoint may do
        _session.note_end(error)
    messages.flush_output()
    messages.put_last(error.printed())
    os._exit(error.exit_code)


def epoch_loop(iterable: Iterable[T]) -> Iterable[T]:
    """Wrap the iterable of an epoch loop.

    A resumed run passes over the epochs before its checkpoint without entering them.
    """
    return iterable if is_traced() else EpochLoop(iterable)


class EpochLoop(Generic[T]):
    """The iterator that `epoch_loop` returns."""

    def __init__(self, iterable: Iterable[T]) -> None:
        self._iterable = iterable
        self._iterator: Iterator[T] | None = None
        self._count = 0
        """Number of epochs that the wrapper has handed out in its phase."""
        self._phase, self._is_nested = -1, False
        self._code: CodeType | None = None

    def __iter__(self) -> Iterator[T]:
        return self

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]

    def __next__(self) -> T:
        session = _session
        is_first = self._iterator is None
        if self._iterator is None:
            _end_while()
            self._iterator, self._is_nested = iter(self._iterable), _is_nested(sys._getframe(1))
        if session is None or self._is_nested:
            return next(self._iterator)
        frame = sys._getframe(1)
        if _loops.failed:  # the program has caught the error
            _loops.failed = False
            _guarded(session.end_phase)
        if is_first or session.position.phase != self._phase:
            # If it is not the first, the body has trained in an epoch loop of its own, which ended the phase.
            _guarded(session.begin_phase, frame)
            self._phase, self._count, _loops.epoch_call = session.position.phase, 0, (frame.f_code, id(frame))
            self._code = frame.f_code
        target = session.plan.target_epoch()
        while target is not None and (self._count < target[0] or target[1] == "end"):
            try:
                next(self._iterator)
            except StopIteration:
                if target[1] != "end" or self._count != target[0]:
                    _guarded(_ended_early, self._count, target[0])
                break
            self._count += 1
        self._count, again = _guarded(session.next_epoch, self._count)
        try:
            item: T = next(self._iterator) if again is NOTHING else again
        except StopIteration:
            _guarded(session.at_end, self._count, frame)
            if not session.is_returning:
                raise
            self._count, item = _guarded(session.next_epoch, self._count)
        session.keep_epoch(self._iterator, self._count, item)
        _loops.wrapped_epoch, _loops.item = self._count, item
        self._count += 1
        return item

    def __del__(self) -> None:
        """End the phase: a loop left by `break` or `return` drops its iterator at once."""
        session = _session
        if session is not None and self._phase == session.position.phase:
            frame = _left(sys._getframe(1), self._code)
            if frame is not None and session.plan.may_try_again and _is_failing(frame):
                _loops.failed = True  # the error decides, where it ends the program
            else:
                _guarded(session.end_phase, frame)


def _ended_early(count: int, expected: int) -> None:
    raise Diverged(
        f"the epoch loop ended after {count} epoch{'s' * (count != 1)}; the checkpoint was taken at epoch {expected}",
        "run the program with the arguments it had, or start anew with --fresh",
    )


def record_phase() -> None:
    """Mark that a `while` loop over epochs is about to be entered, or one over batches without epochs."""
    if is_traced() or _is_nested(sys._getframe(1)):
        return
    _loops.is_while, _loops.hand_frame = True, 0
    _end_while()


def record_end() -> None:
    """Mark that such a loop was left, but not by `return`: a resumed run may run the code behind it again."""
    if is_traced():
        return
    session, frame = _session, sys._getframe(1)
    if session is None or _is_nested(frame):
        return
    _end_while()
    if session.position.is_in_phase and _loops.hand_frame == id(frame):
        _loops.hand_frame = 0
        _guarded(session.end_phase, frame)


def _is_nested(frame: FrameType) -> bool:
    """Return whether a loop is in a second call of the function that runs the epoch loop: it is part of the epoch."""
    return is_in_phase() and is_second_call(frame, *_loops.epoch_call)


def _end_while() -> None:
    """End a phase that was only a `while` loop over batches, as another loop is about to be entered."""
    session = _session
    if session is not None and session.position.is_in_phase and session.position.phase == _loops.while_phase:
        _guarded(session.end_phase)


def record_epoch(epoch: object = None) -> None:
    """Mark the start of an epoch. `epoch` is the program's own number, used only to tell one phase from the next."""
    if is_traced():
        return
    session = _session
    frame = sys._getframe(1)
    if session is None or _is_nested(frame):
        return
    number = _loops.wrapped_epoch
    _loops.loaded_batch = None
    if number is not None:
        _loops.wrapped_epoch = None
        _guarded(session.at_epoch, number, frame, _loops.item)
    else:
        _guarded(_hand_epoch, session, epoch, frame)


def _hand_epoch(session: Session, epoch: object, frame: FrameType) -> None:
    """Count an epoch of a loop without the wrapper, and find out whether it starts a new phase."""
    own = epoch if isinstance(epoch, int) else None
    is_new = id(frame) != _loops.hand_frame or (own is not None and own <= _loops.hand_epoch) or not session.position.is_in_phase
    number = 0 if is_new else session.position.epoch + 1
    if is_new:
        session.begin_phase(frame)
        target = session.plan.target_epoch()
        if _loops.is_while and target is not None and target[1] == "epoch":
            number = target[0]  # the loop's state is all in its names: setting them here replaces the earlier turns
    _loops.hand_frame, _loops.is_while, _loops.epoch_call = id(frame), False, (frame.f_code, id(frame))
    if own is not None:
        _loops.hand_epoch = own
    session.at_epoch(number, frame)


def _left(frame: FrameType, code: CodeType | None) -> FrameType | None:
    """Return the frame that has just left a loop, if its code is the loop's: else other code dropped the iterator."""
    return frame if frame.f_code is code else None


def _is_failing(frame: FrameType) -> bool:
    """Return whether an error leaves the loop that a frame is in: no instruction that leaves one by itself runs."""
    name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    return not name.startswith(("POP_", "FOR_ITER", "END_FOR", "RETURN_"))


def batch_loop(iterable: Iterable[T], *names: str) -> Iterable[T]:
    """Wrap the iterable of a batch loop.

    `names` are those that a load statement in the body binds before `record_batch`.
    """
    return iterable if is_traced() else BatchLoop(iterable, *names)


class BatchLoop(Generic[T]):
    """The iterator that `batch_loop` returns."""

    is_fetched_in_body = False

    def __init__(self, iterable: Iterable[T], *names: str) -> None:
        self.iteration_id: object = object()
        self.iterable = iterable
        self.names = names
        self.iterator: Iterator[T] | None = None
        self._shown: ShownLoads | None = None
        """The progress bar around the loop's iterable."""
        self._phase, self._is_nested = -1, False
        """`_phase`: the phase that is only this loop, without an epoch loop around it; -1 if there is one."""
        self._code: CodeType | None = None

    def __iter__(self) -> Iterator[T]:
        return self

    def __len__(self) -> int:
        return len(self.iterable)  # type: ignore[arg-type]

    def __next__(self) -> T:
        session = _session
        is_alone = False
        if self.iterator is None:
            self._is_nested = _is_nested(sys._getframe(1))
            _end_while()
            if session is not None and not self._is_nested:
                self._shown = shown_loads(self.iterable, sys._getframe(1))
            if self._shown is not None:
                self.iterable = self._shown.source
            self.iterator = iter(self.iterable)
            is_alone = session is not None and not session.position.is_in_phase
        if session is None or self._is_nested:
            return next(self.iterator)
        frame = sys._getframe(1)
        shown, first = self._shown, 0 if is_alone else session.position.batch
        number = session.turn(self)
        if number < 0:
            number = _guarded(session.at_load, frame, self)
        if shown is not None and number > first:
            shown.pass_over(number - first)
        if is_alone:
            self._phase, self._code = session.position.phase, frame.f_code
        recovery = session.parts.recovery
        if recovery is not None and session.is_returning:
            raise StopIteration
        kept: Any = NOTHING if recovery is None else _guarded(recovery.load, frame)
        item: T = kept
        if kept is NOTHING:
            try:
                item = next(self.iterator)
            except DetrainError as error:
                fail(error)
            except StopIteration:
                if shown is not None:
                    shown.end()
                _guarded(session.end_load, frame)
                raise
            if shown is not None:
                shown.tell(item)
            if recovery is not None:
                _guarded(recovery.keep, item, self.iterator, frame)
        loaded = FETCHED_IN_BODY if self.is_fetched_in_body else item
        _loops.loaded_batch, _loops.loaded, _loops.names = number, loaded, self.names
        return item

    def __del__(self) -> None:
        """End a phase that is only this loop, if `break` or `return` left it: else the next loop would go on in it."""
        if self._shown is not None:
            self._shown.leave()
        session = _session
        if session is not None and session.position.is_in_phase and self._phase == session.position.phase:
            _guarded(session.end_phase, _left(sys._getframe(1), self._code))


class fetch_loop(BatchLoop[T]):
    """Wrap the iterable of a batch loop with bodies that load their batches themselves (`Model.fit`)."""

    is_fetched_in_body = True


def guard_run(mode: str = "recover", on_repeat: str = "stop", *, gradients: bool = False, ring: str = "device") -> None:
    """Look for hardware faults from here on, as `detrain run --guard MODE --on-repeat ON_REPEAT` does. Call it before
    the loops.

    With `gradients`, the guard also looks at the norms of gradients (`--guard-gradients`), in functions that are traced
    from then on. `ring` says where the last states are held (`--guard-ring`): "device" or "host".

    Options of the command take precedence; without a session this does nothing. Raises UsageError.
    """
    choices = (
        ("mode", mode, ("detect", "recover")),
        ("on_repeat", on_repeat, ("stop", "continue")),
        ("ring", ring, ("device", "host")),
    )
    for name, value, known in choices:
        if value not in known:
            raise UsageError(f"guard_run({name}={value!r}): expected {' or '.join(map(repr, known))}", "see docs/reference/api.md")
    if _session is not None and _session.parts.recovery is None:
        _guarded(_session.parts.add_guard, mode=mode, on_repeat=on_repeat, gradients=gradients, ring=ring)


def note_update(what: int) -> None:
    """Note that weights are updated, by an updater with this number."""
    if _session is not None and not _session.expects_updates:
        _guarded(_session.on_update, what)


def note_fetched(parts: list[Any], *, is_whole: bool) -> None:
    """Take the digest of arrays that a body has loaded: a part of its batch, or all. The arrays are not kept."""
    if _session is not None:
        _guarded(_session.note_fetched, parts, is_whole=is_whole)


def is_in_phase() -> bool:
    """Return whether a loop with probes is running."""
    return _session is not None and _session.position.is_in_phase


def note_all_streams() -> None:
    """Record the random streams at all batches of the phase that begins, as its loader can only be replayed from its
    start.
    """
    if _session is not None:
        _guarded(_session.note_all_streams)


def begin_fetch() -> None:
    """Record the random streams as they are now: Python is about to fetch the batch of the running body."""
    if _session is not None:
        _guarded(_session.recorder.begin_fetch)


def end_fetch() -> None:
    """Record the batch that the running body has fetched."""
    if _session is not None:
        _guarded(_session.recorder.end_fetch)


def is_resuming(error: BaseException | None = None) -> bool:
    """Return whether the run is on its way to a checkpoint. If `error` ends it there, a second try may begin."""
    if _session is not None and error is not None:
        _session.plan.try_again(error)
    return _session is not None and _session.plan.is_resuming


def epoch() -> int:
    """Return the epoch that is running, -1 before the first."""
    return _session.position.epoch if _session is not None else -1


def load_again(epoch: int, batch: int, load: Callable[[], None]) -> None:
    """Load a batch of this phase again, with the random streams of its first load if these are on record; compare its
    digest.
    """
    if _session is not None:
        _session.recorder.load_again((_session.position.phase, epoch, batch), load)


def note_yield(value: T) -> T:
    """Note that a generator of the program is about to yield a value; return the value."""
    if not is_traced() and _session is not None:
        _guarded(_session.recorder.pulls.note, id(sys._getframe(1)), value)
    return value


def begin_yield(value: T | None = None) -> T | None:
    """Note that a generator of the program is asked for its next value; return `value`, from its first statement."""
    if not is_traced() and _session is not None:
        _guarded(_session.recorder.pulls.begin, id(sys._getframe(1)))
    return value


def pass_on(values: Iterable[object]) -> Iterable[object]:
    """Return an iterator over the values that a generator of the program passes on, which notes each of them."""
    if is_traced() or _session is None:
        return values
    pulls, frame = _session.recorder.pulls, id(sys._getframe(1))
    return PassedOn(
        values,
        lambda: _guarded(pulls.begin, frame),
        lambda value: _guarded(pulls.note, frame, value),
        lambda: _guarded(pulls.forget, frame),
    )


def note_fetch(value: T) -> T:
    """Note the value that an update's line has loaded to train on; return the value."""
    if not is_traced() and _session is not None:
        _guarded(_session.recorder.note_fetch, value)
    return value


def record_load(*names: str) -> None:
    """Mark the top of a `while` loop over batches, before the load; `names`: the names that the load binds."""
    if is_traced():
        return
    session = _session
    if session is not None and not _is_nested(sys._getframe(1)):
        frame, is_alone = sys._getframe(1), not session.position.is_in_phase
        _loops.is_while = False
        _loops.loaded_batch = _guarded(session.at_load, frame, WhileLoop(names))
        if is_alone:
            _loops.while_phase = session.position.phase
        _loops.loaded, _loops.names = None, names


def record_batch(batch: object = None) -> bool:
    """Mark that a batch is loaded. Returns whether its body is to be executed (False while a run fast-forwards).

    `batch` is the program's own number and for the reader only; batches are counted from 0 in each epoch.
    """
    if is_traced():
        return True
    session, frame = _session, sys._getframe(1)
    return session is None or _is_nested(frame) or _guarded(_record_batch, session, frame)


def _record_batch(session: Session, frame: FrameType) -> bool:
    number, _loops.loaded_batch = _loops.loaded_batch, None
    names = _loops.names
    is_first_cut = number is None
    is_passing = number is not None and session.plan.is_passing
    if number is None:
        from detrain.base.structure import names_loaded_before

        names, _loops.loaded = names_loaded_before(frame.f_code.co_filename, frame.f_lineno), None
        number = session.next_batch(frame)
    loaded: object = _loops.loaded
    if names:
        values = names_of(frame)
        loaded = tuple(values.get(name) for name in names)
        session.require_a_batch(loaded, frame)
    _loops.loaded = None
    if number is not None and is_passing:
        session.recorder.pass_batch(number, loaded, is_by_body=bool(names))
        return False
    if not is_first_cut and session.record_batch_fast(number, loaded):
        return True
    return session.at_batch(number, loaded, frame, is_first_cut=is_first_cut)
