"""Reports about checkpoints, as rows for JSON: the list of a folder or a mirror, the contents of one, and the check
whether they are as they were written.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from detrain.base import messages
from detrain.base.digest import digest_array
from detrain.base.errors import CheckpointDamaged, DetrainError, StoreError
from detrain.base.plain_types import CONTAINERS
from detrain.export.object_tensors import layouts_of, tensors_of
from detrain.python.codec.graph_files import unpack
from detrain.python.codec.table import kind_named
from detrain.python.inspect.object_graph import Item, Node, is_reference
from detrain.python.process.random_streams import RngState
from detrain.store import Catalogue, Snapshot, read, read_meta, verify
from detrain.store.catalogue import parse_name
from detrain.store.journal import Ends
from detrain.store.manifest import Manifest
from detrain.store.mirror.remote import Remote, programs_at
from detrain.store.mirror.restore import damage_in, without
from detrain.store.mirror.states import NotWhole, State, get_state, state_names

_ILLEGIBLE: Final = "lines that are damaged, or were torn by a crash: {}; what they listed is confirmed by its own digests alone"


def list_checkpoints(place: Path) -> list[dict[str, Any]]:
    """Return a row for each checkpoint of a folder, or for a single one; an unreadable one has `error` in its row.

    Raises StoreError.
    """
    rows = []
    for path in _files(place):
        try:
            stat = path.stat()
        except FileNotFoundError:  # a run has deleted it meanwhile
            continue
        row: dict[str, Any] = {"file": path.name, "bytes": stat.st_size, "age_s": round(time.time() - stat.st_mtime, 1)}
        try:
            meta = read_meta(path)
        except DetrainError as error:
            if not path.exists():
                continue
            row["error"] = error.what
        else:
            entry = parse_name(path)
            row |= {
                "program": meta.program,
                "run": meta.run,
                "cursor": str(entry.cursor) if entry else f"{meta.epoch}:{meta.batch}",
                "cut": meta.cut,
                "arguments": list(meta.arguments),
            }
        rows.append(row)
    return rows


def describe_checkpoint(place: Path) -> dict[str, Any]:
    """Return the contents of a checkpoint, or of a folder's newest. Raises StoreError, CheckpointDamaged."""
    files = _files(place)
    if not files:
        raise StoreError(f"no checkpoint in {str(place)!r}", "give a checkpoint, or a folder that holds some")
    return _content(files[-1], read(files[-1]))


def check_checkpoints(place: Path) -> tuple[list[dict[str, Any]], int]:
    """Check the digests of a checkpoint, or of all in a folder; in a folder also its manifests and journals.

    Returns a row for each, and the exit status of the last error, or 0. Raises StoreError if there is no checkpoint.
    """
    rows: list[dict[str, Any]] = []
    status = 0
    ends: dict[Path, Ends] = {}
    for path in _files(place):
        try:
            entry = parse_name(path)
            digest = verify(path) if entry is None else Catalogue(path.parent).confirm(entry)
            if entry is not None and place.is_dir():
                journal = Catalogue(place).journal(entry.program, entry.run)
                if journal not in ends:
                    ends[journal] = Ends.of(journal)
                ends[journal].require(read_meta(path).journal_bytes)
            rows.append({"file": path.name, "good": True, "digest": digest})
        except DetrainError as error:
            if not path.exists():  # a run has deleted it meanwhile
                continue
            rows.append({"file": path.name, "good": False, "error": error.what})
            status = error.exit_code
    for path in sorted(place.glob("*.manifest")) if place.is_dir() else ():
        manifest = Manifest(path)
        listed = list(manifest.digests())
        if listed and not (place / listed[-1]).exists():
            rows.append({"file": listed[-1], "good": False, "error": f"is gone; {path.name} lists it last"})
            status = CheckpointDamaged.exit_code
        if count := manifest.illegible():
            rows.append({"file": path.name, "good": True, "note": _ILLEGIBLE.format(count)})
    if not rows:
        raise StoreError(f"no checkpoint in {str(place)!r}", "give a checkpoint, or a folder that holds some")
    return rows, status


