"""Runs of some tuples of partition values: a row predicate that partition fields decide.

The table is partitioned by day and number; engine and tables are those of the lab.
"""

from __future__ import annotations

from collections import Counter
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.expressions import EqualTo
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import DecimalType

from lakehouse_backfill.adapters.local.scan import count_rows, plan_scan
from lakehouse_backfill.domain.labels.values import bucket_number
from lakehouse_backfill.domain.partitions import (
    Scope,
    ScopeField,
    partition_label,
    scope_row_ranges,
)
from lakehouse_backfill.errors import Conflict, TargetChanged, Unsupported
from tests.chaos.lab import CONTRACT, DAYS, TARGET
from tests.support.lakes.deletes import hide_equal
from tests.support.lakes.retention import WHO, RetentionLake
from tests.support.lakes.tables import DAY, Kit, Row, field_of, row

pytestmark = pytest.mark.in_turn(2, of="file")

NUMBERS = (1, 2, 3, None)
BY_BOTH = PartitionSpec(
    PartitionField(1, 1000, IdentityTransform(), "d"),
    PartitionField(2, 1001, IdentityTransform(), "k"),
)


class TupleLake(RetentionLake):
    """The lab's product by day and number: 100 times the number in each row, of null -100."""

    def __init__(self, root: Path, spec: PartitionSpec = BY_BOTH) -> None:
        super().__init__(root)
        schema = self.catalog.load_table(TARGET).schema()
        self.catalog.drop_table(TARGET)
        self.catalog.create_table(TARGET, schema, partition_spec=spec)
        self.live(*((day, k, 100 * (k or -1)) for day in DAYS for k in NUMBERS))
        source = self.catalog.load_table("bronze.s")
        source.append(self.table((day, None, -1) for day in DAYS))

    def table(self, rows: Any) -> pa.Table:
        """Give rows as a table: day, number, value."""
        schema = self.catalog.load_table(TARGET).schema().as_arrow()
        found = [{"d": date.fromisoformat(d), "k": k, "v": v} for d, k, v in rows]
        return pa.Table.from_pylist(found, schema)

    def live(self, *rows: tuple[str, int | None, int]) -> None:
        """Let a live job append rows."""
        self.catalog.load_table(TARGET).append(self.table(rows))

    def planned(self, predicate: str, more: str = "", name: str = "a") -> Any:
        """Plan a run of two days, and of the rows that the predicate names."""
        file = self.lab.manifest(f"{name}.yaml", DAYS[1], DAYS[3])
        path = self.lab.folder / file
        text = path.read_text(encoding="utf-8")
        target = f"to: {DAYS[3]}}}\n  row_predicate: {predicate}\n{more}"
        path.write_text(text.replace(f"to: {DAYS[3]}}}\n", target), encoding="utf-8")
        return self.project.plan(file, by=WHO)

    def decided(self, predicate: str, **named: str) -> str:
        """Take a run to its acceptance."""
        run = str(self.planned(predicate, **named).run_id)
        self.project.approve(run, WHO)
        found = self.project.run(run, WHO).to_dict()
        assert found["state"] == "validated", [c for c in found["checks"] if not c["passed"]]
        self.project.accept(run, WHO)
        return run

    def faults(self, run: str) -> list[dict[str, Any]]:
        """What `verify --deep` finds wrong."""
        checks = self.project.verify(run, deep=True).to_dict()["checks"]
        return [check for check in checks if check["ok"] is False]

    def held(self) -> dict[tuple[str, int | None], list[int]]:
        """The values of each tuple, sorted."""
        found: dict[tuple[str, int | None], list[int]] = {}
        for one in self.rows():
            found.setdefault((str(one["d"]), one["k"]), []).append(one["v"])
        return {place: sorted(values) for place, values in found.items()}

    def places(self) -> dict[tuple[str, int | None], set[str]]:
        """The files of each tuple."""
        tasks = self.catalog.load_table(TARGET).scan().plan_files()
        found: dict[tuple[str, int | None], set[str]] = {}
        for task in tasks:
            day, k = task.file.partition[0], task.file.partition[1]
            found.setdefault((str(date.fromordinal(719163 + day)), k), set()).add(
                task.file.file_path
            )
        return found


