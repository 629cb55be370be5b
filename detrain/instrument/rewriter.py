"""Insert the probes into a source file, and take them out again (libcst finds the places; the edits are to the text).

An edit only ever inserts, except that a loop written on one line is put on several. So formatting survives by
construction, line numbers can be mapped back, and removing the edits gives the original bytes.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import libcst as cst
from libcst.metadata import ByteSpanPositionProvider, MetadataWrapper, PositionProvider

from detrain.base.compiled_sources import parse
from detrain.base.errors import CannotRewrite
from detrain.base.framework_names import runs_training
from detrain.base.structure import Nest, bound_names
from detrain.instrument.loop_nodes import AnyLoop, all_loops, counter_name, outer_span, takes_in, touches_in
from detrain.instrument.text_edits import Edit, apply, decode_source

IMPORT_MARK: Final = "  # put here by detrain"
_ONE_LINE_MARK: Final = "  # detrain: one line "
_BY_HAND: Final = "put the loop into a plain form, or the probes in by hand"
_PROBES: Final = frozenset({"batch_loop", "epoch_loop", "record_batch", "record_epoch", "record_load", "record_phase"})
_OUR_IMPORT: Final = re.compile(rf"from [\w.]+ import (?P<names>[\w, ]+){IMPORT_MARK}")


def probes_in(source: str) -> frozenset[str]:
    """Return the probes that a source which imports detrain names: put there by hand, or by the rewriter.

    A program may import detrain for other things (an error, the guard); then its loops get probes as any program's do.
    """
    try:
        tree = parse(source)
    except (SyntaxError, ValueError):
        return frozenset()
    modules = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level]
    if not any(module.partition(".")[0] == "detrain" for module in modules):
        return frozenset()
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    if "*" in names:
        names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return _PROBES & names


def edits_for(data: bytes, nests: Sequence[Nest], file: str, module: str = "detrain") -> list[Edit]:
    """Return the edits that put the probes of the nests into `file`, whose bytes are `data`.
    Empty if probes are there already.

    `module` is what the probes are imported from. Raises CannotRewrite for a loop shape without a right rewriting.
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
    """Names of the probes in a file, where the program uses one of them for something else with an underscore behind
    it."""

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
            wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
        except cst.ParserSyntaxError as error:
            raise CannotRewrite(f"{file}:{error.raw_line}: libcst cannot read this: {error.message}", _BY_HAND) from error
        self._tree = wrapper.module
        self._positions = wrapper.resolve(PositionProvider)
        self._spans = wrapper.resolve(ByteSpanPositionProvider)
        self._newline = self._tree.default_newline
        self._unit = _behind_form_feed(self._tree.default_indent) or "    "
        self._lines = _line_offsets(self._source)
        taken = set(re.findall(r"\w+", text))
        self._names = _Names({name: _free(name, taken) for name in _PROBES}, _free("execute", taken))
        self._used: set[str] = set()
        self._edits: list[Edit] = []

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
        for loop in all_loops(self._tree):
            if self._positions[loop].start.line == line:
                return loop
        raise CannotRewrite(f"{self._file}:{line}: no loop starts here", "name the line of a loop in the inst.info, or remove it")

    def _check(self) -> None:
        """Refuse edits that do not leave a program, such as one behind a statement that a backslash continues."""
        try:
            parse(apply(self._source, self._edits).decode())
        except SyntaxError as error:
            raise CannotRewrite(f"{self._file}: the probes do not fit between its lines: {error.msg}", _BY_HAND) from error

    # The two loops.

    def _epoch_loop(self, loop: AnyLoop) -> None:
        self._refuse_unknown(loop)
        number = counter_name(loop)
        record = f"{self._probe('record_epoch')}({number})"
        if isinstance(loop, cst.For):
            self._wrap(loop.iter, "epoch_loop", ())
        else:
            self._insert_before_loop(loop, f"{self._probe('record_phase')}()")
        self._insert_at_top(loop, [record])

    def _batch_loop(self, loop: AnyLoop, nest: Nest) -> None:
        self._refuse_unknown(loop)
        load = self._load_statement(loop, nest)
        names = () if load is None else self._names_bound_by(load)
        execute = self._names.execute
        record = [
            f"{execute} = {self._probe('record_batch')}({counter_name(loop)})",
            f"if not {execute}:",
            "\tcontinue",
        ]
        head: list[str] = []
        if isinstance(loop, cst.For):
            self._wrap(loop.iter, "batch_loop", names)
        else:
            head = [f"{self._probe('record_load')}({', '.join(map(repr, names))})"]
            if nest.epoch_loop is None:
                self._insert_before_loop(loop, f"{self._probe('record_phase')}()")
        if load is None:
            self._insert_at_top(loop, [*head, *record])
        else:
            if head:
                self._insert_at_top(loop, head)
            self._insert_after(load, record)

    def _refuse_unknown(self, loop: AnyLoop) -> None:
        line = self._positions[loop].start.line
        if isinstance(loop, cst.For) and loop.asynchronous is not None:
            raise CannotRewrite(
                f"{self._file}:{line}: the training loop is an `async for`",
                f"no right rewriting is known for it; {_BY_HAND}",
            )
        if takes_in(loop, is_known=runs_training(self._file)):
            raise CannotRewrite(
                f"{self._file}:{line}: the training loop takes something in by `yield`, from a caller that would run again",
                f"load the batches in the loop itself; or {_BY_HAND}",
            )

    def _load_statement(self, loop: AnyLoop, nest: Nest) -> cst.BaseStatement | None:
        """Return the statement of the body that holds the load line, if a probe can stand behind it."""
        if nest.load_line is None or not isinstance(loop.body, cst.IndentedBlock):
            return None
        for statement in loop.body.body:
            lines = range(self._positions[statement].start.line, self._last_line(statement) + 1)
            if nest.load_line in lines:
                if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) > 1:
                    return None
                if nest.update_line in lines:
                    return None
                return statement
        return None

    # Edits.

    def _probe(self, name: str) -> str:
        self._used.add(name)
        return self._names.probes[name]

    def _names_bound_by(self, statement: cst.BaseStatement) -> tuple[str, ...]:
        return bound_names([parse(self._tree.code_for_node(statement))])

    def _wrap(self, iterable: cst.BaseExpression, probe: str, names: tuple[str, ...]) -> None:
        """Make the iterable the argument of a probe. A pair of parentheses around the call says what it had not: a
        space before it (`in[1, 2]`), or parentheses of its own (`in 1, 2`)."""
        first, last = outer_span(iterable, self._spans)
        is_bare = isinstance(iterable, cst.Tuple) and not iterable.lpar
        outside = touches_in(self._source, first) + is_bare
        extra = "".join(f', "{name}"' for name in names)
        opening = f"{'(' * outside}{self._probe(probe)}({'(' * is_bare}"
        closing = f"{')' * is_bare}{extra}){')' * outside}"
        self._edits += [(first, first, opening), (last, last, closing)]

    def _insert_before_loop(self, loop: AnyLoop, line: str) -> None:
        number = self._positions[loop].start.line
        indent = self._indent_of(number)
        self._edits.append((self._lines[number - 1], self._lines[number - 1], f"{indent}{line}{self._newline}"))

    def _insert_at_top(self, loop: AnyLoop, lines: list[str]) -> None:
        if isinstance(loop.body, cst.SimpleStatementSuite):
            self._open_up(loop, loop.body, lines)
            return
        first = loop.body.body[0]
        self._insert_line(self._first_line(first), lines)

    def _insert_after(self, statement: cst.BaseStatement, lines: list[str]) -> None:
        number = self._last_line(statement)
        indent = self._indent_of(self._first_line(statement))
        offset = self._lines[number]
        block = self._block(lines, indent)
        # the file ends here, without a newline; so it does afterwards
        if not self._source[:offset].endswith((b"\n", b"\r")):
            block = self._newline + block.removesuffix(self._newline)
        self._edits.append((offset, offset, block))

    def _insert_line(self, number: int, lines: list[str]) -> None:
        offset = self._lines[number - 1]
        self._edits.append((offset, offset, self._block(lines, self._indent_of(number))))

    def _block(self, lines: list[str], indent: str) -> str:
        return "".join(indent + line.replace("\t", self._unit) + self._newline for line in lines)

    def _open_up(self, loop: AnyLoop, body: cst.SimpleStatementSuite, lines: list[str]) -> None:
        """Put a loop that stands on one line on several; the mark keeps the white space that gives way."""
        span = self._spans[body.body[0]]
        first = span.start
        while self._source[first - 1 : first] in (b" ", b"\t", b"\x0c"):
            first -= 1
        white = self._source[first : span.start]
        if self._source[first - 1 : first] != b":":
            raise CannotRewrite(
                f"{self._file}:{self._positions[loop].start.line}: the loop's body hangs on a continued line",
                "put the body on lines of its own",
            )
        indent = self._indent_of(self._positions[loop].start.line) + self._unit
        mark = f"{_ONE_LINE_MARK}{white.hex() or '-'}{self._newline}"
        self._edits.append((first, span.start, mark + self._block(lines, indent) + indent))

    def _import(self) -> None:
        """Import the probes after the docstring and the `__future__` imports."""
        line = 0
        for index, statement in enumerate(self._tree.body):
            if not _is_prologue(statement, index):
                break
            line = self._last_line(statement)
        text = f"from {self._module} import {self._names.imported(self._used)}{IMPORT_MARK}{self._newline}"
        if line == 0:
            line = self._first_line(self._tree.body[0]) - 1
        self._edits.append((self._lines[line], self._lines[line], text))

    def _last_line(self, statement: cst.CSTNode) -> int:
        end = self._positions[statement].end
        return int(end.line if end.column else end.line - 1)

    def _first_line(self, statement: cst.CSTNode) -> int:
        """Return the line where a statement starts, its decorators included."""
        if isinstance(statement, cst.FunctionDef | cst.ClassDef) and statement.decorators:
            return int(self._positions[statement.decorators[0]].start.line)
        return int(self._positions[statement].start.line)

    def _indent_of(self, number: int) -> str:
        line = self._source[self._lines[number - 1] : self._lines[number]]
        return _behind_form_feed(line[: len(line) - len(line.lstrip(b" \t\x0c"))].decode())


