"""The rewriter: before and after of each loop shape, and what holds of every program."""

from __future__ import annotations

import re
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detrain.base.errors import CannotRewrite
from detrain.base.structure import Loop, Nest
from detrain.instrument.loop_nodes import Places
from detrain.instrument.rewriter import edits_for, instrument, probes_in, remove
from detrain.instrument.text_edits import compile_edited
from tests.instrument.loop_programs import FILE, LoopProgram, execute, loop_programs

# Markers in the programs below: the comment ends the line that it marks.
_EPOCH, _BATCH, _LOAD, _UPDATE = "#E", "#B", "#L", "#U"


def nests(source: str) -> list[Nest]:
    """Return the nests that the markers name; an epoch loop holds for the batch loops behind it until the next."""
    found, epoch = [], None
    lines = re.split("\r\n|\r|\n", source)
    for number, line in enumerate(lines, 1):
        kind = "while" if "while" in line else "for"
        if _EPOCH in line:
            epoch = Loop(FILE, number, 0, kind)
        if _BATCH in line:
            following = [(n, text) for n, text in enumerate(lines[number:], number + 1)]
            load = next((n for n, text in following if _LOAD in text), None)
            update = next((n for n, text in following if _UPDATE in text), None)
            found.append(Nest(Loop(FILE, number, 0, kind), epoch, load, update))
    return found or [Nest(Loop("/elsewhere.py", 1, 0, "for"), epoch)]


def rewritten(source: str) -> str:
    """Instrument a source, and check on the way that this is stable, reversible and compiles with the positions of
    before.
    """
    data = source.encode()
    made = instrument(data, nests(source), FILE, "detrain")
    assert instrument(made, nests(source), FILE, "detrain") == made
    assert remove(made) == data
    compile_edited(data, edits_for(data, nests(source), FILE), FILE)
    return made.decode()


# What holds of every program.


@given(loop_programs())
@pytest.mark.slow
def test_instrumenting_twice_is_instrumenting_once(program: LoopProgram) -> None:
    once = instrument(program.data, program.nests, FILE)

    assert once != program.data
    assert instrument(once, program.nests, FILE) == once


@given(loop_programs())
def test_removing_the_probes_gives_back_every_byte(program: LoopProgram) -> None:
    made = instrument(program.data, program.nests, FILE)

    assert remove(made) == program.data


@given(loop_programs())
def test_a_program_without_probes_is_left_as_it_is(program: LoopProgram) -> None:
    assert remove(program.data) == program.data


@given(loop_programs(), st.integers(0, 20))
def test_an_instrumented_program_does_what_the_bare_one_does(program: LoopProgram, limit: int) -> None:
    bare = execute(program.data, limit)

    made = execute(instrument(program.data, program.nests, FILE, "detrain"), limit)

    assert (made.output, made.error) == (bare.output, bare.error)


@given(loop_programs())
def test_every_nest_gets_its_probes(program: LoopProgram) -> None:
    made = instrument(program.data, program.nests, FILE).decode("latin-1")

    epochs = {nest.epoch_loop.line for nest in program.nests if nest.epoch_loop is not None}
    assert len(re.findall(r"[\r\n][ \t]*execute_* = record_batch_*\(", made)) == len(program.nests)
    assert len(re.findall(r"[\r\n][ \t]*record_epoch_*\(", made)) == len(epochs)


# Loop shapes, before and after.

