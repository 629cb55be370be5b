"""The generators from which iterators over shuffled tf.data sets take their seeds: how much each has given, read and
set.

TensorFlow draws seeds whenever something goes over a shuffled set anew: `iter`, each turn of a `repeat`, each path of a
`zip`, each turn of a function that a stage calls. Nobody can count that from outside. So each set gets a generator of
its own that it shares with a probe, an iterator over an empty set, whose position (TensorFlow's own form) says what the
generator has given.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2
from tensorflow.python.data.ops import cache_op, concatenate_op, options, repeat_op
from tensorflow.python.eager import context
from tensorflow.python.ops import gen_dataset_ops, gen_experimental_dataset_ops

_GIVEN: Final = b"epoch_num_random_samples"
"""The number in an iterator's position, in its first record that has it."""
_SEEDS: Final = "detrain_seeds"
_DRAWN: Final = "detrain_drawn"
_CACHE: Final = "detrain_cache"
_FAR: Final = 1_000_003
"""More numbers than anything takes ahead. TensorFlow passes over them one by one."""
_TYPES: Final = [tf.int64]
_SHAPES: Final = [tf.TensorShape([])]


class Seeds:
    """The generator of one shuffled set."""

    def __init__(self, seed: Any, seed2: Any, shuffle: Any) -> None:
        self.key = ""
        """The name of the set, once it is there."""
        self.generator, self._deleter = gen_dataset_ops.anonymous_seed_generator(seed, seed2, reshuffle=True)
        zero, one = tf.constant(0, tf.int64), tf.constant(1, tf.int64)
        empty = gen_dataset_ops.range_dataset(zero, zero, one, _TYPES, _SHAPES)
        same = shuffle(
            empty,
            buffer_size=one,
            seed=seed,
            seed2=seed2,
            seed_generator=self.generator,
            output_types=_TYPES,
            output_shapes=_SHAPES,
        )
        self._probe = gen_dataset_ops.anonymous_iterator_v3(_TYPES, _SHAPES)
        gen_dataset_ops.make_iterator(same, self._probe)
        self.given = 0  # what the probe itself was given does not count

    @property
    def given(self) -> int:
        """How many numbers the generator has given."""
        _position, _record, numbers, index = self._read()
        return int(numbers[index])

    @given.setter
    def given(self, count: int) -> None:
        position, record, numbers, index = self._read()
        numbers[index] = tf.constant(count, tf.int64)
        record.tensors[0].CopyFrom(_to_proto(gen_experimental_dataset_ops.compress_element(numbers)))
        gen_dataset_ops.deserialize_iterator(self._probe, tf.io.parse_tensor(position.SerializeToString(), tf.variant))

    def _read(self) -> tuple[Any, Any, list[Any], int]:
        """Return the probe's position, its record with what was given, the numbers in that, and which of them it is."""
        state = gen_dataset_ops.serialize_iterator(self._probe, options.ExternalStatePolicy.FAIL.value)
        position = _to_proto(state)
        _split(position)
        for record in position.variant_val:
            _prefix, *names = record.metadata.split(b"@@")
            if _GIVEN in names:
                packed = tf.io.parse_tensor(record.tensors[0].SerializeToString(), tf.variant)
                count = len(names)
                numbers = gen_experimental_dataset_ops.uncompress_element(packed, _TYPES * count, _SHAPES * count)
                return position, record, list(numbers), names.index(_GIVEN)
        raise AssertionError("this TensorFlow's position of an iterator over a shuffled set does not say what it was given")


class SeedSources(msgspec.Struct, frozen=True):
    """What an iterator over a dataset takes seeds from: when it is made, and while it is drawn from."""

    at_start: frozenset[Seeds] = frozenset()
    later: frozenset[Seeds] = frozenset()

    def names(self) -> set[str]:
        """Return the names of all the sets."""
        return {seeds.key for seeds in self.at_start | self.later}


def drawn(dataset: Any) -> SeedSources:
    """Return what an iterator over a dataset takes seeds from."""
    return getattr(dataset._variant_tensor, _DRAWN, SeedSources())


def on_dataset(dataset: Any) -> Seeds | None:
    """Note what a dataset that has been made draws from, as long as anything holds it; return the generator that is its
    own.
    """
    variant = dataset._variant_tensor
    own = getattr(variant, _SEEDS, None)
    sources = [drawn(source) for source in dataset._inputs()]
    captured = [tensor for function in dataset._functions() for tensor in function.function.captured_inputs]
    # A set that a function goes over for each element.
    called = [getattr(tensor, _DRAWN, SeedSources()) for tensor in captured]
    at_start = frozenset([own] if own is not None else []).union(*(source.at_start for source in sources))
    later = frozenset[Seeds]().union(*(source.later for source in sources), *(each.at_start | each.later for each in called))
    if isinstance(dataset, repeat_op._RepeatDataset | concatenate_op._ConcatenateDataset):
        later |= at_start
    setattr(variant, _DRAWN, SeedSources(at_start, later))
    if isinstance(dataset, cache_op.CacheDataset) and not tf.get_static_value(dataset._filename):
        setattr(variant, _CACHE, Cache())
    return own