def remove(data: bytes) -> bytes:
    """Return the source without the probes that `instrument` put in; other sources come back as they are."""
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
    alone = re.compile(r"{record_epoch}\(\w*\)|{record_phase}\(\)|{record_load}\([^()]*\)".format(**names))
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
    if not lines[-1].endswith(("\n", "\r")):  # the file ended without a newline; so it did before the probes
        kept[-1] = kept[-1].rstrip("\r\n")
    return kept


def _close_up(lines: list[str]) -> str:
    """Put loops that were opened up back on one line."""
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
    """Take the loop wrappers off the iterables."""
    wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
    spans = wrapper.resolve(ByteSpanPositionProvider)
    source = text.encode()
    cuts: list[Edit] = []
    for loop in all_loops(wrapper.module):
        call = loop.iter if isinstance(loop, cst.For) else None
        if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Name):
            continue
        if call.func.value not in (names["epoch_loop"], names["batch_loop"]):
            continue
        argument = call.args[0].value
        outer_first, outer_last = outer_span(call, spans)
        first, last = outer_span(argument, spans)
        is_bare = len(call.lpar) > touches_in(source, outer_first)
        cuts += [(outer_first, first + is_bare, ""), (last - is_bare, outer_last, "")]
    return apply(source, cuts).decode()


