"""The history of `torch.compile` in a run: a resumed process compiles each frame again, as the first run had compiled
it.

The code that runs for a frame depends on earlier calls. Dynamo compiles a frame for the sizes that it meets first; when
another size comes, it compiles the frame for any size, and this variant then serves the first size, too; beyond
`recompile_limit` variants the frame runs uncompiled; a frame that it could not compile once it never tries again.
Kernels for one size and for any size give different bits, and compiled dropout draws other numbers than `nn.Dropout`.

So the variants of each frame are state, the last used first. The state of a variant is Dynamo's knowledge of sizes when
it made the variant, a digest of the guards (conditions on the inputs), and digests of the kernels. When a resumed
process comes to a frame, it compiles the frame with the knowledge of sizes of the first variant; if the guards then
equal the variant's, the first run would have used this variant here. Else it tries the next variant, and after the last
one the knowledge at the cut. The kernels must be those of the first run.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from types import CodeType
from typing import Any, Final, NoReturn

import msgspec
import torch

from detrain.adapters.torch.compiler import sizes
from detrain.base import PACKAGE
from detrain.base.byte_digests import digest_bytes
from detrain.base.errors import DetrainError, Diverged
from detrain.base.in_place import in_place_of
from detrain.base.losses import OF_CACHE

DYNAMO: Final = "torch._dynamo"
KERNELS: Final = "torch._inductor.codecache"
GRAPHS: Final = "torch._functorch.aot_autograd"
"""The modules that must have been imported before Dynamo compiles a frame, before a kernel is loaded, and before a
graph is handed to a backend."""
_KNOWN: Final = ((2, 13), (2, 14), (2, 15))
"""The versions of PyTorch whose compiler is followed: other versions have other private functions."""
_OWN: Final = re.compile(r"0x[0-9a-f]+|\b\d{7,}\b|(?<=__builtins_dict___)\d+|(?<=eval_with_key>\.)\d+|# AOT ID: .*")
"""Text that differs in each process: addresses, and the number of a compilation."""
_REMARK: Final = re.compile(r"  +# .*")
"""The remark at a guard: its source, and advice that depends on the size that came."""


class Variant(msgspec.Struct, eq=False):
    """One way in which a frame has been compiled."""

    sizes: sizes.Known
    guards: str
    kernels: list[str] = []
    expected: list[str] | None = None
    """Digests of the first run's kernels, if it had this variant."""
    code: object = None
    """The compiled code, in this process."""


