"""The checkpoint file: what is written is read again, and no damage, however small, is taken for a checkpoint."""

import errno
import os
import resource
import subprocess
import sys
import tempfile
import textwrap
import time
import tracemalloc
from pathlib import Path

import h5py
import ml_dtypes
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from detrain.base.byte_digests import digest_bytes
from detrain.base.digest import begin_array, digest_array, raw_bytes
from detrain.base.dtypes import named_dtype
from detrain.base.errors import CheckpointDamaged, CheckpointTooNew, StoreError
from detrain.store import FORMAT_VERSION, Meta, Snapshot, opened, read, read_meta, verify, write
from detrain.store.trailer import read_trailer
from tests.store.forging import forge, with_version

EXTENSIONS = [
    np.dtype(getattr(ml_dtypes, name))
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "int4", "uint4")
]


def meta(**changes):
    fields = {
        "phase": 0,
        "epoch": 1,
        "batch": 2,
        "cut": "load",
        "run": 1,
        "program": "train",
        "arguments": ("--rate", "0.1"),
        "sources": {"train.py": "00"},
        "environment": {"numpy": "2"},
        "seed": 7,
        "batches_done": 3,
        "journal_bytes": 40,
        "frameworks": {"tensorflow": msgspec.Raw(b'{"a":1}')},
    }
    return Meta(**{**fields, **changes})


def small():
    return Snapshot(
        meta(),
        {"dense/kernel": np.arange(6, dtype="f4").reshape(2, 3), "dense/bias": np.zeros(2, ml_dtypes.bfloat16)},
        {"python": b"12345"},
        b"graph",
        {"00000": np.arange(3), "00001": np.array(["a", "bc"])},
    )


def form(array):
    return (str(array.dtype), array.dtype, array.shape, bytes(raw_bytes(array)))


def parts(snapshot):
    """Everything that a snapshot holds, bit for bit."""
    return (
        snapshot.meta,
        [(key, form(array)) for key, array in snapshot.tensors.items()],
        dict(snapshot.rng),
        snapshot.python,
        {key: form(array) for key, array in snapshot.arrays.items()},
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "train-r1-p0-e00001-l000002.h5"


@pytest.fixture
def written(path):
    write(path, small())
    return path


texts = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=10)
names = st.text(st.characters(blacklist_characters="\0/.", blacklist_categories=["Cs"]), min_size=1, max_size=10)
own_dtypes = st.one_of(
    hnp.scalar_dtypes(),
    hnp.byte_string_dtypes(min_len=1, max_len=4),
    hnp.unicode_string_dtypes(max_len=4),
    hnp.array_dtypes(hnp.scalar_dtypes(), max_size=3, allow_subarrays=True),
    st.sampled_from(["<f16", "<c32", "|V5", "|S0", "<U0"]).map(np.dtype),
    st.sampled_from(EXTENSIONS),
)


@st.composite
def arrays(draw):
    """Arrays of any dtype whose bytes are data, with any bytes; Fortran order and steps included."""
    dtype = draw(own_dtypes)
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    count = int(np.prod(shape)) * dtype.itemsize
    data = draw(st.binary(min_size=count, max_size=count))
    if dtype.itemsize == 0:
        return np.zeros(shape, dtype)
    if dtype.kind == "U" or (dtype.names and "U" in str(dtype)):
        data = bytes(count)  # code points are not any bytes
    array = np.frombuffer(data, dtype).reshape(shape)
    return draw(st.sampled_from([array, array.T, array[::2] if array.ndim else array]))


metas = st.builds(
    meta,
    epoch=st.integers(0, 2**53),
    cut=st.sampled_from(["epoch", "load", "batch", "end"]),
    program=texts,
    arguments=st.lists(texts, max_size=3).map(tuple),
    environment=st.dictionaries(texts, texts, max_size=2),
    not_captured=st.lists(texts, max_size=2).map(tuple),
)
snapshots = st.builds(
    Snapshot,
    metas,
    st.dictionaries(texts, arrays(), max_size=4),
    st.dictionaries(names, st.binary(max_size=9), max_size=2),
    st.binary(max_size=20),
    st.dictionaries(names, arrays(), max_size=3),
)


