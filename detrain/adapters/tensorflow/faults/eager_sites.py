"""Sites in eager code: the ops that a step runs one by one, without a compiled function around them.

Every eager op passes one function of TensorFlow's (`TFE_Py_FastPathExecute`), which is replaced in experiments only. A
site is the k-th op of its type that a layer runs in a stage of the step; its name begins with the function `eager`. The
op that is hit runs without a tape, and is recorded with the faulty output afterwards: so the backward pass sees the
fault, as in compiled functions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import core, execute, record
from tensorflow.python.framework import op_def_registry
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from detrain.adapters.instruments import OpInjector
from detrain.adapters.tensorflow.faults.graph_ops import ATTRIBUTES, NO_SITES, READ, numbers_of, operands_of, taken_by
from detrain.adapters.tensorflow.values.tensors import array_of
from detrain.base.errors import FaultInvalid
from detrain.base.in_place import in_place_of
from detrain.faults.bits import little_endian
from detrain.faults.experiment import BITS, Injection
from detrain.faults.sites import CONTRACTIONS, INDEX_PLACES, OperandShape, Role, Site, Stage, output_name, places_of

FUNCTION: Final = "eager"
"""The name that stands in the names of these sites where others have their function."""
_HANDS_ON: Final = frozenset({"Cast", "ExpandDims", "Identity", "IdentityN", "Reshape", "Squeeze", "StopGradient", "Sum"})
"""Ops that a gradient may pass on its way from the contraction that makes it to the variable."""


class EagerOp(msgspec.Struct):
    """One eager op that runs."""

    base: str
    turn: int
    layer: str
    stage: Stage
    type: str
    inputs: list[Any]
    """Lists of inputs are flattened."""
    attributes: tuple[Any, ...]
    """Names and values in turn."""
    outputs: list[Any] = []
    role: Role = ""
    given: frozenset[int] = frozenset()
    """The indices of the inputs that come from the upstream gradient, if a gradient function runs the op."""
    is_turned: bool = False
    """True if the op's weight comes before its input."""

    @property
    def key(self) -> str:
        """The site's name."""
        return f"{self.base}#{self.turn}" if self.turn else self.base


class EagerInjector(OpInjector):
    """The injections of one place in eager code, one at a time, like `InjectionPoint` in compiled functions."""

    is_placed: Final = True
    """Always true: nothing must be put in place before the op runs."""

    def __init__(self, injections: Sequence[Injection]) -> None:
        super().__init__()
        self._place: Final = injections[0].place
        self.select(injections[0])

    @staticmethod
    def is_of(injection: Injection) -> bool:
        """Return whether an injection's site is in eager code."""
        return injection.site.startswith(f"{FUNCTION}/")

    def takes(self, injection: Injection) -> bool:
        """Return whether an injection is one of this place."""
        return self._place == injection.place

    def hit(self, op: EagerOp, again: Callable[[Sequence[Any]], Any]) -> list[Any]:
        """Return the outputs of an op that has run, with the fault in them; unchanged if the operand has another shape.

        `again` runs the op once more, on other inputs.
        """
        outputs, number = list(op.outputs), self._output
        if number < len(outputs):
            outputs[number] = self._hit(op, operands_of(op, number), again)
        return outputs

    def _hit(self, op: EagerOp, operands: Mapping[str, tuple[int, Any]], again: Callable[[Sequence[Any]], Any]) -> Any:
        injection, golden = self.injection, op.outputs[self._output]
        assert injection is not None
        index, tensor = located(op, injection, operands)
        array = array_of(tensor).copy()
        limited, outputs = injection.array("limited"), golden.shape.num_elements()
        is_other = limited.size and (limited.max() >= outputs or injection.outputs not in (0, outputs))
        if array.size != injection.elements or is_other:
            self._misfits += 1
            return golden
        self._count += 1
        before, values = injection.put_into(array.reshape(-1).view(BITS[injection.dtype]))
        self._golden, self._injected = little_endian(before), little_endian(values)
        if injection.operand == "output":
            return tf.constant(array)
        inputs = [tf.constant(array) if number == index else each for number, each in enumerate(op.inputs)]
        faulty = _tensors(again(inputs))[0]
        if not injection.limited:
            return faulty
        seen, mixed = injection.array("limited"), array_of(golden).copy()
        mixed.reshape(-1)[seen] = array_of(faulty).reshape(-1)[seen]
        return tf.constant(mixed)


