"""`stale`, `lineage` and `why`: on histories whose truth is known, and on a lake of real runs."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import EqualTo
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField
from typer.testing import CliRunner

from lakehouse_backfill.adapters.iceberg.commit.publisher import IcebergPublisher
from lakehouse_backfill.adapters.iceberg.tables import IcebergTables
from lakehouse_backfill.cli.main import app
from lakehouse_backfill.config.contracts import may_restrict_columns
from lakehouse_backfill.core.evidence import staleness
from lakehouse_backfill.core.evidence.lineage import find_lineage
from lakehouse_backfill.core.evidence.staleness import PartitionStatus, ProductStatus, find_stale
from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.errors import ConfigError, NotFound
from lakehouse_backfill.histories import EventHistory
from tests.contract.test_stored_lake import PLACE, StoredLake, stored
from tests.contract.test_stored_lake import PRODUCT as STORED_PRODUCT
from tests.support.fakes.context import PRODUCT, context, contract, declared, lake
from tests.support.lakes.catalogs import catalog_of
from tests.support.lakes.deletes import hide_rows
from tests.support.lakes.tables import compact_files
from tests.unit.report.test_openlineage import require_valid

__all__ = ["stored"]

DAY = ScopeField(column="day", transform="identity", type="date")
DAYS = tuple(f"2020-01-0{number}" for number in range(1, 9))
SCHEMA = Schema(
    NestedField(1, "day", DateType()),
    NestedField(2, "id", LongType()),
    NestedField(3, "amount", LongType()),
)
BY_DAY = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "day"))
OURS = {"lakehouse-backfill.run-id": "bf-upstream"}
Made = tuple[object, ...]


class History:
    """Random commits, code changes, runs and rollbacks; `made` is what each partition read.

    `spec` is how the input is partitioned, `source` what the run manifest adds to it.
    """

    def __init__(
        self,
        catalog: Catalog,
        seed: int,
        days: tuple[str, ...] = DAYS,
        spec: PartitionSpec = BY_DAY,
        **source: Any,
    ) -> None:
        self.chance = random.Random(seed)
        self.catalog = catalog
        self.days, self.source, self.product_table = days, source, PRODUCT
        self.raw, self.rates = f"bronze.raw_{seed}", f"bronze.rates_{seed}"
        catalog.create_table(self.raw, SCHEMA, partition_spec=spec)
        catalog.create_table(self.rates, SCHEMA, partition_spec=UNPARTITIONED_PARTITION_SPEC)
        self.context = context(
            lake(), tables=IcebergTables(catalog), publisher=IcebergPublisher(catalog, 30)
        )
        self.count, self.code, self.version = 0, 0, 0
        self.ids: dict[str, list[int]] = {day: [] for day in self.days}
        #: What the rows of a day are; a compaction leaves it, everything else changes it.
        self.rows: dict[str, int] = dict.fromkeys(self.days, 0)
        self.reference = 0
        self.made: dict[str, Made] = {}
        self.made_at: dict[int, dict[str, Made]] = {0: {}}
        self.scopes: list[Scope] = []
        for day in self.days[:6]:
            self.ids[day], self.rows[day] = [self.number(), self.number()], self.number()
        first = [self.table(day, *ids) for day, ids in self.ids.items() if ids]
        catalog.load_table(self.raw).append(pa.concat_tables(first))
        self.new_reference()

    def number(self) -> int:
        self.count += 1
        return self.count

    def table(self, day: str, *ids: int) -> pa.Table:
        rows = [{"day": date.fromisoformat(day), "id": one, "amount": one} for one in ids]
        return pa.Table.from_pylist(rows, SCHEMA.as_arrow())

    def day(self, with_rows: bool = False) -> str:
        return self.chance.choice([x for x in self.days if self.ids[x] or not with_rows])

    def late_rows(self) -> None:
        day, found = self.day(), [self.number(), self.number()]
        self.catalog.load_table(self.raw).append(self.table(day, *found))
        self.ids[day] += found
        self.rows[day] = self.number()

    def restate(self) -> None:
        day, found = self.day(), [self.number(), self.number()]
        where = EqualTo("day", date.fromisoformat(day))
        self.catalog.load_table(self.raw).overwrite(
            self.table(day, *found), where, snapshot_properties=OURS
        )
        self.ids[day], self.rows[day] = found, self.number()

    def delete(self) -> None:
        day = self.day(with_rows=True)
        gone = self.ids[day].pop()
        self.catalog.load_table(self.raw).delete(EqualTo("id", gone))
        self.rows[day] = self.number()

    def compact(self) -> None:
        held = [day for day in self.days if self.ids[day]]
        some = self.chance.sample(held, min(3, len(held)))
        compact_files(
            self.catalog.load_table(self.raw), Scope(field=DAY, partitions=tuple(sorted(some)))
        )

    def new_reference(self) -> None:
        self.catalog.load_table(self.rates).append(self.table(self.days[0], self.number()))
        self.reference = self.number()

    def same_reference(self) -> None:
        self.catalog.load_table(self.rates).append(self.table(self.days[0]))

    def new_code(self) -> None:
        self.code += 1

    def publish(self) -> None:
        first = self.chance.randrange(len(self.days) - 1)
        self.publish_days(self.days[first : first + self.chance.randint(1, 3)])

    def publish_days(self, days: tuple[str, ...]) -> None:
        stop = str(date.fromisoformat(days[-1]) + timedelta(days=1))
        wanted = declared(
            days[0], stop, sources={"raw": {"table": self.raw, **self.source}},
            reference_data={"rates": {"table": self.rates}},
            transform={"version": f"1.{self.code}.0"}, run={"reason": f"run {self.number()}"},
        )  # fmt: skip
        plan = make_plan(self.context, wanted, "bob", None)
        self.context.runs.plans[plan.run_id] = plan  # type: ignore[attr-defined]
        self.version += 1
        self.record("publish", self.version, Scope(field=DAY, partitions=days), plan.run_id)
        self.made = {**self.made, **{day: self.reads(day) for day in days}}
        self.made_at[self.version] = self.made

    def rollback(self) -> None:
        if self.version < 2:
            return
        to = self.chance.randint(1, self.version - 1)
        self.record("rollback", to, self.scopes[-1], None)
        self.made = self.made_at[to]

    def record(self, action: Any, version: int, scope: Scope, run: str | None) -> None:
        self.scopes.append(scope)
        row = Publication(
            product=PRODUCT, version=version, token=f"t{self.number()}", action=action,
            run_id=run, table=self.product_table, snapshot_id=self.product_head(),
            before_snapshot_id=None, scope=scope, supersedes=None,
            at=datetime.now(timezone.utc), by="bob", returns_to=None if run else version,
        )  # fmt: skip
        self.context.versions.move(PRODUCT, lambda _: (row,))

    def product_head(self) -> int:
        head = self.catalog.load_table(self.product_table).current_snapshot()
        return head.snapshot_id if head else 1

    def reads(self, day: str) -> Made:
        """Return what a run that computes the day reads: a day of warm-up, too."""
        before = self.days[self.days.index(day) - 1] if day != self.days[0] else ""
        return self.rows.get(before, 0), self.rows[day], self.reference, self.code

    def step(self) -> None:
        acts = (
            self.late_rows, self.restate, self.delete, self.compact, self.new_reference,
            self.same_reference, self.new_code, self.publish, self.rollback,
        )  # fmt: skip
        # What makes every partition stale comes seldom, so that others are seen.
        weights = (4, 2, 2, 3, 1, 2, 1, 5, 1)
        self.chance.choices(acts, weights)[0]()

    def status(self) -> ProductStatus:
        versions = {"daily": f"1.{self.code}.0"}
        return find_stale(self.context, contract(table=self.product_table), lambda file: versions)

    def truth(self) -> dict[str, str]:
        states = {
            day: "complete" if made == self.reads(day) else "stale"
            for day, made in self.made.items()
        }
        first = min(states)
        late = {day for day in self.days if self.ids[day] and day > first}
        return {**dict.fromkeys(late, "missing"), **states}


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    found = catalog_of(tmp_path_factory.mktemp("lake"))
    for namespace in ("bronze", "silver"):
        found.create_namespace(namespace)
    found.create_table(PRODUCT, SCHEMA, partition_spec=BY_DAY)
    return found


@pytest.mark.req("P5")
@pytest.mark.parametrize("seed", range(20))
def test_exactly_the_right_partitions_are_stale_after_every_step(catalog, seed):
    require_truth_after_each_step(History(catalog, seed), 10)


@pytest.mark.req("P5")
@pytest.mark.long
@pytest.mark.parametrize("seed", range(200, 380))
def test_exactly_the_right_partitions_are_stale_in_short_histories(catalog, seed):
    require_truth_after_each_step(History(catalog, seed), 1 + seed % 4)


def require_truth_after_each_step(history: History, steps: int) -> None:
    history.publish()
    for number in range(steps):
        history.step()
        found = {one.partition: one.state for one in history.status().partitions}
        assert found == history.truth(), number


@pytest.mark.req("P5", "T12")
def test_late_events_make_stale_what_was_computed_before_they_came(catalog):
    """Each day's arrivals are a commit; what they are rows of is known of the generator."""
    events = EventHistory(
        events=300, seed=4, start=date(2020, 1, 1), days=8, accounts=9, late=0.06, gaps=0,
        skewed=0.2,
    )  # fmt: skip
    truth, delivered = events.truth(), events.table()
    history, seen = History(catalog, 104), set[str]()
    for arrived in [date.fromisoformat(day) for day in DAYS]:
        first = datetime.combine(arrived, time(), timezone.utc)
        rows = delivered.filter(
            (pc.field("arrived_at") >= first) & (pc.field("arrived_at") < first + timedelta(days=1))
        )
        ids = pc.add(rows["event_id"], 10_000)
        columns = {"day": rows["occurred_at"].cast(pa.date32()), "id": ids, "amount": ids}
        catalog.load_table(history.raw).append(pa.table(columns, SCHEMA.as_arrow()))
        for day in {str(of) for at, of in truth.arrivals if at == arrived} & set(DAYS):
            history.ids[day].append(history.number())
            history.rows[day] = history.number()
        if arrived == date(2020, 1, 3):
            history.publish_days(DAYS[:3])
        if history.made:
            found = {one.partition: one.state for one in history.status().partitions}
            assert found == history.truth(), arrived
            seen |= set(found.values())
    assert seen == {"complete", "stale", "missing"}


