"""The functions that IPython calls: the extension, its cell magic, and the hooks that pass each cell on."""

from __future__ import annotations

import ast
from typing import Any

from detrain.base.errors import DetrainError
from detrain.notebook.run import NotebookRun, refuse


class _CellHook(ast.NodeTransformer):
    """Hands each cell to the run before IPython compiles it."""

    def __init__(self, shell: Any, run: NotebookRun) -> None:
        self._run = run
        self._source = ""
        self._is_training = False
        self._is_announced = False
        named = shell.compile.get_code_name

        def name(raw_code: str, transformed_code: str, number: int) -> str:
            is_announced, self._is_announced = self._is_announced, False
            if not is_announced:  # code of a front end that looks at variables, not of the user
                self._source = ""
                return str(named(raw_code, transformed_code, number))
            self._source = transformed_code
            self._is_training = raw_code.lstrip().startswith("%%detrain")
            # The code around a training cell is only the magic's call: it is no frame of the program.
            return "<%%detrain>" if self._is_training else str(run.cells.path)

        shell.compile.get_code_name = name
        shell.events.register("pre_run_cell", self._announce)

    def _announce(self, _info: object) -> None:
        self._is_announced = True

    def visit(self, node: ast.AST) -> ast.AST:
        """Return the syntax tree to compile in place of a cell's."""
        if self._is_training or not self._source:
            return node
        source, self._source = self._source, ""
        try:
            tree: ast.AST = self._run.cell(source)
        except DetrainError as error:
            from IPython.core.error import InputRejected

            raise InputRejected(error.printed()) from None
        return tree


def load(shell: Any) -> None:
    """Make the kernel a run. `%load_ext detrain` calls this."""
    namespace: dict[str, Any] = shell.user_ns
    if getattr(shell, "detrain_run", None) is not None:
        return
    try:
        run = NotebookRun(namespace, shell.user_ns["In"][1:])
    except DetrainError as error:
        refuse(error)
    shell.detrain_run = run
    namespace.pop("open", None)  # IPython's own `open`, made before detrain followed files

    def detrain(line: str, cell: str) -> None:
        """Run a training cell with probes: `%%detrain --every 50b`."""
        try:
            run.train(line, shell.transform_cell(cell), namespace)
        except DetrainError as error:
            refuse(error)

    shell.register_magic_function(detrain, "cell", "detrain")
    shell.ast_transformers.append(_CellHook(shell, run))