class History:
    """Records all compilations from the import of Dynamo on."""

    def __init__(self, fail: Callable[[DetrainError], NoReturn] | None) -> None:
        self._fail = fail
        self.is_followed = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) in _KNOWN
        self._sizes = sizes.Sizes()
        self._made: dict[int, tuple[CodeType, list[Variant]]] = {}
        self._by_id: dict[str, Variant] = {}
        """This process's variants by PyTorch's name for the compilation: kernels of a gradient are loaded later."""
        self._loading: list[str] | None = None
        """Digests of the kernels that are loaded while a frame is compiled."""
        self._waiting: dict[str, list[Variant]] = {}
        """The first run's variants, by frame, that this process has not made yet."""
        self._left: dict[str, str] = {}
        """For each frame that is not compiled, how the frames that it calls are handled."""
        self._is_timed = False
        """Whether measured times have chosen kernels."""
        self._given_up: dict[str, str] = {}
        """A description of each frame that Dynamo has given up compiling."""

    def on_import(self, module: str) -> None:
        """Hook the compiler's modules once they are imported, to record compiled frames and loaded kernels."""
        if not self.is_followed:
            return
        if module == DYNAMO:
            # After a graph break Dynamo would compile the code of detrain's hooks (in an optimizer's compiled `step`).
            sys.modules[f"{DYNAMO}.trace_rules"].add(PACKAGE.name)
            self._hear_of_frames()
            self._sizes.watch()
        elif module == KERNELS:
            self._hear_of_kernels()

    def state(self) -> Mapping[str, object] | None:
        """Return the record of all compilations, as data; None if there were none."""
        frames: dict[str, list[list[object]]] = {}
        for code, variants in self._made.values():
            frames.setdefault(_key(code), []).extend([each.sizes, each.guards, each.kernels] for each in _in_order(code, variants))
        for key, waiting in self._waiting.items():
            frames.setdefault(key, []).extend([each.sizes, each.guards, each.expected] for each in waiting)
        frames = {key: variants for key, variants in frames.items() if variants}
        if not (frames or self._left or self._given_up):
            return None
        return {"frames": frames, "sizes": self._sizes.known(), "left": self._left, "given up": self._given_up}

    def restore(self, was: Mapping[str, Any] | None) -> None:
        """Make Dynamo compile all frames as the recorded run had; drop this process's compilations if they differ."""
        now = self.state()
        if json.loads(json.dumps(now)) == was:
            return
        if now is not None:
            _module(DYNAMO).reset()
        was = was or {"frames": {}, "sizes": {}, "left": {}, "given up": {}}
        self._waiting = {
            key: [Variant(known, guards, [], kernels) for known, guards, kernels in variants]
            for key, variants in was["frames"].items()
        }
        self._left, self._given_up = dict(was["left"]), dict(was["given up"])
        self._sizes.restore(was["sizes"])

    def uncaptured(self) -> list[str]:
        """Return descriptions of frames that a resumed run may compile otherwise, and of a setting not followed."""
        if not self.is_followed:
            return [_NOT_FOLLOWED] if has_compiled() else []
        found = [f"{words})" for words in self._given_up.values()]
        by_key: dict[str, list[int]] = {}
        for code, variants in self._made.values():
            if variants:
                by_key.setdefault(_key(code), []).append(len(variants))
        twice = [key for key, counts in by_key.items() if len(counts) > 1 and max(counts) > 1]
        found += [f"{_shown(key)} (compiled code: made more than once, and compiled in several ways)" for key in twice]
        found += [f"{_shown(key)} (compiled code: {OF_CACHE})" for key in sorted(self._of_cache())]
        config = sys.modules.get(f"{DYNAMO}.config")
        if self._made and getattr(config, "automatic_dynamic_exclusion_guard", False):
            found.append("the compiled code (torch._dynamo.config.automatic_dynamic_exclusion_guard is set)")
        return found

    def _of_cache(self) -> set[str]:
        """Return the keys of frames whose kernels are for any size, or were chosen by measured times."""
        made = [(_key(code), variants) for code, variants in self._made.values()]
        variants = [(key, each) for key, all_ in (*made, *self._waiting.items()) for each in all_]
        loaded = [(key, each) for key, each in variants if each.kernels or each.expected]
        return {key for key, each in loaded if self._is_timed or sizes.has_any(each.sizes)}

    def apart(self) -> AbstractContextManager[object]:
        """Inside, loaded kernels are not the program's."""
        return self._loads()

    # Compiled frames and kernels.

    def _hear_of_frames(self) -> None:
        dynamo = _module(DYNAMO)
        wrapper, reset = dynamo.convert_frame.CatchErrorsWrapper, dynamo.reset
        original = wrapper.__call__

        @in_place_of(wrapper, "__call__")
        def call(this: Any, frame: Any, cache_entry: Any, frame_state: dict[str, Any]) -> Any:
            return self._compile(lambda state: original(this, frame, cache_entry, state), frame, frame_state)

        @in_place_of(dynamo, "reset")
        def forget() -> None:
            reset()
            self._made, self._by_id, self._waiting, self._left, self._given_up = {}, {}, {}, {}, {}
            self._sizes.restore({})

    def _compile(self, compile_frame: Callable[[dict[str, Any]], Any], frame: Any, frame_state: dict[str, Any]) -> Any:
        types = sys.modules[f"{DYNAMO}.types"]
        key = _key(frame.f_code)
        if key in self._left:
            strategy = types.FrameExecStrategy(types.FrameAction.SKIP, getattr(types.FrameAction, self._left[key]))
            return types.ConvertFrameReturn(frame_exec_strategy=strategy, skip_reason="so it was at the checkpoint")
        for variant in list(self._waiting.get(key, ())):
            with self._loads() as kernels, self._sizes.as_known(variant.sizes):
                try:
                    result = compile_frame(dict(frame_state))
                except Exception:
                    continue
            if result.guarded_code is not None and _guards(result.guarded_code) == variant.guards:
                self._waiting[key].remove(variant)
                variant.kernels = kernels
                self._check(frame.f_code, variant)
                return self._note(frame.f_code, result, variant)
        with self._loads() as kernels, self._sizes.noted() as known, self._counting(len(self._waiting.get(key, ()))):
            result = compile_frame(frame_state)
        if result.guarded_code is not None:
            return self._note(frame.f_code, result, Variant(known, _guards(result.guarded_code), kernels))
        if result.frame_exec_strategy.cur_action == types.FrameAction.RUN_ONLY:
            self._given_up[key] = f"{_shown(key)} (compiled code: PyTorch has given up compiling it, its recompile limit is reached"
        elif result.apply_to_code and result.skip_reason != _OF_PYTORCH:
            self._left[key] = result.frame_exec_strategy.recursive_action.name
        return result

    def _note(self, code: CodeType, result: Any, variant: Variant) -> Any:
        variant.code = result.guarded_code.code
        self._made.setdefault(id(code), (code, []))[1].append(variant)
        self._by_id[str(result.guarded_code.compile_id)] = variant
        return result

    def _check(self, code: CodeType, variant: Variant) -> None:
        """Raise Diverged if a variant's kernels are not those of the first run."""
        expected = variant.expected or []
        if all(now == then for now, then in zip(variant.kernels, expected, strict=False)):
            return
        error = Diverged(
            f"the kernels that PyTorch compiles for {_shown(_key(code))} are not those of the run that took the checkpoint",
            "resume with the cache that it had (TORCHINDUCTOR_CACHE_DIR): kernels may follow from the size that came first, or "
            "from measured times (max-autotune)",
            may_go_back=False,
        )
        if self._fail is not None:
            self._fail(error)
        raise error

    @contextmanager
    def _loads(self) -> Iterator[list[str]]:
        """Inside, a frame is compiled; yield a list that fills with digests of its kernels."""
        before, self._loading = self._loading, []
        try:
            yield self._loading
        finally:
            self._loading = before

    def _counting(self, waiting: int) -> Any:
        """Inside, Dynamo's limit counts the variants still to come, too: it gives up where the first run did."""
        config = sys.modules[f"{DYNAMO}.config"]
        return config.patch(recompile_limit=config.recompile_limit - waiting) if waiting else nullcontext()

    def _hear_of_kernels(self) -> None:
        cache = sys.modules[KERNELS].PyCodeCache
        original = cache.load_by_key_path.__func__

        @wraps(original)
        def load(cls: Any, key: str, path: str, *args: Any, **kwargs: Any) -> Any:
            if args or "linemap" in kwargs:  # a whole graph, not one of its kernels
                self._loaded(path)
            return original(cls, key, path, *args, **kwargs)

        cache.load_by_key_path = classmethod(load)

    def _loaded(self, path: str) -> None:
        folder = sys.modules["torch._inductor.runtime.cache_dir_utils"].cache_dir()
        with open(path, encoding="utf-8") as file:
            digest = _digest(file.read().replace(folder, ""))
        config = sys.modules["torch._inductor.config"]
        self._is_timed |= bool(config.max_autotune or config.max_autotune_gemm or config.max_autotune_pointwise)
        if self._loading is not None:
            self._loading.append(digest)
            return
        current = sys.modules["torch._guards"].CompileContext.current_compile_id()
        variant = self._by_id.get(str(current))
        if variant is not None:
            variant.kernels.append(digest)
            self._check(_code_of(self._made, variant), variant)


