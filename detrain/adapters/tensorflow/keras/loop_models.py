"""Models and optimizers that a loop makes: they are made again, by what Keras's own settings say, under their names.

A loop that keeps a copy of its best model, or loads one, makes objects that a resumed process lacks. A whole model of Keras's own
classes is data in Keras's own words, the same that its files hold; what it holds is found by where it lies in it (`survey`), and
named as in the first run, so that its variables, and what was set on its parts, come back as those of all others do. When all is
back, the model is compared with what it was: each part at its place, and all that lies beside (`check`).

Only what is certain is described: a layer that another model or the program's past has, too, a wrapper, an average of weights, a
class or function of the program's, an attribute that the program has put there: such a model is named as lost where it appears.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import json
import re
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.values import DistributedVariable

from detrain.adapters.stable_names import Births
from detrain.base.digest import digest_bytes
from detrain.base.errors import DetrainError, Diverged
from detrain.python.inspect.names import own_attributes
from detrain.python.inspect.stored_attributes import library_names, stores
from detrain.python.inspect.user_modules import user_modules

MADE: Final = "keras.made"
"""The kind of what is in such a model, in a checkpoint."""

_NO_STATE: Final = frozenset(
    {"_tracker", "_tracked", "_inbound_nodes", "_outbound_nodes", "_losses", "_loss_ids", "_losses_override", "_auto_config"}
    | {"_call_signature", "_called", "_jit_compile", "_nodes", "_nodes_by_depth", "build", "quantize", "_distribution_strategy"}
    | {"_distribute_strategy", "_build_shapes_dict", "_compile_config", "_compiled_trainable_state", "backend"}
    | {"_trainable_variables_indices", "_exclude_from_weight_decay_cache", "_arg_reducer", "_self_update_uid"}
    | {"train_function", "test_function", "predict_function", "stop_evaluating", "stop_predicting"}
    | {"_self_name_based_restores", "_self_saveable_object_factories"}
    | {f"_self_unconditional_{what}" for what in ("checkpoint_dependencies", "dependency_names", "deferred_dependencies")}
)
"""Attributes in which Keras and TensorFlow keep account: of calls that there have been, and once more of what others hold."""
_OF_CALLS: Final = frozenset({"Node", "KerasTensor", "SymbolicArguments", "Signature"})
_DENIED: Final = frozenset({"Lambda", "TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer", "RNN", "StackedRNNCells"})
"""Layers that hold code of the program's, a path, or layers of any kind."""
_VALUES: Final = frozenset({"__keras_tensor__", "__tuple__"})
"""What stands in settings for inputs of layers, and for tuples."""
_TEXTS: Final = (bool, int, float, str, bytes, re.Pattern, np.dtype, tf.DType, np.generic, tf.TensorShape)
_MOST_PARTS: Final = 1 << 16
_WIDTH: Final = 6
"""Digits that are kept of what lies beside the parts: they decide nothing but the words of a refusal."""


class Survey(NamedTuple):
    """What an object holds."""

    parts: dict[str, Any]
    """By where they lie: the layers, variables, and all else that has a name in the run, itself (at "") first."""
    drawn: dict[str, tuple[Any, tuple[str, ...]]]
    """What was given a seed or a number in its name as it was made, and the attributes that have it: no settings do."""
    others: list[str]
    """What lies beside them, in words."""


class _Made(NamedTuple):
    """A model or optimizer that has been made again."""

    value: Any
    described: dict[str, Any]


