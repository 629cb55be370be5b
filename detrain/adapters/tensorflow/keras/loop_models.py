"""Models, optimizers and metrics that a loop makes: a resumed run makes them again from Keras's own settings, under
their names.

A loop that keeps a copy of its best model, or loads one, makes objects that a resumed process lacks. Keras itself can
describe a whole model of its own classes as data, the same that its files hold. The parts of the model are found by
their paths in it (`model_survey`), and named as in the first run, so that its variables, and values that were set on
its parts, come back like all others. When all is back, the model is compared with the first one: each part at its path,
and all other content (`check`).

A model is described only if all of it is certain. It is not if it has a layer that another model or the program has,
too, a wrapper, an average of weights, a class or function of the program, or an attribute that the program has put
there: such a model is named as lost where it appears.

The values of metrics (a new one for each epoch, say) are variables, and come back like all others. Only classes that
Keras itself offers are made, and only from settings that are numbers, texts and booleans: a checkpoint names neither a
class of the program nor code.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import importlib
import json
import sys
import textwrap
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import tensorflow as tf
from tensorflow.python.distribute.values import DistributedVariable

from detrain.adapters.stable_names import Births
from detrain.adapters.tensorflow.keras.model_survey import WIDTH, Survey, Surveys, brief, digest, inner, optimizer_of
from detrain.base.errors import DetrainError, Diverged
from detrain.python.inspect.named import user_modules
from detrain.python.inspect.names import own_attributes
from detrain.python.inspect.stored_attributes import library_names, stores

MADE: Final = "keras.made"
"""The kind, in a checkpoint, of a part of such a model."""

METRIC: Final = "keras.Metric"
_LIBRARIES: Final = ("keras", "tf_keras")
_PLAIN: Final = (bool, int, float, str, type(None))

_DENIED: Final = frozenset({"Lambda", "TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer", "RNN", "StackedRNNCells"})
"""Layers that hold code of the program, a path, or layers of any kind."""
_VALUES: Final = frozenset({"__keras_tensor__", "__tuple__"})
"""The class names in settings that stand for inputs of layers, and for tuples."""


class ModelDescriptions:
    """Descriptions of such objects to which the program's state leads. `owners` returns the keys of objects built on
    their own, outside of a trace.
    """

    def __init__(self, births: Births, surveys: Surveys, owners: Callable[[], set[str]]) -> None:
        import keras
        from keras.src.saving import serialization_lib

        self._births, self._surveys, self._owners = births, surveys, owners
        self._keras, self._lib = keras, serialization_lib
        self._models = (keras.Sequential, keras.src.models.functional.Functional)
        self._optimizer = keras.optimizers.Optimizer
        self._known: dict[int, tuple[Any, str]] = {}
        """The parts of objects that can be described, by identity: (the part, the key of the object that it is in)."""
        self._looked_at: object = None
        """The moment when these were found: until it changes, nothing that matters can have changed."""
        self._described: dict[str, dict[str, Any]] = {}
        self._asked: set[str] = set()

    def part(self, value: Any) -> str | None:
        """Return the key of a part that a resumed process will find in an object made again; None for anything else."""
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
        """Return, in a form that JSON can hold, the objects whose parts were asked for, and forget them."""
        found = [self._described[key] for key in sorted(self._asked)]
        self._known, self._described, self._asked, self._looked_at = {}, {}, set(), None
        return found

    def _look(self) -> None:
        """Find the objects that can be described."""
        self._known, self._described, self._asked, self._looked_at = {}, {}, set(), self._births.moment()
        kinds = (*self._models, self._optimizer)
        roots = {key: each for key, each in self._whole(kinds).items() if self._births.is_of_loop(each)}
        surveys = {key: self._surveys.of(root) for key, root in roots.items()}
        inner = {id(part) for survey in surveys.values() for path, part in survey.parts.items() if path}
        whole = {key: root for key, root in sorted(roots.items()) if id(root) not in inner}
        times = collections.Counter(id(part) for key in whole for part in surveys[key].parts.values())
        for key, root in whole.items():
            survey = surveys[key]
            is_alone = all(times[id(part)] == 1 for part in survey.parts.values())
            described = None
            if is_alone and self._is_certain(root, survey) and not self._is_shared(survey):
                # the errors by which Keras says that an object has no settings
                with contextlib.suppress(TypeError, ValueError, NotImplementedError, AttributeError):
                    described = self._describe(root, survey)
            if described is not None:
                self._described[key] = described
                self._known |= {id(part): (part, key) for part in survey.parts.values()}

    def _whole(self, kinds: tuple[type, ...]) -> dict[str, Any]:
        """Return the living objects of these kinds, except models that a Sequential made for itself: it drops them."""
        alive = {key: value for key, value in self._births.alive() if isinstance(value, kinds)}
        makers = {key: alive.get(key.rpartition("/")[0]) for key, value in alive.items() if type(value) is self._models[1]}
        return {key: value for key, value in alive.items() if type(makers.get(key)) is not self._keras.Sequential}

    def _is_certain(self, root: Any, survey: Survey) -> bool:
        """Return whether an object, with all its parts, is of Keras's own classes and made by the loop."""
        keys = {self._surveys.key(part) for part in survey.parts.values()}
        outside = frozenset[str]().union(*(stores(module.__file__ or "").outside for module in user_modules().values()))
        for path, part in survey.parts.items():
            key = self._surveys.key(part)
            is_own_part = key is not None and (self._births.is_of_loop(inner(part)) or key.rpartition("/")[0] in keys)
            if not is_own_part or not _is_kerass(part) or isinstance(inner(part), DistributedVariable):
                return False
            if not outside & (own_attributes(part) or {}).keys() <= library_names(type(part)):
                return False  # the program has put an attribute there
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
        """Return whether no function built a layer in its trace: such a trace differs from one that finds it built."""
        is_of_loop = all(self._births.is_of_loop(inner(each)) for each in layer._trainable_variables)
        return is_of_loop or not keys.isdisjoint(self._owners())

    def _is_shared(self, survey: Survey) -> bool:
        """Return whether a layer of the object is also in another object."""
        own = {id(part) for part in survey.parts.values()}

        def is_held() -> bool:
            others = [layer for layer in self._whole((self._keras.Layer,)).values() if id(layer) not in own]
            return any(id(inner) in own for other in others for inner in (*other._layers, vars(other).get("_functional")))

        if not is_held():
            return False
        gc.collect()  # the other object may be one that nobody holds any more
        return is_held()

    def _describe(self, root: Any, survey: Survey) -> dict[str, Any] | None:
        settings = self._lib.serialize_keras_object(root)
        if not self.is_known(settings) or (getattr(root, "compiled", False) and not settings.get("compile_config")):
            return None
        keys = {path: self._surveys.key(part) for path, part in survey.parts.items()}
        is_model = isinstance(root, self._models)
        optimizer = optimizer_of(root)
        is_built = optimizer is not None and optimizer.built
        trained = [self._surveys.key(each) for each in optimizer._trainable_variables] if is_built else None
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
            "is built by hand": trained is not None and self._births.is_of_loop(inner(optimizer.variables[-1])),
            "digest": digest(survey.others),
            "others": "".join(brief(words) for words in survey.others),
        }

    def is_known(self, item: Any) -> bool:
        """Return whether settings are plain data, and name only classes that Keras has."""
        if isinstance(item, list | tuple):
            return all(map(self.is_known, item))
        if not isinstance(item, dict):
            return item is None or type(item) in (bool, int, float, str)
        name, module = item.get("class_name"), item.get("module")
        if name is None or "config" not in item or name in _VALUES:
            return all(map(self.is_known, item.values()))
        is_of_keras = isinstance(module, str) and module.partition(".")[0] == "keras" and isinstance(name, str)
        if not is_of_keras or name in ("function", *_DENIED) or item.get("registered_name") not in (None, name):
            return False
        try:
            cls = self._lib._retrieve_class_or_fn(name, item.get("registered_name"), module, "class", item, {})
        except (TypeError, ValueError):
            return False
        return isinstance(cls, type) and _is_of_keras(cls) and all(map(self.is_known, item.values()))


