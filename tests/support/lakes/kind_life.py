"""The life of a table of any kind, from `product add` to `rollback`, with PyIceberg as the engine.

The verbs, the catalog and the comparison of rows are the product's own. Only rows are staged and
summed without Spark, so that a kind costs a second.
"""

from __future__ import annotations

import uuid
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from datetime import date, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysFalse, BooleanExpression, Or
from pyiceberg.expressions.literals import literal
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import DateType, NestedField

from lakehouse_backfill import fault_points
from lakehouse_backfill.adapters.iceberg.tables import IcebergTables
from lakehouse_backfill.adapters.system.process import NullProgress
from lakehouse_backfill.domain.checks import RowRule
from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.labels import names
from lakehouse_backfill.domain.labels.values import is_bucket
from lakehouse_backfill.domain.manifest import RowPredicate
from lakehouse_backfill.domain.partitions import (
    Chunk,
    Scope,
    ScopeField,
    partition_label,
    partition_start,
    scope_row_ranges,
)
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.domain.run import ChunkFacts, ChunkRecord
from lakehouse_backfill.ports.compute import ComputePorts
from lakehouse_backfill.project import Project
from lakehouse_backfill.wiring.adapters import Adapters
from tests.chaos.engine import PlainEngine, is_named, marked_rows
from tests.support.lakes.kinds import Kind, full_name
from tests.support.lakes.tables import filter_of

#: The column of the source, beside those of the target, by which its range is named.
TIME = "t"
JOB = "# The engine of the tests takes the rows of the source as they are.\n"


class KindEngine(PlainEngine):
    """The ports that need an engine, over tables of any kind: rows are those of the source."""

    def stage(self, plan: Plan, chunk: Chunk, epoch: int) -> ChunkRecord:
        """Overwrite the chunk's partitions by their rows in the source."""
        shadow = self._catalog.load_table(plan.shadow_table)
        marks = {
            "lakehouse-backfill.run-id": plan.run_id,
            "lakehouse-backfill.chunk-id": chunk.chunk_id,
            "lakehouse-backfill.attempt-id": str(uuid.uuid4()),
            "lakehouse-backfill.epoch": str(epoch),
        }
        where: BooleanExpression = AlwaysFalse()
        for label in chunk.partitions:
            (span,) = scope_row_ranges(Scope(field=plan.resolved.scope.field, partitions=(label,)))
            where = Or(where, filter_of(shadow, span))
        (pin,) = plan.resolved.sources
        new = self._catalog.load_table(pin.table).scan(snapshot_id=pin.snapshot_id).to_arrow()
        new = new.drop_columns([TIME]).cast(shadow.schema().as_arrow())
        kind = KINDS_OF[plan.resolved.target.table]
        labels = [label_of(kind, plan.resolved.scope.field, value) for value in kind.values]
        inside = [
            labels[row["id"] % 100] in chunk.partitions and kind.is_restated(row)
            for row in new.to_pylist()
        ]
        rows, counts = self._composed(plan, plan.chunk_scope(chunk), new.filter(pa.array(inside)))
        shadow.overwrite(rows, where, snapshot_properties=marks | counts.properties)
        head = self._catalog.load_table(plan.shadow_table).current_snapshot()
        assert head is not None
        return self.remeasure(plan, chunk, head.snapshot_id, epoch)

    def by_file(
        self,
        table: str,
        snapshot_id: int | None,
        scope: Scope,
        ignore: tuple[str, ...] = (),
        skip: frozenset[str] = frozenset(),
        beside: RowPredicate | None = None,
    ) -> dict[tuple[str, str], Checksum]:
        """Sum the rows of each live file of the partitions."""
        files = IcebergTables(self._catalog).files(table, snapshot_id, scope.field)
        labels = {file.path: str(file.partition) for file in files}
        loaded = self._catalog.load_table(table)
        scan = loaded.scan(snapshot_id=snapshot_id)
        reader = ArrowScan(loaded.metadata, loaded.io, scan.projection(), scan.row_filter)
        found: dict[tuple[str, str], Checksum] = {}
        for task in scan.plan_files() if snapshot_id is not None else ():
            path = task.file.file_path
            if path in skip or labels[path] not in scope.partitions:
                continue
            for row, one in marked_rows(reader.to_table([task]), ignore):
                if beside is not None and is_named(row, beside):
                    continue
                place = labels[path], path
                found[place] = found.get(place, Checksum.empty(one.shape)) + one
        return found

    def periods(self, plan: Plan, name: str, unit: str) -> tuple[str, ...]:
        """Name the one day of the source's rows."""
        return (str(DAY_OF_SOURCE),)

    def chunk(
        self, plan: Plan, chunk: Chunk, snapshot_id: int | None, rules: tuple[RowRule, ...] = ()
    ) -> ChunkFacts:
        """Count the rows of a chunk; no suite is declared."""
        assert not rules
        found = self.checksums(plan.shadow_table, snapshot_id, plan.chunk_scope(chunk))
        rows = {label: checksum.rows for label, checksum in found.items()}
        return ChunkFacts(rows=rows, null_keys={}, duplicate_keys=0)