EDITS = {
    "a loop over enumerate records its count": """
+ from detrain import batch_loop, epoch_loop, record_batch, record_epoch  # put here by detrain
  import tensorflow as tf

- for epoch in range(3): #E
+ for epoch in epoch_loop(range(3)): #E
+     record_epoch(epoch)
      print(epoch)
-     for i, (x, y) in enumerate(loader): #B
+     for i, (x, y) in batch_loop(enumerate(loader)): #B
+         execute = record_batch(i)
          step(x, y) #U
""",
    "a loop over a dataset has no count to record": """
+ from detrain import batch_loop, record_batch  # put here by detrain
- for x, y in dataset.shuffle(10).batch(2): #B
+ for x, y in batch_loop(dataset.shuffle(10).batch(2)): #B
+     execute = record_batch()
      step(x, y) #U
""",
    "a while loop over epochs is marked before it": """
+ from detrain import batch_loop, record_batch, record_end, record_epoch, record_phase  # put here by detrain
  epoch = 0
+ record_phase()
  while epoch < 3: #E
      # count first
+     record_epoch()
      epoch += 1
-     for x in loader: #B
+     for x in batch_loop(loader): #B
+         execute = record_batch()
          step(x) #U
+ record_end()
""",
    "a while loop over batches announces its load": """
+ from detrain import record_batch, record_end, record_load, record_phase  # put here by detrain
  def train():
+     record_phase()
      while not done(): #B
          # the next one

+         record_load('x', 'y', 'z')
          x, (y, *z) = loader.next() #L
+         execute = record_batch()
          step(x, y) #U
      else:
          print('end')
+     record_end()
""",
    "a while loop without a load is recorded at its top": """
+ from detrain import record_batch, record_end, record_load, record_phase  # put here by detrain
+ record_phase()
  while True: #B
+     record_load()
+     execute = record_batch()
      step() #U
+ record_end()
""",
    "a load in the body comes before the probe": """
- for i in range(3): #B
+ from detrain import batch_loop, record_batch  # put here by detrain
+ for i in batch_loop(range(3), "x", "y"): #B
      x, y = loader.next()  # a comment #L
+     execute = record_batch(i)
      step(x, y) #U
""",
    "a load that may fail is tried before the probe": """
- for i in range(3): #B
+ from detrain import batch_loop, record_batch  # put here by detrain
+ for i in batch_loop(range(3), "x", "y"): #B
      try:
          x, y = loader.next() #L
      except StopIteration:
          continue
+     execute = record_batch(i)
          # try the next
      step(x, y) #U
""",
    "a generator with a load in the body keeps its parentheses": """
+ from detrain import batch_loop, record_batch  # put here by detrain
- for i in (j for j in range(3)): #B
+ for i in batch_loop((j for j in range(3)), "x"): #B
      x = load(i) #L
+     execute = record_batch()
      step(x) #U
""",
    "a load in the statement that updates has no place for a probe behind it": """
+ from detrain import batch_loop, record_batch  # put here by detrain
- for i in range(3): #B
+ for i in batch_loop(range(3)): #B
+     execute = record_batch(i)
      step(next(it)) #L #U
""",
    "loops on one line with else are put on several": """
- for epoch in range(3): train(epoch)  #E
+ from detrain import epoch_loop, record_batch, record_epoch, record_load  # put here by detrain
+ for epoch in epoch_loop(range(3)):  # detrain: one line 20
+     record_epoch(epoch)
+     train(epoch)  #E
  else: print('end')
- while True: step()  #B
+ while True:  # detrain: one line 20
+     record_load()
+     execute = record_batch()
+     step()  #B
  else: print('end')
""",
    "for with else keeps its else": """
+ from detrain import batch_loop, epoch_loop, record_batch, record_epoch  # put here by detrain
- for epoch in range(3): #E
+ for epoch in epoch_loop(range(3)): #E
+     record_epoch(epoch)
-     for x in loader: #B
+     for x in batch_loop(loader): #B
+         execute = record_batch()
          if step(x): #U
              break
      else:
          print('no break')
  else:
      print('end')
""",
    "a body that starts with a decorated function gets its probe before the decorator": """
+ from detrain import batch_loop, epoch_loop, record_batch, record_epoch  # put here by detrain
- for epoch in range(3): #E
+ for epoch in epoch_loop(range(3)): #E
      # compiled anew each epoch

+     record_epoch(epoch)
      @tf.function
      @other
      def step(x): ...
-     for x in loader: #B
+     for x in batch_loop(loader): #B
+         execute = record_batch()
          step(x) #U
""",
    "several nests share one import and one epoch probe": """
+ from detrain import batch_loop, epoch_loop, record_batch, record_epoch  # put here by detrain
- for epoch in range(3): #E
+ for epoch in epoch_loop(range(3)): #E
+     record_epoch(epoch)
-     for x in a: #B
+     for x in batch_loop(a): #B
+         execute = record_batch()
          step(x) #U
-     for y in b: #B
+     for y in batch_loop(b): #B
+         execute = record_batch()
          step(y) #U
- for z in c: #E
+ for z in epoch_loop(c): #E
+     record_epoch()
-     for x in d: #B
+     for x in batch_loop(d): #B
+         execute = record_batch()
          step(x) #U
""",
    "names that the program uses get an underscore": """
+ from detrain import batch_loop as batch_loop_, record_batch as record_batch__  # put here by detrain
  execute, record_batch, record_batch_ = 1, 2, 3
- for x in batch_loop: #B
+ for x in batch_loop_(batch_loop): #B
+     execute_ = record_batch__()
      step(x) #U
""",
}
"""By what they show: which lines of a program are taken out, and which are put in. Behind `record_batch` always stands
what passes over the body, which is left out here.
"""


