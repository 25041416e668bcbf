"""Keyed merge: what a manifest may ask for, how chunks are cut, what counts must add up to."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_backfill.core.planning.inputs.read_windows import check_input_ranges
from lakehouse_backfill.core.planning.scope import resolve
from lakehouse_backfill.core.planning.target import row_changes
from lakehouse_backfill.domain.manifest import InputRange, RunManifest
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.run import ChunkCounts
from lakehouse_backfill.errors import BackfillError, ConfigError, Unsupported
from tests.support.examples.plans import a_plan as plan
from tests.support.examples.plans import columns_of, with_fields
from tests.support.fakes.context import contract, declared
from tests.support.fakes.lake import DAY

pytestmark = pytest.mark.req("U4")

TYPES = {
    "day": "date", "id": "long", "amount": "long", "version": "long", "changed_at": "timestamptz",
    "score": "double", "code": "string", "price": "decimal(10, 2)", "is_old": "boolean",
    "loaded_at": "timestamptz", "produced_at": "timestamptz",
}  # fmt: skip
COLUMNS = columns_of(TYPES)


def manifest(mode: str = "merge", merge: Any = None, **changes: Any) -> RunManifest:
    target = {"publish_mode": mode}
    return declared(
        target=target if merge is None else {**target, "merge": merge}, **changes
    ).manifest


REFUSED: dict[str, tuple[RunManifest, Any, type[BackfillError], str, str]] = {
    "no key": (
        manifest(merge={"version": "version"}), {"key": []}, ConfigError,
        "target.publish_mode", "write key in catalog/contracts/silver.daily.yaml",
    ),
    "processing time": (
        manifest(merge={"version": "loaded_at"}), {}, ConfigError,
        "target.merge.version", "use one of",
    ),
    "text has no order of numbers": (
        manifest(merge={"version": "code"}), {}, Unsupported, "target.merge.version", "use one of",
    ),
    "floats": (
        manifest(merge={"version": "score"}), {}, Unsupported, "target.merge.version", "use one of",
    ),
    "another writer": (
        manifest(
            merge={"version": "version"},
            transform={"name": "t", "version": "1.0.0", "file": "t.sql", "writer": "external"},
        ), {}, Unsupported, "target.publish_mode", "replace_partitions",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_a_merge_that_could_not_decide_is_refused_by_field(case: Any) -> None:
    asked, changes, kind, field, fix = case
    with pytest.raises(kind) as refused:
        row_changes.require_mergeable(asked, contract(**changes), COLUMNS)
    assert (refused.value.field, fix in refused.value.fix) == (field, True), refused.value


@pytest.mark.parametrize("version", ["amount", "version", "changed_at", "price"])
def test_a_version_is_a_number_a_day_or_an_instant(version: str) -> None:
    row_changes.require_mergeable(manifest(merge={"version": version}), contract(), COLUMNS)
    row_changes.require_mergeable(manifest("append"), contract(), COLUMNS)


@pytest.mark.req("U11")
def test_partitions_are_merged_again_one_by_one_only_where_no_key_can_move() -> None:
    again = manifest(merge={"version": "amount"}, safety={"on_conflict": "catch_up"})
    row_changes.require_separate_partitions(again, contract(), "day")
    with pytest.raises(Unsupported, match="may move between partitions") as refused:
        row_changes.require_separate_partitions(again, contract(key=["id"]), "day")
    assert refused.value.field == "safety.on_conflict"
    row_changes.require_separate_partitions(
        manifest(merge={"version": "amount"}), contract(key=["id"]), "day"
    )


CUTS = {
    "the key holds the partition": ("merge", ["day", "id"], 1),
    "a key may move": ("merge", ["id"], 3),
    "no merge": ("replace_partitions", ["id"], 1),
}


@pytest.mark.parametrize(("mode", "key", "size"), CUTS.values(), ids=CUTS)
def test_partitions_between_which_a_key_may_move_are_one_chunk(mode, key, size) -> None:
    scope = Scope(field=DAY, partitions=("2020-01-02", "2020-01-03", "2020-01-04"))
    asked = manifest(mode, {"version": "amount"} if mode == "merge" else None)
    assert row_changes.chunk_partition_limit(asked, contract(key=key), scope) == size


def test_rows_after_a_merge_are_those_before_with_what_came_without_what_went() -> None:
    asked = manifest(merge={"version": "amount"})
    made = with_fields(plan(), resolved__manifest=asked)
    counts = ChunkCounts(
        carried_rows=4, inserted_rows=3, updated_rows=2, deleted_rows=1, ignored_rows=9
    )
    fine = row_changes.check_changes_add_up(made, counts, 7, 9)
    lost = row_changes.check_changes_add_up(made, counts, 7, 8)
    assert (fine.passed, lost.passed, lost.waivable) == (True, False, False)
    assert fine.detail == (
        "7 rows, 3 keys inserted, 2 updated, 1 deleted: 9 rows; 9 change rows were older or known"
    )
    assert row_changes.check_changes_add_up(plan(), counts, 7, 9) is None


def test_counts_survive_in_the_summary_of_a_snapshot() -> None:
    counts = ChunkCounts(carried_rows=4, inserted_rows=0, ignored_rows=9)
    assert ChunkCounts.from_properties({"other": "1", **counts.properties}) == counts
    assert ChunkCounts.from_properties({}) == ChunkCounts()
    assert counts + ChunkCounts(inserted_rows=2, deleted_rows=1) == ChunkCounts(
        carried_rows=4, inserted_rows=2, deleted_rows=1, ignored_rows=9
    )


def test_a_merge_asks_for_no_input_of_edges_that_it_does_not_compute() -> None:
    merge, swap = manifest(merge={"version": "version"}), manifest("replace_partitions")
    assert (resolve.computed_edges(merge), resolve.computed_edges(swap)) == (0, 1)
    scope = plan().resolved.scope
    source = (
        plan()
        .resolved.sources[0]
        .model_copy(
            update={
                "range": InputRange(
                    column="day", **{"from": scope.partitions[0], "to": "2100-01-01"}
                ),
                "warm_up_days": 0,
            }
        )
    )
    with pytest.raises(ConfigError, match="shorter than what the partitions need"):
        check_input_ranges(swap, scope, (source,))
    assert check_input_ranges(merge, scope, (source,))