class Cache:
    """What a `cache()` over shuffled sets was filled from: the order that it keeps is that of one pass over them.

    One in files is not asked: it is filled once for all, and an iterator that only looks would take half filled files
    along.
    """

    def __init__(self) -> None:
        self._start: dict[str, int] = {}
        """What the sets had given, by their names, when the iterator was made that has filled it, or will."""
        self._is_filled = False

    def begin(self, dataset: Any) -> None:
        """An iterator that draws from the cached dataset is about to be made."""
        if not self.is_filled(dataset):
            self._start = given(dataset)

    def start_of(self, dataset: Any) -> dict[str, int] | None:
        """Return what the sets had given before it was filled, or None if it is not full."""
        return self._start if self.is_filled(dataset) else None

    def is_filled(self, dataset: Any) -> bool:
        """Return whether it is full: then an iterator does not go over what is behind it, and takes no seeds."""
        if not self._is_filled:
            before = given(dataset)
            probe = gen_dataset_ops.anonymous_iterator_v3(**dataset._flat_structure)
            gen_dataset_ops.make_iterator(dataset._variant_tensor, probe)
            self._is_filled = given(dataset) == before
            for seeds in drawn(dataset).at_start:
                seeds.given = before[seeds.key]
        return self._is_filled


def cache_of(dataset: Any) -> Cache | None:
    """Return what is known of a `cache()` whose content hangs on seeds."""
    return getattr(dataset._variant_tensor, _CACHE, None) if drawn(dataset).at_start else None


def given(dataset: Any) -> dict[str, int]:
    """Return what the sets that a dataset draws from have given, by their names."""
    return {seeds.key: seeds.given for seeds in drawn(dataset).at_start | drawn(dataset).later}


def read_with(dataset: Any, read: Callable[[], Any]) -> tuple[Any, dict[str, int]]:
    """Return what `read` returns of an iterator over a dataset, and what the sets had given at that very moment.

    A stage of TensorFlow's may be drawing ahead meanwhile.
    """
    before = given(dataset)
    while True:
        found = read()
        after = given(dataset)
        if after == before:
            return found, before
        before = after


def set_with(dataset: Any, was_given: Mapping[str, int], set_position: Callable[[], None]) -> None:
    """Set an iterator over a dataset to a position, and the sets to what they had given.

    It is in the position, and comes back as that is set, but not of a set that has run out while what stands behind it
    has not (a last batch that waits): that would go on with what it has given to iterators that TensorFlow makes on the
    way.
    """
    seeds = [each for each in drawn(dataset).at_start | drawn(dataset).later if each.key in was_given]
    for each in seeds:
        each.given = was_given[each.key] + _FAR
    set_position()
    for each in seeds:
        if each.given >= was_given[each.key] + _FAR:
            each.given = was_given[each.key]


def watch() -> None:
    """Give each set that is shuffled anew by each iterator, or that draws anew, a generator that can be read."""
    shuffle = gen_dataset_ops.shuffle_dataset_v3
    gen_dataset_ops.shuffle_dataset_v3 = _with_seeds(shuffle, shuffle, "reshuffle_each_iteration")
    random = gen_experimental_dataset_ops.random_dataset_v2
    gen_experimental_dataset_ops.random_dataset_v2 = _with_seeds(random, shuffle, "rerandomize_each_iteration")


def _with_seeds(original: Any, shuffle: Any, is_anew: str) -> Any:
    @functools.wraps(original)
    def made(*args: Any, **kwargs: Any) -> Any:
        is_ours = context.executing_eagerly() and kwargs.get(is_anew) is not False
        if not (is_ours and {"seed", "seed2", "seed_generator"} <= kwargs.keys()):
            return original(*args, **kwargs)
        with tf.device("CPU:0"):
            seeds = Seeds(kwargs["seed"], kwargs["seed2"], shuffle)
        variant = original(*args, **{**kwargs, "seed_generator": seeds.generator})
        setattr(variant, _SEEDS, seeds)  # as long as the set is there, and no longer
        return variant

    return made


def _to_proto(tensor: Any) -> Any:
    return tensor_pb2.TensorProto.FromString(tf.io.serialize_tensor(tensor).numpy())


def _split(position: Any) -> None:
    """Take the records of a position apart: TensorFlow writes their sizes, then all of them, as one text of bytes."""
    data, sizes, at = position.tensor_content, [], 0
    for _record in range(position.tensor_shape.dim[0].size):
        size = shift = 0
        while True:
            size |= (data[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if data[at - 1] < 0x80:
                break
        sizes.append(size)
    position.ClearField("tensor_content")
    for size in sizes:
        position.variant_val.add().ParseFromString(data[at : at + size])
        at += size