def test_rows_that_delete_files_hide_make_their_partitions_stale_and_no_others(catalog):
    history = History(catalog, 100)
    history.publish()
    made = sorted(history.made)
    day = next(day for day in made if history.ids[day])
    hide_rows(catalog.load_table(history.raw), "id", {history.ids[day][0]})
    history.rows[day] = history.number()
    status = history.status()
    assert {one.partition: one.state for one in status.partitions} == history.truth()
    found = {cause.kind for one in status.partitions for cause in one.causes}
    assert found - {"missing"} == {"deletion"}


def test_of_an_input_that_is_not_partitioned_by_its_range_only_appended_rows_are_told(catalog):
    """Statistics of appended files tell the days; any other commit counts for all rows."""
    history = History(catalog, 101, spec=UNPARTITIONED_PARTITION_SPEC)
    history.publish_days(DAYS[:4])
    stale = dict.fromkeys(DAYS[:4], "stale")
    assert set(made_states(history).values()) == {"complete"}
    history.catalog.load_table(history.raw).append(history.table(DAYS[2], 801))
    assert made_states(history) == {
        DAYS[0]: "complete", DAYS[1]: "complete", DAYS[2]: "stale", DAYS[3]: "stale",
    }, "the fourth reads a day of warm-up"  # fmt: skip
    (note,) = history.status().notes
    assert note.startswith(f"may be missing: {DAYS[4]};"), "the file of the first rows spans it"
    history.catalog.load_table(history.raw).delete(EqualTo("id", 801))
    assert made_states(history) == stale
    assert f"{history.raw} is not partitioned by day: " in " ".join(history.status().notes)


