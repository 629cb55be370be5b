"""The report of a campaign: its numbers against sums written out, its page against what a browser would read."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import numpy as np
import pytest
from statsmodels.stats.proportion import multinomial_proportions_confint

from detrain.base.errors import UsageError
from detrain.faults.bits import DTYPES
from detrain.faults.statistics.estimates import ENOUGH
from detrain.reports.campaign.about import About, MemoryClass, Published, about_plan, read_published
from detrain.reports.campaign.charts import heat_map
from detrain.reports.campaign.columns import bit_field, columns_of, deviations, progress, write_parquet
from detrain.reports.campaign.page import json_of, lines_of, page_of, verdict, warnings, write_page
from detrain.reports.campaign.summary import Summary, summarize
from tests.population import made_rows

COUNT = 1200
ROWS = made_rows.rows(COUNT)
PLAN = made_rows.plan(COUNT)
ABOUT = About(
    program="train<1>.py",
    arguments=("--epochs", "3"),
    planned=COUNT,
    seed=3,
    horizon=20,
    rate=20_000.0,
    strata=PLAN.strata,
    replay="detrain again {number} <x>",
    environment={"numpy": "2 & more"},
    memory={"weight": MemoryClass(live=0.5, derating=0.2)},
    published=(Published(outcome="masked", share=0.8, source="A. Author", page="7"),),
)
OTHER = [msgspec.structs.replace(row, outcome="masked", category=3) for row in ROWS[:20]] + ROWS[20:300]
"""The same trials of another program, of which the first ones are all masked."""
SUMMARY: Summary = summarize(ROWS, ABOUT, other=("the other", OTHER))
VOID = {"meta", "br", "line", "rect", "circle", "polyline"}


class Page(HTMLParser):
    """Reads a page, and that what is opened is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "srcset")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_a_share_is_that_of_the_population() -> None:
    """Against the sum of the strata's shares, by a loop over the rows."""
    by_stratum: dict[str, list[bool]] = {}
    for row in ROWS:
        by_stratum.setdefault(row.stratum, []).append(row.outcome == "masked")
    expected = sum(PLAN.strata[name] * sum(each) / len(each) for name, each in by_stratum.items())

    assert SUMMARY.masked.share == pytest.approx(expected)
    assert SUMMARY.masked.low < expected < SUMMARY.masked.high
    total = sum(each.share for each in SUMMARY.outcomes.values() if each.share is not None)
    assert total == pytest.approx(1)


def test_the_parts_of_each_breakdown_are_all_trials() -> None:
    for breakdown in (*SUMMARY.breakdowns, SUMMARY.deviations, SUMMARY.progress):
        assert sum(part.trials for part in breakdown.parts) == COUNT, breakdown.title
        for part in breakdown.parts:
            if part.outcomes:
                assert sum(part.outcomes.values()) == pytest.approx(1, abs=1e-6)


def test_the_rule_by_which_outcomes_were_made_is_found_again() -> None:
    heat = SUMMARY.heat_map
    cells = {
        (row, column): cell
        for row, line in zip(heat.rows, heat.cells, strict=True)
        for column, cell in zip(heat.columns, line, strict=True)
    }

    found = cells["11 LDS", "mantissa, lower"]
    assert found is not None
    assert found.low < made_rows.harm(11, 0) < found.high
    high = cells["11 LDS", "exponent 1"]
    assert high is not None
    assert high.low < made_rows.harm(11, 30) < high.high


def test_memory_and_trials_without_a_group_have_names_of_their_own() -> None:
    rows = [msgspec.structs.replace(row, group=-1, mode="RF", stage="weight") for row in ROWS[:60]]
    rows += [msgspec.structs.replace(row, group=-1) for row in ROWS[60:100]] + ROWS[100:200]
    summary = summarize(rows, ABOUT)

    counts = {part.name: part.trials for part in summary.breakdowns[0].parts}
    assert (counts["memory (RF)"], counts["(no group)"]) == (60, 40)
    by_group = [name for name in summary.heat_map.rows if "all groups" not in name]
    assert by_group[-2:] == ["(no group)", "memory (RF)"]
    assert [each.name for each in summary.avf] == ["weight"]
    harmful = [row.outcome != "masked" for row in rows[:60]]
    share = summary.avf[0].harmful.share
    assert share is not None
    assert summary.avf[0].factor == pytest.approx(0.5 * 0.2 * share)
    assert summary.avf[0].harmful.count == sum(harmful)


