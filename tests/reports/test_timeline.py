"""What happened to a run is told by its chronicle: starts, kills, resumes, checkpoints, gaps."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from detrain.base.errors import StoreError
from detrain.cli import main
from detrain.reports.timeline import page_of, rows_of, timelines
from detrain.store import Catalogue
from detrain.store.chronicle import CheckpointSaved, Chronicle, Ended, Event, Source, Started
from detrain.store.journal import Journal

EPOCH_1, EPOCH_2, END = "train-r1-p0-e00001-e000000.h5", "train-r1-p0-e00002-e000000.h5", "train-r1-p0-e00003-z000000.h5"
KILLED_AND_RESUMED: list[Event] = [
    Source("train.py", "0" * 32, "x = 1\n"),
    Started(1000.0, 7, "here", environment={"torch": "2.13"}),
    CheckpointSaved(1010.0, EPOCH_1, 1234, 0.5, 5, 0.25),
    CheckpointSaved(1020.0, EPOCH_2, 1235, 0.25, 10, 0.125),
    Started(1100.0, 9, "here", since=EPOCH_2, environment={"torch": "2.14"}),
    Started(1101.0, 9, "here", since=EPOCH_2, environment={"torch": "2.14"}),
    CheckpointSaved(1111.0, END, 1236, 0.25, 15, float("nan")),
    Ended(1112.0, 9),
]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a journal and a chronicle, and one of three checkpoints."""
    journal = Journal(tmp_path / "train-r1.journal", 0)
    for batch in range(15):
        journal.add_batch((0, batch // 5, batch % 5), bytes(16))
    journal.close()
    for event in KILLED_AND_RESUMED:
        Catalogue(tmp_path).chronicle("train", 1).add(event)
    (tmp_path / END).touch()
    return tmp_path


def test_starts_kills_and_resumes_are_told_apart(home: Path) -> None:
    (found,) = timelines(home, "train")

    assert [(each.since, each.end, each.seen) for each in found.processes] == [
        ("", "killed", 1020.0),
        ("2:0", "started again", 1101.0 - 1),
        ("2:0", "ended", 1112.0),
    ]
    assert found.gaps == [(1020.0, 1100.0)]
    assert found.processes[1].changed == ["torch was '2.13', is '2.14'"]
    assert (found.batches, found.last) == (15, "2:4")
    assert [each.is_there for process in found.processes for each in process.checkpoints] == [False, False, True]
    assert [what for _when, what, _about in rows_of(found)] == [
        *("starts anew", "checkpoint 1:0", "checkpoint 2:0", "killed"),
        *("goes on from 2:0", "started again", "goes on from 2:0", "checkpoint 3:0 (end)", "ended"),
    ]


def test_alarms_are_among_what_happened(home: Path) -> None:
    (home / "train-r1.alarms.jsonl").write_text('{"at": "1:3", "action": "back", "key": "w"}\n')

    (found,) = timelines(home, "train")

    assert rows_of(found)[-1] == ("", "alarm at 1:3", "back w")


def test_the_page_is_one_file_with_the_gap_marked(home: Path) -> None:
    page = page_of(timelines(home, "train"))

    assert "http" not in page.replace("http-equiv", "")
    picture = ET.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])
    assert [each.get("class") for each in picture if each.tag == "rect"] == ["gap"]
    assert picture[0][0].text == "no process for 80.0 s"
    assert "nan" not in "".join(each.get("points", "") for each in picture)


def test_the_command_prints_a_table_json_and_a_page(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "train.py"
    program.write_text("x = 1\n")

    assert main(["timeline", "--ckpt", str(home), "--html", str(tmp_path / "page.html"), str(program)]) == 0
    assert "goes on from 2:0" in capsys.readouterr().out
    assert main(["timeline", "--ckpt", str(home), "--json", str(program)]) == 0
    assert json.loads(capsys.readouterr().out)[0]["processes"][0]["end"] == "killed"
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_a_home_without_the_run_says_so(home: Path) -> None:
    with pytest.raises(StoreError, match="has no run of other"):
        timelines(home, "other")


def test_lines_that_are_torn_or_of_another_kind_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "train-r1.chronicle"
    chronicle = Chronicle(path)
    chronicle.add(KILLED_AND_RESUMED[1])
    with path.open("ab") as file:
        file.write(b'{"kind":"of later"}\n{"kind":"sour')

    chronicle.add(KILLED_AND_RESUMED[-1])

    assert chronicle.events() == [KILLED_AND_RESUMED[1], KILLED_AND_RESUMED[-1]]


def test_sources_are_kept_once_and_come_back_by_their_digests(tmp_path: Path) -> None:
    from detrain.base.byte_digests import digest_source

    chronicle = Chronicle(tmp_path / "train-r1.chronicle")
    texts = {"a.py": b"x = 1\n", "b.py": "# coding: latin-1\nx = 'é'\n".encode("latin-1")}
    digests = {name: digest_source(data) for name, data in texts.items()}
    for _again in range(2):
        chronicle.keep_sources({name: (digests[name], data) for name, data in texts.items()})

    assert len(chronicle.events()) == 2
    assert chronicle.sources(digests) == texts
    assert chronicle.sources({"a.py": digests["b.py"]}) == {}