_NOT_FOLLOWED: Final = "the compiled code (what torch.compile makes is followed with PyTorch 2.13 to 2.15 alone)"
_OF_PYTORCH: Final = "frame is in the Dynamo skipfiles list"


def has_compiled() -> bool:
    """Return whether Dynamo has met a frame in this process."""
    utils = sys.modules.get(f"{DYNAMO}.utils")
    return utils is not None and bool(utils.counters["frames"]["total"])


def _module(name: str) -> Any:
    return sys.modules[name]


def _digest(text: str) -> str:
    return digest_bytes(_OWN.sub("", text).encode())[:16]


def _guards(guarded: Any) -> str:
    return _digest(_REMARK.sub("", str(guarded.guard_manager)))


def _key(code: CodeType) -> str:
    """Return a key for a frame that is the same in every process: its name, file and line, and a digest of its code."""
    file = _OWN.sub("", code.co_filename).rpartition("/")[2]
    return f"{code.co_qualname} {file}:{code.co_firstlineno} {_digest(sizes.code_text(code))}"


def _shown(key: str) -> str:
    name, place, _ = key.rsplit(" ", 2)
    return f"{name} in {place}"


def _in_order(code: CodeType, variants: list[Variant]) -> list[Variant]:
    """Return the variants that still exist, in the order in which Dynamo tries them."""
    entries = sys.modules[f"{DYNAMO}.eval_frame"]._debug_get_cache_entry_list(code)
    by_code = {id(variant.code): variant for variant in variants}
    return [by_code[id(entry.code)] for entry in entries if id(entry.code) in by_code]


def _code_of(made: Mapping[int, tuple[CodeType, list[Variant]]], variant: Variant) -> CodeType:
    return next(code for code, variants in made.values() if variant in variants)