def restated(held: dict[Any, list[int]], *numbers: int | None) -> dict[Any, list[int]]:
    """What is to be there: ten times the number, in two days, of these numbers."""
    return {
        (day, k): [10 * (k or -1)] if day in DAYS[1:3] and k in numbers else values
        for (day, k), values in held.items()
    }


@pytest.mark.req("U1b", "U1", "U11", "U12")
def test_only_files_of_the_tuples_change_and_live_commits_beside_them_are_kept(
    tmp_path: Path,
) -> None:
    lake = TupleLake(tmp_path)
    before, files = lake.held(), lake.places()
    run = lake.decided("{k: [1, null]}")
    shadow = lake.project.wiring.context.runs.plan(run).shadow_table
    own = [one for one in lake.files() if shadow.rpartition(".")[2] in one]
    assert own
    assert not [one for one in own if "k=2" in one or "k=3" in one]
    ledger = lake.project.wiring.context.runs.chunks(run)
    assert [(one.output_rows, one.carried_rows) for one in ledger] == [(2, 0), (2, 0)]
    lake.live((DAYS[1], 3, 7), (DAYS[1], 9, 8))  # other tuples of a day of the run
    lake.project.publish(run, WHO)
    live = {(DAYS[1], 3): [7, 300], (DAYS[1], 9): [8]}
    assert lake.held() == restated(before, 1, None) | live
    now = lake.places()
    changed = {place for place, some in files.items() if not some <= now[place]}
    assert changed == {(day, k) for day in DAYS[1:3] for k in (1, None)}
    assert lake.faults(run) == []
    lake.live((DAYS[2], 3, 9))
    live |= {(DAYS[2], 3): [9, 300]}
    lake.project.rollback(TARGET, reason="wrong", by=WHO)
    assert lake.held() == before | live
    assert {place: some for place, some in lake.places().items() if place not in live} == {
        place: some for place, some in files.items() if place not in live
    }


@pytest.mark.req("U11")
def test_a_live_commit_to_a_tuple_of_the_run_is_a_conflict(tmp_path: Path) -> None:
    lake = TupleLake(tmp_path)
    run = lake.decided("{k: [1, null]}")
    lake.live((DAYS[1], None, 7))
    with pytest.raises(TargetChanged, match=f"changed {DAYS[1]}"):
        lake.project.publish(run, WHO)
    assert lake.held()[DAYS[1], None] == [-100, 7]


@pytest.mark.req("U1b")
def test_the_plan_says_how_many_tuples_and_files_and_why(tmp_path: Path) -> None:
    lake = TupleLake(tmp_path)
    (note,) = [one for one in lake.planned("{k: 1}").notes if "only rows with" in one]
    assert "2 tuples of partition values with 2 rows in 2 files are in the scope" in note
    with lake.catalog.load_table(TARGET).update_spec() as update:
        update.add_field("v", BucketTransform(4), "v_bucket")
    (note,) = [one for one in lake.planned("{k: 1}", name="b").notes if "only rows with" in one]
    assert "carried over and proven equal, so that 8 rows in 8 files" in note
    assert "silver.t has 2 partition specs" in note


@pytest.mark.req("U12")
def test_versions_of_other_tuples_are_rolled_back_one_by_one(tmp_path: Path) -> None:
    lake = TupleLake(tmp_path)
    before = lake.held()
    lake.project.publish(lake.decided("{k: 1}"), WHO)
    lake.live((DAYS[1], 3, 7))
    lake.project.publish(lake.decided("{k: 2}", name="b"), WHO)
    live = {(DAYS[1], 3): [7, 300]}
    with pytest.raises(Unsupported, match="one rollback can only undo one of them"):
        lake.project.rollback(TARGET, 0, reason="wrong", by=WHO)
    lake.project.rollback(TARGET, reason="wrong", by=WHO)
    assert lake.held() == restated(before, 1) | live
    lake.project.rollback(TARGET, reason="wrong", by=WHO)
    assert lake.held() == before | live


