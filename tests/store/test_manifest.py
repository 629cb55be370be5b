"""The manifest says which checkpoints a run has committed; torn and damaged lines take no other with them."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from detrain.base import messages
from detrain.base.errors import CheckpointDamaged, CheckpointTooNew, StoreError
from detrain.store import Catalogue, read, write
from detrain.store.catalogue import parse_name
from detrain.store.journal import read_batches
from detrain.store.manifest import Manifest
from tests.store.homes import PROGRAM, Run, epoch, resumed, same, state, with_small_arrays

GOLDEN = Path(__file__).parent / "golden"
NAME = "train-r1-p0-e00001-e000000.h5"


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    return Manifest(tmp_path / "train-r1.manifest")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(messages, "say", lines.append)
    return lines


def test_commits_come_back_in_their_order_and_the_last_one_counts(manifest: Manifest) -> None:
    for name, digest in (("b", "1"), ('a\n"ü', "2"), ("c", "3"), ("b", "4")):
        manifest.commit(name, digest)
    manifest.withdraw("c")
    manifest.withdraw("never there")

    assert list(manifest.digests().items()) == [('a\n"ü', "2"), ("b", "4")]
    assert len(manifest.path.read_bytes().splitlines()) == 6


def test_a_line_reads_as_it_is_documented(manifest: Manifest) -> None:
    manifest.commit(NAME, "0" * 32)

    texts = ['{"version":1}', f'{{"name":"{NAME}","digest":"{"0" * 32}"}}']
    assert manifest.path.read_text() == "".join(f"{xxhash.xxh3_64_hexdigest(text.encode())} {text}\n" for text in texts)


def test_a_tail_torn_at_any_byte_loses_its_line_alone(manifest: Manifest) -> None:
    for name in "abc":
        manifest.commit(name, name * 32)
    data = manifest.path.read_bytes()
    start = data.rindex(b"\n", 0, -1) + 1
    for end in range(start, len(data) - 1):
        manifest.path.write_bytes(data[:end])
        assert list(manifest.digests()) == ["a", "b"]
        manifest.commit("d", "d" * 32)
        assert list(manifest.digests()) == ["a", "b", "d"]


def test_every_flipped_bit_loses_at_most_two_lines_and_invents_none(manifest: Manifest) -> None:
    for name in "abcd":
        manifest.commit(name, name * 32)
    data, whole = manifest.path.read_bytes(), manifest.digests()
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        manifest.path.write_bytes(changed)
        found = manifest.digests()
        assert found.items() <= whole.items()
        assert len(found) >= len(whole) - 2  # two, if the bit was in the line break between them


@given(data=st.binary(max_size=300))
def test_any_bytes_are_read_without_an_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "x.manifest"
    path.write_bytes(data)
    assert Manifest(path).digests() == {}


@pytest.mark.parametrize("text", ['{"name":7}', "[1]", "null", '{"name":"\\ud800","digest":"x"}', '{"digest":"x"}', "{", ""])
def test_a_line_with_a_good_checksum_and_no_sense_is_passed_over(manifest: Manifest, text: str) -> None:
    manifest.path.write_text(f"{xxhash.xxh3_64_hexdigest(text.encode())} {text}\n")
    assert manifest.digests() == {}


def test_a_later_version_is_refused_and_the_file_left(manifest: Manifest) -> None:
    text = '{"version":2}'
    manifest.path.write_text(f"{xxhash.xxh3_64_hexdigest(text.encode())} {text}\n")
    with pytest.raises(CheckpointTooNew, match="has format 2"):
        manifest.digests()


def test_a_manifest_is_not_written_through_a_symbolic_link(manifest: Manifest, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("as it was")
    manifest.path.symlink_to(tmp_path / "secret")
    with pytest.raises(StoreError, match="cannot write manifest"):
        manifest.commit("a", "b")
    assert (tmp_path / "secret").read_text() == "as it was"


# What the manifest adds to the digests.


def listed(folder: Path) -> list[str]:
    return list(Catalogue(folder).manifest(PROGRAM, 1).digests())


def test_every_save_is_listed_with_its_digest(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for number in (1, 2, 3):
        run.save(number)

    digests = run.catalogue.manifest(PROGRAM, 1).digests()
    assert [parse_name(Path(name)).cursor.epoch for name in digests] == [1, 2, 3]  # type: ignore[union-attr]
    for entry in run.catalogue.entries():
        assert run.catalogue.confirm(entry) == digests[entry.path.name]


def test_a_whole_checkpoint_that_is_another_than_the_listed_one_is_refused_and_the_one_before_taken(
    tmp_path: Path, said: list[str]
) -> None:
    run = Run(tmp_path)
    run.save(1)
    run.save(2)
    write(run.catalogue.path(PROGRAM, 1, epoch(2)), state(epoch(2), size=9))

    found = resumed(tmp_path)

    assert found is not None
    assert found[1] == 1
    assert any("is not the one that was written here" in line for line in said)
    assert (tmp_path / "train-r1-p0-e00002-e000000.h5.bad").is_file()
    found[0].save(2)
    assert resumed(tmp_path)[1] == 2  # type: ignore[index]


def test_a_copy_under_another_name_is_refused(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save(1)
    shutil.copy(run.catalogue.path(PROGRAM, 1, epoch(1)), run.catalogue.path(PROGRAM, 1, epoch(2)))

    with pytest.raises(CheckpointDamaged, match="was written as"):
        run.catalogue.confirm(run.catalogue.entries()[-1])
    assert resumed(tmp_path)[1] == 1  # type: ignore[index]


def test_a_complete_checkpoint_without_a_line_is_adopted(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save(1)
    manifest = run.catalogue.manifest(PROGRAM, 1)
    manifest.path.unlink()

    assert resumed(tmp_path)[1] == 1  # type: ignore[index]
    assert listed(tmp_path) == [NAME]


def test_a_damaged_checkpoint_without_a_line_is_not_adopted(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save(1)
    run.save(2)
    run.catalogue.manifest(PROGRAM, 1).path.unlink()
    newest = run.catalogue.path(PROGRAM, 1, epoch(2))
    newest.write_bytes(newest.read_bytes()[:-100])

    assert resumed(tmp_path)[1] == 1  # type: ignore[index]
    assert listed(tmp_path) == [NAME]


def test_a_newest_checkpoint_that_has_gone_is_told(tmp_path: Path, said: list[str]) -> None:
    run = Run(tmp_path)
    run.save(1)
    run.save(2)
    run.catalogue.path(PROGRAM, 1, epoch(2)).unlink()

    assert resumed(tmp_path)[1] == 1  # type: ignore[index]
    assert "which the manifest lists last, is gone" in said[0]


def test_pruned_checkpoints_are_not_missed(tmp_path: Path, said: list[str]) -> None:
    run = Run(tmp_path, keep=1)
    for number in (1, 2, 3):
        run.save(number)

    assert resumed(tmp_path)[1] == 3  # type: ignore[index]
    assert said == []


# Files of each version of the formats, as they were written then.


def test_a_home_of_version_2_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "home"
    shutil.copytree(GOLDEN / "2", folder)
    catalogue = Catalogue(folder)

    assert [entry.cursor for entry in catalogue.entries()] == [epoch(1), epoch(2)]
    for entry in catalogue.entries():
        snapshot = read(entry.path)
        assert same(snapshot, state(entry.cursor, journal_bytes=snapshot.meta.journal_bytes))
    assert listed(folder) == [NAME, NAME.replace("e00001", "e00002")]
    assert read_batches(folder / "train-r1.journal") == {(0, at, batch): bytes([at + 1] * 16) for at in (0, 1) for batch in (0, 1)}
    assert resumed(folder)[1] == 2  # type: ignore[index]


def test_a_home_of_version_3_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "home"
    shutil.copytree(GOLDEN / "3", folder)
    entries = Catalogue(folder).entries()

    assert [entry.cursor for entry in entries] == [epoch(1), epoch(2)]
    for entry in entries:
        found, expected = read(entry.path), with_small_arrays(state(entry.cursor))
        assert same(dataclasses.replace(found, arrays={}), dataclasses.replace(expected, arrays={}))
        assert {name: (each.dtype, each.shape, each.tobytes()) for name, each in found.arrays.items()} == {
            name: (each.dtype, each.shape, each.tobytes()) for name, each in expected.arrays.items()
        }


def test_a_home_of_version_1_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    """Version 1 was never released: its files could only be read by HDF5, which does not survive all damage."""
    folder = tmp_path / "home"
    shutil.copytree(GOLDEN / "1", folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    with pytest.raises(CheckpointDamaged, match="none of the 2 checkpoints of 'train'"):
        resumed(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