def test_what_cannot_be_judged_is_no_harm_and_part_of_the_whole() -> None:
    unjudged = ["finite (no accuracy to classify by)", "finite (no step behind the fault to classify by)"]
    rows = [msgspec.structs.replace(row, outcome=unjudged[row.number % 2]) if row.number < 30 else row for row in ROWS[:200]]
    summary = summarize(rows, ABOUT)

    assert summary.not_judged.count == 30
    assert summary.harmful.count == sum(row.outcome not in ("masked", *unjudged) for row in rows)
    shares = [each.share for each in (summary.masked, summary.harmful, summary.not_judged) if each.share is not None]
    assert sum(shares) == pytest.approx(1)
    for breakdown in summary.breakdowns:
        assert sum(part.harmful.count for part in breakdown.parts) == summary.harmful.count
    assert "could not be judged" in verdict(summary)
    assert "could not be judged" not in verdict(SUMMARY)


def test_bits_are_shown_of_models_that_change_one_and_others_have_a_row_each() -> None:
    heat = SUMMARY.heat_map
    several = {row.model for row in ROWS if len(row.bits) > 1}
    assert several
    assert {name for name in heat.rows if name.endswith("all groups")} == {f"{model}, all groups" for model in several}

    counts = {name: sum(cell.trials for cell in line if cell is not None) for name, line in zip(heat.rows, heat.cells, strict=True)}
    for model in several:
        assert counts[f"{model}, all groups"] == sum(row.model == model and bool(row.bits) for row in ROWS)
    single = [row for row in ROWS if row.model not in several and row.bits]
    assert sum(count for name, count in counts.items() if "all groups" not in name) == len(single)


def test_a_cell_with_few_trials_has_no_number() -> None:
    shown = heat_map(summarize(ROWS[:200], ABOUT).heat_map)
    cells = re.findall(r'<g><title>[^<]*, ([\d,]+) trials</title>.*?class="cell"[^>]*>([^<]*)</text></g>', shown)

    assert {bool(text) == (int(count.replace(",", "")) >= ENOUGH) for count, text in cells} == {True}
    assert {bool(text) for _, text in cells} == {True, False}


def test_a_page_of_few_trials_says_what_it_cannot_tell_and_how_many_it_takes() -> None:
    few = summarize(ROWS[:100], ABOUT)
    [said] = [each for each in warnings(few) if "tell the harmful share" in each]

    size = next(size for size in few.sizes if size.half_width == 0.05)
    assert f"{size.trials_for_share:,} trials in all" in said
    assert not any("tell the harmful share" in each for each in warnings(SUMMARY))
    # An interval is narrower by the root of the number: with as many it would be as wide as is asked for.
    now = (few.harmful.high - few.harmful.low) / 2
    assert now > 0.05
    assert 0.05 * (size.trials_for_share - 1) ** 0.5 <= now * few.trials**0.5 <= 0.05 * size.trials_for_share**0.5


def test_a_part_of_too_few_trials_has_no_number_whatever_it_is() -> None:
    parts = [part for breakdown in summarize(ROWS[:400], ABOUT).breakdowns for part in breakdown.parts]

    assert {part.harmful.share is None for part in parts if part.trials < ENOUGH} == {True}
    assert {bool(part.outcomes) for part in parts if part.harmful.share is None} == {False}
    assert any(part.harmful.share is not None for part in parts)


def test_the_guards_table_counts_each_trial_once() -> None:
    assert SUMMARY.guard is not None
    for outcome, (trials, soon, later, never) in SUMMARY.guard.by_outcome.items():
        alarms = [row.alarm_after for row in ROWS if row.outcome == outcome]
        assert (trials, soon + later + never) == (len(alarms), len(alarms))
        assert soon == sum(0 <= alarm <= 2 for alarm in alarms)
    assert SUMMARY.guard.coverage.trials == sum(row.outcome != "masked" for row in ROWS)
    assert 0.6 < SUMMARY.guard.latency.seen[-1] < 0.8


def test_without_a_guard_nothing_is_said_of_one() -> None:
    summary = summarize(made_rows.rows(60, has_guard=False), ABOUT)

    assert summary.guard is None
    assert "What the guard saw" not in page_of(summary)


def test_categories_decide_where_they_are_told() -> None:
    told, untold = (summarize(made_rows.rows(200, tells=tells), ABOUT) for tells in (True, False))

    assert told.masked == untold.masked
    assert set(told.kinds) == {"masked", "DUE", "SDC"}
    half = [msgspec.structs.replace(row, category=0) for row in made_rows.rows(200)[:100]] + made_rows.rows(200)[100:]
    assert set(summarize(half, ABOUT).kinds) == {"masked", "DUE", "SDC", "untold"}
    assert (untold.kinds, untold.categories) == ({}, {})


