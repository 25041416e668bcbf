"""Results are immutable, have a JSON form, and draw themselves in a notebook without injection."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace
from datetime import datetime, timezone
from html.parser import HTMLParser

import pytest

from lakehouse_backfill.domain.comparison.diff import PartitionDiff
from lakehouse_backfill.errors import ChecksFailed
from lakehouse_backfill.results.base import MAX_ROWS
from lakehouse_backfill.results.comparison import DiffResult
from lakehouse_backfill.results.plans import PlanResult
from lakehouse_backfill.results.runs import RunLine, StatusResult
from tests.support.examples import dossiers

HOSTILE = "</td><script>alert(1)</script>"


class _Tags(HTMLParser):
    """Collects the tags of a text, and fails when one is closed that is not open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.rows = 0
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.rows += tag == "tr"
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def plan() -> PlanResult:
    return PlanResult.of(dossiers.plan(), None, None)


def line(run_id: str = "bf-1", state: str = "staged") -> RunLine:
    return RunLine(
        is_safe="yes", readers_see="version 1", next_command="lakehouse-backfill run bf-1",
        run_id=run_id, product="silver.a", state=state,
        at=datetime(2026, 3, 1, tzinfo=timezone.utc), driver=None,
    )  # fmt: skip


def test_a_result_cannot_be_changed_and_its_json_form_is_plain() -> None:
    found = plan()
    with pytest.raises(FrozenInstanceError):
        found.state = "published"  # type: ignore[misc]
    data = found.to_dict()
    assert json.loads(json.dumps(data)) == data
    assert (data["run_id"], data["partitions"][0]) == (found.run_id, found.partitions[0])


def test_a_field_without_a_value_is_left_out_only_where_the_contract_says_so() -> None:
    data = line().to_dict()
    assert "driver" in data
    assert not {"waivers", "gates", "dual_reads", "steps"} & set(data)


def test_a_diff_that_must_be_equal_and_is_not_stands_for_an_error() -> None:
    found = DiffResult.of(dossiers.diff())
    assert found.error() is None
    error = replace(found, must_be_equal=True).error()
    assert isinstance(error, ChecksFailed)
    assert "old and new differ" in error.problem
    assert replace(found, must_be_equal=True, equal=True).error() is None


def test_a_plan_a_diff_and_a_status_draw_themselves_with_whole_tags() -> None:
    for found, said in (
        (plan(), "silver.arrivals_daily"),
        (DiffResult.of(dossiers.diff()), "partitions differ"),
        (StatusResult(runs=(line(),)), "is my data safe?"),
        (StatusResult(runs=(line(), line("bf-2"))), "2 runs"),
    ):
        text = found._repr_html_()
        assert "table" in _Tags(text).seen
        assert said in text


def test_names_and_values_are_escaped() -> None:
    diff = DiffResult.of(dossiers.diff())
    cut = PartitionDiff(
        partition=HOSTILE, old_rows=1, new_rows=1, added=0, removed=0, changed=1, unchanged=0
    )
    for found in (
        replace(plan(), product=HOSTILE, notes=(HOSTILE,)),
        replace(diff, old=HOSTILE, partitions=(cut,)),
        StatusResult(runs=(replace(line(), readers_see=HOSTILE),)),
    ):
        text = found._repr_html_()
        assert "script" not in _Tags(text).seen
        assert "&lt;script&gt;" in text


def test_a_long_table_is_cut_and_says_how_many_rows_are_left() -> None:
    found = StatusResult(runs=tuple(line(f"bf-{number}") for number in range(MAX_ROWS + 7)))
    text = found._repr_html_()
    assert _Tags(text).rows == MAX_ROWS + 1
    assert "and 7 more" in text