def made_states(history: History) -> dict[str, str]:
    """The states of the partitions that runs made."""
    return {
        one.partition: one.state for one in history.status().partitions if one.state != "missing"
    }


def test_only_partitions_that_may_have_read_an_input_partition_are_its_readers(catalog):
    """A partition whose instants held no rows read nothing; of a snapshot that is gone, unknown."""
    history = History(catalog, 102)
    wanted = declared(
        DAYS[0], "2020-01-09", sources={"raw": {"table": history.raw}}, reference_data={}
    )
    plan = make_plan(history.context, wanted, "bob", None)
    history.context.runs.plans[plan.run_id] = plan  # type: ignore[attr-defined]
    history.version = 1
    history.record("publish", 1, Scope(field=DAY, partitions=DAYS), plan.run_id)

    def readers() -> list[str]:
        edges = find_lineage(history.context, [contract()], history.raw, DAYS[0]).downstream
        return [label for edge in edges for label in edge.partitions]

    assert readers() == list(DAYS[:2]), "the second reads a day of warm-up"
    (up,) = find_lineage(history.context, [contract()], PRODUCT, DAYS[7]).upstream
    assert up.input_partitions == ()
    history.late_rows()
    history.catalog.load_table(history.raw).maintenance.expire_snapshots().by_id(
        plan.resolved.sources[0].snapshot_id
    ).commit()
    assert readers() == list(DAYS)


