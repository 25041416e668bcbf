"""Windows of wrong rows on raw tables of topics: the offsets of their events, proven complete."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog

from lakehouse_backfill.adapters.iceberg.commit.publisher import IcebergPublisher
from lakehouse_backfill.adapters.iceberg.landing.landed_topics import IcebergLandedTopics
from lakehouse_backfill.adapters.iceberg.landing.raw_tables import IcebergRawTables
from lakehouse_backfill.adapters.iceberg.tables import IcebergTables
from lakehouse_backfill.cli.render import render_result
from lakehouse_backfill.core.landing.offsets import (
    FoundOffset,
    OffsetPosition,
    OffsetWindow,
    PartitionView,
    TopicView,
    milliseconds,
    without,
)
from lakehouse_backfill.core.landing.topic_facts import learned_facts, with_facts
from lakehouse_backfill.core.planning.inputs.topics import require_topics_unchanged
from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.core.planning.scope.corruption_window import examine_window, parse_window
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.contract import ContractColumn
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.sources.declaration import KafkaSource, SourceDeclaration
from lakehouse_backfill.domain.sources.landings import LandingRequest, LandingState, next_state
from lakehouse_backfill.domain.sources.topic_offsets import OffsetRange, TopicWindow, WindowOffsets
from lakehouse_backfill.errors import Blocked, Tampered
from lakehouse_backfill.results.plans import PlanResult
from tests.contract.test_reference_and_window import BY_DAY, SCHEMA, append
from tests.support.fakes.context import PRODUCT, context, declared, lake
from tests.support.lakes.catalogs import catalog_of

DECLARED = SourceDeclaration(
    api_version="lakehouse-backfill/v1", source="trips", kind="kafka", table="bronze.trips",
    columns=(
        ContractColumn(name="day", type="date"), ContractColumn(name="id", type="long"),
        ContractColumn(name="amount", type="long"),
    ),
    kafka=KafkaSource(bootstrap_servers="b:1", topic="t", format="json"),
)  # fmt: skip
BOUNDS = {"kafka_timestamp": 3600, "day": 3 * 86_400}
SECOND = "2020-01-02..2020-01-02"


def at(day: float) -> datetime:
    return datetime(2020, 1, 1, tzinfo=timezone.utc) + timedelta(days=day - 1)


class Topic:
    """A log of two partitions, and landings of it into a real raw table."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog, self.tables = catalog, IcebergRawTables(catalog)
        self.logs: dict[int, list[datetime | None]] = {0: [], 1: []}
        self.tables.ensure(DECLARED)

    def send(self, number: int, *days: float | None) -> None:
        self.logs[number] += [None if day is None else at(day) for day in days]

    def land(
        self, looked_at: datetime, begin: datetime | None = None, stop: int | None = None,
        bounds: dict[str, int] | None = None,
    ) -> str:  # fmt: skip
        """Land what is new from an instant on, up to an offset; the name of the landing."""
        window = OffsetWindow(None if begin is None else milliseconds(begin))
        ends = {number: len(log) if stop is None else stop for number, log in self.logs.items()}
        view = TopicView("c", "t", "i", {
            number: PartitionView(0, ends[number], ends[number], self._found(number, begin))
            for number in self.logs
        })  # fmt: skip
        before = self.tables.state(DECLARED.table)
        known = OffsetPosition.read(before.position) if before else None
        done = known.landed if known else {}
        firsts = {
            number: one.begin.offset if one.begin else 0 for number, one in view.partitions.items()
        }
        asked = without({number: ((firsts[number], ends[number]),) for number in self.logs}, done)
        learned = learned_facts(view, window, milliseconds(looked_at), None)
        position = OffsetPosition(
            "ld", "c", "t", "i", asked, landed=done, partitions=(0, 1),
            held=known.held if known else {}, bounds_s=BOUNDS if bounds is None else bounds,
            facts=with_facts(known.facts if known else {}, learned, done),
        )  # fmt: skip
        places = [
            (number, offset)
            for number, spans in asked.items()
            for span in spans
            for offset in range(*span)
        ]
        counts = {number: len([1 for one, _ in places if one == number]) for number in self.logs}
        position = position.advanced(asked, counts)
        return self._commit(self._rows(places), position.as_json())

    def _found(self, number: int, begin: datetime | None) -> FoundOffset | None:
        for offset, stamp in enumerate(self.logs[number]):
            if begin is not None and stamp is not None and stamp >= begin:
                return FoundOffset(offset, milliseconds(stamp))
        return None

    def _rows(self, places: Iterable[tuple[int, int]]) -> pa.Table:
        rows = []
        for number, offset in places:
            stamp = self.logs[number][offset]
            rows.append({
                "day": None if stamp is None else stamp.date(), "id": offset, "amount": 1,
                "kafka_topic": "t", "kafka_partition": number, "kafka_offset": offset,
                "kafka_timestamp": stamp, "kafka_headers": [],
            })  # fmt: skip
        return pa.Table.from_pylist(rows, self.tables.record_schema(DECLARED))

    def _commit(self, rows: pa.Table, position: dict[str, Any]) -> str:
        before, now = self.tables.state(DECLARED.table), datetime.now(timezone.utc)
        token, step = (before.token, before.step) if before else ("", 0)
        name = f"ld-{step}"
        state = LandingState(
            landing_id=name, source="trips", request=LandingRequest(), started_at=now,
            token=token, step=step,
        )  # fmt: skip
        state = next_state(state, position=position)
        staged = self.tables.stage(DECLARED.table, [rows], state)
        self.tables.commit(DECLARED.table, (staged,), state)
        self.tables.seal(DECLARED.table, next_state(state, is_complete=True), 90)
        return name