def located(op: Any, injection: Injection, operands: Mapping[str, tuple[int, Any]]) -> tuple[int, Any]:
    """Return an injection's operand: its index among the inputs or outputs of an op, and the tensor."""
    if injection.operand == "output" or injection.index is None:
        return operands[injection.operand]
    if not 0 <= injection.index < len(op.inputs):
        raise FaultInvalid(f"{injection.site!r} has no input {injection.index}", "the record was altered")
    return injection.index, op.inputs[injection.index]


class EagerSites:
    """The watcher of the eager ops of steps.

    `where` knows the thread's stage and layer; `injector` puts a fault in, if it is not None.
    """

    def __init__(self, where: Any) -> None:
        self._where = where
        self._is_on = self._notes = False
        self._thread = 0
        self.injector: EagerInjector | None = None
        self._turns: dict[str, int] = {}
        self._ops: list[EagerOp] = []
        self._layers: dict[tuple[str, int], str] = {}
        """The layer that has run an op on a tensor, by the op's type and the tensor's number."""
        self._made_by: dict[int, EagerOp] = {}
        """The contraction that a tensor comes from, by the tensor's number."""
        self._from_gradients: set[int] = set()
        self._given: set[int] = set()
        """Numbers of the running gradient function's upstream gradients, and of tensors that it made of them."""
        self.accesses: list[tuple[Any, list[int]]] = []
        """Accesses to variables, in order: ("read", "overwritten" or a called function's graph, numbers of handles)."""
        self._watch()

    def begin(self, *, notes: bool = False) -> None:
        """Begin to watch a step in this thread. `notes`: its ops are kept for `sites`."""
        self._is_on, self._notes, self._thread = True, notes, threading.get_ident()
        for kept in (self._turns, self._ops, self._layers, self._made_by, self._from_gradients, self.accesses):
            kept.clear()

    def end(self) -> None:
        """Stop watching: the step is over."""
        self._is_on = False

    def sites(self) -> list[Site]:
        """Return the sites of the step; none if all its eager ops are forward ones, which train no weights."""
        self.end()
        if all(op.stage == "forward" for op in self._ops):
            return []
        return [
            Site(
                name=output_name(op.key, number),
                layer=op.layer,
                op=op.type,
                stage=op.stage,
                role="" if number else op.role,
                operands={
                    name: OperandShape(index, tuple(int(size) for size in tensor.shape), tensor.dtype.name)
                    for name, (index, tensor) in operands_of(op, number, is_turned=op.is_turned).items()
                },
                executions=1,
                is_alive=True,
                attributes=dict(self._attributes_of(op)),
            )
            for op in self._ops
            for number in numbers_of(op.outputs)
        ]

    def _attributes_of(self, op: EagerOp) -> Iterator[tuple[str, Any]]:
        for name, value in zip(op.attributes[::2], op.attributes[1::2], strict=True):
            if op.type in CONTRACTIONS and name in ATTRIBUTES:
                yield name, value.decode() if isinstance(value, bytes) else list(value) if isinstance(value, tuple) else value

    def gradient(self, original: Callable[..., Any], op_type: str, *rest: Any) -> Any:
        """Run the gradient function of an op, and note the roles of the gradients."""
        if not self._is_here():
            return original(op_type, *rest)
        numbers = [number for number in map(_number, [*(rest[2] or ()), *(rest[3] or ())]) if number is not None]
        layer = next((self._layers[op_type, number] for number in numbers if (op_type, number) in self._layers), "")
        self._where.gradients.append((layer, []))
        around, self._given = self._given, {number for number in map(_number, rest[4]) if number is not None}
        try:
            found = original(op_type, *rest)
        finally:
            self._where.gradients.pop()
            self._given = around
        for index, grad in enumerate(found if isinstance(found, list | tuple) else [found]):
            number = _number(grad)
            maker = self._made_by.get(number) if number is not None else None
            if maker is not None and not maker.role:
                maker.role = "grad_wt" if index == 1 else "grad_in"
                first, second = (place in maker.given for place in places_of(maker.type))
                maker.is_turned = (second and not first) if maker.role == "grad_in" else (first and not second)
        return found

    def note_gradients(self, gradients: Iterable[Any]) -> None:
        """Note gradients that have been taken."""
        if self._is_here():
            parts = (each.values if isinstance(each, tf.IndexedSlices) else each for each in gradients)
            self._from_gradients.update(number for number in map(_number, parts) if number is not None)

    def note_call(self, graph: Any, arguments: Sequence[Any]) -> None:
        """Note that eager code calls a function with these arguments."""
        if self._notes and self._is_here():
            self.accesses.append((graph, [-1 if (at := _number(each)) is None else at for each in _flat(arguments)]))

    def has_gradients(self) -> bool:
        """Return whether eager code has taken gradients since `begin`."""
        return bool(self._from_gradients)

    def _note_access(self, op_type: str, inputs: Sequence[Any]) -> None:
        numbers = [_number(each) for each in _flat(inputs) if isinstance(each, tf.Tensor) and each.dtype == tf.resource]
        what = "overwritten" if op_type == "AssignVariableOp" else "read"
        if op_type not in ("VarIsInitializedOp", "VariableShape"):
            self.accesses.extend((what, [number]) for number in numbers if number is not None)

    def _is_here(self) -> bool:
        return self._is_on and not self._where.own and threading.get_ident() == self._thread

    def _watch(self) -> None:
        fast, slow = pywrap_tfe.TFE_Py_FastPathExecute, execute.execute

        @in_place_of(pywrap_tfe, "TFE_Py_FastPathExecute")
        def executed(runtime: Any, op_type: str, name: Any, *args: Any) -> Any:
            definition = op_def_registry.get(op_type) if self._is_here() else None
            if definition is None:
                return fast(runtime, op_type, name, *args)
            inputs, attributes = args[: len(definition.input_arg)], args[len(definition.input_arg) :]
            # Variables passed as they are would be read inside of TensorFlow, where no fault can be put in.
            inputs = tuple(_tensor(each) if type(each) is ResourceVariable else each for each in inputs)
            return self._run(
                op_type,
                inputs,
                attributes,
                lambda tensors: fast(runtime, op_type, name, *tensors, *attributes),
                lambda tensors: (*attributes, *_inferred(definition, tensors)),
            )

        @in_place_of(execute, "execute")
        def executed_after_all(op_name: Any, num_outputs: int, inputs: Any, attrs: Any, ctx: Any, name: Any = None) -> Any:
            op_type = op_name.decode() if isinstance(op_name, bytes) else str(op_name)
            if not self._is_here() or op_def_registry.get(op_type) is None:
                return slow(op_name, num_outputs, inputs, attrs, ctx, name)
            # The caller records the result on tapes itself.
            return self._run(
                op_type, inputs, attrs or (), lambda tensors: slow(op_name, num_outputs, list(tensors), attrs, ctx, name), None
            )

    def _run(
        self,
        op_type: str,
        inputs: Sequence[Any],
        attributes: tuple[Any, ...],
        run: Callable[[Sequence[Any]], Any],
        recorded: Callable[[Sequence[Any]], tuple[Any, ...]] | None,
    ) -> Any:
        """Run an op.

        `recorded` returns, for the op's inputs, the attributes to record it with; None: the caller records the op.
        """
        if self._notes:
            self._note_access(op_type, inputs)
        taken = taken_by(op_type)
        if taken is not None and not op_def_registry.get(op_type).output_arg and isinstance(inputs[taken[0]], tf.Tensor):
            return self._store(op_type, inputs, taken[0], run)
        if op_type in NO_SITES:
            result = run(inputs)
            self._hand_on(op_type, _flat(inputs), result)
            return result
        op = self._begun(op_type, _flat(inputs), attributes)
        is_hit = self.injector is not None and self.injector.must_hit(op.key, "")
        try:
            result = self._hit(op, inputs, run, recorded) if is_hit else run(inputs)
        except core._FallbackException:  # TensorFlow runs the op again by `execute`
            self._turns[op.base] -= 1
            if is_hit and self.injector is not None:
                self.injector.arm(0)
            raise
        op.outputs = _tensors(result)
        if self._notes and (op_type in CONTRACTIONS or op_type in INDEX_PLACES):
            with record.stop_recording():
                op.inputs = [_tensor(each) for each in op.inputs]
        self._note(op)
        return result

    def _store(self, op_type: str, inputs: Sequence[Any], place: int, run: Callable[[Sequence[Any]], Any]) -> Any:
        """Run an op that stores a value; if it is hit, the fault changes the value before."""
        op = self._begun(op_type, [inputs[place]], ())
        op.outputs = [inputs[place]]
        is_hit = self.injector is not None and self.injector.must_hit(op.key, "")
        try:
            outputs = self.injector.hit(op, run) if is_hit and self.injector is not None else op.outputs
            result = run([*inputs[:place], outputs[0], *inputs[place + 1 :]])
        except core._FallbackException:  # TensorFlow runs the op again by `execute`
            self._turns[op.base] -= 1
            if is_hit and self.injector is not None:
                self.injector.arm(0)
            raise
        if self._notes and numbers_of(op.outputs):
            self._ops.append(op)
        return result

    def _begun(self, op_type: str, inputs: list[Any], attributes: tuple[Any, ...]) -> EagerOp:
        """Return the record of an op that is about to run, with its name."""
        where = self._where
        stage, layer = where.stage("", lambda: any(_number(each) in self._from_gradients for each in inputs))
        base = "/".join(part for part in (FUNCTION, stage, layer, op_type) if part)
        turn = self._turns[base] = self._turns.get(base, -1) + 1
        return EagerOp(base, turn, layer, stage, op_type, inputs, attributes)

    def _hit(
        self,
        op: EagerOp,
        inputs: Sequence[Any],
        run: Callable[[Sequence[Any]], Any],
        recorded: Callable[[Sequence[Any]], tuple[Any, ...]] | None,
    ) -> Any:
        """Run an op, and put the fault into its outputs."""
        assert self.injector is not None
        # Inputs that are no tensors yet are converted while tapes record: a variable, say, is read then.
        op.inputs = [_tensor(each) for each in op.inputs]
        with self._where.apart():
            with record.stop_recording():
                result = run(_nested(op.inputs, inputs))
                op.outputs = _tensors(result)
                outputs = self.injector.hit(op, lambda tensors: run(_nested(tensors, inputs)))
            if recorded is not None:
                execute.record_gradient(op.type, op.inputs, recorded(_nested(op.inputs, inputs)), outputs)
        return outputs if _is_list(result) else outputs[0]

    def _note(self, op: EagerOp) -> None:
        numbers = [number for number in map(_number, op.outputs) if number is not None]
        if op.stage == "forward":
            for number in (*map(_number, op.inputs), *numbers):
                if number is not None:
                    self._layers[op.type, number] = op.layer
        elif op.type != READ:
            self._from_gradients.update(numbers)
        if op.type in CONTRACTIONS:
            self._made_by.update(dict.fromkeys(numbers, op))
        if self._where.gradients:
            op.given = frozenset(place for place, each in enumerate(op.inputs) if _number(each) in self._given)
        self._hand_on(op.type, op.inputs, op.outputs)
        if self._notes and numbers_of(op.outputs):
            self._ops.append(op)

    def _hand_on(self, op_type: str, inputs: list[Any], result: Any) -> None:
        before = [number for number in map(_number, _flat(inputs)) if number is not None]
        after = [number for number in map(_number, _tensors(result)) if number is not None]
        for known in (self._from_gradients, self._given):
            if known.intersection(before):
                known.update(after)
        maker = next((self._made_by[number] for number in before if number in self._made_by), None)
        if op_type in _HANDS_ON and maker is not None:
            self._made_by.update(dict.fromkeys(after, maker))