def appended(name: str, day: str, *ids: int) -> pa.Table:
    rows = [{"day": date.fromisoformat(day), "id": one, "amount": one} for one in ids]
    return pa.Table.from_pylist(rows)


def test_late_rows_are_found_and_the_draft_plans_exactly_these_partitions(
    stored: StoredLake,
) -> None:
    project, source = stored.project, stored.project.wiring.catalog.load_table("bronze.orders")
    assert project.stale(STORED_PRODUCT).nothing_to_do
    for day in ("2024-01-03", "2024-01-04", "2024-01-06"):
        source.append(appended("bronze.orders", day, 901).cast(source.schema().as_arrow()))
    shown = CliRunner().invoke(app, ["--project", str(PLACE), "stale"]).output
    assert "2 stale" in shown
    assert "late rows of src in 2024-01-03: snapshot" in shown
    assert f"lakehouse-backfill --project {PLACE} stale {STORED_PRODUCT} --draft" in shown
    found = project.stale(STORED_PRODUCT, by="bob", draft=True)
    file = found.products[0].manifest
    assert file == "jobs/orders/repair-2024-01-03-3-partitions.yaml"
    assert {one.partition: (one.state, one.causes) for one in found.partitions} == {
        "2024-01-01": ("waiting for approval", ("unknown",)),
        "2024-01-03": ("stale", ("late rows",)),
        "2024-01-04": ("stale", ("late rows",)),
        "2024-01-05": ("in progress", ("unknown",)),
        "2024-01-06": ("missing", ("missing",)),
    }
    days = ["2024-01-03", "2024-01-04", "2024-01-06"]
    assert project.plan(file, by="bob", dry_run=True).partitions == tuple(days)
    draft = yaml.safe_load((PLACE / file).read_text("utf-8"))
    assert [str(day) for day in draft["target"]["partitions"]["values"]] == days
    assert draft["run"]["reason"] == "Found by stale: late rows (2), missing (1)."
    again = project.stale(STORED_PRODUCT, by="bob", draft=True).products[0].manifest
    assert again == "jobs/orders/repair-2024-01-03-3-partitions-2.yaml"


def test_what_is_wrong_with_one_product_is_told_and_the_others_are_judged(
    stored: StoredLake,
) -> None:
    contracts = PLACE / "catalog/contracts"
    (contracts / "silver.broken.yaml").write_text("product: silver.broken\n", "utf-8")
    found = stored.project.stale()
    assert [(one.product, one.judged) for one in found.products] == [
        ("silver.broken", False), (STORED_PRODUCT, True),
    ]  # fmt: skip
    assert not found.nothing_to_do
    (contracts / f"{STORED_PRODUCT}.yaml").unlink()
    shown = CliRunner().invoke(app, ["--project", str(PLACE), "stale"])
    assert shown.exit_code == 3
    assert "silver.broken: not judged" in shown.output
    assert "nothing is stale" not in shown.output
    alone = CliRunner().invoke(app, ["--project", str(PLACE), "stale", "silver.broken"])
    assert alone.exit_code == 2


