"""Which partitions read what changes: against a search over everything that could."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import date, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehouse_backfill.core.cascade.graph import (
    MappedProduct,
    label_value,
    reached_partitions,
    require_covered_reads,
)
from lakehouse_backfill.domain.cascade.graph import Upstream
from lakehouse_backfill.domain.partitions import ScopeField
from lakehouse_backfill.errors import ConfigError, Unsupported
from tests.support.fakes.context import contract, declared

pytestmark = pytest.mark.req("P4")
DAY = ScopeField(column="day", transform="identity", type="date")
MONTH = ScopeField(column="day", transform="month", type="date")
TEXT = ScopeField(column="region", transform="identity", type="string")
FIRST = date(2024, 1, 20)
DAYS = [str(FIRST + timedelta(days=number)) for number in range(30)]
some_days = st.sets(st.sampled_from(DAYS), min_size=1)


def upstream(mapping: str, **terms: Any) -> Upstream:
    return Upstream.model_validate({"product": "s.up", "mapping": mapping} | terms)


def mapped(field: ScopeField, *held: str) -> MappedProduct:
    return MappedProduct("s.down", field, frozenset(held))


@settings(deadline=None)
@given(some_days, st.sets(st.sampled_from(DAYS)), st.integers(0, 5), st.integers(0, 5))
def test_a_window_reaches_every_held_partition_that_reads_a_changed_one(
    changed: set[str], held: set[str], before: int, after: int
) -> None:
    window = upstream("window", partitions_before=before, partitions_after=after)
    found = reached_partitions(window, (DAY, changed), mapped(DAY, *held))

    def reads(day: str) -> set[str]:
        steps = range(-before, after + 1)
        return {str(date.fromisoformat(day) + timedelta(days=step)) for step in steps}

    assert found.partitions == {day for day in held | changed if reads(day) & changed}
    assert not found.absent & (held | changed)
    assert all(reads(day) & changed for day in found.absent)


@settings(deadline=None)
@given(some_days)
def test_a_month_is_reached_by_any_of_its_days_and_widened_unless_all_change(
    changed: set[str],
) -> None:
    found = reached_partitions(upstream("aggregate"), (DAY, changed), mapped(MONTH))
    assert found.partitions == {day[:7] for day in changed}
    assert found.widened == found.partitions
    whole = [str(date(2024, 2, 1) + timedelta(days=number)) for number in range(29)]
    assert not reached_partitions(upstream("aggregate"), (DAY, whole), mapped(MONTH)).widened


@settings(deadline=None)
@given(some_days)
def test_same_reaches_the_same_labels_and_all_reaches_what_is_held(changed: set[str]) -> None:
    same = reached_partitions(upstream("same"), (DAY, changed), mapped(DAY))
    assert same.partitions == changed
    whole = reached_partitions(upstream("all"), (TEXT, {"EU"}), mapped(DAY, *DAYS))
    assert whole.partitions == set(DAYS)


def test_null_stays_null() -> None:
    for mapping, field in (("same", DAY), ("window", DAY), ("aggregate", MONTH)):
        found = reached_partitions(
            upstream(mapping, partitions_before=2), (DAY, {"null"}), mapped(field, "null")
        )
        assert found.partitions == {"null"}
        assert not found.widened


def test_a_function_says_what_is_reached() -> None:
    custom = upstream("custom", file="m.py", function="f")
    found = reached_partitions(custom, (TEXT, {"EU"}), mapped(DAY), lambda _: DAYS[:2])
    assert found.partitions == set(DAYS[:2])
    with pytest.raises(ConfigError, match="returns 'soon' for EU, which is no partition"):
        reached_partitions(custom, (TEXT, {"EU"}), mapped(DAY), lambda _: ["soon"])


@pytest.mark.parametrize(
    ("mapping", "of", "to"),
    [("same", DAY, MONTH), ("aggregate", MONTH, DAY), ("aggregate", TEXT, MONTH),
     ("window", TEXT, TEXT), ("same", TEXT, DAY)],
)  # fmt: skip
def test_a_mapping_that_does_not_fit_is_an_error(
    mapping: str, of: ScopeField, to: ScopeField
) -> None:
    with pytest.raises(ConfigError, match="does not fit its upstream"):
        reached_partitions(upstream(mapping), (of, {"2024-01"}), mapped(to))


def test_a_source_that_reads_more_than_its_mapping_says_is_refused() -> None:
    up = contract(product="s.up", table="s.up")
    run = declared(product="s.down", sources={"raw": {"table": "s.up", "warm_up_days": 6}})
    with pytest.raises(Unsupported, match="reads 6 days before"):
        require_covered_reads(upstream("same"), up, run.manifest, DAY)
    with pytest.raises(Unsupported, match="covers 5 before"):
        require_covered_reads(upstream("window", partitions_before=5), up, run.manifest, DAY)
    require_covered_reads(upstream("window", partitions_before=6), up, run.manifest, DAY)
    require_covered_reads(upstream("all"), up, run.manifest, DAY)


def test_a_state_without_an_end_carries_a_change_to_all_later_partitions() -> None:
    up, stateful = contract(product="s.up", table="s.up"), {
        "state": {"derived_from_input": True, "key": ["id"]}, "start_boundary": "empty",
        "timers": "event_time", "late": "include", "watermark": {"policy": "batch_equivalent"},
    }  # fmt: skip
    for days, is_refused in ((0, True), (2, False)):
        sources = {"raw": {"table": "s.up", "warm_up_days": days}}
        run = declared(
            product="s.down", sources=sources, stateful={**stateful, "warm_up_days": days}
        )
        refusal = pytest.raises(Unsupported, match="would reach all later partitions")
        with refusal if is_refused else nullcontext():
            window = upstream("window", partitions_before=2)
            require_covered_reads(window, up, run.manifest, DAY)
        require_covered_reads(upstream("all"), up, run.manifest, DAY)


@pytest.mark.parametrize("field", [DAY, TEXT])
def test_reference_data_is_read_whole_so_only_all_covers_it(field: ScopeField) -> None:
    up, reference = contract(product="s.up", table="s.up"), {"rates": {"table": "s.up"}}
    run = declared(product="s.down", reference_data=reference)
    with pytest.raises(Unsupported, match=r"reads all of s\.up as reference data"):
        require_covered_reads(upstream("same"), up, run.manifest, field)
    require_covered_reads(upstream("all"), up, run.manifest, field)


@pytest.mark.parametrize(
    ("label", "value"), [("null", None), ("=null", "null"), ("==a", "=a"), ("EU", "EU")]
)
def test_a_label_is_written_as_the_value_that_has_it(label: str, value: str | None) -> None:
    assert label_value(TEXT, label) == value
