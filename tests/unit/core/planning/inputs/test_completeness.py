"""Which hours, days and months a run reads, and which of them have no row."""

from __future__ import annotations

from datetime import date, datetime, timezone
from typing import Any

import pytest
import yaml

from lakehouse_backfill.config.drafts import draft_manifest
from lakehouse_backfill.core.planning.inputs.completeness import (
    check_completeness,
    completeness_notes,
    expected_periods,
    incomplete_partitions,
)
from lakehouse_backfill.core.planning.inputs.read_windows import window_row_ranges, window_to_read
from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.core.planning.scope import resolve
from lakehouse_backfill.domain.contract import Assumption, Contract
from lakehouse_backfill.domain.labels.instants import as_instant
from lakehouse_backfill.domain.manifest import InputRange, Source
from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.domain.plan import SourcePin
from lakehouse_backfill.domain.tables.table import Column
from lakehouse_backfill.errors import ConfigError, NotAllowed, Unsupported
from tests.support.examples.plans import a_plan, with_fields
from tests.support.fakes.context import context, contract, declared, lake

pytestmark = pytest.mark.req("Q0")

DAYS = ScopeField(column="day", transform="identity", type="date")


def pin(first: Any = date(2020, 1, 1), stop: Any = date(2020, 3, 1), **fields: Any) -> SourcePin:
    """A source that is cut by time."""
    return SourcePin(
        name="raw", role="source", table="bronze.raw", requested="", snapshot_id=1, mode="tag",
        range=InputRange.model_validate({"column": "at", "from": first, "to": stop}), **fields,
    )  # fmt: skip


def source(complete: str = "none") -> Source:
    """The same source, as declared."""
    return Source.model_validate(
        {
            "table": "bronze.raw",
            "complete": complete,
            "range": {"column": "at", "from": "2020-01-01", "to": "2020-03-01"},
        }
    )


def scope(*labels: str, field: ScopeField = DAYS) -> Scope:
    """Partitions of a product by day."""
    return Scope(field=field, partitions=labels)


