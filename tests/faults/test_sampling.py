"""Drawing models: uniformly, and by FIdelity's shares."""

from __future__ import annotations

from collections import Counter

import pytest
from scipy import stats

from detrain.base.errors import FaultInvalid
from detrain.campaign.planning.drawn_plan import FIDELITY, GROUPS, draw_model
from detrain.faults.models import PUBLISHED
from detrain.faults.plan import trial_rng

DRAWS = 20_000


def test_models_are_drawn_uniformly() -> None:
    counts = Counter(draw_model(PUBLISHED.values(), trial_rng(1, trial)).name for trial in range(DRAWS))

    assert len(counts) == 18
    assert stats.chisquare(list(counts.values())).pvalue > 0.001


def test_groups_are_drawn_by_fidelitys_shares_and_evenly_within() -> None:
    counts = Counter(draw_model(PUBLISHED.values(), trial_rng(2, trial), FIDELITY).name for trial in range(DRAWS))

    members = Counter(GROUPS.get(name, "local control") for name in PUBLISHED)
    expected = [FIDELITY[group] / members[group] for group in (GROUPS.get(name, "local control") for name in PUBLISHED)]
    assert set(members) == set(FIDELITY)
    assert stats.chisquare([counts[name] for name in PUBLISHED], [DRAWS * p / sum(expected) for p in expected]).pvalue > 0.001


def test_groups_without_a_model_are_left_out() -> None:
    small = [PUBLISHED["INPUT"], PUBLISHED["WT"], PUBLISHED["ZERO"]]

    counts = Counter(draw_model(small, trial_rng(3, trial), FIDELITY).name for trial in range(DRAWS))

    expected = [DRAWS * share / (0.018 + 0.035 + 0.041) for share in (0.018, 0.035, 0.041)]
    assert stats.chisquare([counts["INPUT"], counts["WT"], counts["ZERO"]], expected).pvalue > 0.001


def test_nothing_to_draw_from_is_refused() -> None:
    with pytest.raises(FaultInvalid, match="no fault model to draw from"):
        draw_model([], trial_rng(0, 0))
    with pytest.raises(FaultInvalid, match="no fault model to draw from"):
        draw_model([PUBLISHED["WT"]], trial_rng(0, 0), {"neuron": 1.0})
