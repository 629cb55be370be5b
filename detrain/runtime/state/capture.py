"""The Python state of the user's program at a cut: how it is captured and put back.

Its roots are the names that can still be read in the user's frames, from the probe to the entry, and the globals of
the user's modules. The adapters capture the frameworks' tensors.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import CellType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec

from detrain.adapters.group import Adapters
from detrain.base.errors import Diverged
from detrain.python.codec.baseline import Baseline
from detrain.python.codec.coders import Decoder, Encoder
from detrain.python.codec.graph_files import unpack
from detrain.python.codec.in_process import Live, LiveDecoder, LiveEncoder, Undo, encode_value, restore_value
from detrain.python.inspect.frames import (
    can_unbind,
    cells_of,
    is_module_frame,
    is_user_file,
    live_among,
    live_locals,
    names_of,
    unbind_local,
    user_frames,
    write_locals,
)
from detrain.python.inspect.held import Step, walk
from detrain.python.inspect.hooks import Hooks
from detrain.python.inspect.library_globals import LibraryGlobals
from detrain.python.inspect.named import inside, is_hidden, user_modules
from detrain.python.inspect.names import at_name, is_frozen, is_user_class
from detrain.python.inspect.object_graph import ABSENT, SPENT_NAMES, UNBOUND_NAMES, Encoded, Item, classes_in, deep_calls
from detrain.python.inspect.random_state import STREAMS
from detrain.python.inspect.stored_attributes import stores
from detrain.python.loaders.generator_replay import LoopGenerators
from detrain.python.loaders.strategy import RunningLoop, is_made_anew
from detrain.python.outside.open_files import Files
from detrain.python.process import pool_jobs
from detrain.python.process.random_streams import Stream, held_generator
from detrain.python.process.settings import ProcessSettings
from detrain.runtime.state.codec_hooks import ProgramHooks
from detrain.runtime.state.late_imports import LateModules, import_late
from detrain.store import Snapshot

E = TypeVar("E", bound=Encoder)

_SKIPPED_TYPES = (ModuleType,)
_CALLED: Final = "called by a pipeline"
_LATE: Final = "class: the loop alone imports its module"
_DELETED: Final = "the loop deletes this name: no resumed run under this Python can"
_LOADER: Final = "what the batch loop goes over"
_SETTINGS: Final = "settings of the process"
_STANDARD: Final = ("stdin", "stdout", "stderr")
"""Streams of `sys` that have the same address in each process, whichever object leads to them first."""
_DEEPEST: Final = 5
"""How many steps from a name the search for generators of random numbers goes."""


class Missing(NamedTuple):
    """The objects that could not be put back, or that the process made otherwise, by their places."""

    unnamed: list[str]
    named: list[str]
    """Objects that the first run named as lost, and that this process does not have either."""
    astray: list[str]
    """Objects that are not where the first run had them, though the same batches were loaded again."""
    others: list[str]
    """Arrays that code before the loop made otherwise than in the first run. They have been put back."""


class Capture:
    """Encodes and restores the Python state of the user's program."""

    def __init__(self, adapters: Adapters, files: Files, pulls: LoopGenerators) -> None:
        self._adapters = adapters
        self._pulls = pulls
        self._files = files
        self._settings = ProcessSettings()
        self._libraries = LibraryGlobals()
        self._modules = LateModules()
        self._at_phase: frozenset[str] = frozenset()
        """The names that were bound as the program entered the loop."""

    def begin_phase(self, frame: FrameType) -> Baseline:
        """Note that the program enters a training loop, and return the baseline."""
        self._settings.begin()
        self._modules.enter()
        self._libraries.begin()
        found = self.baseline(frame)
        self._at_phase = frozenset(found.bound_names)
        return found

    def look(self) -> None:
        """Note which numbers in libraries' modules have changed."""
        self._libraries.look()

    def held_generators(self, frame: FrameType) -> dict[str, Stream]:
        """Return the generators of random numbers that names lead to, through objects and collections of the program,
        by their places.
        """
        found: dict[str, Stream] = {}
        first = [(_place(root, name), value, 0) for root, values in _namespaces(frame) for name, value in values.items()]
        for path, value, _depth in walk(first, _below, lambda place: id(place[1]), is_wide=True):
            for held in (held_generator(value), *self._adapters.held_generators(value)):
                if held is not None:
                    found[f"{path}'" if path in found else path] = held  # a recursive function has a name twice
        return found

    def left(self, frame: FrameType, at_phase: Baseline) -> Baseline:
        """Return the values left from earlier epochs at an epoch's start: still bound to names, but read by no code
        again. A run that resumes there does not bind them."""
        found = Baseline()
        live = {(root, name) for root, values in _namespaces(frame) for name in values}
        for root, values in _namespaces(frame, is_everything=True):
            for name, value in values.items():
                if (root, name) in live:
                    continue
                if not _may_be_held_elsewhere(value):
                    found.data[_place(root, name)] = id(value)
                elif not at_phase.is_bound(f"{root}|{name}", value):
                    found.bind(_place(root, name), value)
        found.data = {place: number for place, number in found.data.items() if at_phase.data.get(place) != number}
        return found

    def baseline(self, frame: FrameType, loop: RunningLoop | None = None, left: Baseline | None = None) -> Baseline:
        """Return the values that are there now, so that later only the loop's changes count. `left`: from `left()`."""
        pool_jobs.wait()
        found = Baseline()
        encoder = Encoder(self._hooks(), found, is_baseline=True)
        with self._adapters.at_rest():
            for name in _STANDARD:
                encoder.encode(getattr(sys, name), f"sys.{name}")
            live = {(root, name) for root, values in _namespaces(frame) for name in values}
            unread = []
            for root, values in _namespaces(frame, is_everything=True):
                for name, value in values.items():
                    place, is_held = _place(root, name), _may_be_held_elsewhere(value)
                    found.bound_names.add(place)
                    if not is_held:
                        found.data[place] = id(value)
                    elif left is None or not left.is_bound(place, value):
                        found.bind(f"{root}|{name}", value)
                    if (root, name) in live:
                        encoder.encode(value, _path(root, name))
                    elif is_held or left is None or left.data.get(place) != id(value):
                        unread.append((value, _path(root, name)))
                    if root.startswith("module|") and issubclass(type(value), type | FunctionType):
                        found.bind_static(value)
            # Last, so that objects below names that are read have their addresses from those: in a resumed run, unread
            # names hold other objects.
            for value, path in unread:
                encoder.encode(value, path)
            for module in _modules(frame).values():
                found.bind_static(module)
            for name, value in self._called().items():
                encoder.encode(value, f"{_CALLED}, {name}")
            for library, name, value in self._libraries.values():
                encoder.encode(value, f"{library}.{name}")
            if loop is not None and not loop.is_fetched_in_body:
                encoder.encode_loader(_source(loop), _LOADER)
            encoder.note_told()
        return found

    def encode(
        self,
        frame: FrameType,
        baseline: Baseline,
        *,
        are_loads_replayed: bool = False,
        is_alone: bool = False,
        loop: RunningLoop | None = None,
    ) -> Encoded:
        """Return the state of the program, suspended in `frame`; with `loop`, at the head of a turn of that loop."""
        self.look()
        cells, changed = _cells(frame), self._settings.changed()
        drawn_from = loop.iterator if loop is not None and are_loads_replayed else None

        def make() -> Encoder:
            return Encoder(
                self._hooks(),
                baseline,
                are_loads_replayed=are_loads_replayed,
                is_alone=is_alone,
                cells=cells,
                drawn_from=drawn_from,
            )

        with deep_calls():  # around all of it: each end of it makes Python look for garbage among the new objects
            encoder, roots = self._walk(make, frame, baseline, changed)
            if loop is not None and not loop.is_fetched_in_body:
                roots["loader|loop"] = encoder.encode_loader(_source(loop), _LOADER)
            encoded = encoder.finish(roots)
            late = [f"{name} ({_LATE})" for name in self._modules.not_imported(encoder.classes())]
            del encoder  # or Python would look for garbage in its nodes
        late += [f"{_path(root, name)} ({_DELETED})" for root, name, can in self._unbound(frame, baseline) if not can]
        return msgspec.structs.replace(encoded, not_captured=[*encoded.not_captured, *late])

    def encode_live(self, frame: FrameType, baseline: Baseline) -> Live:
        """Return the state of the program, suspended in `frame`, in a form that only this process can put back."""
        encoder, roots = self._walk(lambda: LiveEncoder(self._hooks(), baseline), frame, baseline, self._settings.changed())
        return encoder.finish_live(roots)

    def restore_live(self, frame: FrameType, live: Live, baseline: Baseline) -> list[str]:
        """Put the state back into the program, suspended in `frame`; return the places that could not be restored."""
        return self._bind(LiveDecoder(live, self._hooks(), baseline), frame)

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Undo the changes that the code inside makes to the program's Python state, but keep objects that it builds.

        Raises Diverged if a change cannot be undone.
        """
        frame = next(iter(user_frames(sys._getframe())))
        live = self.encode_live(frame, Baseline())
        yield
        missing = self._bind(Undo(live, self._hooks(), Baseline()), frame)
        if missing:
            raise Diverged(
                f"what is built in the loop changes what cannot be put back: {'; '.join(missing[:4])}",
                "build it before the loop (call it once), and start anew with --fresh",
            )

    def encode_value(self, value: object) -> Live:
        """Return the content of a value, so that this process can put it back into the value."""
        return encode_value(value, self._hooks())

    def restore_value(self, live: Live) -> list[str]:
        """Put back the content that `encode_value` returned; return the places that could not be restored."""
        return restore_value(live, self._hooks())

    def restore(
        self, frame: FrameType, snapshot: Snapshot, baseline: Baseline, loop: RunningLoop | None = None, *, is_ahead: bool = False
    ) -> Missing:
        """Put the state back into the program, suspended in `frame`; return the objects that could not be restored.

        With `loop`, its loader is set to its position, else the loader stays where it is. With `is_ahead`, the
        program's generators stay where they are, too.
        """
        graph = self._adapters.mapped(unpack(snapshot.python, snapshot.arrays))
        decoder = Decoder(graph, snapshot.arrays, self._hooks(), baseline)
        if not is_ahead:
            decoder.replay_generators()
        decoder.hold_cells(_cells(frame) or {})
        self._find_libraries(decoder, baseline)
        return Missing(self._bind(decoder, frame, loop), decoder.gone, decoder.astray, decoder.others)

    def _walk(
        self, make: Callable[[], E], frame: FrameType, baseline: Baseline, changed: dict[str, object]
    ) -> tuple[E, dict[str, Item]]:
        """Return an encoder that has walked the state, and the roots. Walk again if some libraries' names turn out to
        be state: the objects below them get their addresses from these names."""
        encoder = make()
        roots = self._roots(encoder, frame, baseline, changed)
        if self._libraries.look_for(encoder.made_parameters):
            encoder = make()
            roots = self._roots(encoder, frame, baseline, changed)
        return encoder, roots

    def _roots(self, encoder: Encoder, frame: FrameType, baseline: Baseline, changed: dict[str, object]) -> dict[str, Item]:
        roots: dict[str, Item] = {}
        kept: list[str] = []
        for library, name, value in self._libraries.values():
            if type(value) not in (int, float):
                baseline.add(value, f"{library}.{name}")
        with self._adapters.at_rest():
            for root, values in _namespaces(frame):
                for name, value in values.items():
                    if any(rules.is_spent(value) for rules in self._adapters.rules):
                        continue
                    if _place(root, name) not in baseline.bound_names:
                        encoder.unbound.add(_path(root, name))
                    roots[f"{root}|{name}"] = encoder.encode(value, _path(root, name))
            # Pipelines may still use objects below names that are read no more: they do not say which ones they call.
            roots |= {f"{_CALLED}|{name}": encoder.encode(value, f"{_CALLED}, {name}") for name, value in self._called().items()}
            for root, values in _namespaces(frame, is_everything=True):
                for name, value in values.items():
                    key = f"{root}|{name}"
                    if key not in roots and baseline.is_bound(key, value):
                        roots[key] = encoder.encode(value, _path(root, name))
                        kept.append(key)
            if kept:
                roots[SPENT_NAMES] = encoder.encode(kept, SPENT_NAMES)
            if unbound := [f"{root}|{name}" for root, name, can in self._unbound(frame, baseline) if can]:
                roots[UNBOUND_NAMES] = encoder.encode(unbound, UNBOUND_NAMES)
            for library, name, value in self._libraries.values():
                roots[f"module|{library}|{name}"] = encoder.encode(value, f"{library}.{name}")
            # Last: the handler of a signal is an object of the program, and has its address from its own place.
            roots["settings|changed"] = encoder.encode(changed, _SETTINGS)
        return roots

    def _unbound(self, frame: FrameType, baseline: Baseline) -> list[tuple[str, str, bool]]:
        """Return (root, name, whether a resumed run can unbind it) of the names that the loop has deleted and that code
        may still read."""
        bound = self._at_phase | baseline.bound_names
        modules = _modules(frame)
        running = {id(each.f_globals): each for each in user_frames(frame) if is_module_frame(each)}
        found = []
        for root, held in _homes(frame, modules).items():
            start = _place(root, "")
            names = sorted({place.removeprefix(start) for place in bound if place.startswith(start)})
            reader = held if isinstance(held, FrameType) else running.get(id(held))
            present = names_of(held) if isinstance(held, FrameType) else held
            live = names if reader is None else live_among(reader, names)
            can = not isinstance(held, FrameType) or can_unbind(held)
            found += [(root, name, can) for name in names if name in live and name not in present]
        return found

    def _find_libraries(self, decoder: Decoder, baseline: Baseline) -> None:
        """Make the libraries' names that a checkpoint holds count as state from here on."""
        known = user_modules()
        roots = [root.partition("|")[2] for root in decoder.roots if root.startswith("module|")]
        names = {(module, name) for module, _, name in (root.rpartition("|") for root in roots) if module not in known}
        if names:
            self._libraries.find(names)
        for module, name, value in self._libraries.values():
            if type(value) not in (int, float):
                baseline.add(value, f"{module}.{name}")

    def _called(self) -> dict[str, object]:
        """Return the program's own objects that pipelines of the frameworks call, even if no name leads to them."""
        objects = {key: getattr(value, "__self__", value) for key, value in self._adapters.called().items()}
        return {key: value for key, value in objects.items() if _may_be_held_elsewhere(value)}

    def _bind(self, decoder: Decoder, frame: FrameType, loop: RunningLoop | None = None) -> list[str]:
        """Decode all roots, and bind the names to their objects again. Return the places that could not be restored."""
        modules_of_names = {root.partition("|")[2].rpartition("|")[0] for root in decoder.roots if root.startswith("module|")}
        import_late([*modules_of_names, *classes_in(decoder.nodes)])
        kept: Any = decoder.decode(decoder.roots.pop(SPENT_NAMES, None), ABSENT, SPENT_NAMES) or ()
        unbound: Any = decoder.decode(decoder.roots.pop(UNBOUND_NAMES, None), ABSENT, UNBOUND_NAMES) or ()
        for root, values in _namespaces(frame, is_everything=True) if kept else ():
            for name in values:
                if f"{root}|{name}" in kept:  # first, so that no other name that was bound to the live object takes it
                    decoder.decode(decoder.roots[f"{root}|{name}"], values[name], _path(root, name))
        by_root: dict[str, dict[str, Item]] = {}
        for key, item in decoder.roots.items():
            root, _, name = key.rpartition("|")
            by_root.setdefault(root, {})[name] = item
        frames = {_frame_root(depth, each): each for depth, each in enumerate(user_frames(frame)) if not is_module_frame(each)}
        modules = _modules(frame)
        for root, items in by_root.items():
            kind, _, rest = root.partition("|")
            if kind == "module":
                module = modules.get(rest)
                if module is not None:
                    own = {name: item for name, item in items.items() if not is_hidden(name)}
                    vars(module).update(_decode_names(decoder, own, vars(module), root))
                elif rest in sys.modules:  # a library's: its objects are filled in place, never replaced by others
                    known = {name: item for name, item in items.items() if self._libraries.has(rest, name)}
                    live = {name: at_name(sys.modules[rest], name) for name in known}
                    others = _decode_names(decoder, known, live, root)
                    left = [name for name, value in others.items() if not self._libraries.set(rest, name, value)]
                    decoder.missing += [_path(root, name) for name in (*left, *(name for name in items if name not in known))]
                else:
                    decoder.missing.append(f"module {rest!r} is not imported")
            elif kind == "attributes":
                name, _, dotted = rest.partition("|")
                target = _follow(modules[name], dotted) if name in modules else None
                stored = stores(getattr(modules.get(name), "__file__", None) or "").on_names
                if target is None or not stored.issuperset((dotted, attribute) for attribute in items):
                    decoder.missing.append(f"{dotted!r} is not there, or the program sets no such attribute of it")
                    continue
                for attribute, value in _decode_names(decoder, items, dict(vars(target)), root).items():
                    setattr(target, attribute, value)
            elif kind == "settings":
                self._settings.set(cast("dict[str, object]", decoder.decode(items["changed"], ABSENT, _SETTINGS)))
            elif kind == "loader":
                if loop is not None:
                    _set_source(loop, decoder.decode(items["loop"], _source(loop), _LOADER))
            elif root == _CALLED:
                called = self._called()
                for name in items.keys() & called.keys():  # a pipeline that is not there calls no object
                    decoder.decode(items[name], called[name], f"{_CALLED}, {name}")
            elif kind == "cells":
                continue  # the decoder has taken them (`hold_cells`)
            elif kind == "class":
                for name, item in items.items():
                    decoder.decode(item, ABSENT, name)
            elif root in frames:
                write_locals(frames[root], _decode_names(decoder, items, names_of(frames[root]), root))
            else:
                decoder.missing.append(f"the program is not inside {rest!r}, as it was at the checkpoint")
        decoder.finish()
        homes = _homes(frame, modules)
        for root, _, name in (str(place).rpartition("|") for place in unbound):
            held = None if is_hidden(name) else homes.get(root)
            if isinstance(held, dict):
                held.pop(name, None)
            elif held is not None and can_unbind(held):
                unbind_local(held, name)
            else:
                decoder.missing.append(f"{_path(root, name)}: deleted by the loop")
        return decoder.missing

    def _hooks(self) -> Hooks:
        return ProgramHooks(self._adapters, self._files, self._pulls)


