"""Random programs of nested loops, for the properties of the rewriter: every shape of header, body, load and white
space.

A program prints its actions through `show`, which fails at its LIMIT-th call; so a program can be made to fail
anywhere.
"""

from __future__ import annotations

import ast
import contextlib
import io
import textwrap
from dataclasses import dataclass
from types import CodeType

from hypothesis import strategies as st

from detrain.base.structure import Loop, Nest

FILE = "/program/train.py"

_ITERABLES = (
    " range(2)",
    " range(\n    2)",
    "  range(2) ",
    " \\\n  range(2)",
    " (range(2))",
    "( range(2) )",
    " (\n  # why two\n  range(2)\n)",
    " 4, 5",
    " 4,",
    " (4, 5)",
    " ((4, 5))",
    "(4, 5)",
    "((4), 5)",
    " (4), (5)",
    "(4), (5)",
    " *(4, 5), 6",
    "[4, 5]",
    "[4], [5]",
    " [4, show('x') or 5]",
    '"ab"',
    ' "é", "ü—"',
    '"é" "ü"',
    "{4: 5, 6: 7}",
    " sorted({4, 5})",
    " (show(y) or y for y in range(2))",
    "(show(y) or y for y in range(2))",
    " ((show(y) or y for y in range(2)))",
    " [show(y) or y for y in range(2)]",
    " (lambda: [4, 5])()",
    " [4] if show(1) else [5]",
    "(yielded := [4, 5])",
    " enumerate([4, 5])",
    " enumerate((4, 5), start=1)",
    " zip((4, 5), 'ab')",
    " {'é': [4, 5]}['é']",
    ' f"{4}{5}"',
    ' f"é{show(4)}" "ü"',
    " iter([4, 5])",
    " [4, 5][::-1]",
    " show.__name__[:2]",
)
_COMMENTS = ("  # why", "  # épöchs —", " #", "  #\ttab", "  # for x in y: z", "# record")
_STATEMENTS = (
    "show({0})",
    "show( {0},'é' )",
    "'é'; show({0})",
    "x = [{0},\n  show({0})]",
    "x = '''é\n  ü'''; show(x)",
    'show(f"é{{{0}!r}} {{show({0})}}")',
    'show(f"""é\n {{{0}}} {{ show({0}) }}""")',
    "if show({0}) is None: show('if')",
    "with contextlib.suppress(KeyError): show({0}); raise KeyError",
    "show({0}) ;",
    "show(record_epoch_count := {0})",
    "show(\\\n  {0})",
    "(lambda é: show(é, {0}))({0})",
    "assert show({0}) is None, 'é'",
)
_HEADS = (
    "",
    "# a comment\n",
    "#!/usr/bin/env python\n# é\n",
    '"""Doc."""\n',
    "'''Doc\nimport detrain\n'''; show = print\n",
    '"""Doc."""\n\nfrom __future__ import annotations\n',
    "from __future__ import annotations ; import os  # é\n",
    "\n\n",
    "\x0c\n",
    "import os, sys\n",
    "execute = 1; execute_ = record_batch = 2\nepoch_loop, batch_loop = 3, 4\n",
    "@(lambda f: f)\n# é\n@(lambda f: f)\ndef first(): pass\n",
)
_RUNTIME = """\
import contextlib
CALLS = 0
def show(*values):
    global CALLS
    CALLS += 1
    if CALLS == LIMIT: raise ZeroDivisionError(CALLS)
    print(*values)
def load(turn):
    show("load", turn)
    if turn == 5: raise LookupError
    return turn, "é"
"""
_PLACES = (
    ("", 0, ""),
    ("def main():\n", 1, "main()\n"),
    ("if __name__ == '__main__':\n", 1, ""),
    ("class Trainer:\n{0}@staticmethod\n{0}def train(*x, y=1):\n", 2, "Trainer.train()\n"),
    ("def outer():\n{0}def inner():\n", 2, "{0}return inner\nouter()()\n"),
    ("try:\n", 1, "finally: show('end')\n"),
)


@dataclass(frozen=True, slots=True)
class LoopProgram:
    """The bytes of a source file, and its nests."""

    data: bytes
    nests: tuple[Nest, ...]


@st.composite
def loop_programs(draw: st.DrawFn) -> LoopProgram:
    """Draw a program of one to three nests in one file."""
    encoding = draw(st.sampled_from(("utf-8", "utf-8", "utf-8-sig", "latin-1")))
    unit = draw(st.sampled_from(("    ", "  ", "\t", "   ")))
    text = draw(st.sampled_from(_HEADS)) + _RUNTIME
    for _ in range(draw(st.integers(1, 2))):
        text += draw(_places(unit))
    if draw(st.booleans()):
        text = text.rstrip("\n")
    if encoding == "latin-1":
        text = "# -*- coding: latin-1 -*-\n" + text.replace("—", "-")
    nests = nests_of(text)
    text = text.replace("\n", draw(st.sampled_from(("\n", "\n", "\r\n", "\r"))))
    return LoopProgram(text.encode(encoding), nests)


