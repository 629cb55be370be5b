"""The Python state of the user's program at a cut: what is captured, and how it comes back.

Roots are the names of the user's frames from the probe to the entry that can still be read, and the globals of the
user's modules. Framework tensors are captured by the adapters, not here.
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
from detrain.python.inspect.frames import cells_of, is_module_frame, is_user_file, live_locals, names_of, user_frames, write_locals
from detrain.python.inspect.held import Step, walk
from detrain.python.inspect.hooks import Hooks
from detrain.python.inspect.library_globals import LibraryGlobals
from detrain.python.inspect.named import MOST_INSIDE, inside, is_hidden, user_modules
from detrain.python.inspect.names import at_name, is_frozen, is_user_class
from detrain.python.inspect.object_graph import ABSENT, SPENT_NAMES, Encoded, Item, classes_in, deep_calls
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
_LOADER: Final = "what the batch loop goes over"
_SETTINGS: Final = "settings of the process"
_STANDARD: Final = ("stdin", "stdout", "stderr")
"""Have the same address in each process, whatever holds them first."""
_DEEPEST: Final = 5
"""How far from a name generators of random numbers are looked for, and in collections of how many values."""


class Missing(NamedTuple):
    """What could not be put back."""

    unnamed: list[str]
    named: list[str]
    """What the first run has named as lost, and what is not here, either."""
    astray: list[str]
    """What is not where it was, though the same batches were loaded again."""
    others: list[str]
    """What code before the loop has made otherwise than in the first run. It has been put back."""


class Capture:
    """Encodes and restores the Python state of the user's program."""

    def __init__(self, adapters: Adapters, files: Files, pulls: LoopGenerators) -> None:
        self._adapters = adapters
        self._pulls = pulls
        self._files = files
        self._settings = ProcessSettings()
        self._libraries = LibraryGlobals()
        self._modules = LateModules()

    def begin_phase(self, frame: FrameType) -> Baseline:
        """The program enters a training loop. Returns the baseline."""
        self._settings.begin()
        self._modules.enter()
        self._libraries.begin()
        return self.baseline(frame)

    def look(self) -> None:
        """See which numbers of libraries move."""
        self._libraries.look()

    def held_generators(self, frame: FrameType) -> dict[str, Stream]:
        """Return the generators of random numbers that names lead to, through objects and collections of the program,
        by where.
        """
        found: dict[str, Stream] = {}
        first = [(_place(root, name), value, 0) for root, values in _namespaces(frame) for name, value in values.items()]
        for path, value, _depth in walk(first, _below, lambda place: id(place[1]), is_wide=True):
            for held in (held_generator(value), *self._adapters.held_generators(value)):
                if held is not None:
                    found[f"{path}'" if path in found else path] = held  # a function that calls itself has a name twice
        return found

    def left(self, frame: FrameType, at_phase: Baseline) -> Baseline:
        """Return what names are still bound to at an epoch's start that the epochs before it bound, and that are read
        no more. A run that resumes there binds none of them."""
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
        """Return what is there now, so that later only what the loop changed counts as changed; `left`: see there."""
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
                    if root.startswith("module|") and isinstance(value, type | FunctionType):
                        found.bind_static(value)
            # Last: in a run that resumes they hold other things, which give no address to what names that are read lead
            # to.
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
        """Return the state of the program, suspended in `frame`, at the head of a turn of `loop` if that is given."""
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

        with deep_calls():  # around all: each time that it ends, Python looks for garbage in what was made
            encoder, roots = self._walk(make, frame, baseline, changed)
            if loop is not None and not loop.is_fetched_in_body:
                roots["loader|loop"] = encoder.encode_loader(_source(loop), _LOADER)
            encoded = encoder.finish(roots)
            late = self._modules.not_imported(encoder.classes())
            del encoder  # or Python would look for garbage in its nodes
        return msgspec.structs.replace(encoded, not_captured=[*encoded.not_captured, *(f"{name} ({_LATE})" for name in late)])

    def encode_live(self, frame: FrameType, baseline: Baseline) -> Live:
        """Return the state of the program, suspended in `frame`, as it can be put back in this process."""
        encoder, roots = self._walk(lambda: LiveEncoder(self._hooks(), baseline), frame, baseline, self._settings.changed())
        return encoder.finish_live(roots)

    def restore_live(self, frame: FrameType, live: Live, baseline: Baseline) -> list[str]:
        """Put the state back into the program, suspended in `frame` as it was; return what could not be put back."""
        return self._bind(LiveDecoder(live, self._hooks(), baseline), frame)

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Put back what the code inside changes of the program's Python state, but for what it builds.

        Raises Diverged.
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
        """Return what a value holds, to be put back into it in this process."""
        return encode_value(value, self._hooks())

    def restore_value(self, live: Live) -> list[str]:
        """Put back what `encode_value` returned; return what could not be put back."""
        return restore_value(live, self._hooks())

    def restore(
        self, frame: FrameType, snapshot: Snapshot, baseline: Baseline, loop: RunningLoop | None = None, *, is_ahead: bool = False
    ) -> Missing:
        """Put the state back into the program, suspended in `frame`; return what could not be put back.

        With `loop` its loader is set to its position, else it stays where it is. `is_ahead`: generators stay, too.
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
        """Return an encoder that has walked the state, and the roots; once more where names of libraries turn out to be
        state: what they hold has an address then, whoever leads there."""
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
            # What no name will be read for again may still be used, by what does not say which objects it calls.
            roots |= {f"{_CALLED}|{name}": encoder.encode(value, f"{_CALLED}, {name}") for name, value in self._called().items()}
            for root, values in _namespaces(frame, is_everything=True):
                for name, value in values.items():
                    key = f"{root}|{name}"
                    if key not in roots and baseline.is_bound(key, value):
                        roots[key] = encoder.encode(value, _path(root, name))
                        kept.append(key)
            if kept:
                roots[SPENT_NAMES] = encoder.encode(kept, SPENT_NAMES)
            for library, name, value in self._libraries.values():
                roots[f"module|{library}|{name}"] = encoder.encode(value, f"{library}.{name}")
            # Last: what handles a signal is an object of the program's, and found at its place.
            roots["settings|changed"] = encoder.encode(changed, _SETTINGS)
        return roots

    def _find_libraries(self, decoder: Decoder, baseline: Baseline) -> None:
        """Have names of libraries' modules that a checkpoint holds be state from here on."""
        known = user_modules()
        roots = [root.partition("|")[2] for root in decoder.roots if root.startswith("module|")]
        names = {(module, name) for module, _, name in (root.rpartition("|") for root in roots) if module not in known}
        if names:
            self._libraries.find(names)
        for module, name, value in self._libraries.values():
            if type(value) not in (int, float):
                baseline.add(value, f"{module}.{name}")

    def _called(self) -> dict[str, object]:
        """Return the program's own objects that pipelines of the frameworks call: no name need lead to them."""
        objects = {key: getattr(value, "__self__", value) for key, value in self._adapters.called().items()}
        return {key: value for key, value in objects.items() if _may_be_held_elsewhere(value)}

    def _bind(self, decoder: Decoder, frame: FrameType, loop: RunningLoop | None = None) -> list[str]:
        """Decode all roots, and bind the names to what they were bound to."""
        modules_of_names = {root.partition("|")[2].rpartition("|")[0] for root in decoder.roots if root.startswith("module|")}
        import_late([*modules_of_names, *classes_in(decoder.nodes)])
        kept: Any = decoder.decode(decoder.roots.pop(SPENT_NAMES, None), ABSENT, SPENT_NAMES) or ()
        for root, values in _namespaces(frame, is_everything=True) if kept else ():
            for name in values:
                if f"{root}|{name}" in kept:  # the live object is this one's, not that of a name that was bound to it, too
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
                elif rest in sys.modules:  # a library's: its objects are filled, and others do not take their names
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
                for name in items.keys() & called.keys():  # a pipeline that is not there calls nothing
                    decoder.decode(items[name], called[name], f"{_CALLED}, {name}")
            elif kind == "cells":
                continue  # they are there
            elif kind == "class":
                for name, item in items.items():
                    decoder.decode(item, ABSENT, name)
            elif root in frames:
                write_locals(frames[root], _decode_names(decoder, items, names_of(frames[root]), root))
            else:
                decoder.missing.append(f"the program is not inside {rest!r}, as it was at the checkpoint")
        decoder.finish()
        return decoder.missing

    def _hooks(self) -> Hooks:
        return ProgramHooks(self._adapters, self._files, self._pulls)