CASES = [
    pytest.param(pin(), scope("2020-01-10"), "day", ["2020-01-10"], id="a day"),
    pytest.param(
        pin(warm_up_days=2), scope("2020-01-10"), "day",
        ["2020-01-08", "2020-01-09", "2020-01-10"], id="with its warm-up",
    ),
    pytest.param(
        pin(cool_down_days=1), scope("2020-01-10", "2020-01-11"), "day",
        ["2020-01-10", "2020-01-11", "2020-01-12"], id="with its cool-down",
    ),
    pytest.param(
        pin(warm_up_days=1), scope("2020-01-10", "2020-01-20"), "day",
        ["2020-01-09", "2020-01-10", "2020-01-19", "2020-01-20"], id="not what lies between",
    ),
    pytest.param(
        pin(warm_up_days=5), scope("2020-01-02"), "day", ["2020-01-01", "2020-01-02"],
        id="not before the declared range",
    ),
    pytest.param(
        pin(), scope("2020-01-31", "2020-02-01"), "month", ["2020-01", "2020-02"], id="months",
    ),
    pytest.param(
        pin(datetime(2020, 1, 10, 22, tzinfo=timezone.utc)), scope("2020-01-10"), "hour",
        ["2020-01-10T22", "2020-01-10T23"], id="hours inside the declared range",
    ),
    pytest.param(
        pin(stop=date(2020, 1, 3)),
        scope("EU", field=ScopeField(column="region", transform="identity", type="string")),
        "day", ["2020-01-01", "2020-01-02"], id="all of the range where partitions have no time",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("of", "partitions", "unit", "expected"), CASES)
def test_the_periods_that_a_run_reads_are_expected_and_no_others(of, partitions, unit, expected):
    assert list(expected_periods(of, partitions, unit)) == expected


def test_a_gap_in_a_complete_source_blocks_and_names_the_first_missing_periods() -> None:
    wanted = tuple(f"2020-01-{day:02d}" for day in range(1, 10))
    found = check_completeness("raw", source("day"), wanted, wanted[:2])
    assert (found.passed, found.blocking, found.observed) == (False, True, 7)
    assert found.name == "raw has rows in every day"
    assert found.detail == (
        "no row on 7 of 9 days: 2020-01-03, 2020-01-04, 2020-01-05, 2020-01-06, 2020-01-07 and "
        "2 more"
    )


def test_a_gap_that_nobody_declared_is_reported_and_never_silent() -> None:
    found = check_completeness("raw", source(), ("2020-01-01",), ())
    assert (found.passed, found.blocking) == (False, False)
    assert "no row on 1 of 1 days: 2020-01-01" in found.detail


def test_a_source_without_gaps_passes() -> None:
    found = check_completeness("raw", source("hour"), ("2020-01-01T00",), ("2020-01-01T00",))
    assert (found.passed, found.detail) == (True, "rows in all 1 hours that the run reads")


def manifest_of(complete: str) -> Any:
    """A run manifest whose source is declared complete."""
    manifest = a_plan().resolved.manifest
    flights = with_fields(manifest.sources["flights"], complete=complete)
    return with_fields(manifest, sources={"flights": flights})


def contract_of(on: str) -> Contract:
    """A contract with one assumption."""
    text = "Each flight is there once."
    assumed = Assumption.model_validate({"text": text, "file": "expectations/one.json", "on": on})
    return with_fields(a_plan().resolved.contract, assumptions=(assumed,))


def test_the_plan_says_what_is_taken_for_granted_of_the_input() -> None:
    pins = a_plan().resolved.sources
    assert completeness_notes(manifest_of("day"), contract_of("flights"), pins) == (
        "flights must have rows in every day that is read",
        "assumed of flights: Each flight is there once.",
    )


def test_what_cannot_be_proven_is_refused_when_it_is_planned() -> None:
    dates = Column(field_id=1, name="time_hour", type="date")
    pins = (with_fields(a_plan().resolved.sources[0], columns=(dates,)),)
    with pytest.raises(ConfigError, match="holds dates") as refused:
        completeness_notes(manifest_of("hour"), contract_of("flights"), pins)
    assert refused.value.field == "sources.flights.complete"
    with pytest.raises(ConfigError, match="no input airports"):
        completeness_notes(manifest_of("none"), contract_of("airports"), pins)


@pytest.mark.parametrize(
    ("last", "stop"),
    [
        (datetime(9999, 12, 31, 23, 59, tzinfo=timezone.utc), None),
        (datetime(9999, 12, 31, tzinfo=timezone.utc), date(9999, 12, 31)),
        (datetime(2020, 2, 1, 12, tzinfo=timezone.utc), date(2020, 2, 2)),
    ],
)
def test_the_last_day_of_the_calendar_is_read_where_the_range_ends_inside_it(
    last: datetime, stop: date | None
) -> None:
    first = datetime(2020, 1, 1, tzinfo=timezone.utc)
    (rows,) = window_row_ranges("date", "at", first, last)
    assert (rows.lower, rows.upper) == (date(2020, 1, 1), stop)


@pytest.mark.req("P10")
@pytest.mark.parametrize(
    ("stop", "source", "incomplete"),
    [
        ("2026-01-02", {}, None),
        ("2026-01-03", {}, "2026-01-02: .*in raw is complete from 2026-01-03 00:00 UTC on"),
        ("2026-01-05", {}, "2026-01-02, 2026-01-03, 2026-01-04: "),
        ("2026-01-02", {"complete_after_hours": 3}, None),
        ("2026-01-02", {"complete_after_hours": 3.1}, "2026-01-01: .*from 2026-01-02 03:06 UTC"),
        ("2026-01-02", {"cool_down_days": 1}, "2026-01-01: .*from 2026-01-03 00:00 UTC"),
    ],
    ids=["yesterday", "today", "to the future", "fresh", "beyond freshness", "cool-down"],
)
def test_a_partition_whose_input_is_not_complete_is_refused_and_named(
    stop: str, source: dict[str, Any], incomplete: str | None
) -> None:
    # The clock of the fakes stands at 2026-01-02 03:04:05.
    read = {"range": {"column": "day", "from": "2025-12-01", "to": "2026-02-01"}, **source}
    wanted = declared("2025-12-30", stop, sources={"raw": read})
    if incomplete is None:
        assert make_plan(context(lake()), wanted, "bob", None).resolved.scope.partitions
        return
    with pytest.raises(Unsupported, match=incomplete) as refused:
        make_plan(context(lake()), wanted, "bob", None)
    assert "safety.incomplete_input (by, reason)" in str(refused.value.fix)


@pytest.mark.req("P10")
def test_a_person_who_may_waive_allows_incomplete_input_by_name() -> None:
    allowed = {
        "sources": {"raw": {"range": {"column": "day", "from": "2025-12-01", "to": "2026-02-01"}}},
        "safety": {"incomplete_input": {"by": "lead", "reason": "a preview is wanted"}},
    }
    plan = make_plan(context(lake()), declared("2026-01-01", "2026-01-03", **allowed), "bob", None)
    assert any(note.endswith("in lead's name: a preview is wanted") for note in plan.notes)
    assert "written in the manifest, in lead's name" in " ".join(
        one.answer or "" for one in plan.checklist
    )
    owned = contract(roles={"waive": ["owner"]})
    wanted = declared("2026-01-01", "2026-01-03", contract=owned, **allowed)
    with pytest.raises(NotAllowed):
        make_plan(context(lake()), wanted, "bob", None)


@pytest.mark.req("P10")
@pytest.mark.parametrize(
    ("transform", "kind", "label", "words"),
    [
        ("identity", "date", "2024-02-29",
         "2024-02-29, the whole of Thursday 29 February 2024 (UTC)"),
        ("hour", "timestamptz", "2024-02-29T06",
         "2024-02-29T06, the hour from 06:00 UTC of Thursday 29 February 2024"),
        ("month", "date", "2024-02", "2024-02, February 2024"),
        ("identity", "string", "EU", "EU of c"),
    ],
)  # fmt: skip
def test_the_last_partition_is_said_in_words(transform, kind, label, words) -> None:
    field = ScopeField(column="c", transform=transform, type=kind)
    assert resolve.describe_in_words(Scope(field=field, partitions=("x", label))) == words


READ = {"range": {"column": "day", "from": "2025-12-01", "to": "2026-02-01"}}


@pytest.mark.req("P10")
@pytest.mark.parametrize("mode", ["replace_partitions", "append", "merge", "shadow_only"])
def test_no_publish_mode_lets_todays_partition_pass(mode: str) -> None:
    target = {"publish_mode": mode, **({"merge": {"version": "amount"}} if mode == "merge" else {})}
    wanted = declared("2026-01-02", "2026-01-03", sources={"raw": READ}, target=target)
    with pytest.raises(Unsupported, match="its input is not complete yet"):
        make_plan(context(lake()), wanted, "bob", None)


SCOPES = [
    ("hour", "timestamptz", "2026-01-02T02", False), ("hour", "timestamptz", "2026-01-02T03", True),
    ("day", "timestamptz", "2026-01-01", False), ("day", "timestamptz", "2026-01-02", True),
    ("month", "date", "2025-12", False), ("month", "date", "2026-01", True),
    ("year", "date", "2025", False), ("year", "date", "2026", True),
    ("identity", "string", "EU", True), ("identity", "long", "7", True),
    ("identity", "date", "null", True),
]  # fmt: skip


@pytest.mark.req("P10")
@pytest.mark.parametrize(("transform", "kind", "label", "refused"), SCOPES)
def test_the_end_of_what_a_partition_reads_decides_whatever_it_is_by(
    transform: Any, kind: Any, label: str, refused: bool
) -> None:
    """At 2026-01-02 03:04:05 UTC; what is no time reads the range until February."""
    field = ScopeField(column="c", transform=transform, type=kind)
    found = incomplete_partitions(
        declared(sources={"raw": READ}).manifest, Scope(field=field, partitions=(label,)),
        (pin(date(2025, 1, 1), date(2026, 2, 1)),), NOW, {},
    )  # fmt: skip
    assert (label in found) is refused


NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


@pytest.mark.req("P10")
def test_the_null_partition_beside_it_does_not_let_todays_pass() -> None:
    found = incomplete_partitions(
        declared(sources={"raw": READ}).manifest, scope("null", "2026-01-01", "2026-01-02"),
        (pin(date(2025, 1, 1), date(2026, 1, 1)),), NOW, {},
    )  # fmt: skip
    assert list(found) == ["2026-01-02"]


@pytest.mark.req("P10")
def test_a_range_that_is_over_is_complete_for_partitions_that_are_no_time() -> None:
    regions = scope("EU", field=ScopeField(column="region", transform="identity", type="string"))
    manifest = declared(sources={"raw": READ}).manifest
    past = (pin(date(2025, 1, 1), date(2026, 1, 2)),)
    assert incomplete_partitions(manifest, regions, past, NOW, {}) == {}


@pytest.mark.req("P10")
def test_what_came_after_the_named_state_of_a_source_is_not_in_it() -> None:
    manifest = declared(sources={"raw": READ}).manifest
    wanted, pins = scope("2025-12-30", "2025-12-31"), (pin(date(2025, 1, 1), date(2026, 2, 1)),)
    named = {"raw": datetime(2025, 12, 31, 12, tzinfo=timezone.utc)}
    assert list(incomplete_partitions(manifest, wanted, pins, NOW, named)) == ["2025-12-31"]


@pytest.mark.req("P10")
def test_the_error_names_the_state_that_is_read_and_a_later_one_is_the_way_out() -> None:
    where = lake()
    committed = int(datetime(2025, 12, 31, 12, tzinfo=timezone.utc).timestamp() * 1000)
    resolved = where.resolve
    where.resolve = lambda ref: resolved(ref).model_copy(  # type: ignore[method-assign]
        update={"committed_at_ms": committed}
    )
    wanted = declared("2025-12-30", "2026-01-01", sources={"raw": {**READ, "at": "1"}})
    with pytest.raises(
        Unsupported, match=r"2025-12-31: .*raw is read as it was at 2025-12-31 12:00"
    ):
        make_plan(context(where), wanted, "bob", None)
    wanted = declared("2025-12-30", "2025-12-31", sources={"raw": {**READ, "at": "1"}})
    assert make_plan(context(where), wanted, "bob", None).run_id


@pytest.mark.req("P10")
@pytest.mark.parametrize(
    ("column", "transform", "stop", "words"),
    [
        ("date", "identity", "2024-03-01", "# the last one is 2024-02-29, the whole of Thursday"),
        ("timestamptz", "hour", "2024-03-01T00", "# the last one is 2024-02-29T23, the hour from"),
        ("date", "month", "2024-03", "# the last one is 2024-02, February 2024"),
        ("string", "identity", "US", ""),
    ],
)
def test_a_drafted_manifest_says_its_last_partition_in_words(column, transform, stop, words):
    drafted = contract(
        partitioning=[{"column": "day", "transform": transform}],
        columns=[{"name": "day", "type": column}, {"name": "id", "type": "long"}],
        key=["day", "id"],
    )
    text = draft_manifest(drafted, ("2024-01-01", stop), "why", "bug_fix", "bob").text
    assert words in text
    assert ("the last one" in text) is bool(words)
    assert yaml.safe_load(text)["safety"]["manual_publish"] is True


@pytest.mark.parametrize(
    ("column_type", "lower", "upper"),
    [
        ("date", date(2020, 1, 2), date(2020, 1, 5)),
        (
            "timestamp",
            datetime.fromisoformat("2020-01-02T22:00"),
            datetime.fromisoformat("2020-01-04T22:00"),
        ),
    ],
)
def test_a_range_with_an_offset_reads_its_instants_in_utc(
    column_type: str, lower: Any, upper: Any
) -> None:
    ranged = pin(first="2020-01-03T00:00+02:00", stop="2020-01-05T00:00+02:00")
    regions = ScopeField(column="region", transform="identity", type="string")
    hours = ScopeField(column="at", transform="hour", type="timestamp")
    by_hour = scope(*(f"2020-01-0{day}T{hour:02}" for day in (2, 3, 4) for hour in range(24)
                      if (2, 22) <= (day, hour) < (4, 22)), field=hours)  # fmt: skip
    for wanted in (by_hour, scope("EU", field=regions)):
        window = window_to_read(ranged, wanted)
        (rows,) = window_row_ranges(column_type, "at", *window)
        assert (rows.lower, rows.upper) == (lower, upper)


def test_an_instant_at_the_end_of_the_calendar_stays_in_it() -> None:
    ahead, behind = (datetime.fromisoformat(f"0001-01-01T00:00{x}:00") for x in ("+14", "+00"))
    assert as_instant(ahead) == behind
