"""The start of the training process: settle the settings that decide about bits, then become the program.

`start.py` calls `main`, which gets its `Config` from the command. The program sees `sys.argv`, `sys.path`, `__main__`
and its own file as under plain `python`; frames of detrain are cut from tracebacks.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib.machinery
import importlib.util
import io
import itertools
import os
import random
import runpy
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from detrain.adapters import registry
from detrain.adapters.api import Adapter, Settings
from detrain.adapters.keras_epochs import KerasEpochs
from detrain.adapters.registry import ADAPTERS, FOLLOWED
from detrain.base import PACKAGE, compiled_sources, keras_backend, messages, timing
from detrain.base.byte_digests import digest_bytes
from detrain.base.config import VARIABLE, Config
from detrain.base.errors import AnotherProgram, DetrainError
from detrain.base.framework_names import KNOWN, runs_training
from detrain.base.source_files import imported_modules
from detrain.base.structure import loop_files
from detrain.instrument.loop_marks import MARK
from detrain.instrument.text_edits import compile_edited
from detrain.instrument.value_probes import BEGUN, FETCH, PASS_ON, YIELD
from detrain.python.inspect import function_source
from detrain.python.inspect.frames import adopt, is_user_file, outwards, set_program
from detrain.python.inspect.live_names import codes_in
from detrain.python.inspect.named import set_main
from detrain.python.outside.clock_and_entropy import fix_listings
from detrain.python.process import library_random
from detrain.python.process.library_random import LibraryStreams
from detrain.python.process.random_streams import Streams
from detrain.runtime.ranks import launched
from detrain.runtime.session import probes
from detrain.runtime.session.session import Session

if TYPE_CHECKING:
    from detrain.tracer.traced_run import TracedRun


def main() -> None:
    """Run the program of the configuration that `$DETRAIN_SESSION` leads to."""
    messages.fill_standard_files()
    config = Config.handed_over(os.environ.pop(VARIABLE))
    timing.go_on(config.start)
    if config.ranks is not None:
        messages.be_rank(config.ranks.rank)
        launched.end_with_launcher()
    os.environ.pop("DETRAIN_REPLACED", None)
    hook_tracebacks()
    _session, traced = settle(config)
    sys.argv = [config.shown, *config.arguments]
    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd() if config.is_module else os.path.dirname(os.path.realpath(config.target)))
    timing.enter("the program, up to its loop")
    if traced is None:
        _run(config)
        probes.at_last_line()
    else:
        _run_traced(config, traced)


def settle(config: Config) -> tuple[Session | None, TracedRun | None]:
    """Make this process a run: set its seeds, make its session or its tracer, and have imports followed."""
    loops = () if config.structure is None else sorted(loop_files(config.structure.nests))
    set_program(config.entry, [file for file in loops if not runs_training(file)])
    probes.set_run()
    random.seed(config.seed)
    np.random.seed(config.seed % (1 << 32))
    fix_listings()
    setattr(builtins, YIELD, probes.note_yield)
    setattr(builtins, BEGUN, probes.begin_yield)
    setattr(builtins, PASS_ON, probes.pass_on)
    setattr(builtins, FETCH, probes.note_fetch)
    session = traced = None
    if config.trace is not None:
        from detrain.tracer.traced_run import TracedRun

        traced = TracedRun(config, config.trace)
        if config.trace.marks:
            setattr(builtins, MARK, traced.observer.enter)
    elif not config.bare:
        try:
            session = Session(config)
        except DetrainError as error:
            probes.fail(error)
        probes.set_session(session)
        session.parts.files.fail = probes.fail
    if not config.bare:
        _watch_sources(config)
    finder = _Finder(config, session, traced)
    finder.shift_seeds(library_random.SEEDS_OF_PYTHON)
    sys.meta_path.insert(0, finder)
    return session, traced


def _run(config: Config) -> None:
    if config.is_module:
        _note_main()
        runpy.run_module(config.target, run_name="__main__", alter_sys=True)
    else:
        _run_file(config)


def _run_traced(config: Config, traced: TracedRun) -> None:
    """Run to the end, or until the tracer has seen enough; the program's exceptions and exit status pass through."""
    try:
        _run(config)
    except BaseException as error:
        is_good = isinstance(error, SystemExit) and not error.code
        try:
            traced.finish(has_ended=is_good)
        except DetrainError as nothing:
            if is_good:
                probes.fail(nothing)
        raise
    try:
        traced.finish(has_ended=True)
    except DetrainError as nothing:
        probes.fail(nothing)


def _note_main() -> None:
    """Have the module noted that `runpy` makes for the program."""
    owner: Any = runpy
    run_code = owner._run_code

    def noting(code: types.CodeType, run_globals: dict[str, object], *arguments: Any) -> object:
        owner._run_code = run_code
        set_main(sys.modules["__main__"])
        return run_code(code, run_globals, *arguments)

    owner._run_code = noting


