"""The tree of a plan: exact partitions, its stages, and the sum as the last line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lakehouse_backfill.cli.render.plan_tree import list_labels
from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.results.plans import PlanResult
from tests.support.fakes.context import contract, declared, lake
from tests.support.fakes.project import PLAN
from tests.support.fakes.screen import drawn
from tests.support.fakes.steps import published_run
from tests.support.fakes.timed import timed_world

pytestmark = pytest.mark.req("P1")
SPREAD = {"p10": 10.0, "p50": 12.0, "p90": 20.0}
HISTORY = {
    "engine": "local[2] with 2 cores", "runs": 3, "chunks": 9, "oldest_days": 9.0,
    "newest_days": 2.0, "rows_per_s": SPREAD, "bytes_per_s": SPREAD, "rows_per_partition": SPREAD,
    "duration_s": SPREAD, "staging_s": SPREAD, "validation_s": None, "publication_s": None,
}  # fmt: skip


def tree_of(text: str) -> list[str]:
    """The lines of the tree, without those that only go on with the one before."""
    lines = text.splitlines()
    last = next(
        n for n, line in enumerate(lines) if line.startswith("\N{BOX DRAWINGS LIGHT UP AND RIGHT}")
    )
    return lines[1 : last + 1]


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "240")


@pytest.mark.parametrize("verb", ["plan", "show"])
def test_the_last_line_of_the_tree_is_the_sum(verb: str) -> None:
    lines = tree_of(drawn(verb, PLAN))
    assert lines[0] == "silver.arrivals_daily"
    assert lines[-1].lstrip("\u2514\u2500 ") == (
        "sum  4 partitions in 1 chunk; reads 47,000 rows in 3 files, 1.5 MB; takes an unknown time "
        "(no history); costs at least 0.50 USD (without computing and writing, not known yet)"
    )


def test_a_duration_names_its_range_and_the_runs_behind_it() -> None:
    estimate = PLAN["estimate"] | {"duration_s": 12.0, "history": HISTORY}
    assert "takes about 12 s (10 s to 20 s, by 3 runs, the newest 2 days ago)" in drawn(
        "plan", PLAN | {"estimate": estimate}
    )


@pytest.mark.parametrize(
    ("duration_s", "changes", "range_text"),
    [
        (24.0, {}, "24 s (10 s to 24 s, by 3 runs"),
        (9.0, {}, "9.0 s (9.0 s to 20 s, by 3 runs"),
        (12.0, {"runs": 1}, "12 s (by 1 run"),
        (12.0, {"duration_s": {"p10": 12.1, "p50": 12.1, "p90": 12.2}}, "12 s (by 3 runs"),
    ],
)
def test_a_range_that_does_not_hold_the_duration_is_not_printed(
    duration_s: float, changes: dict[str, Any], range_text: str
) -> None:
    estimate = PLAN["estimate"] | {"duration_s": duration_s, "history": HISTORY | changes}
    assert f"takes about {range_text}, the newest" in drawn("plan", PLAN | {"estimate": estimate})


def test_without_a_history_the_least_time_is_named() -> None:
    estimate = PLAN["estimate"] | {"floor_s": 90.0}
    text = drawn("plan", PLAN | {"estimate": estimate})
    assert "takes at least 1 min 30 s (no history of this transform)" in text


def test_a_short_plan_counts_chunks_and_says_where_people_act() -> None:
    assert "pin, approve (person), open shadow, 3 chunks, judge result, accept (person)" in drawn(
        "plan", PLAN
    )


def test_a_whole_plan_lists_each_stage_with_what_it_does() -> None:
    lines = [line.lstrip("\u2502\u251c\u2514\u2500 ") for line in tree_of(drawn("show", PLAN))]
    assert "approve  person: approves: anybody" in lines
    assert [line for line in lines if line.startswith("c")][1:4] == [
        "c1  computes part 1", "c2  computes part 2", "c3  computes part 3",
    ]  # fmt: skip


def test_many_chunks_are_counted_after_the_first_ones() -> None:
    chunks = [
        {"kind": "stage_chunk", "phase": "staging", "text": "computes", "chunk_id": f"c{number}"}
        for number in range(60)
    ]
    text = drawn("show", PLAN | {"stages": chunks})
    assert "c49  computes" in text
    assert "c50  computes" not in text
    assert "and 10 more chunks (--json shows all)" in text


def test_partitions_are_listed_exactly_and_the_rest_is_counted() -> None:
    assert list_labels(("a", "b"), 2) == "a, b"
    assert list_labels(tuple("abcd"), 2) == "a, b and 2 more"


def a_result(**changes: Any) -> PlanResult:
    _, found = timed_world(lake())
    return PlanResult.of(make_plan(found, declared(**changes), "bob", None), None, None)


def test_a_plan_names_what_is_skipped_and_why_its_deadline_and_its_hours() -> None:
    found = a_result(
        run={"deadline": "2030-01-01T00:00:00Z"},
        safety={"publish_window": {"from": "22:00", "to": "04:00"}},
        target={
            "partitions": {
                "column": "day", "from": "2020-01-01", "to": "2020-01-05",
                "except": ["2020-01-03", "2020-03-01"], "except_because": "its source is wrong",
            }
        },
        contract=contract(consumers=[{"name": "bi", "tolerates_restatement": True}]),
    )  # fmt: skip
    assert found.skipped == ("2020-01-03",)
    text = drawn("plan", found.to_dict())
    for part in (
        "3 partitions of day, and nothing else: 2020-01-01, 2020-01-02, 2020-01-04",
        "the last is  2020-01-04, the whole of Saturday 04 January 2020 (UTC)",
        "skipped  2020-01-03: its source is wrong",
        "deadline  2030-01-01 00:00:00Z",
        "allowed  publication between 22:00 and 04:00 UTC",
        "consumers  1",
    ):
        assert part in text, part


def test_what_a_person_waived_stands_in_the_tree() -> None:
    waiver = {"by": "ana", "reason": "the source is late"}
    found = a_result(safety={"incomplete_input": waiver})
    assert found.waivers == ("incomplete_input, in the name of ana",)
    assert "waived  incomplete_input, in the name of ana" in drawn("plan", found.to_dict())


@pytest.mark.req("P8")
def test_a_dry_run_promises_no_publication_and_no_rollback() -> None:
    found = a_result(run={"mode": "dry_run"})
    assert not {stage.phase for stage in found.stages} & {"acceptance", "publication"}
    text = drawn("plan", found.to_dict())
    assert "never published: the result stays in the shadow table" in text
    assert "rollback" not in text


def test_an_open_run_on_the_same_partitions_stands_in_the_tree() -> None:
    assert "blocked by  bf-0 (staged) is open on 2013-02-15" in drawn("plan", PLAN)


def test_a_run_that_would_repeat_a_published_one_has_nothing_to_do() -> None:
    where = lake()
    _, found = timed_world(where)
    run_id = published_run(found, declared())
    again = make_plan(found, declared("2020-01-02", "2020-01-03"), "bob", None)
    assert again.repeats == run_id
    assert any(text.startswith("nothing to do: ") for text in again.warnings)
    result = PlanResult.of(again, None, None)
    assert result.to_dict()["nothing_to_do"] is True
    assert "NOTHING TO DO" in drawn("plan", result.to_dict())
    others = {
        "more partitions": declared("2020-01-02", "2020-01-05"),
        "another setting": declared(transform={"config": {"rate": 2}}),
    }
    for case, wanted in others.items():
        assert make_plan(found, wanted, "bob", None).repeats == "", case
    where.write("bronze.raw", "2020-01-01", "late")
    assert make_plan(found, declared(), "bob", None).repeats == "", "other input"


def test_code_that_is_not_deterministic_has_something_to_do_and_the_plan_says_both() -> None:
    _, found = timed_world(lake())
    code = "from datetime import datetime\n\n@transform(name='daily', version='1.0.0', inputs=())\n"
    code += "def daily(context):\n    return datetime.now()\n"
    found = replace(found, file_text=lambda file: code)
    reason = {"kind": "wall_clock", "reason": "a column says when"}
    wanted = declared(safety={"allow_nondeterminism": [reason]})
    run_id = published_run(found, wanted)
    again = make_plan(found, wanted, "bob", None)
    assert (again.repeats, bool(again.findings)) == (run_id, True)
    (text,) = (one for one in again.warnings if run_id in one)
    assert "is not deterministic in 1 place" in text
    assert not text.startswith("nothing to do")
    assert PlanResult.of(again, None, None).to_dict()["nothing_to_do"] is False


def test_a_run_whose_plan_is_gone_is_repeated_by_none() -> None:
    _, found = timed_world(lake())
    run_id = published_run(found, declared())
    found.runs.plans.pop(run_id)
    assert make_plan(found, declared(), "bob", None).repeats == ""


def test_a_live_commit_to_the_partitions_is_something_to_do() -> None:
    where = lake()
    _, found = timed_world(where)
    published_run(found, declared())
    where.write("silver.daily", "2020-01-02", "live")
    assert make_plan(found, declared(), "bob", None).repeats == ""


def test_a_cost_of_which_all_parts_are_known_is_about_right() -> None:
    known = {"core_hours": 1.0, "output_bytes": 10, "cost_usd": 0.5}
    text = drawn("plan", PLAN | {"estimate": PLAN["estimate"] | known})
    assert "costs about 0.50 USD" in text


@pytest.mark.parametrize("part", ["columns", "libraries"])
def test_what_a_run_made_of_some_columns_or_by_other_libraries_is_no_repetition(part: str) -> None:
    _, found = timed_world(lake())
    first = declared(target={"columns": ["amount"]} if part == "columns" else {})
    published_run(found, first)
    assert make_plan(found, first, "bob", None).repeats != ""
    wanted = declared() if part == "columns" else replace(first, lock_hash="other")
    again = make_plan(found, wanted, "bob", None)
    assert again.repeats == ""
    assert PlanResult.of(again, None, None).to_dict()["nothing_to_do"] is False
