"""Insert the probes into a source file, and remove them again. The syntax tree shows the places; the text is edited.

Edits only insert text, except that a loop written on one line is split into several. So formatting survives by
construction, line numbers can be mapped back, and removing the edits gives the original bytes.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from detrain.base.compiled_sources import parse
from detrain.base.errors import CannotRewrite
from detrain.base.framework_names import runs_training
from detrain.base.source_files import imported_in
from detrain.base.structure import AnyLoop, Nest, bound_names, loop_nodes
from detrain.instrument.loop_nodes import Places, counter_name, takes_in
from detrain.instrument.text_edits import Edit, apply, decode_source

IMPORT_MARK: Final = "  # put here by detrain"
_ONE_LINE_MARK: Final = "  # detrain: one line "
_BY_HAND: Final = "put the loop into a plain form, or the probes in by hand"
_PROBES: Final = frozenset(
    {"batch_loop", "epoch_loop", "record_batch", "record_end", "record_epoch", "record_load", "record_phase"}
)
_OUR_IMPORT: Final = re.compile(rf"from [\w.]+ import (?P<names>[\w, ]+){IMPORT_MARK}")


def probes_in(source: str) -> frozenset[str]:
    """Return the probes named in a source that imports detrain, written by hand or by the rewriter.

    A program may import detrain for other things (an error, the guard); then its loops get probes like any program's.
    """
    try:
        tree = parse(source)
    except (SyntaxError, ValueError):
        return frozenset()
    if "detrain" not in imported_in([tree]):
        return frozenset()
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    if "*" in names:
        names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return _PROBES & names


def edits_for(data: bytes, nests: Sequence[Nest], file: str, module: str = "detrain") -> list[Edit]:
    """Return the edits that put the probes of the nests into `file`, which has the bytes `data`. Empty if probes are
    there already.

    `module`: the module from which probes are imported. Raises CannotRewrite if no right rewriting of a loop is known.
    """
    text, _encoding = decode_source(data)
    if probes_in(text):
        return []
    return _Rewriter(text, file, module).edits(nests)


def instrument(data: bytes, nests: Sequence[Nest], file: str, module: str = "detrain.auto") -> bytes:
    """Return the source of a file with probes, in its own encoding."""
    text, encoding = decode_source(data)
    return apply(text.encode(), edits_for(data, nests, file, module)).decode().encode(encoding)


@dataclass(frozen=True, slots=True)
class _Names:
    """Names of the probes in a file. If the program uses such a name for something else, the probe's gets underscores
    behind it."""

    probes: dict[str, str]
    execute: str

    def imported(self, used: Iterable[str]) -> str:
        return ", ".join(name if self.probes[name] == name else f"{name} as {self.probes[name]}" for name in sorted(set(used)))


class _Rewriter:
    """The edits of one file."""

    def __init__(self, text: str, file: str, module: str) -> None:
        self._text = text
        self._source = text.encode()
        self._file = file
        self._module = module
        try:
            self._tree = parse(text)
        except (SyntaxError, ValueError) as error:
            raise CannotRewrite(f"{file}: Python cannot read this: {error}", _BY_HAND) from error
        self._loops = loop_nodes(self._tree)
        self._places = Places(self._source)
        self._lines = _line_offsets(self._source)
        newline = re.search("\r\n|\r|\n", text)
        self._newline = newline[0] if newline else "\n"
        self._unit = next(filter(None, map(self._indent_of, self._first_of_blocks())), "    ")
        taken = set(re.findall(r"\w+", text))
        self._names = _Names({name: _free(name, taken) for name in _PROBES}, _free("execute", taken))
        self._used: set[str] = set()
        self._edits: list[Edit] = []
        self._wrapped: list[ast.For | ast.AsyncFor] = []

    def edits(self, nests: Sequence[Nest]) -> list[Edit]:
        batch_loops = {nest.batch_loop.line: nest for nest in nests if nest.batch_loop.file == self._file}
        epoch_loops = {nest.epoch_loop.line for nest in nests if nest.epoch_loop and nest.epoch_loop.file == self._file}
        for line, nest in batch_loops.items():
            self._batch_loop(self._loop_at(line), nest)
        for line in sorted(epoch_loops):
            self._epoch_loop(self._loop_at(line))
        if self._used:
            self._import()
        self._check()
        return sorted(self._edits)

    def _loop_at(self, line: int) -> AnyLoop:
        if line not in self._loops:
            what = f"{self._file}:{line}: no loop starts here"
            raise CannotRewrite(what, "name the line of a loop in the inst.info, or remove it")
        return self._loops[line]

    def _check(self) -> None:
        """Raise CannotRewrite if the edited source does not parse (an edit may follow a statement that a backslash
        continues), or its loops go over other iterables than before.
        """
        try:
            tree = parse(apply(self._source, self._edits).decode())
        except SyntaxError as error:
            raise CannotRewrite(f"{self._file}: the probes do not fit between its lines: {error.msg}", _BY_HAND) from error
        now = [node.iter for node in ast.walk(tree) if isinstance(node, ast.For | ast.AsyncFor)]
        wrapped = [ast.dump(each.args[0]) for each in now if isinstance(each, ast.Call) and self._is_wrapper(each.func)]
        if wrapped != [ast.dump(node.iter) for node in ast.walk(self._tree) if node in self._wrapped]:
            raise CannotRewrite(f"{self._file}: what its loops go over cannot be told from its text", _BY_HAND)

    def _is_wrapper(self, called: ast.expr) -> bool:
        return isinstance(called, ast.Name) and called.id in (self._names.probes["epoch_loop"], self._names.probes["batch_loop"])

    # The two loops.

    def _epoch_loop(self, loop: AnyLoop) -> None:
        self._refuse_unknown(loop)
        number = counter_name(loop)
        record = f"{self._probe('record_epoch')}({number})"
        if not isinstance(loop, ast.While):
            self._wrap(loop, "epoch_loop", ())
        else:
            self._mark_while(loop)
        self._insert_at_top(loop, [record])

    def _batch_loop(self, loop: AnyLoop, nest: Nest) -> None:
        self._refuse_unknown(loop)
        load = self._load_statement(loop, nest)
        names = bound_names(load)
        execute = self._names.execute
        record = [
            f"{execute} = {self._probe('record_batch')}({counter_name(loop)})",
            f"if not {execute}:",
            "\tcontinue",
        ]
        head: list[str] = []
        if not isinstance(loop, ast.While):
            self._wrap(loop, "batch_loop", names)
        else:
            head = [f"{self._probe('record_load')}({', '.join(map(repr, names))})"]
            if nest.epoch_loop is None:
                self._mark_while(loop)
        if not load:
            self._insert_at_top(loop, [*head, *record])
        else:
            if head:
                self._insert_at_top(loop, head)
            self._insert_after(load[0], record)

    def _refuse_unknown(self, loop: AnyLoop) -> None:
        line = loop.lineno
        if isinstance(loop, ast.AsyncFor):
            raise CannotRewrite(
                f"{self._file}:{line}: the training loop is an `async for`",
                f"no right rewriting is known for it; {_BY_HAND}",
            )
        if takes_in(loop, is_known=runs_training(self._file)):
            raise CannotRewrite(
                f"{self._file}:{line}: the training loop takes something in by `yield`, from a caller that would run again",
                f"load the batches in the loop itself; or {_BY_HAND}",
            )

    def _load_statement(self, loop: AnyLoop, nest: Nest) -> list[ast.stmt]:
        """Return the statement of the body with the load line, in a list; empty if no probe can stand after it."""
        if nest.load_line is None or not self._places.has_block(loop):
            return []
        for line in self._places.lines_of(loop.body):
            numbers = range(_first_line(line[0]), _last_line(line[-1]) + 1)
            if nest.load_line in numbers:
                return [] if len(line) > 1 or nest.update_line in numbers else line
        return []

    # Edits.

    def _probe(self, name: str) -> str:
        self._used.add(name)
        return self._names.probes[name]

    def _wrap(self, loop: ast.For | ast.AsyncFor, probe: str, names: tuple[str, ...]) -> None:
        """Make the iterable the argument of a probe. Parentheses around the call record, for `remove`, that it had no
        space before it (`in[1, 2]`), or no parentheses of its own (`in 1, 2`)."""
        first, last = self._places.of_iterable(loop)
        is_bare = self._places.is_bare_tuple(loop.iter)
        outside = _touches_in(self._source, first) + is_bare
        extra = "".join(f', "{name}"' for name in names)
        opening = f"{'(' * outside}{self._probe(probe)}({'(' * is_bare}"
        closing = f"{')' * is_bare}{extra}){')' * outside}"
        self._edits += [(first, first, opening), (last, last, closing)]
        self._wrapped.append(loop)

    def _mark_while(self, loop: AnyLoop) -> None:
        self._insert_before_loop(loop, f"{self._probe('record_phase')}()")
        self._insert_after(loop, [f"{self._probe('record_end')}()"])

    def _insert_before_loop(self, loop: AnyLoop, line: str) -> None:
        start = self._lines[loop.lineno - 1]
        self._edits.append((start, start, f"{self._indent_of(loop)}{line}{self._newline}"))

    def _insert_at_top(self, loop: AnyLoop, lines: list[str]) -> None:
        if not self._places.has_block(loop):
            self._open_up(loop, lines)
            return
        offset = self._lines[_first_line(loop.body[0]) - 1]
        self._edits.append((offset, offset, self._block(lines, self._indent_of(loop.body[0]))))

    def _insert_after(self, statement: ast.stmt, lines: list[str]) -> None:
        offset = self._lines[_last_line(statement)]
        block = self._block(lines, self._indent_of(statement))
        # the file ends here without a newline, and must end so afterwards
        if not self._source[:offset].endswith((b"\n", b"\r")):
            block = self._newline + block.removesuffix(self._newline)
        self._edits.append((offset, offset, block))

    def _block(self, lines: list[str], indent: str) -> str:
        return "".join(indent + line.replace("\t", self._unit) + self._newline for line in lines)

    def _open_up(self, loop: AnyLoop, lines: list[str]) -> None:
        """Split a loop that stands on one line into several lines; the mark records the white space it replaces."""
        first = start = self._places.of(loop.body[0])[0]
        while self._source[first - 1 : first] in (b" ", b"\t", b"\x0c"):
            first -= 1
        white = self._source[first:start]
        if self._source[first - 1 : first] != b":":
            raise CannotRewrite(
                f"{self._file}:{loop.lineno}: the loop's body hangs on a continued line",
                "put the body on lines of its own",
            )
        indent = self._indent_of(loop) + self._unit
        mark = f"{_ONE_LINE_MARK}{white.hex() or '-'}{self._newline}"
        self._edits.append((first, start, mark + self._block(lines, indent) + indent))

    def _import(self) -> None:
        """Import the probes after the docstring and the `__future__` imports."""
        line = 0
        for index, statements in enumerate(self._places.lines_of(self._tree.body)):
            if not _is_prologue(statements[0], index):
                break
            line = _last_line(statements[-1])
        text = f"from {self._module} import {self._names.imported(self._used)}{IMPORT_MARK}{self._newline}"
        if line == 0:
            line = _first_line(self._tree.body[0]) - 1
        self._edits.append((self._lines[line], self._lines[line], text))

    def _first_of_blocks(self) -> Iterator[ast.stmt]:
        """Yield the statements below the top level that stand first on their lines, the least deep ones first."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.stmt) and node.col_offset:
                line = self._lines[node.lineno - 1]
                if not self._source[line : line + node.col_offset].strip(b" \t\x0c"):
                    yield node

    def _indent_of(self, statement: ast.stmt) -> str:
        line = self._source[self._lines[_first_line(statement) - 1] :]
        return _behind_form_feed(line[: len(line) - len(line.lstrip(b" \t\x0c"))].decode())


