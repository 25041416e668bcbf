"""Stateful jobs: what a declaration may say, and which state each chunk starts from."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse_backfill.core.planning.inputs.read_windows import needed_window
from lakehouse_backfill.domain.partitions import Chunk, Scope, ScopeField
from lakehouse_backfill.domain.plan import ResolvedManifest
from lakehouse_backfill.domain.stateful import states
from lakehouse_backfill.domain.stateful.declaration import (
    Stateful,
    StateSnapshot,
    StateStart,
    declaration_faults,
)
from tests.support.examples.plans import a_plan, with_fields

pytestmark = pytest.mark.req("X4")

FIELD = ScopeField(column="d", transform="identity", type="date")
DAYS = tuple(f"2024-01-{day:02d}" for day in range(1, 21))
FIELDS: dict[str, Any] = {
    "state": {"derived_from_input": True, "key": ["k"]}, "start_boundary": "empty",
    "timers": "event_time", "late": "include", "watermark": {"policy": "batch_equivalent"},
}  # fmt: skip
MARK = {"policy": "bounded_disorder", "event_time": "at", "arrival": "seen", "disorder_s": 60}


def resolved(cut: Iterable[tuple[str, ...]], start: StateStart | None = None) -> ResolvedManifest:
    """A stateful run of the chunks."""
    chunks = tuple(Chunk(chunk_id=f"c{n}", partitions=labels) for n, labels in enumerate(cut))
    labels = tuple(label for chunk in chunks for label in chunk.partitions)
    plan = with_fields(
        a_plan(), resolved__manifest__stateful=Stateful.model_validate(FIELDS),
        resolved__scope=Scope(field=FIELD, partitions=labels), resolved__chunks=chunks,
        resolved__state_start=start,
    )  # fmt: skip
    return plan.resolved  # type: ignore[no-any-return]


def cut_at(labels: tuple[str, ...], ends: set[int]) -> list[tuple[str, ...]]:
    bounds = [0, *sorted(end for end in ends if 0 < end < len(labels)), len(labels)]
    return [labels[one:two] for one, two in pairwise(bounds) if one < two]


def days_read(made: ResolvedManifest, scope: Scope) -> list[str]:
    wanted, has_warm_up = states.labels_to_read(made, scope)
    pin = states.read_pin(made.sources[0], has_warm_up=has_warm_up)
    window = needed_window(pin, wanted)
    assert window is not None
    first, stop = window
    return [str((first + timedelta(days=n)).date()) for n in range((stop - first).days)]


@given(st.sets(st.sampled_from(DAYS), min_size=1), st.sets(st.integers(1, 19)))
def test_any_cut_into_chunks_ends_with_the_state_of_one_pass(
    chosen: set[str], ends: set[int]
) -> None:
    labels = tuple(sorted(chosen))
    kept: dict[str, list[str]] = {"": []}
    made = resolved(cut_at(labels, ends))
    for chunk in made.chunks:
        scope = Scope(field=FIELD, partitions=chunk.partitions)
        before = kept[states.start_of(made, scope).key]
        # A state is all that was read: each day once, in order, gaps between partitions too.
        kept[states.state_after(made, chunk).key] = before + days_read(made, scope)
    one_pass = resolved([labels])
    whole = days_read(one_pass, one_pass.scope)
    assert kept[states.state_after(made, made.chunks[-1]).key] == whole
    assert len(kept) == len(made.chunks) + 1


def test_a_run_goes_on_behind_the_state_that_it_restores() -> None:
    kept = StateSnapshot(
        table="a.b", snapshot_id=1, checksum="x", key="k" * 64, boundary="2024-01-03"
    )
    assert StateSnapshot.parse(kept.text) == kept
    made = resolved([DAYS[6:8], DAYS[8:9]], StateStart(kept=kept, run_id="bf-0", why="kept"))
    first, second = (Scope(field=FIELD, partitions=one.partitions) for one in made.chunks)
    assert days_read(made, first) == list(DAYS[3:8])
    assert days_read(made, second) == list(DAYS[8:9])
    assert states.start_of(made, first).kept == kept
    # A part of a chunk starts where the chunk does, and what follows all starts from the last.
    part = Scope(field=FIELD, partitions=DAYS[7:8])
    assert days_read(made, part) == list(DAYS[3:8])
    assert states.start_of(made, Scope(field=FIELD, partitions=DAYS[9:10])) == states.start_of(
        made, second
    )


def test_a_warm_up_is_read_by_the_first_chunk_of_a_run_without_a_state() -> None:
    made = resolved([DAYS[4:5], DAYS[5:6]], StateStart(warm_up=True, why="declared"))
    first, second = (Scope(field=FIELD, partitions=one.partitions) for one in made.chunks)
    assert (days_read(made, first), days_read(made, second)) == (list(DAYS[3:5]), [DAYS[5]])
    cold = resolved([DAYS[4:5]], StateStart(why="declared"))
    assert days_read(cold, cold.scope) == [DAYS[4]]


OTHERS: dict[str, dict[str, Any]] = {
    "code": {"code_hash": "f" * 64},
    "configuration": {"manifest__transform__config": {"rate": 2}},
    "version": {"manifest__transform__version": "9.0.0"},
    "declaration": {"manifest__stateful": Stateful.model_validate(FIELDS | {"late": "drop"})},
    "packages": {"lock_hash": "f" * 64},
    "partition field": {"scope__field": ScopeField(column="e", transform="identity", type="date")},
}


@pytest.mark.parametrize("name", [*OTHERS, "input", "range", "cut"])
def test_a_state_has_another_key_when_anything_that_makes_it_differs(name: str) -> None:
    made = resolved([DAYS[:2]])
    other = resolved([DAYS[:1], DAYS[1:2]]) if name == "cut" else with_fields(
        made, **OTHERS.get(name, {})
    )  # fmt: skip
    if name in ("input", "range"):
        change = {"snapshot_id": 5} if name == "input" else {"range__column": "arrived"}
        other = with_fields(made, sources=tuple(with_fields(pin, **change) for pin in made.sources))
    keys = [states.state_after(one, one.chunks[-1]).key for one in (made, made, other)]
    assert keys[0] == keys[1] != keys[2]


def test_the_states_that_a_run_reads_and_keeps_are_named_by_their_tables() -> None:
    kept = StateSnapshot(table="a.b", snapshot_id=1, checksum="x", key="k", boundary=DAYS[0])
    made = resolved([DAYS[1:2], DAYS[2:3]], StateStart(kept=kept, run_id="bf-0", why="kept"))
    own = [states.table_of("lhb", states.state_after(made, one).key) for one in made.chunks]
    assert states.tables_of(made, "lhb") == ("a.b", *own)
    assert states.tables_of(with_fields(made, manifest__stateful=None), "lhb") == ()


def test_rows_of_all_earlier_days_count_unless_a_warm_up_makes_the_state() -> None:
    made, noon = resolved([DAYS[:1]]), datetime(2024, 1, 5, 12, tzinfo=timezone.utc)
    (pin, *_) = made.sources
    warm = with_fields(made, manifest__stateful__warm_up_days=3)
    plain = with_fields(made, manifest__stateful=None)
    assert states.first_that_counts(pin, made, noon).year == 1
    assert [states.first_that_counts(pin, one, noon) for one in (warm, plain)] == [noon, noon]


WRONG: dict[str, tuple[dict[str, Any], dict[str, int], int, str]] = {
    "made elsewhere": ({"state": {"derived_from_input": False, "key": ["k"]}}, {}, 1,
                       "stateful.state.derived_from_input"),
    "clock on the wall": ({"timers": "processing_time"}, {}, 1, "stateful.timers"),
    "side by side": ({}, {}, 2, "limits.parallel"),
    "no warm-up": ({"start_boundary": "warm_up"}, {}, 1, "stateful.warm_up_days"),
    "another warm-up": ({}, {"src": 2}, 1, "sources.src.warm_up_days"),
    "late in a batch": ({"late": "drop"}, {}, 1, "stateful.late"),
    "late in a disorder": ({"watermark": MARK}, {}, 1, "stateful.late"),
    "which source": ({}, {"src": 0, "more": 0}, 1, "stateful.watermark.source"),
    "no such source": ({"watermark": {"policy": "batch_equivalent", "source": "x"}}, {}, 1,
                       "stateful.watermark.source"),
    "no event time": ({"watermark": {"policy": "sort_by_event_time_in_key"}}, {}, 1,
                      "stateful.watermark.event_time"),
    "no arrival": ({"late": "drop", "watermark": {n: MARK[n] for n in MARK if n != "arrival"}},
                   {}, 1, "stateful.watermark.arrival"),
    "no use": ({"watermark": {"policy": "batch_equivalent", "arrival": "seen"}}, {}, 1,
               "stateful.watermark.arrival"),
    "several days": ({"late": "drop", "snapshot": {"every_partitions": 2},
                      "watermark": {"policy": "by_time_partition", "event_time": "at"}}, {}, 1,
                     "stateful.snapshot.every_partitions"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_declaration_that_cannot_be_kept_is_named_by_its_field(name: str) -> None:
    changes, sources, parallel, field = WRONG[name]
    declared = Stateful.model_validate(FIELDS | changes)
    found = list(declaration_faults(declared, sources or {"src": 0}, parallel))
    assert [one.field for one in found] == [field]


@pytest.mark.parametrize(
    ("late", "mark"),
    [
        ("include", {"policy": "batch_equivalent"}),
        ("include", {"policy": "sort_by_event_time_in_key", "event_time": "at"}),
        ("drop", {"policy": "by_time_partition", "event_time": "at"}),
        ("fail", MARK),
        ("correct", MARK | {"policy": "corrections_for_late_facts"}),
    ],
)
def test_each_policy_can_be_declared(late: str, mark: dict[str, Any]) -> None:
    declared = Stateful.model_validate(FIELDS | {"late": late, "watermark": mark})
    assert list(declaration_faults(declared, {"src": 0}, 1)) == []
