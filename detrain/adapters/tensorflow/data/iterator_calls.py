"""The elements of tf.data iterators: those drawn by eager code are counted; iterators that functions advance are
marked.

Nobody counts the elements that a compiled function draws from its iterator. `begin` notes the seeds when an iterator is
made, and `end` notes that one has run out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from tensorflow.python.data.ops import iterator_ops, optional_ops
from tensorflow.python.data.util import structure
from tensorflow.python.eager import context
from tensorflow.python.framework import errors_impl
from tensorflow.python.ops import gen_optional_ops, script_ops

from detrain.adapters.stable_names import Births
from detrain.adapters.tensorflow.data import shuffle_seeds
from detrain.adapters.tensorflow.data.iterator_positions import is_drawn_again, stages
from detrain.adapters.tensorflow.guard.held_state import IteratorPulls
from detrain.base.errors import DetrainError
from detrain.base.in_place import in_place_of
from detrain.python.loaders.generator_replay import Elements

_ENDERS: Final = ("_Take", "_Zip", "_DirectedInterleave")
_AHEAD: Final = ("_Prefetch", "_Parallel")


def watch_python(elements: Elements) -> None:
    """Note whether any function calls Python code that is not detrain's."""
    original = script_ops._internal_py_func

    @in_place_of(script_ops, "_internal_py_func")
    def called(func: Any, *args: Any, **kwargs: Any) -> Any:
        elements.is_python |= not str(getattr(func, "__module__", "")).startswith("detrain.")
        return original(func, *args, **kwargs)


def watch_elements(
    pulls: IteratorPulls, elements: Elements | None, births: Births, fail: Callable[[DetrainError], None] | None
) -> None:
    """Watch the elements that iterators give to eager code, and mark the iterators that compiled functions advance."""
    original_next = iterator_ops.OwnedIterator._next_internal
    original_optional = iterator_ops.OwnedIterator.get_next_as_optional
    original_type = iterator_ops.OwnedIterator.__tf_tracing_type__
    original_parts = iterator_ops.IteratorSpec._to_components

    @functools.wraps(original_next)
    def advanced(iterator: Any) -> Any:
        python = getattr(iterator, "detrain_python", "") if context.executing_eagerly() else ""
        if elements is not None and python:
            elements.begin(python, iterator.detrain_pulled)
        try:
            value = pulls.next(iterator, original_next)
        except errors_impl.OutOfRangeError:
            end(iterator)
            raise
        if elements is not None and python:
            elements.end(python)
        if not context.executing_eagerly():
            iterator.detrain_is_traced = True
            return value
        iterator.detrain_pulled += 1
        if getattr(iterator, "detrain_made_at", None) not in (None, births.moment()) and is_drawn_again(iterator):
            iterator.detrain_last = value
        if elements is not None and getattr(iterator, "detrain_made_at", None) not in (None, births.moment()):
            try:
                elements.note(value)
            except DetrainError as error:
                if fail is None:
                    raise
                fail(error)
        return value

    @in_place_of(iterator_ops.OwnedIterator, "get_next_as_optional")
    def advanced_if_possible(iterator: Any) -> Any:
        if not context.executing_eagerly():
            iterator.detrain_is_traced = True
            return original_optional(iterator)
        try:
            value = advanced(iterator)
        except errors_impl.OutOfRangeError:
            return original_optional(iterator)
        spec = iterator.element_spec
        return optional_ops._OptionalImpl(gen_optional_ops.optional_from_value(structure.to_tensor_list(spec, value)), spec)

    @in_place_of(iterator_ops.OwnedIterator, "__tf_tracing_type__")
    def given_to_function(iterator: Any, *args: Any) -> Any:
        iterator.detrain_is_traced = True
        return original_type(iterator, *args)

    @in_place_of(iterator_ops.IteratorSpec, "_to_components")
    def taken_apart(spec: Any, iterator: Any) -> Any:  # a part of a distributed iterator that a function is given
        iterator.detrain_is_traced = True
        return original_parts(spec, iterator)

    iterator_ops.OwnedIterator._next_internal = advanced


def begin(iterator: Any, dataset: Any) -> None:
    """Note how many seeds a dataset's sets have given, as an iterator over it is about to be made."""
    iterator.detrain_given = shuffle_seeds.given(dataset)
    drawn = shuffle_seeds.drawn(dataset)
    for stage in stages(dataset) if drawn.at_start or drawn.later else ():
        cache = shuffle_seeds.cache_of(stage)
        if cache is not None:
            cache.begin(stage)


def end(iterator: Any) -> None:
    """Note that an iterator has run out and begins no set anew, unless a stage drew ahead and dropped elements."""
    left = getattr(iterator, "detrain_left", None)
    if left is not None and not iterator.detrain_runs_ahead:
        left.detach()


def runs_ahead(dataset: Any) -> bool:
    """Return whether a stage may end while an earlier stage, which runs on its own, still has elements."""
    enders = [stage for stage in stages(dataset) if type(stage).__name__.startswith(_ENDERS)]
    return any(type(stage).__name__.startswith(_AHEAD) for ender in enders for stage in stages(ender))