def remove(data: bytes) -> bytes:
    """Return a source without the probes that `instrument` put in; a source without such probes stays as it is."""
    text, encoding = decode_source(data)
    lines = _lines(text)
    imports = [index for index, line in enumerate(lines) if _OUR_IMPORT.fullmatch(line.rstrip("\r\n"))]
    if not imports:
        return data
    names = _imported_names(lines.pop(imports[0]))
    without = _close_up(_without_probes(lines, names))
    return _unwrap(without, names).encode(encoding)


def _without_probes(lines: list[str], names: dict[str, str]) -> list[str]:
    execute = re.compile(r"(?P<execute>\w+) = {record_batch}\(\w*\)".format(**names))
    alone = re.compile(r"{record_epoch}\(\w*\)|{record_phase}\(\)|{record_end}\(\)|{record_load}\([^()]*\)".format(**names))
    kept: list[str] = []
    index = 0
    while index < len(lines):
        bare = lines[index].strip()
        found = execute.fullmatch(bare)
        following = [line.strip() for line in lines[index + 1 : index + 3]]
        if found and following == [f"if not {found['execute']}:", "continue"]:
            index += 3
        elif alone.fullmatch(bare):
            index += 1
        else:
            kept.append(lines[index])
            index += 1
    if not lines[-1].endswith(("\n", "\r")):  # the file ends without a newline, as it did before the probes
        kept[-1] = kept[-1].rstrip("\r\n")
    return kept


