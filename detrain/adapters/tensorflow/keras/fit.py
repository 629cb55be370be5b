"""`Model.fit` with probes: Keras's own loops over epochs and batches get the probes that a program's loops get.

`fit` is compiled anew from its own source (`fit_source`), so that a cut in it is a cut like any other: its locals
(callbacks, logs) are state, and code between the loops runs again on the way to a cut. This module has the functions
that those probes call; it also saves the position of the loader, and restores it in a resumed run.

A step fetches its batch itself, inside the compiled function. While a run fast-forwards, the batches are pulled from
the iterator instead. A stage of the data pipeline takes their digests (`fit_data`).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType, GeneratorType
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.input_lib import DistributedIteratorBase

from detrain.adapters.tensorflow.data.iterator_positions import NoPosition, read_position, runs_python, set_position
from detrain.adapters.tensorflow.data.shuffle_seeds import set_with
from detrain.adapters.tensorflow.keras.fit_data import (
    allow_permutation,
    digest_distributed,
    digest_of_arrays,
    digesting,
    fetch_in_turn,
    is_generator,
    note_batch,
    note_order,
    order_of,
    start_no_workers,
)
from detrain.adapters.tensorflow.keras.fit_source import NAME, VALIDATION, Probes, instrumented
from detrain.base import PACKAGE
from detrain.base.digest import Array
from detrain.base.errors import NotCapturable
from detrain.base.in_place import in_place_of
from detrain.python.inspect.frames import names_of, outwards

_EPOCH_ITERATOR: Final = os.path.join("trainers", "epoch_iterator.py")
_CHANGED: Final = "the arrays that fit() validates on (changed in place in the loop, before it copied them)"
_LIBRARIES: Final = (os.path.dirname(tf.__file__) + os.sep, str(PACKAGE) + os.sep)
"""The folders of TensorFlow's code and of detrain's."""
FIT: Final = "fit"
"""The key of the position of the running `fit`'s loader."""


