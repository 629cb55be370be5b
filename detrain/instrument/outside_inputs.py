"""A program's inputs from outside, and the parts of its loaders that keep a state, as far as the source shows them; for
`detrain info`.

Names are followed through imports (`from time import time as now`), not through assignments. This module says in words
how detrain handles each input; detrain.python.outside (clock_and_entropy, fs_answers) and detrain.python.process
(environment, random_streams) handle it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FileLine = tuple[str, int]
"""(file, line)."""

_RECORDED: Final = "recorded by the first run, replayed when it resumes; in loops it is the real one"
_DRAWN: Final = "recorded by the first run, replayed when it resumes; in loops drawn from a recorded number"
_GENERATOR: Final = "its state is in each checkpoint; where it is made before the loops its seed is recorded and replayed"
_SORTED: Final = "in the order of names"
_COUNTING: Final = ("perf_counter", "monotonic", "process_time", "thread_time", "clock_gettime")
_REAL: Final = "NOT FIXED: the real one; ask `time.time`"
_UNSORTED: Final = "NOT FIXED: in the order of the file system; sort it"

_CALLS: Final = {
    **{f"time.{name}{unit}": ("clock", _RECORDED) for name in ("time", *_COUNTING) for unit in ("", "_ns")},
    **dict.fromkeys(("os.urandom", "uuid.uuid1", "uuid.uuid4", "random.SystemRandom"), ("entropy", _DRAWN)),
    **dict.fromkeys(("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today"), ("clock", _RECORDED)),
    **dict.fromkeys(("datetime.date.today", "time.strftime", "time.localtime", "time.gmtime"), ("clock", _RECORDED)),
    "tensorflow.timestamp": ("clock", _REAL),
    **dict.fromkeys(("os.listdir", "os.scandir", "os.walk", "glob.glob", "glob.iglob"), ("listing", _SORTED)),
    **dict.fromkeys(
        ("tensorflow.io.gfile.listdir", "tensorflow.io.gfile.walk", "tensorflow.io.gfile.glob"), ("listing", _UNSORTED)
    ),
    "hash": ("hash", "the hash seed is fixed"),
}
_METHODS: Final = {"iterdir": ("listing", _SORTED), "rglob": ("listing", _SORTED)}
_UNSEEDED: Final = frozenset(
    {"random.Random", "random.seed"} | {f"numpy.random.{name}" for name in ("default_rng", "RandomState", "SeedSequence", "seed")}
)
"""These take their seed from the system if they are given none, or `None`."""
_SETS: Final = ("order of a set", "the hash seed is fixed, and the order is captured")

_RANDOM_OPS: Final = ("tensorflow.random.", "tensorflow.image.random_", "tensorflow.nn.dropout", "tensorflow.nn.experimental.")
_NOT_DRAWING: Final = ("set_seed", "Generator", "stateless", "get_global_generator", "create_rng_state", "fold_in", "split")
_STATEFUL_STAGES: Final = {
    "tensorflow.data.Dataset.from_generator": "runs Python",
    "tensorflow.py_function": "runs Python",
    "tensorflow.numpy_function": "runs Python",
}


@dataclass(frozen=True, slots=True)
class Input:
    """One kind of input, all places where the program takes it, and how detrain handles it (`done`)."""

    kind: str
    name: str
    places: tuple[FileLine, ...]
    done: str

    def __str__(self) -> str:
        lines = ", ".join(f"{Path(file).name}:{line}" for file, line in self.places[:4])
        more = f" and {len(self.places) - 4} more" if len(self.places) > 4 else ""
        return f"{self.kind}: {self.name} ({lines}{more}): {self.done}"


def outside_inputs(trees: Mapping[str, ast.Module]) -> list[Input]:
    """Return the inputs from outside in the source files of a program."""
    return _grouped((kind, name, place, done) for file, tree in trees.items() for kind, name, place, done in _inputs(file, tree))


def lifted_random_ops(trees: Mapping[str, ast.Module]) -> list[Input]:
    """Return TensorFlow's random operations in functions of the program: if such a function is traced, they draw other
    numbers than under plain Python.
    """
    done = "where its function is traced it draws other numbers than under plain Python, the same in every run"
    found = []
    for file, tree in trees.items():
        names, staged = _imports(tree), _in_stages(tree)
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda)):
            for call in _calls(function):
                name = _full_name(call.func, names)
                if _draws(name) and id(call) not in staged:
                    found.append(("random op", _shown(name), (file, call.lineno), done))
    return _grouped(found)


def stateful_stages(trees: Mapping[str, ast.Module]) -> list[Input]:
    """Return the stages of tf.data pipelines that keep a state, so that a resumed run loads batches again."""
    found = []
    for file, tree in trees.items():
        names, staged = _imports(tree), _in_stages(tree)
        for call in _calls(tree):
            name = _full_name(call.func, names)
            why = _STATEFUL_STAGES.get(name) or ("draws random numbers" if _draws(name) and id(call) in staged else "")
            if isinstance(call.func, ast.Attribute) and call.func.attr == "cache" and not call.args and not call.keywords:
                name, why = ".cache()", "would be stored whole"
            if why:
                found.append(("loader", _shown(name), (file, call.lineno), f"{why}: batches before the cut are loaded again"))
    return _grouped(found)


def _inputs(file: str, tree: ast.Module) -> Iterator[tuple[str, str, FileLine, str]]:
    names = _imports(tree)
    for call in _calls(tree):
        name, place = _full_name(call.func, names), (file, call.lineno)
        if name in _CALLS:
            kind, done = _CALLS[name]
            yield kind, name, place, done
        elif name.startswith("secrets."):
            yield "entropy", name, place, _DRAWN
        elif name in _UNSEEDED and not call.keywords and all(ast.unparse(seed) == "None" for seed in call.args):
            yield "unseeded generator", name, place, _GENERATOR
        elif isinstance(call.func, ast.Attribute) and call.func.attr in _METHODS and name not in _CALLS:
            kind, done = _METHODS[call.func.attr]
            yield kind, f".{call.func.attr}", place, done
    for node in ast.walk(tree):
        iterable = node.iter if isinstance(node, ast.For | ast.comprehension) else None
        is_set = isinstance(iterable, ast.Set | ast.SetComp)
        if is_set or (isinstance(iterable, ast.Call) and isinstance(iterable.func, ast.Name) and iterable.func.id == "set"):
            assert iterable is not None
            yield "hash", _SETS[0], (file, iterable.lineno), _SETS[1]


def _draws(name: str) -> bool:
    return name.startswith(_RANDOM_OPS) and not name.rpartition(".")[2].startswith(_NOT_DRAWING) and ".experimental." not in name


def _in_stages(tree: ast.Module) -> set[int]:
    """Return the `id` of each call that tf.data makes for its elements: calls in the arguments of `.map` and the like,
    and in functions named there.
    """
    stages = {"map", "interleave", "flat_map", "filter", "scan"}
    calls = [call for call in _calls(tree) if isinstance(call.func, ast.Attribute) and call.func.attr in stages]
    given = [argument for call in calls for argument in (*call.args, *(keyword.value for keyword in call.keywords))]
    by_name = {node.id for node in given if isinstance(node, ast.Name)}
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in by_name]
    return {id(call) for root in (*given, *functions) for call in _calls(root)}


def _calls(root: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(root) if isinstance(node, ast.Call))


def _imports(tree: ast.Module) -> dict[str, str]:
    """Return the full names behind the names that a file imports."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:  # `import a.b` binds `a`, `import a.b as c` binds `c` to the whole
                top = alias.name.partition(".")[0]
                found[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    return found


def _full_name(node: ast.expr, names: Mapping[str, str]) -> str:
    """Return the dotted name of a called function, from its module on; empty if the expression is no such name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    first = names.get(node.id, node.id if node.id in ("hash",) and not parts else "")
    return ".".join([first, *reversed(parts)]) if first else ""


def _shown(name: str) -> str:
    return name.replace("tensorflow.", "tf.", 1)


def _grouped(found: Iterable[tuple[str, str, FileLine, str]]) -> list[Input]:
    by_name: dict[tuple[str, str, str], list[FileLine]] = {}
    for kind, name, place, done in found:
        places = by_name.setdefault((kind, name, done), [])
        if place not in places:
            places.append(place)
    return [Input(kind, name, tuple(sorted(places)), done) for (kind, name, done), places in sorted(by_name.items())]