def test_addresses_outside_are_counted_and_change_no_estimate() -> None:
    outside = [msgspec.structs.replace(row, number=row.number + 10**6, outcome="address outside", category=0) for row in ROWS[:30]]
    with_them, without = summarize([*ROWS, *outside], ABOUT), summarize(ROWS, ABOUT)

    assert (with_them.outcomes, with_them.categories, with_them.masked) == (without.outcomes, without.categories, without.masked)
    assert (with_them.outside, with_them.trials) == (30, len(ROWS))
    share = f"{100 * 30 / (len(ROWS) + 30):.1f} %"
    assert any(line.startswith("address outside (none is run)") and share in line for line in lines_of(with_them))
    with pytest.raises(UsageError, match="all 30 trials have addresses outside"):
        summarize(outside, ABOUT)


def test_categories_stand_beside_outcomes_and_what_differs() -> None:
    summary = summarize(ROWS, ABOUT)
    masked = [row for row in ROWS if row.outcome == "masked"]

    assert summary.both["masked"] == {"3": len(masked)}
    assert sum(count for counts in summary.both.values() for count in counts.values()) == len(ROWS)
    assert summary.judged["stdout"] == {"differs": len(ROWS) - len(masked), "equal": len(masked)}
    assert "check" not in summary.judged
    text = "\n".join(lines_of(summary))
    assert f"masked {len(masked):,}" in text
    assert f"stdout: differs {len(ROWS) - len(masked):,}, equal {len(masked):,}" in text


def test_categories_of_equal_trials_have_goodmans_intervals() -> None:
    rows = [msgspec.structs.replace(row, stratum="all", weight=1.0) for row in made_rows.rows(200)]
    found = summarize(rows, msgspec.structs.replace(ABOUT, strata={})).categories
    counts = [each.count for each in found.values()]

    assert len(counts) > 2
    for each, ends in zip(found.values(), multinomial_proportions_confint(counts, 0.05, "goodman"), strict=True):
        assert (each.low, each.high) == pytest.approx(tuple(ends))


def test_published_shares_are_read_with_their_page(tmp_path: Path) -> None:
    path = tmp_path / "published.toml"
    path.write_text('[[share]]\noutcome = "masked"\nshare = 0.83\nsource = "A. Author"\npage = "7"\n')

    assert read_published(path) == (Published(outcome="masked", share=0.83, source="A. Author", page="7"),)


@pytest.mark.parametrize(
    "text",
    [
        "[[share]]",
        "share = 3",
        "x",
        '[[share]]\noutcome = "mask"\nshare = 0.8\nsource = "A"\npage = "7"',
        '[[share]]\noutcome = "masked"\nshare = 80.0\nsource = "A"\npage = "7"',
        '[[share]]\noutcome = "masked"\nshare = 0.8\nsource = "A"\npage = ""',
    ],
)
def test_published_shares_without_a_source_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "published.toml").write_text(text)

    with pytest.raises(UsageError, match=r"published\.toml"):
        read_published(tmp_path / "published.toml")


def test_trials_are_compared_by_their_numbers() -> None:
    comparison = SUMMARY.comparison

    assert comparison is not None
    harmed = sum(row.outcome != "masked" for row in ROWS[:20])
    assert (comparison.trials, comparison.first_only, comparison.second_only) == (300, harmed, 0)
    assert comparison.difference == pytest.approx(harmed / 300)


def test_the_page_needs_nothing_else_and_its_tags_are_closed() -> None:
    text = page_of(SUMMARY)
    page = Page()
    page.feed(text)

    assert page.open == []
    assert page.links == []
    assert not page.tags & {"script", "link", "img", "iframe"}
    assert not re.search(r"url\(|@import|https?://", text)
    said = "".join(page.text)
    for part in (
        "train<1>.py --epochs 3",
        "2 & more",
        "detrain again",
        "A. Author, p. 7",
        verdict(SUMMARY),
        "8 FFMA",
        "exponent 1",
    ):
        assert part in said
    assert len(text) < 200_000


def test_the_page_is_the_same_for_the_same_rows() -> None:
    assert page_of(SUMMARY) == page_of(summarize(list(reversed(ROWS)), ABOUT, other=("the other", OTHER)))


def test_the_lines_and_the_json_say_the_same() -> None:
    lines = lines_of(SUMMARY)
    found = msgspec.json.decode(json_of(SUMMARY))

    assert lines[0].startswith("1,200 trials: ")
    assert found["masked"]["share"] == SUMMARY.masked.share
    assert sum(each["count"] for each in found["outcomes"].values()) == COUNT
    assert any(line.startswith("8 FFMA") for line in lines)


