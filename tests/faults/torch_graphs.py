"""Steps whose modules are compiled, with faults put in by the adapter. Run by test_torch in a process of its own, which it
changes; prints JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch

from detrain.faults.models import PUBLISHED
from tests.faults import torch_by_hand
from tests.faults.torch_by_hand import Images, Step, Words, adapter, image_state, image_step, tried, word_state, word_step

for each in ("torch._dynamo", "torch._functorch.aot_autograd", "torch._inductor.codecache"):
    __import__(each)
    adapter.on_import(each)


def compiled(make: Callable[[], Any], name: str, backend: str) -> Callable[[], Any]:
    def made() -> Any:
        it = make()
        torch._dynamo.reset()
        getattr(it, name).compile(backend=backend)
        return it

    return made


STEPS = {
    "words, AdamW for": Step(compiled(lambda: Words("for"), "net", "aot_eager"), word_step, torch_by_hand.word_step_by_hand, word_state),
}


def main(every: str) -> None:
    found = {name: list(tried(name, step, list(PUBLISHED), every=int(every))) for name, step in STEPS.items()}
    print(json.dumps({"wrong": found, "tried": torch_by_hand.counts, "models": sorted(torch_by_hand.used)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
