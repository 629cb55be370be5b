"""Metrics of Keras that a loop makes, a new one for each epoch: they are made again, by their settings, under their
names.

Their values are variables, and come back as those of any others. Only classes that Keras itself offers are made, and of
settings that are numbers, texts and truths: a checkpoint names neither a class of the program's nor code.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any, Final

from tensorflow.python.distribute.values import DistributedVariable

from detrain.adapters.stable_names import Births

METRIC: Final = "keras.Metric"
_LIBRARIES: Final = ("keras", "tf_keras")
_PLAIN: Final = (bool, int, float, str, type(None))


def metric_parts(births: Births, value: Any) -> list[object] | None:
    """Return the library, the class, the key and the settings of a metric that the loop has made, or None for anything
    else.
    """
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
    """Return the metric with a key, made again if there is none;

    None if Keras has no such class, or not with such settings.
    """
    found = births.find(key)
    cls = _class_of(library, name) if library in _LIBRARIES else None
    given = json.loads(settings)
    if found is None and cls is not None and _is_plain(given):
        with births.naming(key):
            found = cls.from_config(given)
    return found


def _is_plain(settings: dict[str, Any]) -> bool:
    """Return whether Keras looks up nothing by a name in the settings: a function, an object of another class."""
    values = [item for each in settings.values() for item in (each if type(each) is list else [each])]
    return "fn" not in settings and all(type(each) in _PLAIN for each in values)


def _class_of(library: str, name: str) -> Any:
    metrics = importlib.import_module(library).metrics
    found = vars(metrics).get(name)
    return found if isinstance(found, type) and issubclass(found, metrics.Metric) else None