def _below(place: tuple[str, object, int]) -> list[tuple[str, object, int]]:
    """Return the values in an object or collection of the program, or in a function's closure, as further places."""
    path, value, depth = place
    is_open = (
        issubclass(type(value), list | tuple | dict)
        or is_user_class(type(value))
        or issubclass(type(value), FunctionType | MethodType | partial)
    )
    if not is_open or depth == _DEEPEST:
        return []
    return [(f"{path}{_shown(step)}", each, depth + 1) for step, each in inside(value, is_whole=True)]


def _shown(step: Step) -> str:
    kind, name = step
    return f"[{name!r}]" if kind == "[" else "." if kind == "(" else f".{name}"


def _namespaces(frame: FrameType, *, is_everything: bool = False) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield (root, names) for the user's frames and modules; `is_everything`: also names that are no longer read."""
    running: dict[int, FrameType] = {}
    for depth, each in enumerate(user_frames(frame)):
        if is_module_frame(each):
            running[id(each.f_globals)] = each
        else:
            yield _frame_root(depth, each), names_of(each) if is_everything else live_locals(each)
    modules = _modules(frame)
    yield from _set_on_libraries(modules)
    for name, module in modules.items():
        module_frame = running.get(id(vars(module)))
        is_whole = is_everything or module_frame is None
        values = dict(vars(module)) if is_whole or module_frame is None else live_locals(module_frame)
        yield (
            f"module|{name}",
            {key: value for key, value in values.items() if not (is_hidden(key) or issubclass(type(value), _SKIPPED_TYPES))},
        )