class Made:
    """Describes such objects, and makes them again.

    `rename` gives a variable or another object the key that it had in the first run, or none; `settle` notes that an object is
    built; `find_variable` returns the variable with a key; `owners` the keys of what was built by itself.
    """

    def __init__(
        self,
        births: Births,
        rename: Callable[[object, str | None], None],
        settle: Callable[[str], None],
        find_variable: Callable[[str], Any],
        owners: Callable[[], set[str]],
    ) -> None:
        import keras
        from keras.src.initializers.random_initializers import RandomInitializer
        from keras.src.saving import serialization_lib

        self._births, self._rename, self._settle, self._find_variable = births, rename, settle, find_variable
        self._owners = owners
        self._keras, self._lib, self._drawing = keras, serialization_lib, RandomInitializer
        self._models = (keras.Sequential, keras.src.models.functional.Functional)
        self._optimizer = keras.optimizers.Optimizer
        self._known: dict[int, tuple[Any, str]] = {}
        """What is in those that can be described, by identity: that, and the key of the one that it is in."""
        self._looked_at: object = None
        """When that was found: nothing that counts has changed then."""
        self._described: dict[str, dict[str, Any]] = {}
        self._asked: set[str] = set()
        self._made: list[_Made] = []
        self.again: frozenset[str] = frozenset()
        """Keys of the parts of what has been made again by now."""

    # Describing.

    def part(self, value: Any) -> str | None:
        """Return the key of what a resumed process will find in an object that is made again; None for anything else."""
        if not self._births.is_of_loop(value) and not isinstance(value, self._keras.Layer):
            return None
        if self._looked_at is None or self._looked_at != self._births.moment():
            self._look()
        found = self._known.get(id(value))
        if found is None or found[0] is not value:
            return None
        self._asked.add(found[1])
        return self._births.key(value)

    def described(self) -> list[dict[str, Any]]:
        """Return, as JSON can have it, what has been asked for by its parts, and forget it."""
        found = [self._described[key] for key in sorted(self._asked)]
        self._known, self._described, self._asked, self._looked_at = {}, {}, set(), None
        return found

    def _look(self) -> None:
        """Find what can be described."""
        self._known, self._described, self._asked, self._looked_at = {}, {}, set(), self._births.moment()
        kinds = (*self._models, self._optimizer)
        roots = {key: each for key, each in self._whole(kinds).items() if self._births.is_of_loop(each)}
        surveys = {key: self.survey(root) for key, root in roots.items()}
        inner = {id(part) for survey in surveys.values() for path, part in survey.parts.items() if path}
        whole = {key: root for key, root in sorted(roots.items()) if id(root) not in inner}
        times = collections.Counter(id(part) for key in whole for part in surveys[key].parts.values())
        for key, root in whole.items():
            survey = surveys[key]
            is_alone = all(times[id(part)] == 1 for part in survey.parts.values())
            described = None
            if is_alone and self._is_certain(root, survey) and not self._is_shared(survey):
                with contextlib.suppress(TypeError, ValueError, NotImplementedError, AttributeError):  # Keras: no settings
                    described = self._describe(root, survey)
            if described is not None:
                self._described[key] = described
                self._known |= {id(part): (part, key) for part in survey.parts.values()}

    def _whole(self, kinds: tuple[type, ...]) -> dict[str, Any]:
        """Return what is alive of these kinds, but for the models that a Sequential has made for itself: it lets go of them."""
        alive = {key: value for key, value in self._births.alive() if isinstance(value, kinds)}
        makers = {key: alive.get(key.rpartition("/")[0]) for key, value in alive.items() if type(value) is self._models[1]}
        return {key: value for key, value in alive.items() if type(makers.get(key)) is not self._keras.Sequential}

    def _is_certain(self, root: Any, survey: Survey) -> bool:
        """Return whether an object is of Keras's own making, through and through, and of the loop's."""
        keys = {self._key(part) for part in survey.parts.values()}
        outside = frozenset[str]().union(*(stores(module.__file__ or "").outside for module in user_modules().values()))
        for path, part in survey.parts.items():
            key = self._key(part)
            is_own_part = key is not None and (self._births.is_of_loop(_inner(part)) or key.rpartition("/")[0] in keys)
            if not is_own_part or not _is_kerass(part) or isinstance(_inner(part), DistributedVariable):
                return False
            if not outside & (own_attributes(part) or {}).keys() <= library_names(type(part)):
                return False  # the program has put something there
            if isinstance(part, self._keras.Layer) and not (self._is_plain(part) and self._is_built_alone(part, keys)):
                return False
            if isinstance(part, self._optimizer) and (part.use_ema or hasattr(part, "inner_optimizer")):
                return False
            if isinstance(part, self._keras.Model) and path and (part.compiled or type(part) not in self._models):
                return False
        is_model = isinstance(root, self._models)
        return "history" not in vars(root) and (not is_model or type(root) in self._models)

    def _is_plain(self, layer: Any) -> bool:
        name = type(layer).__name__
        is_plain = name not in _DENIED and not isinstance(layer, self._keras.layers.Wrapper) and not hasattr(layer, "adapt")
        is_changed = getattr(layer, "lora_enabled", False) or getattr(layer, "quantization_mode", None) is not None
        return is_plain and not is_changed and not getattr(layer, "stateful", False)

    def _is_built_alone(self, layer: Any, keys: set[str | None]) -> bool:
        """Return whether no function has built a layer as it was traced: such a trace differs from one that finds it built."""
        is_of_loop = all(self._births.is_of_loop(_inner(each)) for each in layer._trainable_variables)
        return is_of_loop or not keys.isdisjoint(self._owners())

    def _is_shared(self, survey: Survey) -> bool:
        """Return whether a layer of it is also in another one."""
        own = {id(part) for part in survey.parts.values()}

        def is_held() -> bool:
            others = [layer for layer in self._whole((self._keras.Layer,)).values() if id(layer) not in own]
            return any(id(inner) in own for other in others for inner in (*other._layers, vars(other).get("_functional")))

        if not is_held():
            return False
        gc.collect()  # it may be one that nobody has any more
        return is_held()

    def _describe(self, root: Any, survey: Survey) -> dict[str, Any] | None:
        settings = self._lib.serialize_keras_object(root)
        if not self._is_known(settings) or (getattr(root, "compiled", False) and not settings.get("compile_config")):
            return None
        keys = {path: self._key(part) for path, part in survey.parts.items()}
        is_model = isinstance(root, self._models)
        optimizer = _optimizer_of(root)
        is_built = optimizer is not None and optimizer.built
        trained = [self._key(each) for each in optimizer._trainable_variables] if is_built else None
        if trained is not None and (None in trained or (is_model and not set(trained) <= set(keys.values()))):
            return None
        variables = {path: part for path, part in survey.parts.items() if isinstance(part, self._keras.Variable)}
        return {
            "key": keys[""],
            "settings": json.loads(json.dumps(settings)),
            "keys": keys,
            "paths": {path: [part._name, part._path] for path, part in variables.items()},
            "drawn": {path: {name: getattr(value, name) for name in names} for path, (value, names) in survey.drawn.items()},
            "counts": self._births.counts_of([key for key in keys.values() if key]),
            "is model": is_model,
            "trained": trained,
            "is built by hand": trained is not None and self._births.is_of_loop(_inner(optimizer.variables[-1])),
            "digest": _digest(survey.others),
            "others": "".join(_brief(words) for words in survey.others),
        }

    def _is_known(self, item: Any) -> bool:
        """Return whether settings are plain, and name only classes that Keras has."""
        if isinstance(item, list | tuple):
            return all(map(self._is_known, item))
        if not isinstance(item, dict):
            return item is None or type(item) in (bool, int, float, str)
        name, module = item.get("class_name"), item.get("module")
        if name is None or "config" not in item or name in _VALUES:
            return all(map(self._is_known, item.values()))
        is_of_keras = isinstance(module, str) and module.partition(".")[0] == "keras" and isinstance(name, str)
        if not is_of_keras or name in ("function", *_DENIED) or item.get("registered_name") not in (None, name):
            return False
        try:
            cls = self._lib._retrieve_class_or_fn(name, item.get("registered_name"), module, "class", item, {})
        except (TypeError, ValueError):
            return False
        return isinstance(cls, type) and _is_of_keras(cls) and all(map(self._is_known, item.values()))

    # Making.

    def remake(self, described: list[dict[str, Any]]) -> None:
        """Make what the checkpoint has and this process lacks; models first. Raises Diverged."""
        self._made = []
        for each in sorted(described, key=lambda each: not each["is model"]):
            self._remake(each)
        self.again = frozenset(key for _value, each in self._made for key in each["keys"].values())

    def _remake(self, described: dict[str, Any]) -> None:
        key, value = described["key"], self._births.find(described["key"])
        if value is None:
            try:
                value = self._make(described)
            except DetrainError:
                raise
            except Exception as error:  # an edge: of settings, Keras may raise anything
                raise _not_again(key, f"{type(error).__name__}: {' '.join(str(error).split())[:120]}") from error
        self._made.append(_Made(value, described))

    def _make(self, described: dict[str, Any]) -> Any:
        key = described["key"]
        if not self._is_known(described["settings"]):
            raise _not_again(key, "its settings name what Keras has not")
        with self._births.apart():
            made = self._constructed(described["settings"])
            if described["is built by hand"]:
                self._build(made, described)
            survey = self._name(made, described)
        for path, (value, names) in survey.drawn.items():
            vars(value).update({name: described["drawn"][path][name] for name in names if path in described["drawn"]})
        # What is still to be built is counted as it is.
        there = {_group(self._key(part) or "") for part in survey.parts.values()}
        for owner, counts in described["counts"].items():
            self._births.set_counts_of(owner, {label: count for label, count in counts.items() if (owner, label) in there})
        for part in survey.parts.values():
            if getattr(part, "built", False):
                self._settle(self._key(part) or "")
        return made

    def _constructed(self, settings: dict[str, Any]) -> Any:
        """Return the object that has these settings. Keras itself would build the optimizer as it compiles a model."""
        made = self._lib.deserialize_keras_object({name: item for name, item in settings.items() if name != "compile_config"})
        if settings.get("compile_config"):
            made.compile(**self._lib.deserialize_keras_object(settings["compile_config"]))
        return made

    def _build(self, made: Any, described: dict[str, Any]) -> None:
        """Build an optimizer for the variables that it had: those of its model, or by their keys. Raises Diverged."""
        parts = self.survey(made).parts if described["is model"] else {}
        where = {key: path for path, key in described["keys"].items()}
        found = [parts.get(where[key]) if parts else self._find_variable(key) for key in described["trained"]]
        if any(variable is None for variable in found):
            raise _not_again(described["key"], "a variable that it trains is not there")
        _optimizer_of(made).build(found)

    def _name(self, made: Any, described: dict[str, Any]) -> Survey:
        """Give what was made apart the keys that it had. Raises Diverged."""
        survey = self.survey(made)
        for path, part in survey.parts.items():
            if path not in described["keys"]:
                raise _not_again(described["key"], f"{path} is too much")
            if self._key(part) != described["keys"][path]:
                self._rename(part, described["keys"][path])
            if path in described["paths"]:
                part._name, part._path = described["paths"][path]
        for value in self._births.nameless():
            self._rename(value, None)
        return survey

    def finish(self) -> None:
        """Build the optimizers that functions which are gone had built as they were traced. Raises Diverged."""
        for value, described in self._made:
            optimizer = _optimizer_of(value)
            if described["trained"] is not None and not optimizer.built:
                with self._births.apart():
                    self._build(value, described)
                    self._name(value, described)

    def check(self, has_value: Callable[[str], bool]) -> None:
        """Raise Diverged where what has been made again is not what it was. `has_value` says whether a variable has its own."""
        made, self._made, self.again = self._made, [], frozenset()
        for value, described in made:
            survey, key = self.survey(value), described["key"]
            keys = {path: self._key(part) for path, part in survey.parts.items()}
            if keys != described["keys"]:
                was = described["keys"]
                places = sorted(path for path in keys.keys() | was.keys() if keys.get(path) != was.get(path))
                raise _not_again(key, f"{', '.join(places[:3])} is another")
            variables = [each for path, each in keys.items() if isinstance(_inner(survey.parts[path]), tf.Variable)]
            if lost := [each for each in variables if not has_value(each or "")]:
                raise _not_again(key, f"no value was restored for {lost[0]}")
            if _digest(survey.others) != described["digest"]:
                before = set(textwrap.wrap(described["others"], _WIDTH))
                new = [words for words in survey.others if _brief(words) not in before]
                raise _not_again(key, f"it has {new[0]} now" if new else "it has less than it had")

    # Looking.

    def survey(self, root: Any) -> Survey:
        """Return what an object holds: by the attributes, and places in containers, that lead to it, in their order."""
        survey = Survey({}, {}, [])
        first: dict[int, str] = {}
        held = []  # as long as identities count
        waiting = collections.deque([("", root)])
        while waiting and len(first) < _MOST_PARTS:
            path, value = waiting.popleft()
            words = self._words(value)
            if words is not None:
                survey.others.append(f"{path} {words}")
                continue
            if id(value) in first:
                survey.others.append(f"{path} = {first[id(value)]}")
                continue
            first[id(value)] = path
            held.append(value)
            name = type(value).__name__
            if self._key(value) is not None:
                survey.parts[path] = value
            else:
                survey.others.append(f"{path} {name}")
            if isinstance(value, self._keras.Variable | tf.Variable):
                survey.others.append(f"{path} {value.dtype} {value.shape} {value.trainable}")
                continue
            if isinstance(value, self._drawing) and value._init_seed is None:
                survey.drawn[path] = value, ("seed",)
            elif isinstance(value, self._keras.random.SeedGenerator):
                survey.drawn[path] = value, ("name", "_initial_seed")
            is_trained = isinstance(value, self._optimizer)
            if is_trained:
                survey.others.append(f"{path} trains {[self._key(each) for each in value._trainable_variables]}")
            waiting += [
                (f"{path}/{place}" if path else place, item)
                for place, item in _items(value)
                if item is not None and not (is_trained and place == "_trainable_variables")
            ]
        return survey

    def _words(self, value: Any) -> str | None:
        """Return what a value is, in words; None for one that holds others, or has a name."""
        if isinstance(value, _TEXTS):
            return repr(value)
        if isinstance(value, np.ndarray | tf.Tensor) and not isinstance(value, tf.Variable):
            return "" if tf.is_symbolic_tensor(value) else digest_bytes(np.asarray(value).tobytes())
        if isinstance(value, types.FunctionType | types.BuiltinFunctionType | types.MethodType | type | types.ModuleType):
            return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
        name = type(value).__name__
        if isinstance(value, self._keras.dtype_policies.DTypePolicy):
            return f"{name} {value.name}"
        return name if name in _OF_CALLS or isinstance(value, set | frozenset) else None

    def _key(self, value: Any) -> str | None:
        return self._births.key(_inner(value))


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a value holds, each after its place."""
    if isinstance(value, Mapping):
        yield from sorted(((str(name), item) for name, item in value.items()), key=lambda each: each[0])
    elif isinstance(value, list | tuple):
        yield from ((str(number), item) for number, item in enumerate(value))
    else:
        own = own_attributes(value) or {}
        yield from ((name, own[name]) for name in sorted(own) if name not in _NO_STATE)


def _digest(words: list[str]) -> str:
    return digest_bytes("\n".join(words).encode())


def _brief(words: str) -> str:
    return digest_bytes(words.encode())[:_WIDTH]


def _optimizer_of(value: Any) -> Any:
    """Return the optimizer that a model was compiled with, or an optimizer itself."""
    return getattr(value, "optimizer", None) if hasattr(value, "layers") else value


def _group(key: str) -> tuple[str, str]:
    """Return the owner and the label in a key."""
    owner, _, name = key.rpartition("/")
    label, _, turn = name.rpartition(".")
    return owner, label if label and turn.isdecimal() else name


def _inner(value: Any) -> Any:
    """Return the variable of TensorFlow that one of Keras holds; anything else as it is."""
    held = getattr(value, "_value", None)
    return held if isinstance(held, tf.Variable) else value


def _is_kerass(value: Any) -> bool:
    return isinstance(value, tf.Variable) or _is_of_keras(type(value))


def _is_of_keras(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "keras"


def _not_again(key: str, why: str) -> Diverged:
    what = f"{key!r}, which the loop had made, does not become again what it was: {why}"
    return Diverged(what, "make it before the loop; and start anew with --fresh")
