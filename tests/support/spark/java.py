"""The kit of the lake's contract tests, with commits by Iceberg's Java API; live writers beside it.

In format 3 the live writers are Spark, as PyIceberg cannot write it; else they are PyIceberg.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyiceberg.table import Table

from lakehouse_backfill import fault_points
from lakehouse_backfill.adapters.iceberg.commit.publisher import IcebergPublisher
from lakehouse_backfill.adapters.iceberg.refs import IcebergPins
from lakehouse_backfill.adapters.iceberg.shadow.shadows import IcebergShadows
from lakehouse_backfill.adapters.spark import dataframes
from lakehouse_backfill.adapters.spark.commits.java_api import JavaApi
from lakehouse_backfill.adapters.spark.commits.java_commits import JavaCommits
from lakehouse_backfill.adapters.spark.session import settings
from lakehouse_backfill.domain.partitions import (
    Scope,
    ScopeField,
    partition_row_range,
    scope_row_ranges,
)
from tests.support.lakes.catalogs import EMBEDDED, NAMES_CATALOG
from tests.support.lakes.tables import TARGET, Kit, Row
from tests.support.lakes.writers import FixedWriters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_numbers = itertools.count(1)
_COLUMNS = "id long, d date, ts timestamp, region string, v string"
_MERGE_ON_READ = {f"write.{verb}.mode": "merge-on-read" for verb in ("delete", "update", "merge")}


class JavaKit(Kit):
    """A lake in a folder that the one Spark session knows as a catalog of its own."""

    def __init__(
        self, root: Path, spark: SparkSession, version: int = 2, budget_s: float = 30.0
    ) -> None:
        self.name = f"java{next(_numbers)}"
        (root / NAMES_CATALOG).write_text(json.dumps({**EMBEDDED, "name": self.name}))
        super().__init__(root, budget_s)
        self.spark = spark
        self.version = version
        self._know()
        api = JavaApi(lambda: spark, self.name)
        self.commits = JavaCommits(api)
        writers = FixedWriters(self.catalog, "java", self.commits)
        self.pins = IcebergPins(self.catalog, writers)
        self.shadows = IcebergShadows(self.catalog, "shadow", writers)
        self.publisher = IcebergPublisher(self.catalog, budget_s, writers)
        self._todo: list[Callable[[], Any]] = []

    def _know(self) -> None:
        own = {**EMBEDDED, "name": self.name, "type": "sql"}
        options = settings.spark_catalog_properties(settings.expand_project_folder(own, self.root))
        prefix = f"spark.sql.catalog.{self.name}"
        self.spark.conf.set(prefix, "org.apache.iceberg.spark.SparkCatalog")
        for key, value in options.items():
            self.spark.conf.set(f"{prefix}.{key}", value)

    def sql(self, text: str) -> DataFrame:
        """Run SQL in which `{t}` stands for the target."""
        return self.spark.sql(text.replace("{t}", f"{self.name}.{TARGET}"))

    def create(self, *partitioning: tuple[str, str], version: int = 0, name: str = TARGET) -> Table:
        table = super().create(*partitioning, version=min(version or self.version, 2), name=name)
        if self.version > 2:
            marks = {"format-version": str(self.version), **_MERGE_ON_READ}
            said = ", ".join(f"'{key}' = '{value}'" for key, value in marks.items())
            self.spark.sql(f"ALTER TABLE {self.name}.{name} SET TBLPROPERTIES ({said})")
            table = self.live.load_table(name)
        return table

    def append(self, *rows: Row, name: str = TARGET, **properties: str) -> int:
        if self.version <= 2:
            return super().append(*rows, name=name, **properties)
        writer = self._frame(rows).writeTo(f"{self.name}.{name}")
        for key, value in properties.items():
            writer = writer.option(f"snapshot-property.{key}", value)
        writer.append()
        return self.head(name) or 0

    def delete(self, field: ScopeField, label: str, name: str = TARGET) -> None:
        if self.version <= 2:
            super().delete(field, label, name)
            return
        rows = (partition_row_range(field, label),)
        self._frame(()).writeTo(f"{self.name}.{name}").overwrite(dataframes.range_filter(rows))

    def hide(self, *ids: int) -> int:
        """Delete rows merge-on-read, as Spark does: by a deletion vector in format 3."""
        self.sql(f"DELETE FROM {{t}} WHERE id IN ({', '.join(map(str, ids))})")
        return self.head() or 0

    def write_chunk(
        self, shadow: str, field: ScopeField, label: str, rows: list[Row], chunk: str
    ) -> None:
        if self.version <= 2:
            super().write_chunk(shadow, field, label, rows, chunk)
            return
        writer = self._frame(rows).writeTo(f"{self.name}.{shadow}")
        writer = writer.option("snapshot-property.lakehouse-backfill.chunk-id", chunk)
        writer.overwrite(dataframes.range_filter((partition_row_range(field, label),)))

    def compact(self, scope: Scope, name: str = TARGET, **other: Any) -> None:
        if self.version <= 2:
            super().compact(scope, name, **other)
            return
        where = " OR ".join(f"d = DATE '{one.lower}'" for one in scope_row_ranges(scope))
        options = "map('rewrite-all', 'true', 'min-input-files', '1')"
        self.spark.sql(
            f"CALL {self.name}.system.rewrite_data_files(table => '{name}', options => {options}, "
            f'where => "{where}")'
        )

    def before_commit(self, *actions: Callable[[], Any]) -> None:
        """Let `actions` happen one by one right before the adapter's next commits."""
        self._todo = list(actions)

    @contextmanager
    def watched(self) -> Iterator[JavaKit]:
        """Let what was asked for happen before commits, until the test is over."""
        fault_points.install_hook(self._reached)
        try:
            yield self
        finally:
            fault_points.install_hook(None)

    def _reached(self, point: str) -> None:
        if point in ("Publisher.swap:committing", "Pins.tag:committing") and self._todo:
            self._todo.pop(0)()

    def _frame(self, rows: Any) -> DataFrame:
        order = ("id", "d", "ts", "region", "v")
        return self.spark.createDataFrame([tuple(r[c] for c in order) for r in rows], _COLUMNS)
