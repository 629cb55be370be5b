"""What is cut off of files, and where it is kept."""

from __future__ import annotations

from pathlib import Path

from detrain.python.outside.open_files import _set_back


def test_each_tail_is_kept(tmp_path: Path) -> None:
    home = tmp_path / "ckpt"
    home.mkdir()
    texts = []
    for folder in (tmp_path / "a", tmp_path / "b", tmp_path / "a", tmp_path / "a", tmp_path / ("long" * 50) / ("name" * 50)):
        folder.mkdir(parents=True, exist_ok=True)
        texts += [f"of {folder.name}, number {min(len(texts), 2)}"]
        (folder / "log.csv").write_text(f"head {texts[-1]}")
        _set_back(str(folder / "log.csv"), 5, home, "at the checkpoint")
        assert (folder / "log.csv").read_text() == "head "

    tails = {file.name: file.read_text() for file in home.glob("*.tail")}
    assert tails.pop(next(name for name in tails if name.startswith("tail-"))) == texts[4]
    assert tails == {"a-log.csv.tail": texts[0], "b-log.csv.tail": texts[1], "a-log.csv.2.tail": texts[2]}
