"""Models and optimizers that the loop has made, as data: Keras's own settings, and the names of all that is in them.

Only what is certain is described: a layer that another model or the program's past has, too, a wrapper, an average of
weights, a class or function of the program's, an attribute that the program has put there: such a model is named as
lost where it appears.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import json
from collections.abc import Callable
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.distribute.values import DistributedVariable

from detrain.adapters.stable_names import Births
from detrain.adapters.tensorflow.keras.model_survey import Survey, Surveys, brief, digest, inner, optimizer_of
from detrain.python.inspect.names import own_attributes
from detrain.python.inspect.stored_attributes import library_names, stores
from detrain.python.inspect.user_modules import user_modules

_DENIED: Final = frozenset({"Lambda", "TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer", "RNN", "StackedRNNCells"})
"""Layers that hold code of the program's, a path, or layers of any kind."""
_VALUES: Final = frozenset({"__keras_tensor__", "__tuple__"})
"""What stands in settings for inputs of layers, and for tuples."""


class ModelDescriptions:
    """Describes such objects where the state of the program leads to them. `owners`:
    the keys of what was built by itself."""

    def __init__(self, births: Births, surveys: Surveys, owners: Callable[[], set[str]]) -> None:
        import keras
        from keras.src.saving import serialization_lib

        self._births, self._surveys, self._owners = births, surveys, owners
        self._keras, self._lib = keras, serialization_lib
        self._models = (keras.Sequential, keras.src.models.functional.Functional)
        self._optimizer = keras.optimizers.Optimizer
        self._known: dict[int, tuple[Any, str]] = {}
        """What is in those that can be described, by identity: that, and the key of the one that it is in."""
        self._looked_at: object = None
        """When that was found: nothing that counts has changed then."""
        self._described: dict[str, dict[str, Any]] = {}
        self._asked: set[str] = set()

    def part(self, value: Any) -> str | None:
        """Return the key of what a resumed process will find in an object that is made again;
        None for anything else."""
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
        surveys = {key: self._surveys.of(root) for key, root in roots.items()}
        inner = {id(part) for survey in surveys.values() for path, part in survey.parts.items() if path}
        whole = {key: root for key, root in sorted(roots.items()) if id(root) not in inner}
        times = collections.Counter(id(part) for key in whole for part in surveys[key].parts.values())
        for key, root in whole.items():
            survey = surveys[key]
            is_alone = all(times[id(part)] == 1 for part in survey.parts.values())
            described = None
            if is_alone and self._is_certain(root, survey) and not self._is_shared(survey):
                # Keras: no settings
                with contextlib.suppress(TypeError, ValueError, NotImplementedError, AttributeError):
                    described = self._describe(root, survey)
            if described is not None:
                self._described[key] = described
                self._known |= {id(part): (part, key) for part in survey.parts.values()}

    def _whole(self, kinds: tuple[type, ...]) -> dict[str, Any]:
        """Return what is alive of these kinds, but for the models that a Sequential has made for itself:
        it lets go of them."""
        alive = {key: value for key, value in self._births.alive() if isinstance(value, kinds)}
        makers = {key: alive.get(key.rpartition("/")[0]) for key, value in alive.items() if type(value) is self._models[1]}
        return {key: value for key, value in alive.items() if type(makers.get(key)) is not self._keras.Sequential}

    def _is_certain(self, root: Any, survey: Survey) -> bool:
        """Return whether an object is of Keras's own making, through and through, and of the loop's."""
        keys = {self._surveys.key(part) for part in survey.parts.values()}
        outside = frozenset[str]().union(*(stores(module.__file__ or "").outside for module in user_modules().values()))
        for path, part in survey.parts.items():
            key = self._surveys.key(part)
            is_own_part = key is not None and (self._births.is_of_loop(inner(part)) or key.rpartition("/")[0] in keys)
            if not is_own_part or not _is_kerass(part) or isinstance(inner(part), DistributedVariable):
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
        """Return whether no function has built a layer as it was traced:
        such a trace differs from one that finds it built."""
        is_of_loop = all(self._births.is_of_loop(inner(each)) for each in layer._trainable_variables)
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
        """Return whether settings are plain, and name only classes that Keras has."""
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