def _close_up(lines: list[str]) -> str:
    """Join loops that `_open_up` split back into one line."""
    result = ""
    pending: str | None = None
    for line in lines:
        if pending is not None:
            result += pending + line.lstrip(" \t\x0c")
            pending = None
            continue
        head, mark, tail = line.partition(_ONE_LINE_MARK)
        if mark:
            white = tail.strip()
            pending = head + ("" if white == "-" else bytes.fromhex(white).decode())
        else:
            result += line
    return result


def _unwrap(text: str, names: dict[str, str]) -> str:
    """Remove the probes around the iterables of loops."""
    source = text.encode()
    places = Places(source)
    cuts: list[Edit] = []
    for loop in loop_nodes(parse(text)).values():
        if isinstance(loop, ast.While) or not isinstance(loop.iter, ast.Call) or not isinstance(loop.iter.func, ast.Name):
            continue
        call, name = loop.iter, loop.iter.func
        if name.id not in (names["epoch_loop"], names["batch_loop"]):
            continue
        outer_first, outer_last = places.of_iterable(loop)
        first, last = places.around(call.args[0], places.of(name)[1] + 1)
        is_bare = source[outer_first : places.of(call)[0]].count(b"(") > _touches_in(source, outer_first)
        cuts += [(outer_first, first + is_bare, ""), (last - is_bare, outer_last, "")]
    return apply(source, cuts).decode()