@pytest.mark.parametrize("name", EDITS)
def test_a_loop_is_rewritten_so(name: str) -> None:
    passing = r"\1\n+ \2if not \3:\n+ \2    continue"
    whole = re.sub(r"^(\+ ( *)(execute_*) = record_batch.*)$", passing, EDITS[name], flags=re.M)
    lines = whole.strip("\n").split("\n")
    before, after = ("".join(f"{line[2:]}\n" for line in lines if line[:1] != other) for other in "+-")
    assert rewritten(before) == after


@pytest.mark.parametrize(
    ("header", "expected", "count"),
    [
        ("for x in 4, 5:", "for x in (batch_loop((4, 5))):", ""),
        ("for x in 4,:", "for x in (batch_loop((4,))):", ""),
        ("for x in (4, 5):", "for x in batch_loop((4, 5)):", ""),
        ("for x in ((4, 5)):", "for x in batch_loop(((4, 5))):", ""),
        ("for x in(4, 5):", "for x in(batch_loop((4, 5))):", ""),
        ("for x in[4, 5]:", "for x in(batch_loop([4, 5])):", ""),
        ("for x in[4], 5:", "for x in((batch_loop(([4], 5)))):", ""),
        ("for x in(4), 5:", "for x in((batch_loop(((4), 5)))):", ""),
        ("for x in*a, 5:", "for x in((batch_loop((*a, 5)))):", ""),
        ("for x in'ab':", "for x in(batch_loop('ab')):", ""),
        ("for x in (f(y) for y in a):", "for x in batch_loop((f(y) for y in a)):", ""),
        ("for x in(f(y) for y in a):", "for x in(batch_loop((f(y) for y in a))):", ""),
        ("for x in a if b else c :", "for x in batch_loop(a if b else c) :", ""),
        ("for x in lambda: 1:", "for x in batch_loop(lambda: 1):", ""),
        ("for x in (yielded := a):", "for x in batch_loop((yielded := a)):", ""),
        ("for x in \\\n        a:", "for x in \\\n        batch_loop(a):", ""),
        ("for x in (  # (why\n  a  # :)\n):", "for x in batch_loop((  # (why\n  a  # :)\n)):", ""),
        ("for x in (1), (2) :", "for x in (batch_loop(((1), (2)))) :", ""),
        ("for x in ((1), 2):", "for x in batch_loop(((1), 2)):", ""),
        ("for x in ((1, 2), 3)[0]:", "for x in batch_loop(((1, 2), 3)[0]):", ""),
        ("for x in (a)[0], 1:", "for x in (batch_loop(((a)[0], 1))):", ""),
        ("for *x, in enumerate(a):", "for *x, in batch_loop(enumerate(a)):", ""),
        ("for x in (  # why\n  4, 5\n):", "for x in batch_loop((  # why\n  4, 5\n)):", ""),
        ("for x in reversed(range(3)):", "for x in batch_loop(reversed(range(3))):", "x"),
        ("for i, x in tqdm(enumerate(a), total=3):", "for i, x in batch_loop(tqdm(enumerate(a), total=3)):", "i"),
        ("for (i, x) in enumerate(a):", "for (i, x) in batch_loop(enumerate(a)):", "i"),
        ("for (i, x), y in zip(enumerate(a), b):", "for (i, x), y in batch_loop(zip(enumerate(a), b)):", ""),
        ("for pair in zip(range(3), a):", "for pair in batch_loop(zip(range(3), a)):", ""),
        ("for i, x in zip(range(3), a):", "for i, x in batch_loop(zip(range(3), a)):", ""),
        ("for x in tf.data.Dataset.range(3):", "for x in batch_loop(tf.data.Dataset.range(3)):", ""),
        ("for self.x in range(3):", "for self.x in batch_loop(range(3)):", ""),
    ],
)
def test_a_header_is_wrapped_outside_its_own_parentheses(header: str, expected: str, count: str) -> None:
    before = f"{header}  #B\n    step(x) #U\n"
    marked = before if "\n" not in header else before.replace("  #B", "").replace("for x", "#B\nfor x", 1)
    line = 1 if marked == before else 2
    data = marked.encode()

    made = instrument(data, [Nest(Loop(FILE, line, 0, "for"))], FILE, "detrain")

    after = marked.replace(header, expected).replace(
        "    step(x)", f"    execute = record_batch({count})\n    if not execute:\n        continue\n    step(x)"
    )
    mark = "from detrain import batch_loop, record_batch  # put here by detrain\n"
    assert made.decode() == (mark + after if line == 1 else after.replace("#B\n", f"#B\n{mark}", 1))
    assert remove(made) == data


