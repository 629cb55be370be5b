"""The functions that a Keras model makes to train, test and predict, and makes anew when told to. And the path of a
called layer among Keras's layers, after which objects made in the call are named.

A resumed run has a model make these functions as often as the first run did, so that they get the same keys.

TensorFlow compiles a method anew for each object, and a resumed run must know which function belonged to which. Objects
have no names in the run; those of one class are told apart by the named objects that they hold.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType, FunctionType
from typing import Any, Final

from tensorflow.python.eager.polymorphic_function import polymorphic_function

from detrain.adapters.lazy_building import BuiltUnit
from detrain.adapters.stable_names import Births
from detrain.python.codec.state_rules import has_contents
from detrain.python.inspect.frames import outwards
from detrain.python.inspect.names import is_user_class

MAKERS: Final = ("make_train_function", "make_test_function", "make_predict_function")
"""Keras's methods that make these functions."""

_MOST_HELD: Final = 64
"""The most held objects by which an object is told from others."""


def function_label(python_function: Any, frame: FrameType | None) -> str:
    """Return a function's name, after the name of the Keras method that makes it, if one does."""
    name = getattr(python_function, "__name__", "function")
    maker = next((each.f_code.co_name for each in outwards(frame) if each.f_code.co_name in MAKERS), "")
    return f"{maker} {name}" if maker else str(name)


def made_again(births: Births) -> dict[str, dict[str, str]]:
    """Return, by model and maker, the present functions of models that were told to make new ones."""
    found: dict[str, dict[str, str]] = {}
    for key, model in births.alive():
        for maker in MAKERS:
            held = function_in(births, vars(model).get(maker.removeprefix("make_"))) if hasattr(model, "__dict__") else None
            if held is not None and held.rpartition("/")[2].rpartition(".")[2].isdecimal():
                found.setdefault(key, {})[maker] = held
    return found


def make_again(births: Births, made: Mapping[str, Mapping[str, str]]) -> None:
    """Have models make such functions until they have the given ones."""
    for key, makers in made.items():
        model: Any = births.find(key)
        for maker, function in makers.items():
            turns = int(function.rpartition(".")[2]) + 1
            while turns and model is not None and function_in(births, vars(model).get(maker.removeprefix("make_"))) != function:
                getattr(model, maker)(force=True)
                turns -= 1


def function_in(births: Births, value: Any) -> str | None:
    """Return the key of the compiled function that one of Keras's functions is, or calls."""
    if isinstance(value, polymorphic_function.Function):
        return births.key(value)
    if not isinstance(value, FunctionType):
        return None
    cells = [cell.cell_contents for cell in value.__closure__ or () if has_contents(cell)]
    return next((births.key(each) for each in cells if isinstance(each, polymorphic_function.Function)), None)


def maker_of(births: Births, key: str) -> object:
    """Return the Keras object whose method made a function, or None."""
    found = births.find(key.rpartition("/")[0])
    return None if isinstance(found, polymorphic_function.Function) else found


def path_in_keras() -> str | None:
    """Return the path of the Keras layer that is being called: functions that it calls name new objects after it."""
    if "keras" not in sys.modules:
        return None
    from keras.src.backend.common.name_scope import current_path

    return current_path() or None


@contextlib.contextmanager
def in_keras_at(path: str | None) -> Iterator[None]:
    """Enter Keras's name scopes of a layer with this path."""
    if not path:
        yield
        return
    from keras.src.backend.common.name_scope import name_scope

    with contextlib.ExitStack() as stack:
        for part in path.split("/"):
            stack.enter_context(name_scope(part, deduplicate=False))
        yield


class MethodOwners:
    """The objects for which methods were compiled, known by the named objects that they held."""

    def __init__(self, births: Births) -> None:
        self._births = births
        self._held: weakref.WeakKeyDictionary[Any, dict[str, str]] = weakref.WeakKeyDictionary()
        """For each function compiled for one object: the named objects that it held when the function was made."""
        self._before: dict[str, dict[str, str]] = {}
        """The same, by the keys of the functions that the run had before it was resumed."""

    def note(self, function: Any, instance: object) -> dict[str, str]:
        """Note the named objects in an object for which a function is being compiled; return them."""
        held = self._held[function] = self.held_by(instance)
        return held

    def of(self, function: Any) -> dict[str, str]:
        """Return the named objects that a function's object held; none for a function without an object."""
        return self._held.get(function, {}) if function is not None else {}

    def note_before(self, units: Iterable[BuiltUnit]) -> None:
        """Note the named objects of the units that the run had before it was resumed."""
        self._before |= {unit.owner: unit.held for unit in units}

    def make(self, key: str, function: Any) -> None:
        """Have a method compiled, by an attribute access, for the one object of the function with this key."""
        name, held = key.rpartition("/")[2].partition(".")[0], self._before.get(key, {})
        instances = _instances(name, function)
        if len(instances) > 1:
            instances = [each for each in instances if _agree(held, self.held_by(each))]
        if len(instances) == 1:
            getattr(instances[0], name)

    def known_by(self, key: str, held: dict[str, str]) -> str | None:
        """Return the key that the run had, before it was resumed, for a function whose object holds these."""
        same = [known for known, was in self._before.items() if known.partition(".")[0] == key and _agree(was, held)]
        return same[0] if len(same) == 1 and self._births.find(same[0]) is None else None

    def held_by(self, value: Any, path: str = "", depth: int = 3) -> dict[str, str]:
        """Return the keys of named objects that an object holds, by path: they tell it from others of its class."""
        key = self._births.key(value)
        if key is not None or not depth:
            return {path: key} if key is not None else {}
        if isinstance(value, dict):
            items = [(str(name), each) for name, each in value.items()]
        elif isinstance(value, list | tuple):
            items = [(str(number), each) for number, each in enumerate(value[:_MOST_HELD])]
        else:
            items = list(getattr(value, "__dict__", {}).items()) if is_user_class(type(value)) else []
        found: dict[str, str] = {}
        for name, each in items[:_MOST_HELD]:
            found |= self.held_by(each, f"{path}.{name}", depth - 1)
        return found


def _instances(name: str, function: Any) -> list[Any]:
    """Return the living objects that have a function as a method of this name."""
    alive = gc.get_objects()
    classes = [each for each in alive if isinstance(each, type)]
    kinds = {id(each) for each in classes if any(vars(base).get(name) is function for base in each.__mro__)}
    return [each for each in alive if id(type(each)) in kinds]


def _agree(was: dict[str, str], now: dict[str, str]) -> bool:
    """Return whether two objects hold the same objects at all paths that both have, and there is such a path."""
    common = was.keys() & now.keys()
    return bool(common) and all(was[path] == now[path] for path in common)