@given(snapshot=snapshots)
@settings(max_examples=150, deadline=None)
def test_write_then_read_is_the_identity(tmp_path_factory, snapshot):
    path = tmp_path_factory.mktemp("store") / "a.h5"
    digest = write(path, snapshot)
    assert parts(read(path)) == parts(snapshot)
    assert read_meta(path) == snapshot.meta
    assert verify(path) == digest


def test_more_tensors_than_a_compact_group_holds_come_back_in_their_order(path):
    tensors = {f"layer_{number % 7}/{number}": np.full(2, number) for number in range(300, 0, -1)}
    write(path, Snapshot(meta(), tensors, {}, b""))
    assert [(key, array.tolist()) for key, array in read(path).tensors.items()] == [(k, a.tolist()) for k, a in tensors.items()]


def test_any_hdf5_reader_finds_sensible_names_shapes_and_types(written):
    with h5py.File(written) as file:
        found = {}
        file.visititems(lambda name, item: found.update({name: item.shape} if isinstance(item, h5py.Dataset) else {}))
        assert found == {
            "meta": file["meta"].shape,
            "manifest": file["manifest"].shape,
            "tensors/00000 dense kernel": (2, 3),
            "tensors/00001 dense bias": (2,),
            "rng/python": (5,),
            "python/graph": (5,),
            "python/arrays/00000": (3,),
            "python/arrays/00001": (2,),
        }
        kernel = file["tensors/00000 dense kernel"]
        assert kernel.dtype == np.float32
        assert kernel[()].tolist() == [[0, 1, 2], [3, 4, 5]]
        entries = {entry["name"]: entry for entry in msgspec.json.decode(file["manifest"][()].tobytes())}
        described = {"name": kernel.name[1:], "dtype": "<f4", "shape": [2, 3], "key": "dense/kernel"}
        assert entries[kernel.name[1:]] == {**described, "digest": digest_array(kernel[()])}
        assert entries["tensors/00001 dense bias"]["dtype"] == "bfloat16"
        assert entries.keys() == found.keys() - {"manifest"}
        assert file.attrs["digest"].decode() == digest_bytes(file["manifest"][()].tobytes())
        assert file.attrs["format"] == b"detrain checkpoint"
        assert file.attrs["version"] == FORMAT_VERSION
        assert msgspec.json.decode(file["meta"][()].tobytes())["program"] == "train"


def test_arrays_own_their_memory(written):
    snapshot = read(written)
    arrays = [*snapshot.tensors.values(), *snapshot.arrays.values()]
    assert all(array.flags.owndata and array.flags.writeable and array.flags.aligned for array in arrays)


def test_tensors_are_read_as_they_are_asked_for(path):
    tensors = {f"layer_{number}": np.full(3_000_000 + number, number, "f4") for number in range(12)}
    tensors["text"] = np.array([b"a", b"bc"])
    write(path, Snapshot(meta(), tensors, {}, b""))
    del tensors["layer_3"]  # nothing but the comparison holds them
    tracemalloc.start()
    with opened(path) as snapshot:
        for key, array in snapshot.tensors.items():
            assert form(array) == form(tensors.get(key, np.full(3_000_003, 3, "f4"))), key
        most = tracemalloc.get_traced_memory()[1]
        assert form(snapshot.tensors["layer_7"]) == form(tensors["layer_7"])
        assert list(snapshot.tensors) == sorted([*tensors, "layer_3"], key=list(snapshot.tensors).index)
    tracemalloc.stop()
    assert most < 9 * 12_000_000, "more than what is read ahead was held"


def test_damage_is_found_when_a_tensor_is_asked_for_and_other_errors_pass(path):
    write(path, Snapshot(meta(), {"a": np.arange(4), "b": np.arange(5)}, {}, b""))
    with h5py.File(path) as file:
        offset = file["tensors/00001 b"].id.get_offset()
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"\7")
    with opened(path) as snapshot:
        assert np.array_equal(snapshot.tensors["a"], np.arange(4))
        with pytest.raises(CheckpointDamaged, match="tensors/00001 b has digest"):
            snapshot.tensors["b"]
        with pytest.raises(CheckpointDamaged, match="tensors/00001 b has digest"):
            list(snapshot.tensors.items())
    with pytest.raises(ValueError, match="of the caller"), opened(path):
        raise ValueError("of the caller")


