"""What the tests on the embedded lake share: the lake as both engines see it, and plans over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BooleanType,
    DateType,
    DoubleType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestamptzType,
)

from lakehouse_backfill.adapters.iceberg.shadow.branches import load_stored_table
from lakehouse_backfill.adapters.iceberg.tables import IcebergTables
from lakehouse_backfill.adapters.spark.dataframes import SparkTables
from lakehouse_backfill.adapters.spark.measuring.measuring import SparkMeasuring
from lakehouse_backfill.adapters.spark.staging.staging import SparkStaging
from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.guards.privacy import MaskKey
from lakehouse_backfill.domain.manifest import RunManifest
from lakehouse_backfill.domain.partitions import Chunk, Scope, ScopeField
from lakehouse_backfill.domain.plan import Plan, ResolvedManifest, SourcePin, TargetPin
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.domain.run import ChunkRecord
from tests.support.examples.plans import estimate, plan_of

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame, SparkSession

DAYS = tuple(f"2024-01-{day:02d}" for day in range(1, 11))
_BY_DAY = ScopeField(column="d", transform="identity", type="date")


_TYPES: dict[str, PrimitiveType] = {
    "boolean": BooleanType(), "date": DateType(), "double": DoubleType(), "long": LongType(),
    "string": StringType(), "timestamptz": TimestamptzType(),
}  # fmt: skip


_SPARK_TYPES = {"long": "bigint", "timestamptz": "timestamp"}


def no_secret(key: MaskKey) -> bytes:
    """Read the secret of a lake without masks."""
    raise LookupError(f"no product of this lake has masks, and none needs {key.place}")


@dataclass
class Lake:
    """The embedded lake as Spark and PyIceberg see it, inside one test's namespace."""

    spark: SparkSession
    catalog: Catalog
    profile: Profile
    profile_folder: Path
    project: Path
    namespace: str
    name: str = "lake"

    @property
    def tables(self) -> SparkTables:
        """The tables of the lake's catalog as Spark reads them."""
        return SparkTables(self.spark, self.name, stored=partial(load_stored_table, self.catalog))

    def staging(self) -> SparkStaging:
        """Make what runs the jobs of the project's folder."""
        kept_in = f"{self.namespace}_shadow"
        return SparkStaging(self.tables, lambda _: self.project, no_secret, kept_in=kept_in)

    def stage(self, plan: Plan, epoch: int = 1) -> ChunkRecord:
        """Stage the plan's first chunk."""
        return self.staging().stage(plan, plan.resolved.chunks[0], epoch)

    def sums(self, short: str, scope: Scope) -> dict[str, Checksum]:
        """Measure the checksums of partitions at the table's head."""
        return SparkMeasuring(self.tables).checksums(self.table(short), self.head(short), scope)

    def sql(self, text: str) -> DataFrame:
        """Run SQL in which `{ns}` stands for the test's namespace with its catalog."""
        return self.spark.sql(text.replace("{ns}", f"{self.name}.{self.namespace}"))

    def table(self, short: str) -> str:
        """Give `namespace.table` of the test's table."""
        return f"{self.namespace}.{short}"

    def rows(self, short: str, snapshot_id: int | None = None) -> list[tuple[Any, ...]]:
        """Give all rows of a table, sorted."""
        reader = self.spark.read
        if snapshot_id is not None:
            reader = reader.option("versionAsOf", str(snapshot_id))
        found = reader.table(f"{self.name}.{self.table(short)}").collect()
        return sorted((tuple(row) for row in found), key=repr)

    def head(self, short: str) -> int | None:
        """Give the table's current snapshot id."""
        snapshot = self.catalog.load_table(self.table(short)).current_snapshot()
        return snapshot.snapshot_id if snapshot else None

    def files(self, short: str) -> set[str]:
        """Give the paths of the live data files."""
        tasks = self.catalog.load_table(self.table(short)).scan().plan_files()
        return {task.file.file_path for task in tasks}

    def snapshots(self, short: str) -> list[dict[str, str]]:
        """Give the summaries of all snapshots, oldest first."""
        table = self.catalog.load_table(self.table(short))
        return [
            dict(snapshot.summary.additional_properties) if snapshot.summary else {}
            for snapshot in table.snapshots()
        ]

    def create(
        self,
        short: str,
        columns: Sequence[tuple[str, str]],
        *,
        version: int = 2,
        by: Sequence[str] = (),
    ) -> None:
        """Create a table by its first column, or by those in `by`; types by Iceberg's names.

        PyIceberg makes it: Spark takes ten times as long for tables as small as these. It writes no
        format 3.
        """
        by = by or (columns[0][0],)
        if version > 2:
            named = ", ".join(f"{name} {_SPARK_TYPES.get(kind, kind)}" for name, kind in columns)
            self.sql(
                f"CREATE TABLE {{ns}}.{short} ({named}) PARTITIONED BY ({', '.join(by)}) "
                f"TBLPROPERTIES ('format-version'='{version}')"
            )
            return
        fields = [
            NestedField(number, name, _TYPES[kind], required=False)
            for number, (name, kind) in enumerate(columns, start=1)
        ]
        ids = {field.name: field.field_id for field in fields}
        spec = PartitionSpec(
            *(
                PartitionField(ids[name], 1000 + at, IdentityTransform(), name)
                for at, name in enumerate(by)
            )
        )
        options = {"format-version": str(version)}
        self.catalog.create_table(
            self.table(short), Schema(*fields), partition_spec=spec, properties=options
        )

    def append(self, short: str, *rows: tuple[Any, ...]) -> None:
        """Append rows, their values in the order of the table's columns."""
        table = self.catalog.load_table(self.table(short))
        schema = table.schema().as_arrow()
        columns = zip(*rows, strict=True)
        arrays = [pa.array(column, schema.field(at).type) for at, column in enumerate(columns)]
        table.append(pa.table(arrays, schema=schema))

    def create_daily(self, short: str, factor: int) -> None:
        """Create a table (d, k, v) of ten days with four rows each; v is k times the factor."""
        self.create(short, (("d", "date"), ("k", "long"), ("v", "long")))
        rows = [(date(2024, 1, 1 + number % 10), number, number * factor) for number in range(40)]
        self.append(short, *rows)

    def job(self, text: str, file: str = "jobs/job.py") -> str:
        """Write a job file of the project; gives its path inside it."""
        path = self.project / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return file