class FitInstrument:
    """The probes in `fit`, and the loader of the running one."""

    def __init__(self, probes: Probes | None) -> None:
        self._probes = probes
        self._steps: weakref.ref[Any] | None = None
        self._given: weakref.ref[Any] | None = None
        self._has_fetched = False
        self._runs_python = False
        """True if fetching a batch runs Python of the program, or may run it."""
        self._judged: Any = None
        """The loader's pipeline without detrain's stage for digests; None if the data are no tf.data set."""
        self._iterator: weakref.ref[Any] | None = None
        """The iterator of the last step."""
        self._passes: list[list[list[int]]] = []
        """The draws from the iterator of each pass over the data, as runs: [first epoch, epochs, steps in each]. Of
        data that each iterator makes anew, only the last pass is kept."""
        self._turn = 0
        """The number of steps done in the running epoch."""
        self._target: tuple[int, Callable[[Any], None]] | None = None
        """The number of steps to pass over without fetching, and a function that sets the iterator's position."""
        self._validates_on: tuple[str, str] = ("", "")
        """Digests of the arrays for validation: before the loop, and when `fit` copied them as it first validated."""
        self._names: Mapping[str, Any] = {}
        """The locals of the running `fit`, as they were before its loops."""

    def watch(self) -> None:
        """Put probes into `fit` of Keras, which has been imported. Raises FrameworkUnsupported for an unknown `fit`."""
        from keras.src.backend.tensorflow import trainer
        from keras.src.callbacks.backup_and_restore import BackupAndRestore
        from keras.src.trainers.data_adapters import generator_data_adapter, py_dataset_adapter
        from keras.src.utils import traceback_utils

        for adapter in (generator_data_adapter.GeneratorDataAdapter, py_dataset_adapter.PyDatasetAdapter):
            fetch_in_turn(adapter)
        start_no_workers(py_dataset_adapter.PyDatasetAdapter)
        note_order(py_dataset_adapter.PyDatasetAdapter)
        if self._probes is None:
            return
        probes = self._probes
        _hold_back(BackupAndRestore, probes)
        original = trainer.TensorFlowTrainer.fit
        function = instrumented(inspect.unwrap(original))
        vars(trainer)[NAME] = self
        probed = traceback_utils.filter_traceback(function)

        @in_place_of(trainer.TensorFlowTrainer, "fit")
        def fit(*args: Any, **kwargs: Any) -> Any:
            return (original if probes.is_in_phase() else probed)(*args, **kwargs)

        digest_distributed(probes.note_fetched)
        self._note_ends(trainer.TFEpochIterator)
        self.epoch_loop, self.fetch_loop = probes.epoch_loop, probes.fetch_loop
        self.record_epoch, self.record_batch = probes.record_epoch, probes.record_batch
        self.end_step = probes.end_fetch

    def _note_ends(self, cls: Any) -> None:
        """Note the end of each epoch, even if a step found no further batch, and an error ended the loop."""
        original = cls.catch_stop_iteration

        @contextlib.contextmanager
        def caught(steps: Any) -> Iterator[None]:
            with original(steps):
                yield
            if self._steps is not None and self._steps() is steps:
                self._turn = 0

        cls.catch_stop_iteration = caught

    # Called from the instrumented function.

    def begin(self, steps: Any, given: object, epochs: Iterable[int]) -> Iterable[int]:
        """Prepare for the epoch loop that `fit` will enter. `steps` is its EpochIterator, `given` the training data."""
        self._steps = weakref.ref(steps)
        self._given = weakref.ref(given) if isinstance(given, GeneratorType) else None
        self._has_fetched = False
        self._names = names_of(sys._getframe(1))
        self._runs_python = not isinstance(steps._distributed_dataset, tf.data.Dataset) or runs_python(steps._distributed_dataset)
        self._judged, self._iterator, self._passes, self._turn, self._target = None, None, [], 0, None
        assert self._probes is not None
        before = digest_of_arrays([self._names.get(name) for name in VALIDATION])
        self._validates_on = before, before
        if isinstance(steps._distributed_dataset, tf.data.Dataset):
            self._judged = steps._distributed_dataset
            allow_permutation(steps.data_adapter, self._judged)
            is_whole = steps.steps_per_execution == 1
            steps._distributed_dataset = digesting(self._judged, self._probes.note_fetched, is_whole=is_whole)
        if is_generator(steps) or (self._runs_python and steps.steps_per_epoch is not None):
            self._probes.note_all_streams()
        return epochs

    def steps(self, steps: Any, _given: object) -> Iterator[Any]:
        """Yield the steps of an epoch. `_given` is an argument so that the program's training data count as state."""
        self._turn, passed = 0, 0
        for step in steps:
            self._has_fetched = True
            self._note_turn(steps, step[2])
            # the iterator was made as in the first run; its earlier elements need not be fetched
            if self._target is not None:
                (passed, set_to), self._target = self._target, None
                set_to(step[2])
            self._turn += 1
            if self._turn > passed:
                yield step
        self._turn = 0

    def _note_turn(self, steps: Any, iterator: Any) -> None:
        """Note a step, about to run, of the running epoch, and its iterator, which may have been drawn from before."""
        assert self._probes is not None
        if self._iterator is None or self._iterator() is not iterator:
            self._iterator = weakref.ref(iterator)
            self._passes = [*self._passes, []] if is_generator(steps) else [[]]
        runs, epoch = self._passes[-1], self._probes.epoch()
        if runs and runs[-1][0] == epoch:
            runs[-1][2] += 1
            return
        if len(runs) > 1 and runs[-2][2] == runs[-1][2] and sum(runs[-2][:2]) == runs[-1][0]:
            runs[-2][1] += runs.pop()[1]
        runs.append([epoch, 1, 1])

    def begin_step(self) -> None:
        """Note that the step is about to fetch its batch."""
        if self._runs_python:
            assert self._probes is not None
            self._probes.begin_fetch()

    def validates(self, *data: object) -> None:
        """Note that `fit` has made the set for validation, from copies of the arrays as they are now."""
        self._validates_on = self._validates_on[0], digest_of_arrays(data)

    def not_captured(self) -> list[str]:
        """Return, in words, the state of the running `fit` that a resumed run would lack."""
        before, copied = self._validates_on
        return [] if before == copied else [_CHANGED]

    def source(self) -> Any:
        """Return the set that the running `fit` draws from by an iterator that exists now; None if there is none."""
        steps = None if self._steps is None else self._steps()
        return self._judged if steps is not None and (self._turn or _lives_on(steps)) else None

    def pull(self, iterator: Iterator[Any]) -> None:
        """Fetch the batches of a step without running the step."""
        assert self._probes is not None
        for _ in range(self._running().steps_per_execution):
            try:
                batch = next(iterator)
            except StopIteration:
                return
            if isinstance(iterator, DistributedIteratorBase):
                note_batch(batch, self._probes.note_fetched, is_whole=False)

    def refetch(self, item: object, fetched: Sequence[list[np.ndarray[Any, Any]]]) -> object | None:
        """Return a step of the running `fit` that fetches these batches again; None if it would not be the same."""
        steps = None if self._steps is None else self._steps()
        dataset = None if steps is None or self._runs_python else steps._distributed_dataset
        spec = dataset.element_spec if isinstance(dataset, tf.data.Dataset) else None
        if not isinstance(item, tuple) or spec is None or not all(type(part) is tf.TensorSpec for part in tf.nest.flatten(spec)):
            return None

        def elements() -> Iterator[Any]:
            for parts in fetched:
                yield tf.nest.pack_sequence_as(spec, parts)

        # Its signature is that of the real iterator: so the compiled step is not traced anew.
        first, last, _iterator = item
        return first, last, iter(tf.data.Dataset.from_generator(elements, output_signature=spec))

    def is_pure(self, loader: object) -> bool:
        """Return whether a loader is the generator of the running `fit`'s steps, and its data run no Python."""
        is_ours = isinstance(loader, GeneratorType) and loader.gi_code is FitInstrument.steps.__code__
        return is_ours and not self._runs_python

    # State.

    def state(self) -> dict[str, Any] | None:
        """Return the state of the running `fit`'s loader; None if none is running."""
        steps = None if self._steps is None else self._steps()
        if steps is None:
            return None
        return {
            "num_batches": steps._num_batches,
            "steps_seen": steps._steps_seen,
            "has_iterator": _lives_on(steps),
            "has_validated": getattr(self._names.get("self"), "_eval_epoch_iterator", None) is not None,
            "seeds": getattr(steps._current_iterator, "detrain_given", {}),
            "passes": self._passes,
            "order": order_of(steps) if not self._turn and _lives_on(steps) and steps._steps_seen else None,
            "turn": self._turn,
            "validates_on": self._validates_on[1],
        }

    def position(self, read_with: Callable[[Any, Callable[[], Array]], Array], *, is_forced: bool) -> Array | None:
        """Return the position of the iterator that is drawn from or kept between epochs, None without one. Raises
        NoPosition.

        `read_with` takes the set and a function that reads the position, and notes how many seeds shuffled sets have
        given.
        """
        steps = None if self._steps is None else self._steps()
        if steps is None or not (self._turn or (_lives_on(steps) and steps._steps_seen)):
            return None
        iterator = self._iterator() if self._iterator is not None else steps._current_iterator
        if self._judged is None or iterator is None:
            raise NoPosition("fit() trains on a distributed set")
        read = functools.partial(read_position, iterator, self._judged, is_forced=is_forced, is_judged=True)
        return read_with(self._judged, read)

    def restore(
        self,
        state: dict[str, Any] | None,
        set_given: Callable[[Mapping[str, int]], None],
        position: Array | None,
        given: Mapping[str, int],
    ) -> None:
        """Bring the loader to its position in the checkpoint, if no epoch has begun in this process.

        `set_given` has shuffled sets, by key, go on with the seeds from which the first run made its iterator; `given`
        has how many seeds they had given at the checkpoint.
        """
        steps = None if self._steps is None else self._steps()
        if steps is None or state is None or self._has_fetched:
            return

        def set_to(iterator: Any) -> None:
            assert position is not None
            set_with(self._judged, given, functools.partial(set_position, iterator, position))

        if state["validates_on"] != self._validates_on[1]:
            raise NotCapturable(
                "the arrays that fit() validates on are not what it had copied: the loop had changed them in place by then",
                "give it copies (`validation_data=(x.copy(), y.copy())`), and start anew with --fresh",
            )
        if state["turn"]:
            self._target = None if position is None else (state["turn"], set_to)
            return
        if state["has_validated"]:
            self._make_validation()
        steps._num_batches, steps._steps_seen = state["num_batches"], state["steps_seen"]
        self._passes = state["passes"]
        is_drawn = state["has_iterator"] and state["steps_seen"] > 0
        if is_generator(steps):
            for number, runs in enumerate(self._passes, 1):
                iterator = iter(steps._distributed_dataset)
                self._replay(runs, iterator)
                if is_drawn and number == len(self._passes):
                    steps._current_iterator, self._iterator = iterator, weakref.ref(iterator)
            if is_drawn:
                return
        if not state["has_iterator"]:
            return
        set_given(state["seeds"])
        steps._current_iterator = iter(steps._distributed_dataset)
        if is_drawn:
            self._iterator = weakref.ref(steps._current_iterator)
            if position is not None:
                set_to(steps._current_iterator)
            elif state["order"] is not None:
                steps.data_adapter.detrain_left = state["order"]
            else:
                self._replay(self._passes[-1], steps._current_iterator)

    def _make_validation(self) -> None:
        """Make the validation iterator, as `fit` does once: making it may draw random numbers."""
        names, model = self._names, self._names["self"]
        model._eval_epoch_iterator = type(self._running())(
            x=names["val_x"],
            y=names["val_y"],
            sample_weight=names["val_sample_weight"],
            batch_size=names["validation_batch_size"] or names["batch_size"],
            distribute_strategy=model.distribute_strategy,
            steps_per_execution=model.steps_per_execution,
            steps_per_epoch=names["validation_steps"],
            shuffle=False,
        )

    def is_loader(self, value: object) -> bool:
        """Return whether an object is a generator whose position `restore` brings back."""
        return self._given is not None and self._given() is value

    def _replay(self, runs: list[list[int]], iterator: Iterator[Any]) -> None:
        """Draw as many batches from an iterator as the first run drew from it in a pass."""
        assert self._probes is not None
        for first, epochs, turns in runs:
            for epoch in range(first, first + epochs):
                for turn in range(turns):
                    self._probes.load_again(epoch, turn, functools.partial(self.pull, iterator))

    def _running(self) -> Any:
        assert self._steps is not None
        return self._steps()


def _hold_back(backup: Any, probes: Probes) -> None:
    """Keep Keras's own backup from resuming where detrain does: it would begin with another epoch and state."""
    original = backup.on_train_begin

    @in_place_of(backup, "on_train_begin")
    def on_train_begin(self: Any, logs: Any = None) -> None:
        if not probes.is_resuming():
            original(self, logs)


def is_of_fit(frame: FrameType | None) -> bool:
    """Return whether an iterator is being made by the loops of `fit`, `evaluate` or `predict`, or by `FitInstrument`,
    which look after it.

    So it is if theirs is the first frame around those of TensorFlow (many, if a strategy distributes a set) and
    detrain.
    """
    for each in outwards(frame):
        file = each.f_code.co_filename
        if file.endswith((_EPOCH_ITERATOR, __file__)):
            return True
        if not file.startswith(_LIBRARIES):
            break
    return False


def _lives_on(steps: Any) -> bool:
    """Return whether `fit` keeps its iterator from epoch to epoch."""
    return steps._current_iterator is not None and steps.steps_per_epoch is not None
