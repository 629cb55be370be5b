"""Checkpoints forged by somebody who knows the format: all digests are right, and the values under them wrong."""

import contextlib

import msgspec
import xxhash

from detrain.base.byte_digests import digest_bytes
from detrain.store.trailer import Extent, ListedArray, digest_of_rest, read_trailer


def forge(path, change=lambda entries, offsets: None, **changes):
    """Change a file's entries of its arrays as someone who knows the format can: all digests are
    right afterwards.
    """
    data = path.read_bytes()
    trailer = read_trailer(lambda offset, count: data[offset : offset + count], len(data))
    body = bytearray(data[: -trailer.size_bytes])
    start = trailer.offsets[-1]
    entries = msgspec.json.decode(body[start : start + trailer.manifest_bytes])
    offsets = list(trailer.offsets[:-1])
    change(entries, offsets)
    manifest = msgspec.json.encode(entries)
    if len(manifest) <= trailer.manifest_bytes:
        manifest = manifest.ljust(trailer.manifest_bytes)
        body[start : start + len(manifest)] = manifest
    else:
        start = len(body)
        body += manifest
    # If the entries give no extents, the reader stops before it needs this digest.
    with contextlib.suppress(ValueError, TypeError, KeyError):
        listed = [msgspec.convert(entry, ListedArray) for entry in entries]
        extents = [Extent(at, each.size_bytes()) for at, each in zip(offsets, listed, strict=False)]
        rest = digest_of_rest(
            lambda offset, count: bytes(body[offset : offset + count]), [*extents, Extent(start, len(manifest))], len(body)
        )
        trailer = msgspec.structs.replace(trailer, rest=rest)
    fields = {"offsets": (*offsets, start), "manifest_digest": digest_bytes(manifest), "manifest_bytes": len(manifest)}
    packed = msgspec.structs.replace(trailer, **{**fields, **changes}).pack()
    path.write_bytes(bytes(body) + packed)


def with_version(path, version):
    """Change the version in a file's trailer."""
    data = path.read_bytes()
    changed = data[:-40] + version.to_bytes(4, "little") + data[-36:-16]
    length = int.from_bytes(data[-48:-40], "little")
    path.write_bytes(changed + xxhash.xxh3_128_digest(changed[-length + 16 :]))