def _files(place: Path) -> list[Path]:
    if place.is_dir():
        return [entry.path for entry in Catalogue(place).entries()]
    if not place.is_file():
        what = "is neither a file nor a folder" if place.exists() else "is not there"
        raise StoreError(f"{str(place)!r} {what}", "give a checkpoint, or a folder that holds some")
    return [place]


def _content(path: Path, snapshot: Snapshot) -> dict[str, Any]:
    graph = unpack(snapshot.python, snapshot.arrays)
    layouts = layouts_of(snapshot)
    return {
        "file": str(path),
        "meta": json.loads(msgspec.json.encode(snapshot.meta)),
        "tensors": [
            {"name": key, "shape": list(array.shape), "dtype": str(array.dtype), "digest": digest_array(array)}
            | ({"spread": layouts[key]} if key in layouts else {})
            for key, array in tensors_of(snapshot).items()
        ],
        "rng": {name: {"bytes": len(state), "position": _position(name, state)} for name, state in snapshot.rng.items()},
        "python": {key.replace("|", " "): _brief(item, graph.nodes, snapshot) for key, item in graph.roots.items()},
    }


def _position(name: str, packed: bytes) -> int | str:
    """Return the position in the Mersenne Twister's block; for another bit generator its name."""
    if name.startswith("torch"):  # packed in PyTorch's own form
        return "torch.Generator"
    state = RngState.unpack(packed)
    return str(json.loads(state.other)["bit_generator"]) if state.other else int(state.words[-1])


def _brief(item: Item, nodes: list[Node], snapshot: Snapshot) -> str:
    """Return a short text of a value, on one line."""
    if not is_reference(item):
        return repr(item)
    node = nodes[item[0]]
    kind = node.kind
    if kind in ("ndarray", "tensor"):
        array = snapshot.arrays[node.items[0][0]]
        return f"{kind} {array.dtype}{list(array.shape)}" if array.ndim else f"{kind} {array[()]}"
    if kind in CONTAINERS:
        held = node.named or node.items
        parts = [part for part in node.items[:4] if kind in ("list", "tuple") or not isinstance(part, list)]
        shown = ", ".join(_brief(part, nodes, snapshot) for part in parts)
        return f"{kind} of {len(held)}" + (f" [{shown}{', ...' if len(held) > 4 else ''}]" if shown else "")
    if "." in kind and kind_named(kind).holds == "nothing":
        return f"{kind} {', '.join(_brief(part, nodes, snapshot) for part in node.items)}".rstrip()
    name = node.data[0] if isinstance(node.data, list) and node.data else node.data
    return f"{kind} {name}" if isinstance(name, str) else kind


def list_states(url: str) -> list[dict[str, Any]]:
    """Return a row for each state of each program in a mirror, the newest last. Raises MirrorFailed, UsageError."""
    return [_row(program, state) for program in programs_at(url) for state in _states(Remote(url, program))]


def check_states(url: str) -> list[dict[str, Any]]:
    """Return a row for each state in a mirror, whose parts are all read: `good`, or else why it is not, and the
    checkpoint from which a run would go on nevertheless. Raises MirrorFailed if the mirror does not answer, UsageError.
    """
    rows = []
    for program in programs_at(url):
        remote, whole = Remote(url, program), set[str]()
        for name in state_names(remote):
            why, left = "", None
            try:
                state = get_state(remote, name)
                lost = damage_in(remote, state, whole)
                why, left = next(iter(lost.values()), ""), without(state, lost, state.checkpoint)
            except NotWhole as error:
                why = error.what
            goes_on = "" if left is None else left.checkpoint
            rows.append({"program": program, "state": name, "good": not why, "why": why, "goes on": goes_on})
    return rows


def _states(remote: Remote) -> Iterator[State]:
    for name in state_names(remote):
        try:
            yield get_state(remote, name)
        except NotWhole as error:
            messages.warn(error.what)


def _row(program: str, state: State) -> dict[str, Any]:
    entry = parse_name(Path(state.checkpoint))
    return {
        "program": program,
        "run": state.run,
        "cursor": str(entry.cursor) if entry is not None else "",
        "size": state.size,
        "made": state.made,
        "by": state.host,
        "checkpoint": state.checkpoint,
    }