def _run_file(config: Config) -> None:
    """Run a file as `__main__`."""
    path = config.target
    main_module = types.ModuleType("__main__")
    vars(main_module).update(
        __file__=path,
        __builtins__=builtins,
        __annotations__={},
        __cached__=None,
        __loader__=importlib.machinery.SourceFileLoader("__main__", path),
    )
    sys.modules["__main__"] = main_module
    set_main(main_module)
    exec(_compile(config, path, Path(path).read_bytes()), vars(main_module))


def _compile(config: Config, path: str, data: bytes) -> types.CodeType:
    """Compile a source file of the program with its probes, and keep the source that is executed."""
    place = _place_of_edits(config, path)
    made_for = config.edited.get(place)
    if made_for is not None and made_for != digest_bytes(data):
        probes.fail(AnotherProgram(f"{path} was edited while the program was starting", "run it again"))
    compiled_sources.keep(path, data)
    code = compile_edited(data, config.edits.get(place, ()), path)
    function_source.remember(code)
    _adopt_training(code)
    return code


def _place_of_edits(config: Config, path: str) -> str:
    """Return the path under which a file may have edits: a library may be imported through a link."""
    is_linked = path not in config.edits and any(os.path.basename(path) == os.path.basename(each) for each in config.edits)
    return os.path.realpath(path) if is_linked else path


def _adopt_training(code: types.CodeType) -> None:
    """Count library functions that run the training as functions of the program."""
    for inner in itertools.islice(codes_in(code), 1, None):
        if runs_training(inner.co_filename, inner.co_qualname):
            adopt(inner)


def _watch_sources(config: Config) -> None:
    """Have the user's modules, and those with probes, compiled from sources that are kept, whichever loader loads
    them.
    """
    owner: Any = next(cls for cls in importlib.machinery.SourceFileLoader.__mro__ if "get_code" in vars(cls))
    original = owner.get_code

    def get_code(self: importlib.machinery.SourceFileLoader, fullname: str) -> types.CodeType | None:
        path = self.get_filename(fullname)
        has_edits = _place_of_edits(config, os.path.abspath(path)) in config.edits
        if not has_edits and not is_user_file(path):
            return original(self, fullname)  # type: ignore[no-any-return]
        try:
            data = self.get_data(path)
        except OSError:  # the source cannot be read, but there may be bytecode
            return original(self, fullname)  # type: ignore[no-any-return]
        if has_edits:
            return _compile(config, os.path.abspath(path), data)
        compiled_sources.keep(path, data)
        return self.source_to_code(data, path)

    owner.get_code = get_code


def hook_tracebacks() -> None:
    """Cut the frames of detrain and of runpy from tracebacks that end the program; warn if it failed on its way to a
    checkpoint.
    """
    shown = sys.excepthook
    hidden = (str(PACKAGE) + os.sep, runpy.__file__, "<frozen runpy>")

    def hook(kind: type[BaseException], value: BaseException, trace: types.TracebackType | None) -> None:
        is_on_its_way = issubclass(kind, Exception) and probes.is_resuming(value)
        seen: set[int] = set()
        error: BaseException | None = value
        while error is not None and id(error) not in seen:
            seen.add(id(error))
            error.__traceback__ = _without(error.__traceback__, hidden)
            error = error.__cause__ or error.__context__
        probes.fails_in_job(value, lambda: _show_at_once(lambda: shown(kind, value, value.__traceback__)))
        shown(kind, value, value.__traceback__)
        if is_on_its_way:
            messages.warn(
                "the program failed on its way to the checkpoint: code before it runs again, and finds what is there now "
                "(files that were deleted or replaced since?); --fresh starts anew"
            )

    sys.excepthook = hook


def _show_at_once(show: Callable[[], None]) -> None:
    """Show an error at once, also if PyTorch's hook collects the text in order to print it later: this hook does not
    return.
    """
    show()
    if isinstance(sys.stderr, io.StringIO):
        messages.put(sys.stderr.getvalue().rstrip("\n"))


def _without(trace: types.TracebackType | None, hidden: tuple[str, ...]) -> types.TracebackType | None:
    """Return a traceback without the frames of the hidden files, and those of `contextlib` that they call."""
    kept = []
    is_hidden = False
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        is_hidden = file.startswith(hidden) or (is_hidden and file == contextlib.__file__)
        if not is_hidden:
            kept.append(trace)
        trace = trace.tb_next
    for earlier, later in zip(kept, [*kept[1:], None], strict=False):
        earlier.tb_next = later
    return kept[0] if kept else None


