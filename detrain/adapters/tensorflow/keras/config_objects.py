"""What losses, schedules, regularizers and constraints of Keras's own classes hold.

They have no variables, and anything that a loop sets on them is state, however it is set: `setattr(loss, name, value)`,
or `loss._fn_kwargs["delta"] = 0.5`, which no look at the program's source shows. Numbers, texts and functions are
captured as on layers; lists, dicts and arrays by what they hold. In objects of the program's classes the walk over
Python's state finds these.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Mapping
from typing import Any, Final

from detrain.adapters.stable_names import Births
from detrain.adapters.tensorflow.values.json_values import ARRAYS, NoDataError, ValueDescriptions
from detrain.python.inspect.names import is_own_class

_HOLDERS: Final = (list, tuple, dict, *ARRAYS)


def classes_of(keras: Any) -> tuple[Any, ...]:
    """Return the classes in a module `keras` of whose objects this is true."""
    return (
        keras.losses.Loss,
        keras.optimizers.schedules.LearningRateSchedule,
        keras.regularizers.Regularizer,
        keras.constraints.Constraint,
    )


def watch_births(births: Births, classes: tuple[Any, ...]) -> None:
    """Name each object of these classes as it is made; not all of them call the `__init__` of their base."""

    def named(original: Any) -> Any:
        @functools.wraps(original)
        def made(cls: Any, *args: Any, **kwargs: Any) -> Any:
            value = original(cls) if original is object.__new__ else original(cls, *args, **kwargs)
            births.register(value, cls.__name__, sys._getframe(1))
            return value

        return made

    for cls in classes:
        cls.__new__ = staticmethod(named(cls.__new__))


def contents(value: object, descriptions: ValueDescriptions) -> dict[str, Any]:
    """Return what the lists, dicts and arrays in an object's attributes hold, as JSON can have it."""
    found = {}
    for name, item in [] if is_own_class(type(value)) else list(vars(value).items()):
        if isinstance(item, _HOLDERS):
            with contextlib.suppress(NoDataError):
                found[name] = descriptions.describe(item)
    return found


def set_contents(value: object, state: Mapping[str, Any], descriptions: ValueDescriptions) -> None:
    """Set those of these attributes that are others than they were; a list or dict stays the same object."""
    own, now = vars(value), contents(value, descriptions)
    for name in state.keys() & now.keys():
        if now[name] == state[name]:
            continue
        held, made = own[name], descriptions.recall(state[name])
        if type(held) is type(made) is dict:
            held.clear()
            held.update(made)
        elif type(held) is type(made) is list:
            held[:] = made
        else:
            own[name] = made


Constants = dict[str, dict[str, dict[str, Any]]]
"""Of objects: parts of their state (`attributes`, `functions`, `settings`), each by name."""


def changed(now: Constants, before: Constants) -> Constants:
    """Return what is other than it was, of objects that were there."""
    found: Constants = {}
    for key in now.keys() & before.keys():
        for part, values in now[key].items():
            was = before[key][part]
            other = {name: value for name, value in values.items() if name in was and was[name] != value}
            if other:
                found.setdefault(key, {})[part] = other
    return found