def _is_kerass(value: Any) -> bool:
    return isinstance(value, tf.Variable) or _is_of_keras(type(value))


def _is_of_keras(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "keras"


class _RemadeModel(NamedTuple):
    """A model or optimizer that has been made again, and its description."""

    value: Any
    described: dict[str, Any]


class LoopModels:
    """The models and optimizers that the loop has made: their descriptions, and their making again.

    `rename` gives a variable or another object its key of the first run, or none; `take_as_built` notes that an object
    is built; `find_variable` returns the variable with a key; `owners` is that of `ModelDescriptions`.
    """

    def __init__(
        self,
        births: Births,
        rename: Callable[[object, str | None], None],
        take_as_built: Callable[[str], None],
        find_variable: Callable[[str], Any],
        owners: Callable[[], set[str]],
    ) -> None:
        from keras.src.saving import serialization_lib

        self._births, self._rename, self._take_as_built, self._find_variable = births, rename, take_as_built, find_variable
        self._lib = serialization_lib
        self._surveys = Surveys(births)
        self._descriptions = ModelDescriptions(births, self._surveys, owners)
        self.part, self.described = self._descriptions.part, self._descriptions.described
        self._made: list[_RemadeModel] = []
        self.again: frozenset[str] = frozenset()
        """The keys of all parts of the objects that have been made again so far."""

    def remake(self, described: list[dict[str, Any]]) -> None:
        """Make the objects that the checkpoint has and this process lacks; models first. Raises Diverged."""
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
            except Exception as error:  # an edge: Keras may raise anything for settings
                raise _not_again(key, f"{type(error).__name__}: {' '.join(str(error).split())[:120]}") from error
        self._made.append(_RemadeModel(value, described))

    def _make(self, described: dict[str, Any]) -> Any:
        key = described["key"]
        if not self._descriptions.is_known(described["settings"]):
            raise _not_again(key, "its settings name what Keras has not")
        with self._births.apart():
            made = self._constructed(described["settings"])
            if described["is built by hand"]:
                self._build(made, described)
            survey = self._name(made, described)
        for path, (value, names) in survey.drawn.items():
            vars(value).update({name: described["drawn"][path][name] for name in names if path in described["drawn"]})
        # Objects that are still to be built are counted when they are built.
        there = {_group(self._surveys.key(part) or "") for part in survey.parts.values()}
        for owner, counts in described["counts"].items():
            self._births.set_counts_of(owner, {label: count for label, count in counts.items() if (owner, label) in there})
        for part in survey.parts.values():
            if getattr(part, "built", False):
                self._take_as_built(self._surveys.key(part) or "")
        return made

    def _constructed(self, settings: dict[str, Any]) -> Any:
        """Return the object with these settings, compiled here: Keras's own way would also build the optimizer."""
        made = self._lib.deserialize_keras_object({name: item for name, item in settings.items() if name != "compile_config"})
        if settings.get("compile_config"):
            made.compile(**self._lib.deserialize_keras_object(settings["compile_config"]))
        return made

    def _build(self, made: Any, described: dict[str, Any]) -> None:
        """Build an optimizer for its variables: those of its model, or those found by their keys. Raises Diverged."""
        parts = self._surveys.of(made).parts if described["is model"] else {}
        where = {key: path for path, key in described["keys"].items()}
        found = [parts.get(where[key]) if parts else self._find_variable(key) for key in described["trained"]]
        if any(variable is None for variable in found):
            raise _not_again(described["key"], "a variable that it trains is not there")
        optimizer_of(made).build(found)

    def _name(self, made: Any, described: dict[str, Any]) -> Survey:
        """Give the objects that were made apart their keys of the first run. Raises Diverged."""
        survey = self._surveys.of(made)
        for path, part in survey.parts.items():
            if path not in described["keys"]:
                raise _not_again(described["key"], f"{path} is too much")
            if self._surveys.key(part) != described["keys"][path]:
                self._rename(part, described["keys"][path])
            if path in described["paths"]:
                part._name, part._path = described["paths"][path]
        for value in self._births.nameless():
            self._rename(value, None)
        return survey

    def finish(self) -> None:
        """Build the optimizers that were built in traces of functions that are gone. Raises Diverged."""
        for value, described in self._made:
            optimizer = optimizer_of(value)
            if described["trained"] is not None and not optimizer.built:
                with self._births.apart():
                    self._build(value, described)
                    self._name(value, described)

    def check(self, has_value: Callable[[str], bool]) -> None:
        """Raise Diverged if an object made again is not as it was. `has_value` says if a variable has its own value."""
        made, self._made, self.again = self._made, [], frozenset()
        for value, described in made:
            survey, key = self._surveys.of(value), described["key"]
            keys = {path: self._surveys.key(part) for path, part in survey.parts.items()}
            if keys != described["keys"]:
                was = described["keys"]
                places = sorted(path for path in keys.keys() | was.keys() if keys.get(path) != was.get(path))
                raise _not_again(key, f"{', '.join(places[:3])} is another")
            variables = [each for path, each in keys.items() if isinstance(inner(survey.parts[path]), tf.Variable)]
            if lost := [each for each in variables if not has_value(each or "")]:
                raise _not_again(key, f"no value was restored for {lost[0]}")
            if digest(survey.others) != described["digest"]:
                before = set(textwrap.wrap(described["others"], WIDTH))
                new = [words for words in survey.others if brief(words) not in before]
                raise _not_again(key, f"it has {new[0]} now" if new else "it has less than it had")


def _group(key: str) -> tuple[str, str]:
    """Return the owner and the label in a key."""
    owner, _, name = key.rpartition("/")
    label, _, turn = name.rpartition(".")
    return owner, label if label and turn.isdecimal() else name


def _not_again(key: str, why: str) -> Diverged:
    what = f"{key!r}, which the loop had made, does not become again what it was: {why}"
    return Diverged(what, "make it before the loop; and start anew with --fresh")


def metric_parts(births: Births, value: Any) -> list[object] | None:
    """Return the library, class, key and settings of a metric that the loop has made; None for anything else."""
    if not births.is_of_loop(value):
        return None
    library = next(
        (name for name in _LIBRARIES if name in sys.modules and _class_of(name, type(value).__name__) is type(value)), None
    )
    if library is None:
        return None
    if any(isinstance(getattr(each, "_value", each), DistributedVariable) for each in value.variables):
        return None  # it belongs to a strategy's scope
    settings = value.get_config()
    return [library, type(value).__name__, births.key(value), json.dumps(settings)] if _is_plain(settings) else None


def remake_metric(births: Births, library: str, name: str, key: str, settings: str) -> object | None:
    """Return the metric with a key, made again if there is none.

    None if Keras has no such class, or cannot take such settings.
    """
    found = births.find(key)
    cls = _class_of(library, name) if library in _LIBRARIES else None
    given = json.loads(settings)
    if found is None and cls is not None and _is_plain(given):
        with births.naming(key):
            found = cls.from_config(given)
    return found


def _is_plain(settings: dict[str, Any]) -> bool:
    """Return whether no setting names something that Keras would look up: a function, an object of another class."""
    values = [item for each in settings.values() for item in (each if type(each) is list else [each])]
    return "fn" not in settings and all(type(each) in _PLAIN for each in values)


def _class_of(library: str, name: str) -> Any:
    metrics = importlib.import_module(library).metrics
    found = vars(metrics).get(name)
    return found if isinstance(found, type) and issubclass(found, metrics.Metric) else None