DAY_OF_SOURCE = date(2024, 1, 1)
#: The kind of each table that is restated, for the engine.
KINDS_OF: dict[str, Kind] = {}


class KindWiring(Adapters):
    """The real adapters, but for Spark and Great Expectations."""

    def preload_suites(self) -> None:
        """No suite is used here."""

    def _make_compute_ports(self) -> ComputePorts:
        engine: Any = KindEngine(self.catalog)
        return fault_points.watch_ports(
            ComputePorts(**{one.name: engine for one in fields(ComputePorts)})
        )


class NoPages:
    """In place of the pages of runs, which cost more than the verbs that write them."""

    def written_on_error(self, *_: Any, **__: Any) -> AbstractContextManager[None]:
        """Write none."""
        return nullcontext()

    def update_existing(self, *_: Any) -> None:
        """Update none."""

    def add_links(self, done: Any, *_: Any) -> Any:
        """Name none."""
        return done

    add_existing_link = add_links


class QuietProject(Project):
    """A project without pages."""

    _pages: Any = NoPages()


@dataclass(frozen=True)
class Restated:
    """What became of a table: its snapshots, and the ids of its rows at each."""

    kind: Kind
    name: str
    ids: dict[int, list[int]]


class KindProject:
    """A project whose products are tables of many kinds, one after another."""

    def __init__(self, folder: Path, profile: Profile, namespace: str, place: str) -> None:
        self.folder, self.profile = folder, profile
        self.namespace, self.place = namespace, place
        (folder / "catalog").mkdir(parents=True, exist_ok=True)
        (folder / "jobs/of_all").mkdir(parents=True)
        (folder / "jobs/of_all/transform.py").write_text(JOB)

    def project(self) -> Project:
        """Open the project."""
        return QuietProject(KindWiring(self.folder, self.profile, NullProgress(), "dev"))

    @cached_property
    def catalog(self) -> Catalog:
        """The catalog, as commands open it."""
        found: Catalog = self.project().wiring.catalog
        return found

    def create(self, kind: Kind, number: int) -> str:
        """Create the kind's table with a row for each of its values; give its text."""
        name = names.table_text((self.namespace, *(kind.table or (f"t{number}",))))
        schema = kind.schema()
        self.catalog.create_namespace_if_not_exists(self.namespace)
        self.catalog.create_table(
            name, schema, partition_spec=kind.spec(schema), location=f"{self.place}/{number}",
            properties={"format-version": str(kind.format)},
        )  # fmt: skip
        rows = kind.rows()
        half = len(rows) // 2
        self._append(name, rows[:half])
        for path, transform in kind.respec:
            with self.catalog.load_table(name).update_spec() as update:
                update.add_field(full_name(path), transform, f"later {transform}")
        self._append(name, rows[half:])
        return name

    def create_source(self, kind: Kind, number: int) -> str:
        """Create the table of the new rows: ids from 100 on."""
        name = f"{self.namespace}.source_{number}"
        schema = kind.schema()
        schema = Schema(*schema.fields, NestedField(99, TIME, DateType(), required=False))
        self.catalog.create_table(name, schema, location=f"{self.place}/source_{number}")
        self._append(name, [{**row, TIME: DAY_OF_SOURCE} for row in kind.rows(100)])
        return name

    def _append(self, name: str, rows: list[dict[str, Any]]) -> None:
        table = self.catalog.load_table(name)
        table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))

    def live(self, kind: Kind, number: int) -> Restated:
        """Restate the partition of the first value through all verbs, and roll it back."""
        name, source = self.create(kind, number), self.create_source(kind, number)
        KINDS_OF[name] = kind
        base = self._head(name)
        project = self.project()
        contract = Path(project.add_product(name, "lead").file)
        drafted = contract.read_text(encoding="utf-8")
        kept = drafted[: drafted.index("\nsuites:")] + "\nsuites: []\n"
        answers = "consumers: []\nclassification: internal\nretention_days: unlimited\n"
        contract.write_text(kept + answers + "lineage_columns: false\n", encoding="utf-8")
        product = contract.stem
        field = self._field(name, kind)
        labels = [label_of(kind, field, value) for value in kind.values]
        manifest = self._manifest(kind, product, source, field, labels[0])
        run_id = str(project.plan(manifest, by="ann").run_id)
        project.approve(run_id, by="lead")
        found = project.run(run_id, "ann").to_dict()
        assert found["state"] == "validated", [c for c in found["checks"] if not c["passed"]]
        project.accept(run_id, by="lead")
        project.publish(run_id, by="lead")
        published = self._head(name)
        checks = project.verify(run_id, deep=True).to_dict()["checks"]
        assert [check for check in checks if check["ok"] is False] == [], kind.id
        project.rollback(product, reason="wrong", by="lead")
        contract.unlink()
        old = list(range(len(labels)))
        rows = kind.rows()
        new = [
            at + 100 if labels[at] == labels[0] and kind.is_restated(rows[at]) else at for at in old
        ]
        return Restated(kind, name, {base: old, published: new, self._head(name): old})

    def _head(self, name: str) -> int:
        head = self.catalog.load_table(name).current_snapshot()
        assert head is not None
        return head.snapshot_id

    def _field(self, name: str, kind: Kind) -> ScopeField:
        tables = IcebergTables(self.catalog)
        info = tables.describe(name)
        assert info is not None
        return tables.scope_field(info, "*" if kind.by is None else full_name(kind.path))

    def _manifest(
        self, kind: Kind, product: str, source: str, field: ScopeField, label: str
    ) -> Path:
        partitions: dict[str, Any] = {"whole_table": True}
        if not field.is_whole_table:
            partitions = {"column": field.column, "values": [_value_of(field, label)]}
        text = {
            "api_version": "lakehouse-backfill/v1",
            "run": {"requested_by": "ann", "reason": "why", "reason_code": "bug_fix"},
            "product": product,
            "transform": {
                "name": "of_all", "version": "1.0.0", "file": "jobs/of_all/transform.py",
            },
            "sources": {
                "src": {
                    "table": source,
                    "range": {"column": TIME, "from": date(2023, 1, 1), "to": date(2025, 1, 1)},
                }
            },
            "target": {
                "partitions": partitions,
                **({"row_predicate": {"on day": list(kind.days)}} if kind.days else {}),
            },
            "validation": {"edge_partitions": 0},
        }  # fmt: skip
        path = self.folder / "jobs/of_all/run.yaml"
        path.write_text(yaml.safe_dump(text, allow_unicode=True), encoding="utf-8")
        return path

    def written(self, kind: Kind, ids: list[int]) -> list[dict[str, Any]]:
        """Give the rows of these ids as they were given to the tables."""
        rows, schema = kind.rows(), kind.schema().as_arrow()
        given = [{**rows[number % 100], "id": number} for number in sorted(ids)]
        return pa.Table.from_pylist(given, schema=schema).to_pylist()  # type: ignore[no-any-return]

    def rows(self, name: str, snapshot_id: int) -> list[dict[str, Any]]:
        """Read the rows of a snapshot by PyIceberg, by their ids."""
        found = self.catalog.load_table(name).scan(snapshot_id=snapshot_id).to_arrow().to_pylist()
        return sorted(found, key=lambda row: row["id"])


def _value_of(field: ScopeField, label: str) -> Any:
    """Give the value of a manifest that names a partition."""
    if label == "null":
        return None
    if is_bucket(field.transform) or field.is_number or field.type in ("int", "long"):
        return int(label)
    if field.type == "string":
        return label.removeprefix("=")
    if field.type == "timestamptz" and field.transform == "identity":
        return datetime.fromisoformat(label)
    return label


def label_of(kind: Kind, field: ScopeField, value: Any) -> str:
    """Give the label of the partition that PyIceberg writes a value into."""
    if field.is_whole_table:
        return "all"
    if value is None:
        return "null"
    stored = literal(value).to(kind.type).value if not isinstance(value, bool) else value
    stored = parse_transform(field.transform).transform(kind.type)(stored)
    return partition_label(field, partition_start(field.transform, field.type, stored))