def test_equal_snapshots_give_equal_bytes(tmp_path):
    write(tmp_path / "one.h5", small())
    time.sleep(1.1)  # HDF5 keeps times in seconds
    write(tmp_path / "other.h5", small())
    assert (tmp_path / "one.h5").read_bytes() == (tmp_path / "other.h5").read_bytes()


def test_the_digest_is_of_the_state_not_of_the_name(tmp_path):
    other = Snapshot(meta(batch=3), small().tensors, small().rng, small().python, small().arrays)
    assert write(tmp_path / "one.h5", small()) == write(tmp_path / "two.h5", small()) != write(tmp_path / "three.h5", other)


def test_writing_replaces_an_older_checkpoint_as_a_whole(written):
    newer = Snapshot(meta(epoch=2), {}, {}, b"newer")
    write(written, newer)
    assert parts(read(written)) == parts(newer)


def test_the_leftover_of_a_killed_process_with_our_number_is_no_hindrance(path):
    path.with_name(f".{path.name}.{os.getpid()}.tmp").write_bytes(b"half")
    write(path, small())
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def outcome(path):
    """What reading gives: the parts of a snapshot, or the class of the store's error. Any other exception passes."""
    try:
        return parts(read(path))
    except StoreError as error:
        return type(error)


def test_every_flipped_bit_is_detected_or_harmless(written, tmp_path):
    whole, expected = written.read_bytes(), parts(small())
    damaged = tmp_path / "damaged.h5"
    for offset in range(len(whole)):
        data = bytearray(whole)
        data[offset] ^= 1 << (offset % 8)
        damaged.write_bytes(data)
        assert outcome(damaged) in (CheckpointDamaged, CheckpointTooNew, StoreError, expected), offset


def test_every_length_but_the_whole_is_detected(written, tmp_path):
    whole = written.read_bytes()
    torn = tmp_path / "torn.h5"
    for length in [*range(64), *range(64, len(whole), 37), len(whole) - 1]:
        torn.write_bytes(whole[:length])
        assert outcome(torn) is CheckpointDamaged, length


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=40))
@settings(max_examples=150, deadline=None)
def test_scattered_damage_is_detected_or_harmless(places):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.h5"
        write(path, small())
        data = bytearray(path.read_bytes())
        for offset, byte in places:
            data[offset % len(data)] = byte
        path.write_bytes(data)
        assert outcome(path) in (CheckpointDamaged, CheckpointTooNew, parts(small()))


def test_a_forged_file_without_a_change_is_read(written):
    """The oracle of the tests below: what is refused there is refused for what was changed."""
    forge(written)
    assert outcome(written) == parts(small())


def second(change):
    """A change of what the manifest says of the second tensor."""
    return lambda entries, _offsets: change(next(entry for entry in entries if entry["name"].startswith("tensors/00001")))


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [3]},
        {"shape": [-2]},
        {"shape": [2, -1, -1]},
        {"digest": "0" * 32},
        {"dtype": "<f4"},
        {"name": "meta"},
        {"name": 7},
    ],
)
def test_a_manifest_that_says_otherwise_than_the_arrays_is_refused(written, change):
    forge(written, second(lambda entry: entry.update(change)))
    assert outcome(written) is CheckpointDamaged


@pytest.mark.parametrize(
    "change",
    [
        lambda entries, _offsets: entries.pop(),
        lambda entries, _offsets: entries.append(entries[1] | {"name": "tensors/00009 x"}),
        lambda entries, offsets: (entries.append(entries[1] | {"name": "tensors/00009 x"}), offsets.append(offsets[1])),
        lambda entries, offsets: (entries.pop(0), offsets.pop(0)),
        lambda _entries, offsets: offsets.reverse(),
        lambda _entries, offsets: offsets.__setitem__(1, offsets[1] + 1),
        lambda _entries, offsets: offsets.__setitem__(1, 1 << 40),
        lambda _entries, offsets: offsets.__setitem__(1, (1 << 64) - 1),
        lambda _entries, offsets: offsets.clear(),
    ],
)
def test_arrays_that_lie_elsewhere_or_are_more_or_fewer_are_refused(written, change):
    forge(written, change)
    assert outcome(written) is CheckpointDamaged