@st.composite
def _places(draw: st.DrawFn, unit: str) -> str:
    before, depth, after = draw(st.sampled_from(_PLACES))
    noise = st.sampled_from(("", "", "", "\n", "# é\n", "    # odd indent\n", "\x0c\n", " \t\n"))
    body = draw(_loop(unit, 2, unit * depth, noise))
    return before.format(unit) + draw(noise) + body + after.format(unit) + draw(noise)


@st.composite
def _loop(draw: st.DrawFn, unit: str, height: int, indent: str, noise: st.SearchStrategy[str]) -> str:
    """Draw a loop with its else, each line indented; `height` is the number of loops that may be nested."""
    name = f"{'bé'[height % 2]}{height}"
    is_for = draw(st.booleans())
    inner = indent + unit
    comment = draw(st.sampled_from(("", "", *_COMMENTS)))
    start = ""
    if is_for:
        target = draw(st.sampled_from((name, f"({name})", name, f"*{name}," if draw(st.booleans()) else name)))
        head = f"{indent}for {target} in{draw(st.sampled_from(_ITERABLES))}:"
        if target.startswith("*"):
            head = f"{indent}for {target} in zip(range(2)):"
    else:
        start = f"{indent}{name} = 0\n"
        head = f"{indent}while {name} < 2:"
    lines = draw(st.lists(st.sampled_from(_STATEMENTS), min_size=1, max_size=2))
    if height == 1 and draw(st.integers(0, 3)) == 0:
        statement = draw(st.sampled_from(("show({0})", "show({0}); show('é')", "show({0}) ; ", "show([\n{0}])"))).format(name)
        if not is_for:
            statement = f"{name} += 1; {statement}"
        text = start + head + draw(st.sampled_from(("", " ", "\t", "  \t "))) + statement + comment + "\n"
    else:
        text = start + head + comment + "\n" + draw(noise)
        if not is_for:
            text += f"{inner}{name} += 1{comment}\n"
        if height == 1:
            text += draw(_loads(unit, inner))
        for line in lines:
            text += inner + line.format(name) + draw(st.sampled_from(("", *_COMMENTS))) + "\n" + draw(noise)
        if height > 1:
            text += draw(_loop(unit, height - 1, inner, noise))
            if draw(st.booleans()):
                text += f"{inner}show('after')\n"
    kind = draw(st.integers(0, 3))
    if kind == 0:
        text += f"{indent}else: show('else')\n"
    return text


@st.composite
def _loads(draw: st.DrawFn, unit: str, indent: str) -> str:
    kind = draw(st.integers(0, 4))
    if kind == 0:
        return f"{indent}u, v = load(1)\n"
    if kind == 1:
        return f"{indent}u: object = load(\n2)  # é\n"
    if kind == 2:
        return textwrap.indent(f"try:\n{unit}u, v = load(5)\nexcept LookupError:\n{unit}u = 3; # é\n{unit}# end\n", indent)
    if kind == 3:
        return textwrap.indent("try: (u) = load(5)\nexcept LookupError: continue\nelse: v = '''é'''\n", indent)
    return ""


def nests_of(text: str) -> tuple[Nest, ...]:
    """Return the innermost loops of a program with the loops around them, and the lines where they call `load`."""
    nests = []

    def walk(node: ast.AST, around: ast.For | ast.While | None) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.For | ast.While):
                if not any(isinstance(n, ast.For | ast.While) for n in ast.walk(child) if n is not child):
                    nests.append(Nest(_loop_of(child), None if around is None else _loop_of(around), _load_line(child)))
                walk(child, child)
            else:
                walk(child, around)

    walk(ast.parse(text), None)
    return tuple(nests)


def _loop_of(node: ast.For | ast.While) -> Loop:
    return Loop(FILE, node.lineno, node.col_offset, type(node).__name__.lower())


def _load_line(loop: ast.For | ast.While) -> int | None:
    for node in ast.walk(loop):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "load":
            return node.lineno
    return None


@dataclass(frozen=True, slots=True)
class Ran:
    """The results of a program: its output, and the frames of the error that ended it, as (function, line, columns)."""

    output: str
    error: str
    frames: tuple[object, ...]


def execute(source: bytes | CodeType, limit: int = 0) -> Ran:
    """Execute a main program; its `show` fails at the `limit`-th call."""
    code = compile(source, FILE, "exec", dont_inherit=True) if isinstance(source, bytes) else source
    out = io.StringIO()
    error, frames = "", []
    with contextlib.redirect_stdout(out):
        try:
            exec(code, {"__name__": "__main__", "LIMIT": limit})
        except (ZeroDivisionError, LookupError) as raised:
            error = repr(raised)
            trace = raised.__traceback__
            while trace is not None:
                code_object = trace.tb_frame.f_code
                if code_object.co_filename == FILE:
                    positions = list(code_object.co_positions())[trace.tb_lasti // 2]
                    frames.append((code_object.co_name, trace.tb_lineno, positions))
                trace = trace.tb_next
    return Ran(out.getvalue(), error, tuple(frames))
