"""Fuzzing of all readers of files: `python -m tests.fuzz TARGET SECONDS` (guided by coverage, if atheris is installed).

A target makes a file of any bytes; if the format has checksums, also one with right checksums, so that the code behind
their check is reached. Reading may only succeed, or raise an error of detrain.
"""

from __future__ import annotations

import contextlib
import csv
import importlib
import random
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import xxhash

from detrain.base.byte_digests import digest_bytes
from detrain.base.errors import DetrainError
from detrain.base.structure import read_info
from detrain.faults.isca2023_csv import parse_fault, read_fault
from detrain.store import read, read_meta, verify
from detrain.store.journal import Journal, read_batches
from detrain.store.manifest import Manifest
from detrain.store.trailer import Trailer

TOKENS: Final = (b"\xff", b"\0", b"[", b"{}", b"-1", b"1e999", b"null", b'"', b",", b"\n", b"\xc1", b"9" * 30)
_folder: Final = Path(tempfile.mkdtemp(prefix="detrain-fuzz-"))
GOLDEN: Final = Path(__file__).parent / "store" / "golden" / "2"


def _file(data: bytes) -> Path:
    path = _folder / "any"
    path.write_bytes(data)
    return path


def manifest(data: bytes) -> None:
    """Read the bytes as lines of a manifest, and with the right checksum before each line."""
    Manifest(_file(data)).digests()
    lines = (f"{xxhash.xxh3_64_hexdigest(line)} ".encode() + line for line in data.split(b"\n"))
    Manifest(_file(b"\n".join(lines))).digests()


def journal(data: bytes) -> None:
    """Read the bytes as a journal, and with each part between two line breaks as the payload of a record."""
    for content in (
        data,
        b"".join(struct.pack("<II", len(part), xxhash.xxh32_intdigest(part)) + part for part in data.split(b"\n")),
    ):
        path = _file(content)
        for act in (lambda path=path: Journal(path, 0).close(), lambda path=path: read_batches(path)):
            _let_err(act)  # type: ignore[arg-type]


def inst_info(data: bytes) -> None:
    """Read the bytes as an inst.info, detrain's or the original project's."""
    read_info(_file(data), _folder)


def checkpoint(data: bytes) -> None:
    """Read the bytes as a checkpoint, and as the manifest and offsets of one with right digests in its trailer."""
    cut = max(len(data) - 16, 0)
    offsets = tuple(number for (number,) in struct.iter_unpack("<Q", data[cut:])) if len(data) >= 16 else ()
    trailer = Trailer((*offsets, 0), bytes(16), digest_bytes(data[:cut]), cut)
    for content in (data, data + trailer.pack()):
        path = _file(content)
        for act in (read, read_meta, verify):
            _let_err(lambda act=act, path=path: act(path))  # type: ignore[misc]


def fault(data: bytes) -> None:
    """Read the bytes as a fault file of another project, which is CSV."""
    _let_err(lambda: read_fault(_file(data)))
    try:
        lines = list(csv.reader(data.decode("latin-1").splitlines()))
    except csv.Error:
        return
    parse_fault(lines, "any")


def _let_err(act: Callable[[], object]) -> None:
    with contextlib.suppress(DetrainError):
        act()


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    "manifest": manifest,
    "journal": journal,
    "inst_info": inst_info,
    "checkpoint": checkpoint,
    "fault": fault,
}


def seeds(target: str) -> list[bytes]:
    """Return valid files, from which mutations start."""
    if target == "manifest":
        return [b"\n".join(line.partition(b" ")[2] for line in (GOLDEN / "train-r1.manifest").read_bytes().splitlines())]
    if target == "journal":
        return [(GOLDEN / "train-r1.journal").read_bytes(), b"\x92\xa1v\x01\n\x95\xa1b\x00\x00\x00\xc4\x01x"]
    if target == "checkpoint":
        manifest = (
            b'[{"name":"meta","dtype":"|u1","shape":[2],"digest":""},{"name":"python/graph","dtype":"<f4","shape":[],"digest":""}]'
        )
        return [(GOLDEN / "train-r1-p0-e00001-e000000.h5").read_bytes(), manifest + struct.pack("<QQ", 4, 6)]
    if target == "inst_info":
        return [b'{"nests":[],"format":1,"source":"x"}', b"outer loop: 3\ninner loop: 5\n"]
    return [b"layer,conv1\nposition,1,2\nvalue,0.5\n"]


def tried(target: str, data: bytes) -> None:
    """Have a target read the bytes. Raises any error that is not one of detrain."""
    _let_err(lambda: TARGETS[target](data))


def mutated(data: bytes, draw: random.Random) -> bytes:
    """Return bytes with some changes: flip a bit, delete, repeat, or insert bytes that have a meaning."""
    changed = bytearray(data)
    for _ in range(draw.randint(1, 6)):
        at = draw.randint(0, len(changed))
        kind = draw.randrange(4)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del changed[at : at + draw.randint(1, 9)]
        elif kind == 2:
            changed[at:at] = changed[at : at + draw.randint(1, 30)]
        else:
            changed[at:at] = draw.choice(
                [b"\xff", b"\0", b"[", b"{}", b"-1", b"1e999", b"null", b'"', b",", b"\n", b"\xc1", b"9" * 30]
            )
    return bytes(changed)


def run(target: str, count: int, seed: int) -> None:
    """Try `count` mutations of the seeds, and of their mutations."""
    draw, pool = random.Random(seed), seeds(target)
    for _ in range(count):
        data = mutated(draw.choice(pool), draw)
        tried(target, data)
        if len(pool) < 200:
            pool.append(data)


def main() -> None:
    """Fuzz one target for some seconds."""
    target, seconds = sys.argv[1], float(sys.argv[2])
    try:
        import atheris
    except ImportError:
        end, turns = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            run(target, 100, turns)
            turns += 1
        print(f"{target}: {100 * turns} executions in {seconds:.0f} s, without atheris")
        return
    corpus = _folder / "corpus"
    corpus.mkdir()
    for number, data in enumerate(seeds(target)):
        (corpus / str(number)).write_bytes(data)
    with atheris.instrument_imports(include=["detrain"]):
        for name in [name for name in sys.modules if name.split(".")[0] == "detrain"]:
            del sys.modules[name]
        instrumented = importlib.import_module("tests.fuzz")
    options = [f"-max_total_time={seconds:.0f}", "-print_final_stats=1", "-rss_limit_mb=4096", str(corpus)]
    atheris.Setup([sys.argv[0], *options], lambda data: instrumented.tried(target, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