@pytest.mark.parametrize("changes", [{"manifest_bytes": 1 << 60}, {"manifest_bytes": 0}, {"offsets": (0,)}, {"rest": bytes(16)}])
def test_a_trailer_that_says_otherwise_than_the_file_is_refused(written, changes):
    forge(written, **changes)
    assert outcome(written) is CheckpointDamaged


@pytest.mark.parametrize("manifest", [b"", b"7", b"[[]]", b'[{"name":"a"}]', b"[" * 5000, b'{"a"', b"\xff"])
def test_a_manifest_without_sense_is_refused(written, manifest):
    data = written.read_bytes()
    trailer = read_trailer(lambda offset, count: data[offset : offset + count], len(data))
    body = data[: -trailer.size_bytes]
    fields = {"manifest_digest": digest_bytes(manifest), "manifest_bytes": len(manifest)}
    changed = msgspec.structs.replace(trailer, offsets=(*trailer.offsets[:-1], len(body)), **fields)
    written.write_bytes(body + manifest + changed.pack())
    assert outcome(written) is CheckpointDamaged


def test_any_change_through_hdf5_is_detected(written):
    whole = written.read_bytes()
    for change in (
        lambda file: file.attrs.__setitem__("digest", "0" * 32),
        lambda file: file.__delitem__("rng/python"),
        lambda file: file.__setitem__("python/arrays/00009", np.zeros(3)),
        lambda file: file.move("tensors/00000 dense kernel", "tensors/other"),
        lambda file: file["tensors/00000 dense kernel"].__setitem__((0, 0), 1.0),
        lambda file: file.__setitem__("tensors/00000 x", h5py.ExternalLink("/etc/passwd", "/")),
    ):
        written.write_bytes(whole)
        with h5py.File(written, "r+") as file:
            change(file)
        assert outcome(written) is CheckpointDamaged


