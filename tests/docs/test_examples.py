"""The Python of the pages does what the pages say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from detrain.faults.bits import DTYPES
from detrain.faults.models import FaultModel
from detrain.faults.plan import trial_rng
from tests.faults.applied import applied

DOCS = Path(__file__).resolve().parents[2] / "docs"


def _blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def test_the_fault_model_of_the_how_to_negates_every_other_element() -> None:
    names: dict[str, Any] = {}
    (source,) = _blocks("how-to/write-a-fault-model.md")
    exec(source, names)
    model = names["EveryOther"]()
    values = np.arange(1, 8, dtype=np.float32)

    after = applied(model.plan((7,), DTYPES["float32"], trial_rng(1, 0)), values.view(np.uint32)).view(np.float32)

    assert isinstance(model, FaultModel)
    np.testing.assert_array_equal(after, values * np.array([-1, 1, -1, 1, -1, 1, -1], np.float32))


def test_the_loops_of_the_api_page_do_under_plain_python_what_they_do_without_probes(capsys: Any) -> None:
    trained: list[Any] = []
    loader = [(1, "a"), (2, "b")]
    names = {"loader": loader, "batches": iter([(k, k) for k in range(1000)]), "train_step": lambda *batch: trained.append(batch)}
    for source in _blocks("reference/api.md"):
        if "import moment" not in source:  # of a run that is over: tests/e2e/test_moment.py
            exec(source, names)

    assert trained == loader * 10 + [(k, k) for k in range(1000)]
    assert "usage 64 guard_run(mode='always')" in capsys.readouterr().out