@pytest.mark.parametrize(
    ("load", "names"),
    [
        ("x = next(it)", ["x"]),
        ("x = y = next(it)", ["x", "y"]),
        ("x: Tensor = next(it)", ["x"]),
        ("x, [y, *z] = next(it)", ["x", "y", "z"]),
        ("self.x, y = next(it)", ["y"]),
        ("x[0], y = next(it)", ["y"]),
        ("x = [next(it) for _ in range(2)]", ["x"]),
        ("x = {k: v for k, v in next(it).items()}", ["x"]),
        ("x = (lambda a: (b := a))(next(it))", ["x"]),
        ("x = [last := next(it) for _ in range(2)]", ["x", "last"]),
        ("x = load(\n        1,\n    )", ["x"]),
        ("with lock as held: x = next(it)", ["held", "x"]),
        ("if (x := next(it, None)) is None: break", ["x"]),
        ("for _ in range(2): x = next(it)", ["_", "x"]),
        ("next(it)", []),
    ],
)
def test_the_names_that_the_load_binds_are_told_to_the_loop(load: str, names: list[str]) -> None:
    before = f"for i in range(3):\n    {load}\n    step(x)\n"

    made = instrument(before.encode(), [Nest(Loop(FILE, 1, 0, "for"), None, 2, None)], FILE, "detrain").decode()

    listed = "".join(f', "{name}"' for name in names)
    assert made == (
        "from detrain import batch_loop, record_batch  # put here by detrain\n"
        f"for i in batch_loop(range(3){listed}):\n    {load}\n    execute = record_batch(i)\n"
        "    if not execute:\n        continue\n    step(x)\n"
    )
    assert remove(made.encode()) == before.encode()