@pytest.mark.req("U11", "U12")
def test_open_runs_of_other_tuples_of_a_day_are_published_one_after_the_other(
    tmp_path: Path,
) -> None:
    lake = TupleLake(tmp_path)
    before = lake.held()
    first, second = lake.decided("{k: 1}"), lake.decided("{k: [2, null]}", name="b")
    third = lake.planned("{k: [1, 3]}", name="c").run_id
    with pytest.raises(Conflict, match=f"overlaps open run {first}"):
        lake.project.approve(third, WHO)
    lake.project.publish(second, WHO)
    lake.project.publish(first, WHO)
    assert lake.held() == restated(before, 1, 2, None)
    assert lake.faults(first) + lake.faults(second) == []
    lake.project.rollback(TARGET, reason="wrong", by=WHO)
    assert lake.held() == restated(before, 2, None)
    assert lake.faults(second) == []
    lake.project.rollback(TARGET, reason="wrong", by=WHO)
    assert lake.held() == before


#: After the version is reserved, the swap has landed, the pointer has moved.
POINTS = ("Versions.move:after", "Publisher.adopt:after", "Evidence.record:before")


@pytest.mark.req("U11", "U12")
def test_a_publication_of_tuples_that_died_is_finished_beside_an_open_run_of_others(
    tmp_path: Path,
) -> None:
    lake = TupleLake(tmp_path)
    before = lake.held()
    run, other = lake.decided("{k: 1}"), lake.decided("{k: 2}", name="b")
    lake.save(tmp_path / "accepted")
    for point in POINTS:
        lake.restore(tmp_path / "accepted")
        with lake.killed_at(point):
            lake.project.publish(run, WHO)
        lake.project.recover(None, WHO)
        lake.project.publish(run, WHO)
        assert lake.held() == restated(before, 1)
        lake.project.publish(other, WHO)
        assert lake.held() == restated(before, 1, 2)
        assert lake.faults(run) + lake.faults(other) == []


@pytest.mark.req("U11", "U12")
def test_live_rows_of_before_another_version_are_not_lost_where_later_commits_only_deleted(
    tmp_path: Path,
) -> None:
    lake = TupleLake(tmp_path)
    reapplied = CONTRACT.replace("[d, k]", "[d, k, v]") + "deletions: reapply\n"
    (lake.lab.folder / f"catalog/contracts/{TARGET}.yaml").write_text(reapplied, encoding="utf-8")
    lake.project = lake.open()
    lake.project.publish(lake.decided("{k: 1}"), WHO)
    lake.live((DAYS[1], 1, 7))
    lake.project.publish(lake.decided("{k: 2}", name="b"), WHO)
    lake.project.rollback(TARGET, reason="wrong", by=WHO)
    lake.catalog.load_table(TARGET).delete(EqualTo("v", 10))
    with pytest.raises(TargetChanged, match=f"changed {DAYS[1]}"):
        lake.project.rollback(TARGET, reason="wrong", by=WHO)
    assert lake.held()[DAYS[1], 1] == [7]


@pytest.mark.req("U11", "U12")
@pytest.mark.parametrize("days", [(), (DAYS[1],)], ids=["all", "some days"])
def test_live_rows_that_a_rollback_restored_are_not_lost_by_the_next_one(
    tmp_path: Path, days: tuple[str, ...]
) -> None:
    lake = TupleLake(tmp_path)
    lake.project.publish(lake.decided("{k: 1}"), WHO)
    lake.live((DAYS[1], 1, 7))
    lake.project.publish(lake.decided("{k: 1}", name="b"), WHO)
    assert lake.held()[DAYS[1], 1] == [10]
    lake.project.rollback(TARGET, partitions=days, reason="wrong", by=WHO)
    before = lake.held()
    assert before[DAYS[1], 1] == [7, 10]
    with pytest.raises(TargetChanged, match=f"1 live rows came to {DAYS[1]} .* restored them"):
        lake.project.rollback(TARGET, 0, reason="wrong", by=WHO)
    assert lake.held() == before
    lake.project.rollback(TARGET, 0, partitions=[DAYS[2]], reason="wrong", by=WHO)
    assert lake.held() == {**before, (DAYS[2], 1): [100]}