class World:
    """A product by day whose source is the raw table of the topic."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        for name in ("bronze", "silver"):
            catalog.create_namespace_if_not_exists(name)
        catalog.create_table(PRODUCT, SCHEMA, partition_spec=BY_DAY)
        append(catalog, PRODUCT, 1, 2, 3)
        self.topic = Topic(catalog)
        self.context: Context = context(
            lake(), tables=IcebergTables(catalog), publisher=IcebergPublisher(catalog, 30),
            topics=IcebergLandedTopics(catalog),
        )  # fmt: skip

    def plan(self, landing: str | None = None, column: str = "kafka_timestamp") -> Plan:
        source = {"table": DECLARED.table, "at": landing, "range": {
            "column": column, "from": "2019-12-01", "to": "2020-02-01"}}  # fmt: skip
        return make_plan(self.context, declared(sources={"raw": source}), "bob", None)

    def examined(self, *arguments: Any, window: str = SECOND, **named: Any) -> Plan:
        plan = self.plan(*arguments, **named)
        return examine_window(self.context, plan, parse_window(window))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(catalog_of(tmp_path))


def topic_of(plan: Plan) -> TopicWindow:
    assert plan.window is not None
    found = plan.window.sources[0].topic
    assert found is not None
    return found


def ranges(plan: Plan) -> list[tuple[int, int, int]]:
    pinned = plan.resolved.sources[0].topic
    assert pinned is not None
    return [(one.partition, one.first, one.stop) for one in pinned.offsets]


@pytest.mark.req("P6")
def test_a_window_is_mapped_to_all_offsets_of_its_events_though_their_order_differs(
    world: World,
) -> None:
    world.topic.send(0, 1, 2.1, 1.2, 3.5, 2.9, 1.9, 4, 4.5)
    world.topic.send(1, 1, 4, 4.2)
    world.topic.land(at(6))
    world.topic.send(0, 5)
    world.topic.land(at(7))
    plan = world.examined()
    assert topic_of(plan) == TopicWindow(
        topic="t", column="kafka_timestamp", disorder_s=3600,
        offsets=(
            WindowOffsets(partition=0, first=1, last=4, records=2),
            WindowOffsets(partition=1, first=None, last=None, records=0),
        ),
    )  # fmt: skip
    (said,) = (note for note in plan.notes if note.startswith("raw: its events are at"))
    assert said == (
        "raw: its events are at offsets 1 to 4 of partition 0 (2 records) of t; no other offset "
        "can hold one, as far as events are in the topic at most 3,600 s after their "
        "kafka_timestamp, as declared"
    )
    stream = StringIO()
    render_result(PlanResult.of(plan, None, None), stream)
    assert "where they are in the topic t" in stream.getvalue()
    by_day = topic_of(world.examined(column="day"))
    assert (by_day.offsets[0].first, by_day.offsets[0].last, by_day.disorder_s) == (1, 4, 259_200)
    kept = Plan.model_validate_json(plan.model_dump_json())
    assert (kept.resolved.manifest_hash, kept.window) == (plan.manifest_hash, plan.window)


@pytest.mark.req("M3")
def test_a_plan_pins_the_offsets_of_its_snapshot_in_what_is_hashed(world: World) -> None:
    world.topic.send(0, 1, 2, 3)
    world.topic.send(1, 1)
    first = world.topic.land(at(6))
    before = world.plan(first)
    assert ranges(before) == [(0, 0, 3), (1, 0, 1)]
    assert before.resolved.sources[0].topic.records == 4  # type: ignore[union-attr]
    world.topic.send(1, 2, 2)
    world.topic.land(at(7))
    assert world.plan(first).manifest_hash == before.manifest_hash
    assert examine_window(
        world.context, before, parse_window(SECOND)
    ).manifest_hash == before.manifest_hash  # fmt: skip
    later = world.plan()
    assert ranges(later) == [(0, 0, 3), (1, 0, 3)]
    assert later.manifest_hash != before.manifest_hash
    pinned = later.resolved.sources[0]
    other = pinned.topic.model_copy(  # type: ignore[union-attr]
        update={"offsets": (OffsetRange(partition=0, first=0, stop=2),)}
    )
    changed = later.resolved.model_copy(
        update={"sources": (pinned.model_copy(update={"topic": other}),)}
    )
    assert changed.manifest_hash != later.manifest_hash


@pytest.mark.req("P6")
def test_a_window_whose_events_may_lie_in_offsets_that_were_not_landed_is_refused(
    world: World,
) -> None:
    world.topic.send(0, 1, 2.5, 2.9)
    world.topic.send(1, 1)
    # Half an hour after its end: by the declared hour events of it may still come.
    early = world.topic.land(at(3) + timedelta(minutes=30))
    with pytest.raises(Blocked) as refused:
        world.examined(early)
    assert (
        "offsets from 3 on of partition 0, offsets from 1 on of partition 1, partitions that"
        in (refused.value.problem)
    )
    assert refused.value.fix.startswith(
        "lakehouse-backfill land trips --from 2020-01-02T00:00:00Z --to 2020-01-03T00:00:00Z; name "
        "that landing where the source has `at`, and plan again, not before 2020-01-03T01:00:00Z"
    )
    with pytest.raises(Blocked) as refused:
        world.examined(early, column="day")
    assert refused.value.fix.startswith(
        "lakehouse-backfill land trips --from 2020-01-01T23:00:00Z --to 2020-01-06T00:00:00Z; name"
    )
    world.topic.send(0, 2.95, 3.5)
    assert topic_of(world.examined(world.topic.land(at(4)))).offsets[0].last == 3
    with pytest.raises(Blocked, match="offsets from 3 on of partition 0"):
        world.examined(early)


@pytest.mark.req("P6")
def test_offsets_that_a_landing_left_out_count_until_they_are_known_to_be_earlier(
    world: World,
) -> None:
    world.topic.send(0, 1, 1.5, 2.2, 1.8, 2.6, 5)
    world.topic.send(1, 1, 5)
    world.topic.land(at(6), begin=at(2.1))
    assert ranges(world.plan()) == [(0, 2, 6), (1, 1, 2)]
    with pytest.raises(
        Blocked, match="offsets 0 to 1 of partition 0, offsets 0 to 0 of partition 1"
    ):
        world.examined()
    later = world.examined(window="2020-01-02T03:00Z..2020-01-02T23:00Z")
    assert [one.records for one in topic_of(later).offsets] == [2, 0]
    # Asked again from the begin of the day on: nothing new to read, and all is known.
    world.topic.land(at(6), begin=at(2))
    assert topic_of(world.examined()).offsets[0].first == 2


@pytest.mark.req("P6")
def test_without_a_declared_bound_a_window_is_refused_with_the_field(world: World) -> None:
    world.topic.send(0, 1, 2, 5)
    world.topic.land(at(6), bounds={})
    with pytest.raises(Blocked, match="cannot be proven") as refused:
        world.examined()
    assert refused.value.fix.startswith("declare kafka.disorder_s in catalog/sources/trips.yaml")
    with pytest.raises(Blocked, match="cannot be proven") as refused:
        world.examined(column="day")
    assert "declare kafka.column_disorder_s.day" in refused.value.fix


@pytest.mark.req("P6")
def test_the_window_is_closed_once_what_the_replay_reads_is_landed(world: World) -> None:
    world.topic.send(0, 1, 2.5, 3.1)
    world.topic.land(at(3.5))
    # The third day reads the second one, by its warm-up; it is not over.
    plan = world.examined()
    assert plan.window is not None
    assert (plan.window.closes_with, plan.window.is_closed) == ("2020-01-03", False)
    assert any(
        "later events, which the replay reads as well, may be in t" in one for one in plan.notes
    )
    assert not any("the live job still reads" in one for one in plan.notes)
    world.topic.land(at(4) + timedelta(hours=2))
    plan = world.examined()
    assert plan.window is not None
    assert plan.window.is_closed


@pytest.mark.req("P6")
def test_rows_that_others_removed_leave_no_proof(world: World) -> None:
    world.topic.send(0, 1, 2, 5)
    world.topic.land(at(6))
    world.catalog.load_table(DECLARED.table).delete("kafka_offset = 1")
    assert ranges(world.plan()) == [(0, 0, 3)]
    with pytest.raises(Blocked, match="has 2 rows, and its landings brought 3 records"):
        world.examined()


def test_records_without_a_time_are_said(world: World) -> None:
    world.topic.send(0, 1, 2, None, 5)
    world.topic.land(at(6))
    plan = world.examined()
    assert topic_of(plan).without_time == 1
    assert any("1 landed records have no kafka_timestamp" in note for note in plan.notes)


def test_a_table_that_an_older_version_landed_is_planned_and_has_no_proof(world: World) -> None:
    world.topic.send(0, 1, 2, 5)
    old = OffsetPosition("ld", "c", "t", "i", {}, landed={0: ((0, 3),)}, records={0: 3}).as_json()
    for name in ("facts", "bounds_s", "partitions"):
        del old[name]
    world.topic._commit(world.topic._rows([(0, 0), (0, 1), (0, 2)]), old)
    plan = world.plan()
    assert ranges(plan) == [(0, 0, 3)]
    assert plan.resolved.sources[0].topic.records is None  # type: ignore[union-attr]
    with pytest.raises(Blocked, match="cannot be proven"):
        world.examined()


@pytest.mark.req("M3", "P6")
def test_before_the_read_the_offsets_are_found_again(world: World) -> None:
    world.topic.send(0, 1, 2, 2.5, 5)
    world.topic.land(at(6))
    plan = world.examined()
    require_topics_unchanged(world.context, plan)
    loaded = world.catalog.load_table(DECLARED.table)
    (task,) = loaded.scan().plan_files()
    path = task.file.file_path.removeprefix("file://")
    rows = pq.ParquetFile(path).read()
    stamps = rows["kafka_timestamp"].to_pylist()
    stamps[2] = at(5.5)
    field = rows.schema.field("kafka_timestamp")
    changed = rows.set_column(
        rows.schema.get_field_index("kafka_timestamp"), field, pa.array(stamps, field.type)
    )
    pq.write_table(changed, path)
    with pytest.raises(Tampered, match="does not hold the offsets of t that"):
        require_topics_unchanged(world.context, plan)
    unknown = plan.resolved.sources[0].topic
    assert unknown is not None
    other = unknown.model_copy(update={"landing_id": "ld-other"})
    pins = (plan.resolved.sources[0].model_copy(update={"topic": other}),)
    resolved = plan.resolved.model_copy(update={"sources": pins})
    bare = plan.model_copy(update={"resolved": resolved, "window": None})
    with pytest.raises(Tampered):
        require_topics_unchanged(world.context, bare)
    # Once the landing's own snapshot has expired behind a compaction, rows alone tell.
    gone: Any = IcebergLandedTopics(world.catalog)
    blind = SimpleNamespace(landing=lambda *_: None, events=gone.events)
    require_topics_unchanged(replace(world.context, topics=blind), bare)


def test_tables_that_no_landing_of_a_topic_filled_have_no_offsets(world: World) -> None:
    append(world.catalog, PRODUCT, 4)
    info = world.context.tables.describe(PRODUCT)
    assert info is not None
    assert info.snapshot_id is not None
    assert world.context.topics.landing(PRODUCT, info.snapshot_id) is None