@pytest.mark.parametrize("white", ["", " ", "\t", "  \t ", "\x0c"])
@pytest.mark.parametrize("rest", ["f(x)", "f(x); g(x)", "f(x);", "f(x) ; # why", "f(x)  # why", "f(x,\n  1)", "s = '''\n'''"])
def test_a_loop_on_one_line_is_put_on_several(white: str, rest: str) -> None:
    before = f"def train():\n  for x in y:{white}{rest}\n  return 1\n"

    made = instrument(before.encode(), [Nest(Loop(FILE, 2, 0, "for"))], FILE, "detrain").decode()

    assert made == (
        "from detrain import batch_loop, record_batch  # put here by detrain\n"
        f"def train():\n  for x in batch_loop(y):  # detrain: one line {white.encode().hex() or '-'}\n"
        f"    execute = record_batch()\n    if not execute:\n      continue\n    {rest}\n  return 1\n"
    )
    assert remove(made.encode()) == before.encode()


REFUSED = {
    "a body on a continued line": ("for x in y: \\\n    f(x)\n", Nest(Loop(FILE, 1, 0, "for")), r"train\.py:1: .*continued line"),
    "a load on a continued line": (
        "for x in y:\n    z = load(x) \\\n\n    f(z)\n",
        Nest(Loop(FILE, 1, 0, "for"), None, 2, 4),
        r"train\.py",
    ),
    "a body that a continued line indents": (  # Python takes this indentation, and no line before it
        "for x in y:\n    \\\n  f(x)\n",
        Nest(Loop(FILE, 1, 0, "for")),
        r"train\.py: .* do not fit",
    ),
    "an async for": (
        "async def train():\n    async for x in loader:\n        step(x)\n",
        Nest(Loop(FILE, 2, 0, "for")),
        r"train\.py:2: .*async for",
    ),
    "a line that holds no loop": ("for x in y:\n    f(x)\n", Nest(Loop(FILE, 2, 0, "for")), r"train\.py:2"),
}


@pytest.mark.parametrize(("source", "nest", "message"), REFUSED.values(), ids=REFUSED)
def test_a_loop_that_cannot_get_its_probes_is_refused_and_never_half_rewritten(source: str, nest: Nest, message: str) -> None:
    compile(source, FILE, "exec")

    with pytest.raises(CannotRewrite, match=message):
        instrument(source.encode(), [nest], FILE)


@pytest.mark.parametrize(
    ("body", "is_refused"),
    [
        *[("x = yield step(x)", True), ("step((yield))", True), ("x = yield from receive()", True)],
        *[("yield step(next(x))", False), ("yield from steps(x)", False), ("f(lambda: (yield))", False)],
    ],
)
def test_a_loop_that_is_sent_its_batches_is_refused(body: str, is_refused: bool) -> None:
    """Its caller's code ran again on the way to the cut, on another state: other weights, in silence."""
    source = f"def train(x):\n    while True:\n        {body}\n".encode()
    nests = [Nest(Loop(FILE, 2, 0, "while"))]

    if is_refused:
        with pytest.raises(CannotRewrite, match=r"train\.py:2: .*by `yield`"):
            instrument(source, nests, FILE)
    else:
        assert instrument(source, nests, FILE)


def test_what_a_generator_of_a_known_library_returns_is_not_sent() -> None:
    """ignite's engine has such a loop, and nothing is sent to the generators in it."""
    source = b"def run(self):\n    while True:\n        x = yield from self.once()\n"
    file = "/site-packages/ignite/engine/engine.py"
    assert instrument(source, [Nest(Loop(file, 2, 0, "while"))], file)


def test_a_method_and_a_nested_function_and_a_main_guard_keep_their_indentation() -> None:
    source = textwrap.dedent(
        """\
        class Trainer:
          def train(self):
            def inner():
              for x in self.loader:
                self.step(x)
            return inner


        if __name__ == "__main__":
          for epoch in range(3):
            Trainer().train()()
        """
    )
    nest = Nest(Loop(FILE, 4, 0, "for"), Loop(FILE, 10, 0, "for"), None, 5)

    made = instrument(source.encode(), [nest], FILE, "detrain")

    assert made.decode() == textwrap.dedent(
        """\
        from detrain import batch_loop, epoch_loop, record_batch, record_epoch  # put here by detrain
        class Trainer:
          def train(self):
            def inner():
              for x in batch_loop(self.loader):
                execute = record_batch()
                if not execute:
                  continue
                self.step(x)
            return inner


        if __name__ == "__main__":
          for epoch in epoch_loop(range(3)):
            record_epoch(epoch)
            Trainer().train()()
        """
    )
    assert remove(made) == source.encode()


