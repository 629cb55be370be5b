"""The generators from which iterators over shuffled tf.data sets take their seeds: how many each has given, read and
set.

TensorFlow draws seeds whenever a shuffled set is begun anew: by `iter`, by each turn of a `repeat`, each path of a
`zip`, each turn of a function that a stage calls. Nobody can count that from outside. So each set gets a generator of
its own, which it shares with a probe: an iterator over an empty set, whose position (TensorFlow's own form) contains
how many numbers the generator has given.
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
"""The name, in an iterator's position, of the number of given seeds; the first record with this name has it."""
_SEEDS: Final = "detrain_seeds"
_DRAWN: Final = "detrain_drawn"
_CACHE: Final = "detrain_cache"
_FAR: Final = 1_000_003
"""A number larger than any count of seeds taken ahead. TensorFlow passes over so many one by one."""
_TYPES: Final = [tf.int64]
_SHAPES: Final = [tf.TensorShape([])]


class Seeds:
    """The generator of the seeds of one shuffled set."""

    def __init__(self, seed: Any, seed2: Any, shuffle: Any) -> None:
        self.key = ""
        """The key of the set, once the set is there."""
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
        self.given = 0  # seeds that the probe itself took do not count

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
        """Return the probe's position, its record with the count of seeds, the record's numbers, and the
        count's place.
        """
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
    """The generators from which an iterator over a dataset takes seeds: when it is made, and while it is drawn from."""

    at_start: frozenset[Seeds] = frozenset()
    later: frozenset[Seeds] = frozenset()

    def names(self) -> set[str]:
        """Return the keys of all the shuffled sets."""
        return {seeds.key for seeds in self.at_start | self.later}


def drawn(dataset: Any) -> SeedSources:
    """Return the generators from which an iterator over a dataset takes seeds."""
    return getattr(dataset._variant_tensor, _DRAWN, SeedSources())


def on_dataset(dataset: Any) -> Seeds | None:
    """Note the generators of seeds behind a new dataset, for as long as anything holds it; return its own
    generator, if any.
    """
    variant = dataset._variant_tensor
    own = getattr(variant, _SEEDS, None)
    sources = [drawn(source) for source in dataset._inputs()]
    captured = [tensor for function in dataset._functions() for tensor in function.function.captured_inputs]
    # Sets that a stage's function goes over anew for each element.
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
    """The seeds from which a `cache()` over shuffled sets was filled: it keeps the order of one pass over them.

    A cache in files is not examined: it is filled once for all, and an iterator made for a look would delete
    half-filled files as it ends.
    """

    def __init__(self) -> None:
        self._start: dict[str, int] = {}
        """How many seeds each set, by key, had given when the iterator was made that fills the cache."""
        self._is_filled = False

    def begin(self, dataset: Any) -> None:
        """Note the seeds given until now: an iterator that draws from the cached dataset is about to be made."""
        if not self.is_filled(dataset):
            self._start = given(dataset)

    def start_of(self, dataset: Any) -> dict[str, int] | None:
        """Return how many seeds the sets had given before the cache was filled, or None if it is not full."""
        return self._start if self.is_filled(dataset) else None

    def is_filled(self, dataset: Any) -> bool:
        """Return whether the cache is full: then an iterator reads it alone and takes no seeds."""
        if not self._is_filled:
            before = given(dataset)
            probe = gen_dataset_ops.anonymous_iterator_v3(**dataset._flat_structure)
            gen_dataset_ops.make_iterator(dataset._variant_tensor, probe)
            self._is_filled = given(dataset) == before
            for seeds in drawn(dataset).at_start:
                seeds.given = before[seeds.key]
        return self._is_filled


def cache_of(dataset: Any) -> Cache | None:
    """Return the record of a `cache()` whose content depends on seeds; None for any other dataset."""
    return getattr(dataset._variant_tensor, _CACHE, None) if drawn(dataset).at_start else None


def given(dataset: Any) -> dict[str, int]:
    """Return how many seeds each set that a dataset draws from has given, by key."""
    return {seeds.key: seeds.given for seeds in drawn(dataset).at_start | drawn(dataset).later}


def read_with(dataset: Any, read: Callable[[], Any]) -> tuple[Any, dict[str, int]]:
    """Return the result of `read`, and how many seeds the dataset's sets had given at that very moment.

    A stage may draw ahead meanwhile; then `read` is called again, until the counts before and after are equal.
    """
    before = given(dataset)
    while True:
        found = read()
        after = given(dataset)
        if after == before:
            return found, before
        before = after


def set_with(dataset: Any, was_given: Mapping[str, int], set_position: Callable[[], None]) -> None:
    """Set an iterator over a dataset to a position, and restore how many seeds its sets had given.

    The position contains these counts, and setting it restores them, except that of a set that has run out while a
    stage after it has not (a last batch that waits). Such a set would go on after the seeds that it gives to iterators
    that TensorFlow makes on the way.
    """
    seeds = [each for each in drawn(dataset).at_start | drawn(dataset).later if each.key in was_given]
    for each in seeds:
        each.given = was_given[each.key] + _FAR
    set_position()
    for each in seeds:
        if each.given >= was_given[each.key] + _FAR:
            each.given = was_given[each.key]


def watch() -> None:
    """Give a readable generator to each set that is shuffled, or drawn at random, anew by each iterator."""
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
    """Take the records of a position apart: TensorFlow writes their sizes, then all records, as one byte string."""
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