def _number(value: Any) -> int | None:
    """Return the unique number of a tensor; None for other values."""
    return value._id if isinstance(value, tf.Tensor) else None


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _tensor(value: Any) -> Any:
    return value if isinstance(value, tf.Tensor) else tf.convert_to_tensor(value)


def _flat(values: Sequence[Any]) -> list[Any]:
    return [part for value in values for part in (value if _is_list(value) else [value])]


def _nested(values: Sequence[Any], like: Sequence[Any]) -> list[Any]:
    """Undo `_flat`: nest values as `like` is nested."""
    waiting = iter(values)
    return [[next(waiting) for _part in each] if _is_list(each) else next(waiting) for each in like]


def _tensors(result: Any) -> list[Any]:
    return [] if result is None else list(result) if _is_list(result) else [result]


def _inferred(definition: Any, inputs: Sequence[Any]) -> Iterator[Any]:
    """Yield the attributes that TensorFlow derives from an op's inputs: names and values in turn."""
    for argument, value in zip(definition.input_arg, inputs, strict=True):
        parts = value if _is_list(value) else [value]
        if argument.number_attr:
            yield from (argument.number_attr, len(parts))
        if argument.type_attr:
            yield from (argument.type_attr, parts[0].dtype.as_datatype_enum)
        if argument.type_list_attr:
            yield from (argument.type_list_attr, [part.dtype.as_datatype_enum for part in parts])