def test_a_nest_named_twice_is_instrumented_once() -> None:
    source = "for e in range(3): #E\n    for x in a: #B\n        step(x) #U\n"

    twice = instrument(source.encode(), nests(source) * 2, FILE)

    assert twice == instrument(source.encode(), nests(source), FILE)


def test_each_file_gets_the_probes_of_its_own_loops() -> None:
    nest = Nest(Loop("/program/engine.py", 1, 0, "for"), Loop(FILE, 1, 0, "for"))
    main = b"for epoch in range(3): engine.train()\n"
    engine = b"for x in loader:\n    step(x)\n"

    assert b"record_batch" not in instrument(main, [nest], FILE)
    assert b"record_epoch" in instrument(main, [nest], FILE)
    assert b"record_batch" in instrument(engine, [nest], "/program/engine.py")
    assert b"record_epoch" not in instrument(engine, [nest], "/program/engine.py")
    assert instrument(main, [nest], "/program/other.py") == main


# The file around the loops.


@pytest.mark.parametrize(
    ("head", "rest"),
    [
        ("", "import os\n"),
        ("#!/usr/bin/env python\n# -*- coding: utf-8 -*-\n\n# about\n", "import os\n"),
        ('"""Doc."""\n', "\nimport os\n"),
        ('"""Doc\nof two lines."""  # why\n', "import os\n"),
        ('"""Doc.""" "and more"\n', "import os\n"),
        ('"""Doc."""\n\nfrom __future__ import annotations\n', "\n\nimport os\n"),
        ('"""Doc."""\nfrom __future__ import annotations\n# why\nfrom __future__ import (\n    division,\n)\n', "import os\n"),
        ("from __future__ import annotations; import sys\n", "import os\n"),
        ("# c\n\n", "@decorate\ndef f(): pass\n"),
        ("# c\n", "f'{1}'\n"),
        ("\n\x0c\n", "import os\n"),
    ],
)
def test_the_import_stands_behind_the_docstring_and_the_futures(head: str, rest: str) -> None:
    tail = "for x in y: #B\n    step(x) #U\n"

    made = rewritten(head + rest + tail)

    assert made.startswith(
        f"{head}from detrain import batch_loop, record_batch  # put here by detrain\n{rest}for x in batch_loop(y):"
    )


def test_the_docstring_of_the_module_stays_its_docstring() -> None:
    source = b'"""Doc."""\nfrom __future__ import annotations\nfor x in [1]:\n    print(__doc__)\n'
    edits = edits_for(source, [Nest(Loop(FILE, 3, 0, "for"))], FILE)

    assert execute(compile_edited(source, edits, FILE)).output == "Doc.\n"


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_the_line_ends_of_the_file_are_used(newline: str) -> None:
    source = newline.join(["# c", "for x in y: #B", "    z = load(x) #L", "    step(z) #U", ""])

    made = rewritten(source)

    assert made.count(newline) == len(re.findall("\r\n|\r|\n", made)) == source.count(newline) + 4


def test_a_byte_order_mark_and_a_cookie_are_kept() -> None:
    nest = [Nest(Loop(FILE, 2, 0, "for"))]
    marked = "# é\nfor x in y:\n    print('é')\n".encode("utf-8-sig")
    latin = b"# coding: latin-1\nfor x in '\xe9':\n    print(x, '\xe9')\n"

    assert instrument(marked, nest, FILE).startswith(b"\xef\xbb\xbf# \xc3\xa9\nfrom detrain.auto import")
    assert instrument(latin, nest, FILE).startswith(b"# coding: latin-1\nfrom detrain.auto import")
    assert b"in batch_loop('\xe9'):" in instrument(latin, nest, FILE)
    assert remove(instrument(marked, nest, FILE)) == marked
    assert remove(instrument(latin, nest, FILE)) == latin
    assert execute(compile_edited(latin, edits_for(latin, nest, FILE), FILE)).output == "é é\n"


