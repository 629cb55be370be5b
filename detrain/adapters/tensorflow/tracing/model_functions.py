"""The functions that a model of Keras's trains, tests and predicts with, which it makes, and anew when told to; and
where among Keras's layers a call stands: what a function makes that a layer calls is named after its path.

A resumed run has a model make them as often as the first run did, so that they have the same keys.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from types import FrameType, FunctionType
from typing import Any, Final

from tensorflow.python.eager.polymorphic_function import polymorphic_function

from detrain.adapters.stable_names import Births
from detrain.python.codec.state_rules import has_contents
from detrain.python.inspect.frames import outwards

MAKERS: Final = ("make_train_function", "make_test_function", "make_predict_function")
"""Keras's methods that make them."""


def function_label(python_function: Any, frame: FrameType | None) -> str:
    """Return a function's name, behind the method of Keras that makes it where one does."""
    name = getattr(python_function, "__name__", "function")
    maker = next((each.f_code.co_name for each in outwards(frame) if each.f_code.co_name in MAKERS), "")
    return f"{maker} {name}" if maker else str(name)


def made_again(births: Births) -> dict[str, dict[str, str]]:
    """Return, by model, the functions that it trains, tests and predicts with,
    where it was told to make another one."""
    found: dict[str, dict[str, str]] = {}
    for key, model in births.alive():
        for maker in MAKERS:
            held = function_in(births, vars(model).get(maker.removeprefix("make_"))) if hasattr(model, "__dict__") else None
            if held is not None and held.rpartition("/")[2].rpartition(".")[2].isdecimal():
                found.setdefault(key, {})[maker] = held
    return found


def make_again(births: Births, made: Mapping[str, Mapping[str, str]]) -> None:
    """Have models make such functions until they have those."""
    for key, makers in made.items():
        model: Any = births.find(key)
        for maker, function in makers.items():
            turns = int(function.rpartition(".")[2]) + 1
            while turns and model is not None and function_in(births, vars(model).get(maker.removeprefix("make_"))) != function:
                getattr(model, maker)(force=True)
                turns -= 1


def function_in(births: Births, value: Any) -> str | None:
    """Return the key of the compiled function that a function of Keras's is, or calls."""
    if isinstance(value, polymorphic_function.Function):
        return births.key(value)
    if not isinstance(value, FunctionType):
        return None
    cells = [cell.cell_contents for cell in value.__closure__ or () if has_contents(cell)]
    return next((births.key(each) for each in cells if isinstance(each, polymorphic_function.Function)), None)


def maker_of(births: Births, key: str) -> object:
    """Return the object of Keras's whose method has made a function, or None."""
    found = births.find(key.rpartition("/")[0])
    return None if isinstance(found, polymorphic_function.Function) else found


def path_in_keras() -> str | None:
    """Return the path of the Keras layer that is being called:
    a function that it calls names after it what it makes."""
    if "keras" not in sys.modules:
        return None
    from keras.src.backend.common.name_scope import current_path

    return current_path() or None


@contextlib.contextmanager
def in_keras_at(path: str | None) -> Iterator[None]:
    """Be where a Keras layer of this path is called."""
    if not path:
        yield
        return
    from keras.src.backend.common.name_scope import name_scope

    with contextlib.ExitStack() as stack:
        for part in path.split("/"):
            stack.enter_context(name_scope(part, deduplicate=False))
        yield
