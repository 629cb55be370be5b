"""Whether the program reads what an object says, or only tells it things: what has moved on of one that it reads
changes bits.

`trial.report(loss)` and `writer.add_scalar("loss", loss)` are statements: nothing comes back from them. `if
trial.should_prune()`, `x = env.step(a)`, `study.best_value` and `for row in table` read. A name is followed in the
source, not a value: an object that is handed to a function under another name counts as read only if the program reads
that name, too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import Final

from detrain.base.compiled_sources import by_file, source_of
from detrain.base.source_parsing import parse
from detrain.python.inspect.frames import is_notebook
from detrain.python.inspect.names import module_of
from detrain.python.inspect.ownership import is_library_object

_WORD: Final = re.compile(r"[A-Za-z_]\w*")
_KEY: Final = re.compile(r"\[[^\]]*\]")
_FUNCTION: Final = re.compile(r" in [^.\[]*")
_READERS: Final = frozenset(
    {
        *("next", "iter", "len", "list", "tuple", "dict", "set", "sorted", "enumerate", "zip", "map", "filter", "reversed"),
        *("float", "int", "bool", "str", "sum", "min", "max", "any", "all", "abs", "round", "getattr", "vars"),
    }
)
"""Functions of Python's that return what their argument says."""
_OUTPUT: Final = frozenset(
    {
        *("matplotlib", "seaborn", "plotly", "tqdm", "rich", "prettytable", "tabulate", "loguru", "structlog"),
        *("wandb", "mlflow", "tensorboard", "tensorboardX", "comet_ml", "neptune", "clearml", "aim", "codecarbon", "visdom"),
    }
)
"""Libraries that show or record what a program does. What they answer (the line that was drawn) does not go into
training."""


def is_consulted(value: object, path: str, files: Iterable[str]) -> bool:
    """Return whether an object at a path is a library's, of none that only shows or records, and the program reads what
    it says.
    """
    is_output = module_of(type(value)).partition(".")[0] in _OUTPUT
    return is_library_object(value) and not is_output and is_read(path, files)


def is_read(path: str, files: Iterable[str]) -> bool:
    """Return whether a program, of these files, reads what the object at a path (`trial in objective().study`) says.

    The last word of the path that occurs in the program decides: what is behind it, only a library asks.
    """
    if is_notebook():
        return True  # a later cell may
    words = _WORD.findall(_FUNCTION.sub("", _KEY.sub("", path)))
    found = [reads(file) for file in files]
    for word in reversed(words):
        said = [each[word] for each in found if word in each]
        if said:
            return any(said)
    return False


@by_file
def reads(file: str) -> dict[str, bool]:
    """Return the names and attributes that a source file uses, and whether it reads what is behind them."""
    try:
        tree = parse(source_of(file))
    except (OSError, SyntaxError, ValueError):
        return {}
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    found: dict[str, bool] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            name = node.id if isinstance(node, ast.Name) else node.attr
            found[name] = found.get(name, False) or _is_read(node, parents)
    return found


def _is_read(node: ast.expr, parents: dict[ast.AST, ast.AST]) -> bool:
    """Return whether the value of a name is asked for something that goes on to be used."""
    asked = node
    while isinstance(parent := parents[asked], ast.Attribute):
        asked = parent
    if isinstance(parent, ast.Call) and parent.func is asked:
        return not isinstance(parents[parent], ast.Expr | ast.withitem)
    if asked is not node:
        return isinstance(asked, ast.Attribute) and isinstance(asked.ctx, ast.Load)
    match parent:
        case ast.Subscript(value=value, ctx=ast.Load()):
            return value is node
        case ast.For(iter=source) | ast.AsyncFor(iter=source) | ast.comprehension(iter=source):
            return source is node
        case ast.Call(func=ast.Name(id=name)):
            return name in _READERS
        case ast.BinOp() | ast.Await() | ast.YieldFrom():
            return True
    return False
