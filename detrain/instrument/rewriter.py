"""Insert the probes into a source file, and take them out again (libcst finds the places; the edits are to the text).

An edit only ever inserts, except that a loop written on one line is put on several. So formatting survives by construction, line
numbers can be mapped back, and removing the edits gives the original bytes.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import libcst as cst
from libcst.metadata import ByteSpanPositionProvider, MetadataWrapper, PositionProvider

from detrain.errors import CannotRewrite
from detrain.instrument.edits import Edit, apply, decode_source
from detrain.structure import Nest

IMPORT_MARK: Final = "  # put here by detrain"
_ONE_LINE_MARK: Final = "  # detrain: one line "
_PROBES: Final = ("batch_loop", "epoch_loop", "record_batch", "record_epoch", "record_load", "record_phase")
_BARE_IN_CALL: Final = (cst.Tuple, cst.Yield)  # as a sole argument these need parentheses of their own
_HAS_PROBES: Final = re.compile(r"^\s*(from\s+detrain(\.\w+)?\s+import|import\s+detrain)\b", re.MULTILINE)

AnyLoop = cst.For | cst.While


def has_probes(source: str) -> bool:
    """Return whether a source imports detrain: it carries probes already, put there by hand or by the rewriter."""
    return _HAS_PROBES.search(source) is not None


def edits_for(data: bytes, nests: Sequence[Nest], file: str, module: str = "detrain") -> list[Edit]:
    """Return the edits that put the probes of the nests into `file`, whose bytes are `data`. Empty if probes are there already.

    `module` is what the probes are imported from. Raises CannotRewrite for a loop shape without a right rewriting.
    """
    text, _encoding = decode_source(data)
    if has_probes(text):
        return []
    return _Rewriter(text, file, module).edits(nests)


def instrument(data: bytes, nests: Sequence[Nest], file: str, module: str = "detrain.auto") -> bytes:
    """Return the source of a file with probes, in its own encoding."""
    text, encoding = decode_source(data)
    return apply(text.encode(), edits_for(data, nests, file, module)).decode().encode(encoding)


@dataclass(frozen=True, slots=True)
class _Names:
    """Names of the probes in a file, where the program uses one of them for something else with an underscore behind it."""

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
        wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
        self._tree = wrapper.module
        self._positions = wrapper.resolve(PositionProvider)
        self._spans = wrapper.resolve(ByteSpanPositionProvider)
        self._newline = self._tree.default_newline
        self._lines = _line_offsets(self._source)
        taken = set(re.findall(r"\w+", text))
        self._names = _Names({name: _free(name, taken) for name in _PROBES}, _free("execute", taken))
        self._used: set[str] = set()
        self._edits: list[Edit] = []

    def edits(self, nests: Sequence[Nest]) -> list[Edit]:
        loops = {self._positions[node].start.line: node for node in _all_loops(self._tree)}
        done: set[int] = set()
        for nest in nests:
            if nest.batch_loop.file == self._file:
                self._batch_loop(loops[nest.batch_loop.line], nest)
            epoch = nest.epoch_loop
            if epoch is not None and epoch.file == self._file and epoch.line not in done:
                done.add(epoch.line)
                self._epoch_loop(loops[epoch.line])
        if self._used:
            self._import()
        return sorted(self._edits)

    # The two loops.

    def _epoch_loop(self, loop: AnyLoop) -> None:
        self._refuse_unknown(loop)
        number = _counter_name(loop)
        record = f"{self._probe('record_epoch')}({number})"
        if isinstance(loop, cst.For):
            self._wrap(loop.iter, "epoch_loop", ())
        else:
            self._insert_before_loop(loop, f"{self._probe('record_phase')}()")
        self._insert_at_top(loop, [record])

    def _batch_loop(self, loop: AnyLoop, nest: Nest) -> None:
        self._refuse_unknown(loop)
        load = self._load_statement(loop, nest)
        names = () if load is None else tuple(_bound_names(load))
        execute = self._names.execute
        record = [
            f"{execute} = {self._probe('record_batch')}({_counter_name(loop)})",
            f"if not {execute}:",
            "\tcontinue",
        ]
        head: list[str] = []
        if isinstance(loop, cst.For):
            self._wrap(loop.iter, "batch_loop", names)
        else:
            head = [f"{self._probe('record_load')}({', '.join(map(repr, names))})"]
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
                "no right rewriting is known for it; put the loop into a plain `for`, or the probes in by hand",
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

    def _wrap(self, iterable: cst.BaseExpression, probe: str, names: tuple[str, ...]) -> None:
        span = self._spans[iterable]
        first, last = span.start, span.start + span.length
        before = self._source[first - 1 : first].decode("utf-8", "replace")
        touches = before.isidentifier() or before.isdigit()  # `in[1, 2]`: one more pair inside says that there was no space
        inside = int(isinstance(iterable, _BARE_IN_CALL) or (bool(names) and isinstance(iterable, cst.GeneratorExp))) + touches
        extra = "".join(f', "{name}"' for name in names)
        opening = f"{'(' * touches}{self._probe(probe)}({'(' * inside}"
        closing = f"{')' * inside}{extra}){')' * touches}"
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
        prefix = "" if self._source[:offset].endswith((b"\n", b"\r")) else self._newline
        self._edits.append((offset, offset, prefix + self._block(lines, indent)))

    def _insert_line(self, number: int, lines: list[str]) -> None:
        offset = self._lines[number - 1]
        self._edits.append((offset, offset, self._block(lines, self._indent_of(number))))

    def _block(self, lines: list[str], indent: str) -> str:
        unit = self._tree.default_indent
        return "".join(indent + line.replace("\t", unit) + self._newline for line in lines)

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
        indent = self._indent_of(self._positions[loop].start.line) + self._tree.default_indent
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
        offset = self._lines[line]
        prefix = "" if offset == 0 or self._source[:offset].endswith((b"\n", b"\r")) else self._newline
        self._edits.append((offset, offset, prefix + text))

    def _last_line(self, statement: cst.CSTNode) -> int:
        end = self._positions[statement].end
        return int(end.line if end.column else end.line - 1)

    def _first_line(self, statement: cst.CSTNode) -> int:
        """Return the line where a statement starts, its decorators included."""
        if isinstance(statement, cst.FunctionDef | cst.ClassDef) and statement.decorators:
            return int(self._positions[statement.decorators[0]].start.line)
        return int(self._positions[statement].start.line)

    def _indent_of(self, number: int) -> str:
        line = self._source[self._lines[number - 1] :]
        return re.match(rb"[ \t\x0c]*", line).group().decode()  # type: ignore[union-attr]


def remove(data: bytes) -> bytes:
    """Return the source without the probes that `instrument` put in; other sources come back as they are."""
    text, encoding = decode_source(data)
    if IMPORT_MARK.strip() not in text:
        return data
    return _remove(text).encode(encoding)


def _remove(text: str) -> str:
    aliases = _imported_names(text)
    lines = text.splitlines(keepends=True)
    execute = r"(?P<execute>\w+) = {record_batch}\(\w*\)".format(**aliases)
    kept: list[str] = []
    index = 0
    while index < len(lines):
        bare = lines[index].strip()
        if IMPORT_MARK.strip() in bare:
            index += 1
            continue
        found = re.fullmatch(execute, bare)
        if found and lines[index + 1].strip() == f"if not {found['execute']}:" and lines[index + 2].strip() == "continue":
            index += 3
            continue
        if re.fullmatch(r"(?:{record_epoch}\(\w*\)|{record_phase}\(\)|{record_load}\([^()]*\))".format(**aliases), bare):
            index += 1
            continue
        kept.append(lines[index])
        index += 1
    return _unwrap(_close_up(kept), aliases)


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


def _unwrap(text: str, aliases: dict[str, str]) -> str:
    """Take the loop wrappers off the iterables."""
    wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
    spans = wrapper.resolve(ByteSpanPositionProvider)
    source = text.encode()
    cuts: list[Edit] = []
    for loop in _all_loops(wrapper.module):
        call = loop.iter if isinstance(loop, cst.For) else None
        if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Name):
            continue
        if call.func.value not in (aliases["epoch_loop"], aliases["batch_loop"]):
            continue
        argument = call.args[0].value
        inner = spans[argument]
        first, last = inner.start, inner.start + inner.length
        outer_first, outer_last = spans[call].start, spans[call].start + spans[call].length
        own = len(argument.lpar)
        extra = 1 if isinstance(argument, _BARE_IN_CALL) or (len(call.args) > 1 and isinstance(argument, cst.GeneratorExp)) else 0
        if own > extra and source[outer_first - 1 : outer_first] == b"(" and _touches_word(source, outer_first - 1):
            outer_first, outer_last = outer_first - 1, outer_last + 1
        cuts += [(outer_first, first, ""), (last, outer_last, "")]
    return apply(source, cuts).decode()


def _touches_word(source: bytes, offset: int) -> bool:
    before = source[offset - 1 : offset].decode("utf-8", "replace")
    return before.isidentifier() or before.isdigit()


def _imported_names(text: str) -> dict[str, str]:
    names = {name: name for name in _PROBES}
    line = next(line for line in text.splitlines() if IMPORT_MARK.strip() in line)
    for part in line.partition(" import ")[2].partition("  #")[0].split(","):
        name, _, alias = part.strip().partition(" as ")
        names[name] = alias or name
    return names


def _all_loops(tree: cst.Module) -> list[AnyLoop]:
    found: list[AnyLoop] = []

    class Visitor(cst.CSTVisitor):
        def visit_For(self, node: cst.For) -> None:
            found.append(node)

        def visit_While(self, node: cst.While) -> None:
            found.append(node)

    tree.visit(Visitor())
    return found


def _counter_name(loop: AnyLoop) -> str:
    """Return the name that counts the loop's turns, as far as the header shows one, else the empty string."""
    if isinstance(loop, cst.While):
        return ""
    target = loop.target
    iterable: cst.BaseExpression = loop.iter
    while isinstance(iterable, cst.Call):
        name = iterable.func.value if isinstance(iterable.func, cst.Name) else ""
        if name == "range":
            return target.value if isinstance(target, cst.Name) else ""
        if name == "enumerate":
            first = target.elements[0].value if isinstance(target, cst.Tuple) else None
            return first.value if isinstance(first, cst.Name) else ""
        if not iterable.args:
            break
        iterable = iterable.args[0].value
    return ""


def _bound_names(statement: cst.CSTNode) -> list[str]:
    """Return the names that a statement assigns, in order."""
    found: list[str] = []

    class Visitor(cst.CSTVisitor):
        def visit_AssignTarget(self, node: cst.AssignTarget) -> None:
            found.extend(_target_names(node.target))

    statement.visit(Visitor())
    return list(dict.fromkeys(found))


def _target_names(target: cst.BaseExpression) -> list[str]:
    if isinstance(target, cst.Name):
        return [target.value]
    if isinstance(target, cst.Tuple | cst.List):
        return [name for element in target.elements for name in _target_names(element.value)]
    return []


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


def _line_offsets(source: bytes) -> list[int]:
    offsets = [0]
    for line in source.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    return offsets