def _homes(frame: FrameType, modules: Mapping[str, ModuleType]) -> dict[str, FrameType | dict[str, object]]:
    """Return the running functions, and the names of the user's modules, by their roots."""
    frames = {_frame_root(depth, each): each for depth, each in enumerate(user_frames(frame)) if not is_module_frame(each)}
    return {**frames, **{f"module|{name}": vars(module) for name, module in modules.items()}}


def _set_on_libraries(modules: Mapping[str, ModuleType]) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield (root, names) for attributes that the user's modules store on modules, classes and functions of libraries
    (`np.step = 3`).
    """
    own = {id(module) for module in modules.values()}
    for name, module in modules.items():
        for dotted, attribute in sorted(stores(getattr(module, "__file__", None) or "").on_names):
            target = _follow(module, dotted)
            held_in = target if isinstance(target, ModuleType) else sys.modules.get(getattr(target, "__module__", ""))
            if held_in is not None and id(held_in) not in own and attribute in vars(target):
                value = vars(target)[attribute]
                if not issubclass(type(value), _SKIPPED_TYPES):
                    yield f"attributes|{name}|{dotted}", {attribute: value}


def _follow(module: ModuleType, dotted: str) -> ModuleType | type | FunctionType | None:
    """Return the module, class or function that a dotted name in a module leads to, None if it leads to none."""
    target: object = module
    for name in dotted.split("."):
        with contextlib.suppress(Exception):  # the library's own code may run here and load the attribute
            target = getattr(target, name, None) if issubclass(type(target), ModuleType | type) else None
    return target if issubclass(type(target), ModuleType | type | FunctionType) else None  # type: ignore[return-value]


def _modules(frame: FrameType) -> dict[str, ModuleType]:
    """Return the user's modules, also those outside of `sys.modules`: loaded from files or made, and held by names."""
    found = dict(user_modules())
    known = {id(module) for module in found.values()}
    held = [vars(module) for module in found.values()] + [
        names_of(each) for each in user_frames(frame) if not is_module_frame(each)
    ]
    for names in held:
        for value in list(names.values()):
            if type(value) is ModuleType and id(value) not in known and _is_loose(value):
                known.add(id(value))
                held.append(vars(value))  # it may hold more such modules
                name = value.__name__
                found[name if name not in found else f"{name} {len(found)}"] = value
    return found