def _imported_names(line: str) -> dict[str, str]:
    names = {name: name for name in _PROBES}
    found = _OUR_IMPORT.match(line)
    for part in found["names"].split(", ") if found else ():
        name, _, alias = part.partition(" as ")
        names[name] = alias or name
    return names


def _is_prologue(statement: cst.CSTNode, index: int) -> bool:
    if not isinstance(statement, cst.SimpleStatementLine):
        return False
    first = statement.body[0]
    if index == 0 and isinstance(first, cst.Expr) and isinstance(first.value, cst.SimpleString | cst.ConcatenatedString):
        return True
    return isinstance(first, cst.ImportFrom) and isinstance(first.module, cst.Name) and first.module.value == "__future__"


def _free(name: str, taken: set[str]) -> str:
    while name in taken or keyword.iskeyword(name):
        name += "_"
    return name


def _behind_form_feed(white: str) -> str:
    """Return what of the white space at the start of a line is indentation: a form feed starts it anew."""
    return white.rpartition("\x0c")[2]


def _lines(text: str) -> list[str]:
    """Return the lines as Python counts them; `str.splitlines` knows more line ends."""
    return [line.decode() for line in text.encode().splitlines(keepends=True)]


def _line_offsets(source: bytes) -> list[int]:
    offsets = [0]
    for line in source.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    return offsets