class _Finder:
    """An import finder that acts when a framework, or a library that belongs to one, has been imported."""

    def __init__(self, config: Config, session: Session | None, traced: TracedRun | None) -> None:
        self._config = config
        self._session = session
        self._on_update: Callable[[int], None] = lambda _what: None
        self._on_assign: Callable[[int], None] = lambda _what: None
        if traced is not None:
            self._on_update, self._on_assign = traced.observer.on_update, traced.observer.on_assign
        elif session is not None:
            self._on_update = probes.note_update
        self._made: list[Adapter] = []
        self._asked: set[str] = set()
        self._imported_by_program: set[str] | None = None
        self._libraries = LibraryStreams(config.seed, session.parts.streams if session is not None else Streams())

    def shift_seeds(self, functions: Iterable[tuple[str, str]]) -> None:
        """Shift the seeds that the program sets through these functions, if the experiment asks for other seeds."""
        experiment = self._session.parts.experiment if self._session is not None else None
        if experiment is not None and experiment.plan.seeds_by:
            library_random.shift_seeds(functions, experiment.plan.seeds_by)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find a module as the finders behind this one do, and wrap its loader if detrain follows that module."""
        if name not in ADAPTERS and name not in FOLLOWED and name not in library_random.FOLLOWED:
            return None
        if name in ADAPTERS and self._is_in_passing(name):
            return None
        if name in self._asked:  # a finder behind this one asks, and wraps the loader itself
            return self._behind(name, path, target)
        self._asked.add(name)
        try:
            spec = self._behind(name, path, target)
        finally:
            self._asked.discard(name)
        if spec is not None and spec.loader is not None:
            _after(spec.loader, name, lambda: self._imported(name))
        return spec

    def _is_in_passing(self, name: str) -> bool:
        """Return whether another framework imports this one only because it is installed, and the program does not
        import it (TensorFlow imports JAX in this way).
        """
        modules = (str(frame.f_globals.get("__name__", "")) for frame in outwards(sys._getframe(2)))
        importer = next((each for each in modules if not each.startswith(("importlib", "_frozen_importlib"))), "").partition(".")[0]
        own = next((each.modules for each in KNOWN if name in each.modules), frozenset({name}))
        if importer == "keras":  # it also imports frameworks other than its backend
            importer, own = keras_backend.in_process(), own - {importer}
        if importer in own or not any(importer in each.modules for each in KNOWN):
            return False
        if self._imported_by_program is None:
            self._imported_by_program = imported_modules(Path(self._config.entry))
        if own & (self._imported_by_program | sys.modules.keys()):
            return False
        registry.left_out.append(name)
        return True

    def _behind(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec that the finders behind this one find: hooks of the program's environment are among them."""
        finders = list(sys.meta_path)
        for finder in finders[finders.index(self) + 1 :] if self in finders else finders:
            find: Any = getattr(finder, "find_spec", None)
            spec: importlib.machinery.ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                return spec
        return None

    def _imported(self, name: str) -> None:
        if name in ADAPTERS:
            if self._session is not None:
                settings = self._session.parts.settings(probes, self._on_update, self._on_assign)
            else:
                settings = Settings(
                    self._config.seed, self._config.threads, None, self._on_update, self._on_assign, ranks=self._config.ranks
                )
            try:
                streams = self._session.parts.streams if self._session is not None else Streams()
                adapter = registry.make(name, settings, streams)
                if self._session is not None:
                    self._session.parts.attach(adapter)
            except DetrainError as error:
                probes.fail(error)
            self._made.append(adapter)
            self.shift_seeds(next((each.seeding for each in KNOWN if each.imported == name), ()))
            for other in FOLLOWED:  # some were imported as a part of the framework, before its import was done
                if other in sys.modules and not getattr(sys.modules[other].__spec__, "_initializing", False):
                    adapter.on_import(other)
            return
        try:
            if name == "keras" and not self._config.bare:
                registry.check_keras()
                if (backend := keras_backend.in_process()) != "tensorflow":
                    KerasEpochs(backend, probes.fail)
            if name in library_random.FOLLOWED:
                self._libraries.on_import(name)
        except DetrainError as error:
            probes.fail(error)
        for adapter in self._made:
            adapter.on_import(name)


def _after(loader: object, name: str, act: Callable[[], None]) -> None:
    """Have `act` called when a loader has executed the module `name`; the loader may load other modules, too."""
    original = loader.exec_module  # type: ignore[attr-defined]

    def exec_module(module: types.ModuleType) -> None:
        if module.__spec__ is None or module.__spec__.name != name:
            original(module)
            return
        streams = Streams()
        try:
            before = streams.read()
        except DetrainError as error:
            probes.fail(error)
        with timing.during("imports of frameworks"):
            original(module)
        streams.write(before)  # an import that draws numbers must not shift the program's draws
        with timing.during("adapters of detrain"):
            act()

    loader.exec_module = exec_module  # type: ignore[attr-defined]