def _is_loose(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return sys.modules.get(module.__name__) is not module and (file is None or is_user_file(file))


def _may_be_held_elsewhere(value: object) -> bool:
    """Return whether other objects may still use an object of the program when its name is no longer read."""
    cls = type(value)
    if type(value) is FunctionType:
        return is_user_file(value.__code__.co_filename) and value.__closure__ is not None
    is_value = issubclass(cls, tuple) or is_frozen(cls)
    return (is_user_class(cls) and not is_value) or issubclass(cls, STREAMS)


def _source(loop: RunningLoop) -> object:
    """Return the object that has a loop's position: its iterator, or its iterable if only that offers a position."""
    return loop.iterable if is_made_anew(loop) else loop.iterator


def _set_source(loop: RunningLoop, source: object) -> None:
    if source is not ABSENT:
        loop.iterator = iter(loop.iterable) if is_made_anew(loop) else source


def _frame_root(depth: int, frame: FrameType) -> str:
    return f"frame|{depth} {frame.f_code.co_qualname}"


def _cells(frame: FrameType) -> dict[str, CellType] | None:
    """Return the variables (cells) of the running calls that inner functions share, by their places. Return None if
    they cannot be read.
    """
    found: dict[str, CellType] = {}
    for depth, each in enumerate(user_frames(frame)):
        cells = cells_of(each)
        if cells is None:
            return None
        found |= {f"{_frame_root(depth, each)}|{name}": cell for name, cell in cells.items()}
    return found


def _place(root: str, name: str) -> str:
    """Return the key of a name without its frame's depth in the stack, which changes as the loop calls functions."""
    return f"{root.partition(' ')[2] or root}|{name}"


def _path(root: str, name: str) -> str:
    kind, _, rest = root.partition("|")
    if kind == "module":
        return name if rest == "__main__" else f"{rest}.{name}"
    if kind == "attributes":
        return f"{rest.partition('|')[2]}.{name}"
    return f"{name} in {rest.partition(' ')[2]}()"


def _decode_names(decoder: Decoder, items: dict[str, Item], current: dict[str, object], root: str) -> dict[str, object]:
    values = {}
    for name, item in items.items():
        value = decoder.decode(item, current.get(name, ABSENT), _path(root, name))
        if value is ABSENT:
            decoder.miss_item(item, _path(root, name))
        elif current.get(name, ABSENT) is not value:
            values[name] = value
    return values