def test_few_trials_of_unlike_weights_say_so() -> None:
    few = summarize(ROWS[:12], msgspec.structs.replace(ABOUT, planned=500))

    assert verdict(few) == "12 trials are too few to say anything."
    assert any("have not been run" in line for line in lines_of(few))
    assert "too few" in page_of(few)


def test_faults_that_did_not_fire_are_no_trials_that_have_not_been_run() -> None:
    some = summarize(ROWS[:12], msgspec.structs.replace(ABOUT, planned=15, not_fired=3))

    assert not any("have not been run" in line for line in lines_of(some))
    assert any(line.startswith("3 of 15 faults did not fire") for line in lines_of(some))


def test_a_plan_says_what_it_is_drawn_from(tmp_path: Path) -> None:
    about = about_plan(PLAN, version="1.2", not_fired=3)
    write_page(tmp_path / "out" / "report.html", summarize(ROWS, about))

    text = (tmp_path / "out" / "report.html").read_text()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.html"]
    for part in ("FLIP:1, RANDOM, ZERO", "stage × group", PLAN.digest, PLAN.profile.digest, "3 (no outcome, not counted)"):
        assert part in text
    assert about.dead == PLAN.frame.left.dead > 0


def test_one_trial_has_a_page() -> None:
    assert "<h1>1 fault in" in page_of(summarize(ROWS[:1], ABOUT))


def test_parquet_has_each_row(tmp_path: Path) -> None:
    import duckdb

    path = tmp_path / "it's.parquet"
    write_parquet(path, list(reversed(ROWS)))

    quoted = str(path).replace("'", "''")
    found = duckdb.sql(f"SELECT number, outcome, weight, bits, loss FROM '{quoted}'").fetchall()
    assert [row[:3] for row in found] == [(row.number, row.outcome, row.weight) for row in ROWS]
    assert [row[3] for row in found] == [",".join(map(str, row.bits)) for row in ROWS]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("dtype", "bit", "field"),
    [
        ("float32", 31, "sign"),
        ("float32", 30, "exponent 1"),
        ("float32", 23, "exponent 8"),
        ("float32", 22, "mantissa, upper third"),
        ("float32", 0, "mantissa, lower"),
        ("float64", 63, "sign"),
        ("float64", 52, "exponent, lower"),
        ("float64", 51, "mantissa, upper third"),
        ("bfloat16", 7, "exponent 8"),
        ("bfloat16", 6, "mantissa, upper third"),
        ("float16", 10, "exponent 5"),
        ("int64", 63, "integer, upper half"),
        ("uint8", 3, "integer, lower half"),
        ("bool", 0, "bool"),
    ],
)
def test_a_bit_is_in_its_field(dtype: str, bit: int, field: str) -> None:
    assert bit_field(dtype, [0, bit]) == field


def test_a_change_is_measured_beside_what_the_value_was() -> None:
    kind = DTYPES["float32"]
    cases = {
        "to 1": (2.0, 1.0),
        "to 1e3": (1.0, 500.0),
        "not finite": (1.0, np.inf),
        "none": (0.0, -0.0),
        "to 1e-6": (1.0, 1.0000001),
    }
    rows = [
        msgspec.structs.replace(ROWS[0], number=number, dtype="float32", golden=f"{int(old):x}", injected=f"{int(new):x}")
        for number, pair in enumerate(cases.values())
        for old, new in [kind.patterns(pair)]
    ]

    assert deviations(columns_of(rows)).tolist() == list(cases)


def test_epochs_are_put_together_where_there_are_many() -> None:
    rows = [msgspec.structs.replace(ROWS[0], number=number, epoch=number) for number in range(25)]

    where, names = progress(columns_of(rows))

    assert names[0] == "epochs 0 – 2"
    assert names[-1] == "epoch 24"
    assert where[5] == "epochs 3 – 5"


def test_of_inference_trials_and_inputs_are_counted_by_what_holds_for_them() -> None:
    rows = [
        msgspec.structs.replace(row, inputs=4, sdc_1=number % 3 == 0, sdc_20=2 * (number % 2))
        for number, row in enumerate(ROWS[:60])
    ]
    found = summarize(rows, ABOUT)

    counts = {name: (each.trials.count, each.inputs) for name, each in found.corrupted.items()}
    assert found.inputs == 240
    assert counts == {"SDC-1": (20, 20), "SDC-5": (0, 0), "SDC-10%": (0, 0), "SDC-20%": (30, 60), "not finite": (0, 0)}
    [line] = [each for each in lines_of(found) if each.startswith("SDC-20%")]
    assert line.split()[1] == "30"
    assert line.split()[-1] == "60"
    assert "What the model says of its inputs" in page_of(found)
    assert summarize(ROWS[:60], ABOUT).corrupted == {}