def _imported_names(line: str) -> dict[str, str]:
    names = {name: name for name in _PROBES}
    found = _OUR_IMPORT.match(line)
    for part in found["names"].split(", ") if found else ():
        name, _, alias = part.partition(" as ")
        names[name] = alias or name
    return names


def _is_prologue(statement: ast.stmt, index: int) -> bool:
    if index == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return isinstance(statement.value.value, str)
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__" and not statement.level


def _first_line(statement: ast.stmt) -> int:
    """Return the line where a statement starts, its decorators included."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and statement.decorator_list:
        return statement.decorator_list[0].lineno
    return statement.lineno


def _last_line(statement: ast.stmt) -> int:
    assert statement.end_lineno is not None
    return statement.end_lineno


def _touches_in(source: bytes, first: int) -> bool:
    """Return True if an iterable stands right behind its `in`."""
    return source[first - 1 : first] == b"n"


def _free(name: str, taken: set[str]) -> str:
    while name in taken or keyword.iskeyword(name):
        name += "_"
    return name


def _behind_form_feed(white: str) -> str:
    """Return the indentation in the white space at the start of a line: the part after the last form feed."""
    return white.rpartition("\x0c")[2]


def _lines(text: str) -> list[str]:
    """Return the lines as Python counts them; `str.splitlines` would split at more characters."""
    return [line.decode() for line in text.encode().splitlines(keepends=True)]


def _line_offsets(source: bytes) -> list[int]:
    offsets = [0]
    for line in source.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    return offsets