def test_a_person_without_a_draft_is_a_usage_error() -> None:
    shown = CliRunner().invoke(app, ["stale", "--by", "ana"])
    assert shown.exit_code != 0
    assert "it goes with --draft" in shown.output


@pytest.mark.req("O3")
def test_lineage_is_known_both_ways_to_the_partition(stored: StoredLake) -> None:
    project, run = stored.project, stored.runs["second"]
    (up,) = project.lineage(STORED_PRODUCT, "2024-01-03").upstream
    (down,) = project.lineage("bronze.orders", "2024-01-03").downstream
    assert up == down
    assert (up.run_id, up.partitions, up.table, up.input_partitions) == (
        run, ("2024-01-03",), "bronze.orders", ("2024-01-03",),
    )  # fmt: skip
    assert [str(one)[:10] for one in (up.read_from, up.read_to)] == ["2024-01-03", "2024-01-04"]
    for target in (STORED_PRODUCT, "bronze.orders"):
        known = f"computed or read partition 2030-01-01 of {target}; known of it: .*2024-01-03"
        with pytest.raises(NotFound, match=known) as raised:
            project.lineage(target, "2030-01-01")
        assert f"lineage {target}" in raised.value.fix


def test_a_broken_contract_is_named_and_spark_hides_values(stored: StoredLake) -> None:
    project, broken = stored.project, PLACE / "catalog/contracts/silver.broken.yaml"
    assert not may_restrict_columns(PLACE)
    try:
        broken.write_text("product: silver.broken\nrestrict: [", "utf-8")
        assert may_restrict_columns(PLACE)
        (note,) = project.lineage("bronze.orders").notes
        assert note == "not looked at, as their contracts are wrong: silver.broken"
        with pytest.raises(NotFound, match=r"bronze\.other; not looked at.*: silver\.broken"):
            project.lineage("bronze.other")
        with pytest.raises(ConfigError):
            project.lineage("silver.broken")
    finally:
        broken.unlink()


@pytest.mark.req("O3")
def test_why_tells_the_story_of_a_partition_on_one_screen(stored: StoredLake) -> None:
    words = ["--project", str(PLACE), "why", STORED_PRODUCT, "--partition", "2024-01-03"]
    shown = CliRunner().invoke(app, words).output
    assert len(shown.splitlines()) <= 24
    story = stored.project.why(STORED_PRODUCT, "2024-01-03")
    assert (story.run_id, story.version, story.state) == (stored.runs["second"], 2, "complete")
    assert story.open_run is None
    assert (story.reason, story.approved_by, story.accepted_by) == (
        "amounts were low", ("ana",), ("ana",),
    )  # fmt: skip
    assert (story.transform, story.rows and story.rows["changed"]) == ("orders 1.0.0", 3)
    assert [act.version for act in story.acts] == [2, 1]
    stored.project.rollback(STORED_PRODUCT, to=0, reason="wrong", by="ana")
    assert stored.project.why(STORED_PRODUCT).run_id is None
    before = stored.project.why(STORED_PRODUCT, "2024-01-03")
    assert (before.run_id, before.acts[0].action, before.state) == (None, "rollback", "unknown")


def test_why_of_a_product_names_the_run_that_readers_see_after_a_rollback(
    stored: StoredLake,
) -> None:
    stored.project.rollback(STORED_PRODUCT, to=1, reason="wrong", by="ana")
    story = stored.project.why(STORED_PRODUCT)
    assert (story.run_id, story.version) == (stored.runs["first"], 1)