def _below(place: tuple[str, object, int]) -> list[tuple[str, object, int]]:
    """Return what an object or collection of the program, or a function's closure, holds."""
    path, value, depth = place
    is_small = isinstance(value, list | tuple | dict) and len(value) <= MOST_INSIDE
    is_open = is_small or is_user_class(type(value)) or isinstance(value, FunctionType | MethodType | partial)
    if not is_open or depth == _DEEPEST:
        return []
    return [(f"{path}{_shown(step)}", each, depth + 1) for step, each in inside(value, is_whole=True)]


def _shown(step: Step) -> str:
    kind, name = step
    return f"[{name!r}]" if kind == "[" else "." if kind == "(" else f".{name}"


def _namespaces(frame: FrameType, *, is_everything: bool = False) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield (root, names) of the user's frames and modules; with `is_everything` also names that are no longer read."""
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
            {key: value for key, value in values.items() if not (is_hidden(key) or isinstance(value, _SKIPPED_TYPES))},
        )


def _set_on_libraries(modules: Mapping[str, ModuleType]) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield (root, names) of what the user's modules store on modules, classes and functions of libraries (`np.step =
    3`).
    """
    own = {id(module) for module in modules.values()}
    for name, module in modules.items():
        for dotted, attribute in sorted(stores(getattr(module, "__file__", None) or "").on_names):
            target = _follow(module, dotted)
            held_in = target if isinstance(target, ModuleType) else sys.modules.get(getattr(target, "__module__", ""))
            if held_in is not None and id(held_in) not in own and attribute in vars(target):
                value = vars(target)[attribute]
                if not isinstance(value, _SKIPPED_TYPES):
                    yield f"attributes|{name}|{dotted}", {attribute: value}


def _follow(module: ModuleType, dotted: str) -> ModuleType | type | FunctionType | None:
    """Return the module, class or function that a dotted name leads to in a module, if it leads to one."""
    target: object = module
    for name in dotted.split("."):
        with contextlib.suppress(Exception):  # one that is loaded when it is first asked for, by code of the library's
            target = getattr(target, name, None) if isinstance(target, ModuleType | type) else None
    return target if isinstance(target, ModuleType | type | FunctionType) else None


def _modules(frame: FrameType) -> dict[str, ModuleType]:
    """Return the user's modules, and those that only names lead to: loaded from a file past `sys.modules`, or made."""
    found = dict(user_modules())
    known = {id(module) for module in found.values()}
    held = [vars(module) for module in found.values()] + [
        names_of(each) for each in user_frames(frame) if not is_module_frame(each)
    ]
    for names in held:
        for value in list(names.values()):
            if type(value) is ModuleType and id(value) not in known and _is_loose(value):
                known.add(id(value))
                held.append(vars(value))  # which may hold more of them
                name = value.__name__
                found[name if name not in found else f"{name} {len(found)}"] = value
    return found


def _is_loose(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return sys.modules.get(module.__name__) is not module and (file is None or is_user_file(file))


def _may_be_held_elsewhere(value: object) -> bool:
    """Return whether an object of the program can be called or gone over by others when its name is no longer read."""
    cls = type(value)
    if isinstance(value, FunctionType):
        return is_user_file(value.__code__.co_filename) and value.__closure__ is not None
    is_value = issubclass(cls, tuple) or is_frozen(cls)
    return (is_user_class(cls) and not is_value) or issubclass(cls, STREAMS)


def _source(loop: RunningLoop) -> object:
    """Return what has the position of a loop: its iterator, or what that is made from if only this offers one."""
    return loop.iterable if is_made_anew(loop) else loop.iterator


def _set_source(loop: RunningLoop, source: object) -> None:
    if source is not ABSENT:
        loop.iterator = iter(loop.iterable) if is_made_anew(loop) else source


def _frame_root(depth: int, frame: FrameType) -> str:
    return f"frame|{depth} {frame.f_code.co_qualname}"


def _cells(frame: FrameType) -> dict[str, CellType] | None:
    """Return the variables of the calls that go on which functions share, by where they are;

    None if they cannot be read.
    """
    found: dict[str, CellType] = {}
    for depth, each in enumerate(user_frames(frame)):
        cells = cells_of(each)
        if cells is None:
            return None
        found |= {f"{_frame_root(depth, each)}|{name}": cell for name, cell in cells.items()}
    return found


def _place(root: str, name: str) -> str:
    """Return the key of a name wherever its frame is in the stack: a function that the epoch
    loop calls lies above it.
    """
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