@pytest.mark.req("U11", "U12")
def test_tuples_whose_field_left_the_partitioning_are_refused_and_nothing_changes(
    tmp_path: Path,
) -> None:
    lake = TupleLake(tmp_path)
    lake.project.publish(lake.decided("{k: 1}"), WHO)
    run = lake.decided("{k: 2}", name="b")
    with lake.catalog.load_table(TARGET).update_spec() as update:
        update.remove_field("k")
    lake.live((DAYS[1], 2, 7))
    before, versions = lake.held(), lake.project.wiring.context.versions
    with pytest.raises(TargetChanged, match="its partitioning changed from") as changed:
        lake.project.publish(run, WHO)
    assert changed.value.state.startswith("nothing was published")
    with pytest.raises(Unsupported, match="does not tell") as refused:
        lake.project.rollback(TARGET, reason="wrong", by=WHO)
    assert refused.value.state == "nothing was rolled back"
    with lake.catalog.load_table(TARGET).update_schema() as columns:
        columns.rename_column("k", "m")
    with pytest.raises(Unsupported, match="the table has no column k") as refused:
        lake.project.publish(run, WHO)
    assert refused.value.state == "nothing was published; readers see what they saw before"
    with lake.catalog.load_table(TARGET).update_schema() as columns:
        columns.rename_column("m", "k")
    assert (lake.held(), versions.pointer(TARGET).pending) == (before, None)
    assert lake.project.status(run).runs[0].state == "accepted"


#: Texts that are easily taken for another, or for none.
REGIONS = (None, "null", "=null", "", "EU", "EU ", "EU\u200b", "e/u=%", "a' or 1=1", '`é"\\😀')
REGION = field_of("region")
PLACES = st.tuples(st.sampled_from([None, *DAYS[:3]]), st.sampled_from(REGIONS))


def only(*values: Any, of: ScopeField = DAY, by: ScopeField = REGION) -> ScopeField:
    """Partitions of which only files with these values of another column are meant."""
    named = Scope(field=by, partitions=tuple(partition_label(by, one) for one in values))
    return of.model_copy(update={"only": (named,)})


def counted(kit: Kit) -> Counter[Any]:
    return Counter(kit.rows())


@pytest.mark.req("U1b", "U11", "U12")
@given(
    held=st.lists(PLACES, min_size=1, max_size=12),
    days=st.sets(st.sampled_from([None, *DAYS[:3]]), min_size=1),
    regions=st.sets(st.sampled_from(REGIONS), min_size=1),
    later=st.lists(PLACES, max_size=4),
    isolation=st.sampled_from(["clone", "branch"]),
    is_by_day=st.booleans(),
)
@settings(max_examples=8, deadline=None)
def test_whatever_tuples_are_named_all_others_stay(
    held: Any, days: Any, regions: Any, later: Any, isolation: Any, is_by_day: bool
) -> None:
    def is_in(place: Any) -> bool:
        return place[0] in days and place[1] in regions

    with TemporaryDirectory() as folder:
        kit = Kit(Path(folder), isolation=isolation)
        kit.create(("d", "identity"), ("region", "identity"))
        kit.append(*(row(at, day, "old", region) for at, (day, region) in enumerate(held)))
        field, others, other = (DAY, regions, REGION) if is_by_day else (REGION, days, DAY)
        new: dict[str, list[Row]] = {}
        for day in days:
            for region in regions:
                label = partition_label(field, day if is_by_day else region)
                new.setdefault(label, []).append(row(100, day, "new", region))
        request = kit.stage(only(*others, of=field, by=other), new)
        live = [row(200 + at, day, "live", region) for at, (day, region) in enumerate(later)]
        for one in live:
            kit.append(one)
        before = counted(kit)
        if any(map(is_in, later)):
            with pytest.raises(TargetChanged):
                kit.publisher.adopt(request)
            assert counted(kit) == before
            return
        swap = kit.publisher.adopt(request)
        named = Counter((100, str(day), region, "new") for day in days for region in regions)
        gone = Counter(
            (at, str(day), region, "old")
            for at, (day, region) in enumerate(held)
            if is_in((day, region))
        )
        assert counted(kit) == before - gone + named
        spans = scope_row_ranges(request.scope)
        assert kit.tables.estimate("silver.t", swap.snapshot_id, spans).rows == named.total()
        tasks = plan_scan(kit.catalog, "silver.t", swap.snapshot_id, spans).tasks
        assert sum(task.file.record_count for task in tasks) == named.total()
        kit.publisher.revert(kit.revert_request(swap, request.scope))
        assert counted(kit) == before