@pytest.mark.parametrize("text", ["foo", "2024-13-45", "2024-01-03T05", "2024-01"])
def test_why_of_a_text_that_is_no_partition_says_how_one_is_written(
    stored: StoredLake, text: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        stored.project.why(STORED_PRODUCT, text)
    assert text in raised.value.problem
    assert "20" in raised.value.fix


def test_why_names_the_open_run_apart_from_the_one_that_made_the_rows(
    stored: StoredLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = PartitionStatus("2024-01-03", "failed", run_id="bf-open")
    monkeypatch.setattr(
        staleness, "find_stale", lambda *_: ProductStatus(STORED_PRODUCT, (failed,))
    )
    story = stored.project.why(STORED_PRODUCT, "2024-01-03")
    assert (story.run_id, story.open_run) == (stored.runs["second"], "bf-open")
    words = ["--project", str(PLACE), "why", STORED_PRODUCT, "--partition", "2024-01-03"]
    shown = " ".join(CliRunner().invoke(app, words).output.split())
    assert "failed: run bf-open, whose rows readers do not see here" in shown


def test_why_of_a_partition_that_no_run_made_tells_its_state_and_what_to_type(
    stored: StoredLake,
) -> None:
    source = stored.project.wiring.catalog.load_table("bronze.orders")
    source.append(appended("bronze.orders", "2024-01-06", 901).cast(source.schema().as_arrow()))
    missing = stored.project.why(STORED_PRODUCT, "2024-01-06")
    assert (missing.state, missing.run_id) == ("missing", None)
    assert str(missing.next_command).endswith(f"stale {STORED_PRODUCT} --draft")
    with pytest.raises(NotFound, match="has no rows in partition 2030-01-01") as raised:
        stored.project.why(STORED_PRODUCT, "2030-01-01")
    assert f"lineage {STORED_PRODUCT}" in raised.value.fix


@pytest.mark.parametrize("partition", [None, "2030-01-01"])
def test_why_before_any_run_is_published_says_so(
    stored: StoredLake, monkeypatch: pytest.MonkeyPatch, partition: str | None
) -> None:
    context = stored.project.wiring.context
    monkeypatch.setattr(context.versions, "history", lambda *_: ())
    with pytest.raises(NotFound, match=f"no run of {STORED_PRODUCT} is published") as raised:
        stored.project.why(STORED_PRODUCT, partition)
    assert raised.value.fix.endswith(f"list --product {STORED_PRODUCT}")


def test_why_of_an_input_leads_to_its_lineage(stored: StoredLake) -> None:
    with pytest.raises(NotFound, match=f"an input of {STORED_PRODUCT}") as raised:
        stored.project.why("bronze.orders")
    assert raised.value.fix.endswith("lineage bronze.orders")


def test_a_publication_carries_what_it_was_computed_from(stored: StoredLake) -> None:
    run, project = stored.runs["validated"], stored.project
    project.accept(run, by="ana")
    project.publish(run, by="ana")
    head = project.wiring.catalog.load_table(STORED_PRODUCT).current_snapshot()
    source = project.wiring.catalog.load_table("bronze.orders")
    state = json.loads(head.summary["lakehouse-backfill.refresh-state"])
    (found,) = state["source-states"]
    assert (found["namespace"], found["name"], found["uuid"]) == (
        ["bronze"], "orders", str(source.metadata.table_uuid),
    )  # fmt: skip
    assert found["snapshot-id"] in {one.snapshot_id for one in source.metadata.snapshots}
    assert state["refresh-start-timestamp-ms"] > 0


@pytest.mark.req("O3")
def test_lineage_is_exported_as_open_lineage_events(stored: StoredLake, tmp_path: Path) -> None:
    file = tmp_path / "lineage.ndjson"
    words = ["--project", str(PLACE), "lineage", "bronze.orders", "--openlineage", str(file)]
    shown = CliRunner().invoke(app, words)
    assert "OpenLineage events written to" in shown.output
    events = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    for event in events:
        require_valid(event)
    runs = [event["run"]["facets"]["lakehouseBackfill_run"]["runId"] for event in events]
    assert set(runs) == {line.run_id for line in stored.project.lineage("bronze.orders").downstream}
    end = events[-1]
    assert [one["name"] for one in (*end["inputs"], *end["outputs"])] == [
        "bronze.orders", STORED_PRODUCT,
    ]  # fmt: skip
    assert end["outputs"][0]["facets"]["dataQualityAssertions"]["assertions"]
    assert end["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] > 0