@dataclass
class PlanMaker:
    """Makes plans over a daily product `out(d, k, v)` computed from `src(d, k, v)`."""

    lake: Lake
    file: str = "jobs/job.py"
    transform: tuple[str, str] = ("copy", "1.0.0")
    partitions: tuple[str, ...] = DAYS[4:6]
    per_chunk: int = 16
    warm_up_days: int = 0
    cool_down_days: int = 0
    range_from: date = date(2024, 1, 1)
    range_to: date = date(2024, 1, 31)
    source_column: str = "d"
    references: tuple[str, ...] = ()
    contract: dict[str, Any] = field(default_factory=dict)
    target: str = "out"
    shadow: str = "shadow"
    scope_field: ScopeField = _BY_DAY
    config: dict[str, Any] = field(default_factory=dict)

    def make(self, run_id: str = "bf-1") -> Plan:
        """Give a plan that pins everything at its current head."""
        others = [self._pin(name, "reference") for name in self.references]
        pins = (self._pin("src", "source"), *others)
        chunks = tuple(
            Chunk(chunk_id=f"c{number}", partitions=self.partitions[start : start + self.per_chunk])
            for number, start in enumerate(range(0, len(self.partitions), self.per_chunk), 1)
        )
        resolved = ResolvedManifest(
            manifest=self._manifest(), contract=self._contract(), chunks=chunks, sources=pins,
            scope=Scope(field=self.scope_field, partitions=self.partitions),
            target=TargetPin(
                table=self.lake.table(self.target), uuid="u",
                snapshot_id=self.lake.head(self.target), schema_id=0, spec_id=0, format_version=2,
            ),
            code_hash="0" * 64, git_commit=None, lock_hash=None,
        )  # fmt: skip
        return plan_of(
            resolved,
            run_id=run_id,
            created_at=datetime(2024, 2, 1, tzinfo=timezone.utc),
            estimate=estimate(basis="none"),
            manifest_file="jobs/run.yaml",
            shadow_table=self.lake.table(self.shadow),
        )

    @property
    def _range(self) -> dict[str, Any]:
        return {"column": self.source_column, "from": self.range_from, "to": self.range_to}

    def _pin(self, short: str, role: str) -> SourcePin:
        info = IcebergTables(self.lake.catalog).describe(self.lake.table(short))
        pin: dict[str, Any] = {
            "name": short, "role": role, "table": self.lake.table(short), "requested": "head",
            "snapshot_id": self.lake.head(short), "mode": "tag",
            "columns": info.columns if info else (),
        }  # fmt: skip
        if role == "source":
            pin |= {
                "range": self._range,
                "warm_up_days": self.warm_up_days,
                "cool_down_days": self.cool_down_days,
            }
        return SourcePin.model_validate(pin)

    def _manifest(self) -> RunManifest:
        name, version = self.transform
        return RunManifest.model_validate({
            "api_version": "lakehouse-backfill/v1",
            "run": {"requested_by": "ann", "reason": "a bug", "reason_code": "bug_fix"},
            "product": self.lake.table(self.target),
            "transform": {
                "name": name, "version": version, "file": self.file, "config": self.config
            },
            "sources": {"src": {"table": self.lake.table("src"), "range": self._range}},
            "target": {"partitions": {"column": "d", "values": ["2024-01-05"]}},
        })  # fmt: skip

    def _contract(self) -> Contract:
        product = self.lake.table(self.target)
        return Contract.model_validate({
            "api_version": "lakehouse-backfill/v1", "product": product, "table": product,
            "description": "test product", "owner": "ann", "key": ["d", "k"],
            "partitioning": [{"column": "d"}], "columns": [{"name": "d", "type": "date"}],
            **self.contract,
        })  # fmt: skip


def copy_job(*body: str, above: str = "") -> str:
    """Give the job `copy` over `src`: the lines of its function, and those above it."""
    lines = "".join(f"    {line}\n" for line in body)
    return f"""
from lakehouse_backfill.transforms import transform
from pyspark.sql import functions as F, Window
{above}
@transform(name="copy", version="1.0.0", inputs=("src",))
def copy(context, src):
{lines}"""


COPY_JOB = copy_job('return src.select("d", "k", "v")')