@pytest.mark.req("U11")
@pytest.mark.parametrize(("day", "region", "is_conflict"), [
    (DAYS[1], "US", False), (DAYS[2], "EU", False), (DAYS[1], "EU", True), (None, None, True),
])  # fmt: skip
def test_equality_deletes_of_other_tuples_are_no_conflict(
    tmp_path: Path, day: str | None, region: str | None, is_conflict: Any
) -> None:
    kit = Kit(tmp_path)
    kit.create(("d", "identity"), ("region", "identity"))
    everywhere = kit.respec(lambda u: u.remove_field("p0_d"), lambda u: u.remove_field("p1_region"))
    spec = kit.respec(lambda u: u.add_identity("d"), lambda u: u.add_identity("region"))
    kit.append(*(row(n, DAYS[1 + n % 2], "old", ("EU", "US")[n // 2]) for n in range(4)))
    request = kit.stage(only("EU"), {DAYS[1]: [row(9, DAYS[1], "new", "EU")]})
    if day is None:
        hide_equal(kit, 0, partition=(), spec_id=everywhere)
    else:
        place = (date.fromisoformat(day).toordinal() - 719163, region)
        hide_equal(kit, 0, partition=place, spec_id=spec)
    if is_conflict:
        with pytest.raises(TargetChanged, match=f"changed {DAYS[1]}"):
            kit.publisher.adopt(request)
        return
    swap = kit.publisher.adopt(request)
    assert (swap.files_added, swap.files_removed) == (1, 1)


@pytest.mark.req("U1b")
def test_buckets_are_narrowed_by_a_field_of_another_name_than_its_column(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.create(("id", "bucket[4]"), ("region", "identity"))
    kit.append(
        row(1, DAYS[1], "old", "EU"), row(2, DAYS[1], "old", "US"), row(3, None, "old", "EU")
    )
    buckets = only("EU", of=field_of("id", "bucket[4]"))
    scope = Scope(field=buckets, partitions=("0", "1", "2", "3"))
    assert sum(file.rows for file in kit.tables.scoped("silver.t", kit.head(), scope).files) == 2


@pytest.mark.req("U1b", "U11", "U12")
def test_tuples_by_a_bucket_are_swapped_and_put_back(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.create(("d", "identity"), ("region", "bucket[3]"))
    regions = [*(f"r{number}" for number in range(9)), None]
    buckets = [one and bucket_number("bucket[3]", "string", one) for one in regions]
    own = [number for number, bucket in enumerate(buckets) if bucket in (buckets[0], None)]
    assert len(own) < 9
    kit.append(*(row(n, DAYS[1], "old", region) for n, region in enumerate(regions)))
    kit.append(row(20, DAYS[2], "old", regions[0]))
    by = field_of("region", "bucket[3]")
    new = [row(100 + n, DAYS[1], "new", regions[n]) for n in own]
    request = kit.stage(only(buckets[0], None, of=DAY, by=by), {DAYS[1]: new})
    beside = next(n for n, bucket in enumerate(buckets) if n not in own)
    kit.append(row(30, DAYS[1], "live", regions[beside]))
    before = kit.rows()
    swap = kit.publisher.adopt(request)
    assert (swap.files_removed, swap.files_added) == (2, 2)
    kept = [one for one in before if one[1] != DAYS[1] or one[0] not in own]
    assert kit.rows() == sorted(
        [*kept, *((100 + n, DAYS[1], regions[n], "new") for n in own)], key=str
    )
    spans = scope_row_ranges(request.scope)
    tasks = plan_scan(kit.catalog, "silver.t", swap.snapshot_id, spans).tasks
    assert sum(task.file.record_count for task in tasks) == len(own)
    assert count_rows(kit.catalog, "silver.t", swap.snapshot_id, spans) is None
    kit.publisher.revert(kit.revert_request(swap, request.scope))
    assert kit.rows() == before
    again = kit.stage(request.scope.field, {DAYS[1]: new}, run="r2")
    kit.append(row(31, DAYS[1], "live", None))
    with pytest.raises(TargetChanged, match=f"changed {DAYS[1]}"):
        kit.publisher.adopt(again)


def require_one_row_and_put_back(kit: Kit, scope: Scope, swap: Any) -> None:
    """Both readers in process find the one row that was published; then it is rolled back."""
    spans = scope_row_ranges(scope)
    assert kit.tables.estimate("silver.t", swap.snapshot_id, spans).rows == 1
    tasks = plan_scan(kit.catalog, "silver.t", swap.snapshot_id, spans).tasks
    assert sum(task.file.record_count for task in tasks) == 1
    kit.publisher.revert(kit.revert_request(swap, scope))


TIMES = tuple(datetime(2013, 2, 2, 7, micro // 2, 0, micro, timezone.utc) for micro in range(3))
PRICES = (Decimal("1.50"), Decimal("-0.01"), Decimal("12345678.90"))


@pytest.mark.req("U1b", "U11", "U12")
@pytest.mark.parametrize(("column", "kind", "values"), [
    ("ts", "timestamptz", TIMES), ("price", "decimal(10, 2)", PRICES),
])  # fmt: skip
def test_tuples_by_a_time_or_a_decimal_are_swapped_and_put_back(
    tmp_path: Path, column: str, kind: str, values: Any
) -> None:
    kit = Kit(tmp_path)
    kit.create(("d", "identity"))
    kit.evolve(lambda update: update.add_column("price", DecimalType(10, 2)))
    kit.respec(lambda update: update.add_identity(column))
    kit.append(*(row(n, DAYS[1]) | {column: one} for n, one in enumerate((*values, None))))
    by = ScopeField(column=column, transform="identity", type=kind)
    new = row(9, DAYS[1], "new") | {column: values[0]}
    request = kit.stage(only(values[0], None, by=by), {DAYS[1]: [new]})
    kit.append(row(8, DAYS[1], "live") | {column: values[1]})
    before = kit.rows()
    swap = kit.publisher.adopt(request)
    assert (swap.files_removed, swap.files_added) == (2, 1)
    assert [one[0] for one in kit.rows()] == [1, 2, 8, 9]
    require_one_row_and_put_back(kit, request.scope, swap)
    assert kit.rows() == before
    again = kit.stage(request.scope.field, {DAYS[1]: [new]}, run="r2")
    kit.append(row(7, DAYS[1], "live") | {column: values[0]})
    with pytest.raises(TargetChanged, match=f"changed {DAYS[1]}"):
        kit.publisher.adopt(again)


def test_a_second_field_whose_column_was_renamed_is_refused_with_what_to_do(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.create(("d", "identity"), ("region", "identity"))
    kit.append(row(1, DAYS[1], "old", "EU"))
    request = kit.stage(only("EU"), {DAYS[1]: [row(9, DAYS[1], "new", "EU")]})
    kit.evolve(lambda update: update.rename_column("region", "area"))
    with pytest.raises((Unsupported, TargetChanged)) as refused:
        kit.publisher.adopt(request)
    assert refused.value.fix
    with pytest.raises(Unsupported, match="the table has no column region") as renamed:
        kit.tables.scoped("silver.t", kit.head(), request.scope)
    assert "give the column its name back" in renamed.value.fix


def test_files_of_a_spec_without_the_second_field_are_refused(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.create(("d", "identity"))
    kit.append(row(1, DAYS[1], "old", "EU"), row(2, DAYS[1], "old", "US"))
    kit.respec(lambda update: update.add_identity("region"))
    kit.append(row(3, DAYS[1], "old", "EU"))
    scope = Scope(field=only("EU"), partitions=(DAYS[1],))
    with pytest.raises(Unsupported, match=r"does not tell identity\(d\) with region = EU apart"):
        kit.tables.scoped("silver.t", kit.head(), scope)
