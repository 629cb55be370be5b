"""The scripts of SASSIFI and NVBitFI read what is exported, and lists that they make are taken.

They are not ours to keep: DETRAIN_UPSTREAM names a folder with checkouts of NVlabs/sassifi and NVlabs/nvbitfi as
`sassifi` and `nvbitfi`. Without it the fast tests beside this one read as those scripts do. They run in processes of
their own, because they exit, and read their settings as they are imported.
"""

from __future__ import annotations

import collections
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from detrain.base.errors import FaultInvalid
from detrain.faults.exchange.kernels import nvbitfi_kernels, sassifi_kernels
from detrain.faults.exchange.lists import export_tree, parse_name, read_list
from detrain.faults.population.groups import SASSIFI_MODELS, Group, NvbitfiGroup
from tests.population import made, made_rows

UPSTREAM = os.environ.get("DETRAIN_UPSTREAM", "")
PROFILE = made.profile()
ROWS = made_rows.rows(500)


def readme_value(folder: Path, name: str) -> str:
    found = re.search(rf"{name} = (.*)", (folder / "README.txt").read_text())
    assert found is not None
    return found[1]


def test_results_of_each_list_are_all_its_trials(tmp_path: Path) -> None:
    export_tree(tmp_path, PROFILE, ROWS, tool="sassifi", app="toy")
    logs = tmp_path / "logs/detrain/toy"
    counts: collections.Counter[tuple[int, int, int]] = collections.Counter()
    for path in logs.glob("results-*.txt"):
        name = parse_name(path)
        lines = path.read_text().splitlines()
        assert len(lines) == len(read_list(logs / "injection-list" / name.list_name))
        counts.update((name.group, name.model, int(line.split(":")[6])) for line in lines)

    assert counts == collections.Counter((row.group, SASSIFI_MODELS.index(row.model), row.category) for row in ROWS)
    assert eval(readme_value(tmp_path, "inst_value_igid_bfm_map")).keys() == {row.group for row in ROWS}


def test_trials_without_a_category_have_that_of_their_outcome(tmp_path: Path) -> None:
    rows = made_rows.rows(60, tells=False)
    export_tree(tmp_path, PROFILE, rows, tool="nvbitfi", app="toy")

    found: collections.Counter[int] = collections.Counter()
    for path in (tmp_path / "logs/toy").glob("results-*igid6*.txt"):  # all with a destination
        found.update(int(line.split(";")[5].split(":")[6]) for line in path.read_text().splitlines())
    outcomes = [row.outcome for row in rows]
    masked, crashed = outcomes.count("masked"), outcomes.count("crash")
    assert found == collections.Counter({3: masked, 5: crashed, 17: len(rows) - masked - crashed})


def test_trials_of_other_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FaultInvalid, match="bit-flip model of nvbitfi"):
        export_tree(tmp_path, PROFILE, [], tool="nvbitfi", app="toy")


def settings_edited(text: str, folder: Path) -> str:
    """Return upstream's settings as a user edits them."""
    text = re.sub(r"(?m)^NUM_INJECTIONS = .*", f"NUM_INJECTIONS = {readme_value(folder, 'NUM_INJECTIONS')}", text)
    text = re.sub(r"(?m)^THRESHOLD_JOBS = .*", "THRESHOLD_JOBS = 1", text)
    text = re.sub(r"(?s)\napps = \{.*?\n\}", f"\napps = {readme_value(folder, 'apps')}", text, count=1)
    value = readme_value(folder, "inst_value_igid_bfm_map")
    text = re.sub(r"(?s)\ninst_value_igid_bfm_map = \{.*?\n\}", f"\ninst_value_igid_bfm_map = {value}", text, count=1)
    return text.replace('app = "simple_add"', 'app = "toy"').replace("'simple_add'", "'toy'")


def run(folder: Path, variable: str, script: str, *arguments: str) -> None:
    environment = {**os.environ, variable: str(folder)}
    command = [sys.executable, "-W", "ignore", script, *arguments]
    subprocess.run(command, cwd=folder / "scripts", env=environment, check=True, capture_output=True, timeout=60)


@pytest.mark.slow
@pytest.mark.skipif(not UPSTREAM, reason="DETRAIN_UPSTREAM names no folder with the checkouts")
@pytest.mark.parametrize("tool", ["sassifi", "nvbitfi"])
def test_upstreams_scripts_read_the_tree_and_their_lists_are_taken(tool: str, tmp_path: Path) -> None:
    is_sassifi = tool == "sassifi"
    shutil.copytree(Path(UPSTREAM) / tool / "scripts", tmp_path / "scripts")
    export_tree(tmp_path, PROFILE, ROWS, tool="sassifi" if is_sassifi else "nvbitfi", app="toy")
    if is_sassifi:  # Python 2
        pytest.importorskip("lib2to3")
        files = [str(path) for path in (tmp_path / "scripts").glob("*.py")]
        subprocess.run([sys.executable, "-W", "ignore", "-m", "lib2to3", "-w", "-n", *files], check=True, capture_output=True)
        (tmp_path / "suites/detrain/toy/toy_kernel_regcount.p").write_bytes(pickle.dumps({"step": 255}, 2))
    settings = tmp_path / "scripts" / ("specific_params.py" if is_sassifi else "params.py")
    settings.write_text(settings_edited(settings.read_text(), tmp_path))
    variable = "SASSIFI_HOME" if is_sassifi else "NVBITFI_HOME"

    run(tmp_path, variable, "parse_results.py", "inst_value")

    details = next((tmp_path / "logs/results").glob("*details*")).read_text()
    found: collections.Counter[int] = collections.Counter()
    for line in details.splitlines()[1:]:
        found.update(dict(enumerate(map(int, re.findall(r"\t(\d+)", line)), 1)))
    expected: collections.Counter[int] = collections.Counter()
    for path in (tmp_path / "logs").rglob("results-*.txt"):
        expected.update(int(line.split(":")[6]) for line in path.read_text().splitlines())
    assert +found == expected

    run(tmp_path, variable, "generate_injection_list.py", *(["inst_value"] if is_sassifi else []))
    kernels = sassifi_kernels(PROFILE) if is_sassifi else nvbitfi_kernels(PROFILE)
    group = Group.FFMA_OP if is_sassifi else NvbitfiGroup.FP32
    path = next((tmp_path / "logs").rglob(f"modeinst_value-igid{int(group)}.bfm0.*.txt"))
    # Its random numbers go up to the total itself, which is in no kernel: such a line has no name.
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if line[0] != " "))
    assert made.plan_of_list(path, kernels).count > 20