def test_no_link_and_no_external_file_is_followed_even_behind_right_digests(written, tmp_path):
    """HDF5's structure says that all lies in another file; what is read lies in this one."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"0123456789" * 100)
    data = written.read_bytes()
    trailer = read_trailer(lambda offset, count: data[offset : offset + count], len(data))
    with h5py.File(written, "r+") as file:
        for name in ("meta", "tensors", "python/arrays/00000"):
            del file[name]
            file[name] = h5py.ExternalLink(str(secret), "/" + name)
        file.create_dataset("tensor", (10,), np.uint8, external=[(str(secret), 0, h5py.h5f.UNLIMITED)])
    changed = written.read_bytes()
    written.write_bytes(changed + bytes(max(len(data) - len(changed), 0)) + trailer.pack())
    forge(written)
    assert outcome(written) in (CheckpointDamaged, parts(small()))


def test_a_newer_format_is_refused_and_named(written):
    with_version(written, FORMAT_VERSION + 1)
    for reader in (read, read_meta, verify):
        with pytest.raises(CheckpointTooNew, match=f"has format {FORMAT_VERSION + 1}"):
            reader(written)


@pytest.mark.parametrize("version", [0, 1])
def test_a_version_that_never_was_is_refused(written, version):
    with_version(written, version)
    with pytest.raises(CheckpointDamaged, match=f"has format {version}"):
        read(written)


@pytest.mark.parametrize("content", [b"", b"text\n", b"\x89HDF\r\n\x1a\n", b"\x89HDF\r\n\x1a\n" + bytes(5000), bytes(100000)])
def test_what_is_no_hdf5_file_is_refused(path, content):
    path.write_bytes(content)
    assert outcome(path) is CheckpointDamaged


def test_an_hdf5_file_of_another_program_is_refused(path):
    with h5py.File(path, "w") as file:
        file["weights"] = np.zeros(3)
    with pytest.raises(CheckpointDamaged, match="is not a whole checkpoint of detrain"):
        read(path)


def test_a_path_without_a_file_is_an_error_of_the_store(tmp_path):
    for each in (tmp_path, tmp_path / "missing.h5"):
        with pytest.raises(StoreError, match="no checkpoint at"):
            read(each)


@pytest.mark.parametrize("size", [1 << 30, 1 << 50, 1 << 62, 1 << 100])
@pytest.mark.parametrize("dtype", ["<f4", "|S0", "<U0", "|V9999999", '[["a", "<f8", [1000000]]]'])
def test_a_claimed_size_takes_no_memory(written, size, dtype):
    digest = begin_array(named_dtype(dtype), (size,)).hexdigest()  # right, for those whose elements have no bytes
    forge(written, second(lambda entry: entry.update(shape=[size], dtype=dtype, digest=digest)))
    tracemalloc.start()
    assert outcome(written) is CheckpointDamaged
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()


def test_one_array_under_many_names_takes_no_memory(path):
    write(path, Snapshot(meta(), {"a": np.zeros(1 << 20, np.uint8)}, {}, b""))

    def add(entries, offsets):
        for number in range(1000):
            entries.append(entries[1] | {"name": f"tensors/{number:05d} b"})
            offsets.append(offsets[1])

    forge(path, add)
    tracemalloc.start()
    assert outcome(path) is CheckpointDamaged
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()


@pytest.mark.parametrize(
    "name", ["complex257", "|O", "O", "<M8[furlongs]", "__name__", "finfo", "[1, 2]", '[["a", "|O"]]', "[" * 5000]
)
def test_a_dtype_that_is_none_is_refused(written, name):
    forge(written, second(lambda entry: entry.update(dtype=name)))
    with pytest.raises(CheckpointDamaged, match="dtype"):
        read(written)


def test_an_array_of_objects_is_never_written(path):
    with pytest.raises(ValueError, match="not data"):
        write(path, Snapshot(meta(), {"a": np.array([object()])}, {}, b""))
    assert list(path.parent.iterdir()) == []


LIMITED = """
    import os, resource, sys
    from pathlib import Path
    from detrain.base.errors import StoreError
    from detrain.store import read, write
    from tests.store.test_layout import small

    path = Path(sys.argv[1])
    write(path, small())
    size, failed = path.stat().st_size, 0
    path.unlink()
    for limit in range(0, size + 100, 61):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            write(path, small())
        except StoreError as error:
            failed += 1
            assert "File too large" in str(error)
            assert os.listdir(path.parent) == []
        else:
            assert limit >= size
            read(path)
    assert failed == -(-size // 61), failed
    print("done")
"""


def test_a_write_that_fails_at_any_byte_leaves_nothing_and_does_not_end_the_process(path):
    """In a process of its own: HDF5, left alone with such an error, ends it with a segmentation fault."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LIMITED), str(path)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)


@pytest.mark.parametrize("call", ["open", "pwrite", "fsync", "replace", "ftruncate"])
def test_an_error_of_the_system_leaves_nothing_and_keeps_the_older_checkpoint(written, monkeypatch, call):
    before = written.read_bytes()

    def fail(*_arguments, **_keywords):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(StoreError, match="No space left on device") as caught:
        write(written, Snapshot(meta(), {"a": np.zeros(100000)}, {}, b"new"))
    monkeypatch.undo()
    assert str(caught.value).count("\n") == 1
    assert [each.name for each in written.parent.iterdir()] == [written.name]
    assert written.read_bytes() == before


def test_an_interrupt_leaves_nothing(path, monkeypatch):
    def interrupt(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write(path, small())
    assert list(path.parent.iterdir()) == []


def test_a_folder_that_is_not_there_is_an_error_of_the_store(tmp_path):
    with pytest.raises(StoreError, match="cannot write checkpoint"):
        write(tmp_path / "missing" / "a.h5", small())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_an_error_of_the_store(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="Permission denied"):
        write(tmp_path / "a.h5", small())


def test_a_checkpoint_that_may_not_be_read_is_not_called_damaged(written, monkeypatch):
    def refuse(*_arguments, **_keywords):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreError, match="Permission denied") as caught:
        read(written)
    assert not isinstance(caught.value, CheckpointDamaged)


def test_saving_leaves_no_file_open(written):
    before = set(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else set()
    write(written, small())
    read(written)
    assert not before or set(os.listdir("/proc/self/fd")) == before


def test_the_limit_on_file_sizes_was_not_left_changed():
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