def test_tabs_are_answered_with_tabs() -> None:
    made = rewritten("def f():\n\tfor x in y: #B\n\t\tstep(x) #U\n")

    assert "\t\texecute = record_batch()\n\t\tif not execute:\n\t\t\tcontinue\n\t\tstep(x)" in made


def test_a_form_feed_before_a_statement_is_kept() -> None:
    made = rewritten("for e in range(2): #E\n\x0c    for x in y: #B\n\x0c        step(x) #U\n")

    assert made.count("\x0c") == 2


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_separators_that_are_no_line_ends_to_python_are_kept(separator: str) -> None:
    made = rewritten(f"for x in y: #B\n    # a{separator}b\n    z = 'a{separator}    record{separator}b' #L\n    step(z) #U\n")

    assert made.count(separator) == 3


@pytest.mark.parametrize("tail", ["", "  # why", ";"])
def test_a_file_without_a_newline_at_its_end_stays_without(tail: str) -> None:
    for source in (
        f"for x in y: #B\n    step(x){tail}",
        f"for x in y: #B\n    z = load(x) {tail} #L",
        f"for x in y: step(x){tail} #B",
    ):
        assert not rewritten(source).endswith("\n")


# What carries probes.


@pytest.mark.parametrize(
    "line",
    [
        "import detrain",
        "import os, detrain",
        "import detrain.runtime.session.probes as p",
        "from detrain import record_batch",
        "from detrain.auto import record_batch",
        "from detrain.runtime.session.probes import record_batch",
        "if True:\n    import detrain as d",
        "x = 1; import detrain",
        "from detrain import (\n    record_batch,\n)",
    ],
)
def test_a_program_that_imports_detrain_and_names_a_probe_carries_probes(line: str) -> None:
    source = f"{line}\nfor x in y:\n    detrain.record_batch()\n    step(x)\n".encode()

    assert probes_in(source.decode())
    assert edits_for(source, [Nest(Loop(FILE, source.count(b"\n") - 2, 0, "for"))], FILE) == []
    assert remove(source) == source


@pytest.mark.parametrize(
    "line",
    [
        "# import detrain",
        "'''\nimport detrain\n'''",
        "import detrained",
        "from .detrain import x",
        "import other.detrain",
        "detrain = 1",
        "import detrain",
        "from detrain.base.errors import DetrainError",
        "import detrain\nprint(detrain.__version__)",
    ],
)
def test_a_program_that_only_mentions_detrain_carries_none(line: str) -> None:
    assert not probes_in(f"{line}\nx = 1\n")


def test_a_source_that_does_not_parse_carries_none() -> None:
    assert not probes_in("import detrain\nfor\n")


@pytest.mark.parametrize(
    "source",
    [
        "# put here by detrain\n",
        "x = 1  # put here by detrain\nrecord_epoch()\n",
        "'''\nfrom x import y  # put here by nobody\n'''\n",
        "for x in epoch_loop(y):\n    record_epoch()\n    execute = record_batch()\n    if not execute:\n        continue\n",
        "for x in y:  # detrain: one line 20\n    f(x)\n",
        "text = 'put here by detrain'\nrecord_phase()\n",
    ],
)
def test_what_looks_like_a_probe_without_the_import_of_the_rewriter_stays(source: str) -> None:
    assert remove(source.encode()) == source.encode()


def test_probes_by_hand_stay() -> None:
    source = b"from detrain import record_epoch\nfor e in range(3):\n    record_epoch(e)\n"

    assert remove(source) == source


def test_a_wrapper_around_something_else_than_the_iterable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Places, "of_iterable", lambda self, loop: self.of(loop.iter.func))

    with pytest.raises(CannotRewrite, match="what its loops go over cannot be told"):
        instrument(b"for x in f(a):\n    g(x)\n", [Nest(Loop(FILE, 1, 0, "for"))], FILE)
