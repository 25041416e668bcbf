"""Intermediate results of transforms, kept as tables and read again while their key is the same.

The key is a digest of the pinned snapshots of its inputs, the code of the job and of the modules
that it imports, the values of its configuration, the engine with its SQL settings, and the versions
of Python and of the packages that jobs call most; other packages are not looked at. When one of
them changes, so does the name of the table: a kept result never becomes stale by it. Proofs don't
read kept results: they compute them again.
"""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pyspark.sql import DataFrame

from lakehouse_backfill.adapters.spark.dataframes import SparkTables
from lakehouse_backfill.adapters.spark.kept_tables import PREFIX, find_kept, write_kept
from lakehouse_backfill.adapters.spark.session import write_guard
from lakehouse_backfill.adapters.spark.session.spark_errors import spark_errors
from lakehouse_backfill.core.planning import job_code
from lakehouse_backfill.domain.plan import Plan, SourcePin, has_restricted_columns
from lakehouse_backfill.domain.retention import INTERMEDIATE_PREFIX
from lakehouse_backfill.domain.serialization import digest
from lakehouse_backfill.errors import BackfillError, ConfigError, NotFound
from lakehouse_backfill.fault_points import commit_window
from lakehouse_backfill.ports.compute import KeptIntermediate
from lakehouse_backfill.transforms import IntermediateInfo

#: Part of each key: results of a release that keeps them otherwise are not read.
_FORMAT = 1
KEY_PROPERTY = f"{PREFIX}intermediate"
_USED_PROPERTY = f"{PREFIX}used-at"
_CHUNK = "intermediate"
#: So often a use is noted: `maintain` removes what nobody used for days.
_NOTED_EVERY = timedelta(hours=12)
#: All settings of this kind can make the same code give other rows; those of catalogs hold secrets,
#: and the catalog is a part of the key by its name.
_SETTINGS, _NO_SETTINGS = "spark.sql.", ("spark.sql.catalog.", "spark.sql.warehouse.dir")
_PACKAGES = ("pyspark", "pyarrow", "pandas", "numpy")


@dataclass(frozen=True)
class Intermediate:
    """An intermediate result that a job file declares; `compute` takes configuration and frames."""

    info: IntermediateInfo
    compute: Callable[[Mapping[str, Any], Mapping[str, DataFrame]], Any]

    def find_pins(self, plan: Plan) -> tuple[SourcePin, ...]:
        """Return the pins of its inputs; raises ConfigError unless all are reference data.

        A partition is computed from a window of a source, and lineage says so: a result of the
        whole source would be read by every partition.
        """
        pins = {pin.name: pin for pin in plan.resolved.sources if pin.role == "reference"}
        other = [name for name in self.info.inputs if name not in pins]
        if other:
            raise ConfigError(
                f"the intermediate result {self.info.name} reads {', '.join(other)}, which is no "
                "reference data of the run",
                state="nothing was computed",
                fix="declare it under reference_data, or compute it in the transform",
            )
        return tuple(pins[name] for name in self.info.inputs)

    def config(self, plan: Plan) -> dict[str, Any]:
        """Return the values that it is given; raises ConfigError for one that is not there."""
        given = plan.resolved.manifest.transform.config
        missing = [name for name in self.info.config if name not in given]
        if missing:
            raise ConfigError(
                f"the intermediate result {self.info.name} needs {', '.join(missing)}, which "
                "transform.config lacks",
                state="nothing was computed",
                fix="write it in transform.config of the run manifest",
            )
        return {name: given[name] for name in self.info.config}


class IntermediateStore:
    """Keeps intermediate results as tables in a namespace; only of one transform's code."""

    def __init__(self, tables: SparkTables, namespace: str) -> None:
        self._tables, self._namespace = tables, namespace
        self._lock = threading.Lock()
        self._noted: dict[str, float] = {}

    def key(self, plan: Plan, wanted: Intermediate) -> str:
        """Return the digest of all that the result depends on."""
        inputs = [
            {"name": pin.name, "table": pin.table, "snapshot_id": pin.snapshot_id}
            for pin in wanted.find_pins(plan)
        ]
        parts = {
            "format": _FORMAT,
            "engine": self._tables.spark.version,
            "packages": _package_versions(),
            "settings": self._settings(),
            "catalog": self._tables.catalog,
            "name": wanted.info.name,
            "code": job_code.code_files(plan.resolved),
            "config": wanted.config(plan),
            "inputs": inputs,
        }
        return digest(parts)

    def _settings(self) -> dict[str, str]:
        given = self._tables.spark.conf.getAll
        return {
            name: str(value)
            for name, value in sorted(given.items())
            if name.startswith(_SETTINGS) and not name.startswith(_NO_SETTINGS)
        }

    def keep(
        self, plan: Plan, wanted: Intermediate, build: Callable[[], DataFrame]
    ) -> KeptIntermediate:
        """Return the kept result; one that is not kept yet is computed and written, in one commit.

        A repeated call, or one beside another, finds what was committed first. Where the result
        must not or cannot be kept, nothing is written, and `because` says why.
        """
        name = wanted.info.name
        if reason := self._reason_not_to_keep(plan):
            return KeptIntermediate(name, because=reason)
        key = self.key(plan, wanted)
        table = f"{self._namespace}.{INTERMEDIATE_PREFIX}{key[:32]}"
        try:
            found = self._find(table, key)
            if found is not None:
                self._note_use(table)
                return KeptIntermediate(name, table, found, was_there=True)
            frame = build()
        except NotFound as error:
            return KeptIntermediate(name, because=error.problem)
        try:
            self._write(plan, table, key, frame)
        except BackfillError as error:
            # Another driver may have been first.
            if (first := self._find(table, key)) is None:
                return KeptIntermediate(name, because=error.problem)
            return KeptIntermediate(name, table, first, was_there=True)
        written = self._find(table, key)
        if written is None:
            return KeptIntermediate(name, because=f"{table} is not what was written")
        return KeptIntermediate(name, table, written)

    def read(self, kept: KeptIntermediate) -> DataFrame:
        """Read a kept result at its snapshot; raises NotFound."""
        if time.monotonic() - self._noted.get(kept.table, 0.0) > _NOTED_EVERY.total_seconds():
            self._note_use(kept.table)
        return self._tables.read(kept.table, kept.snapshot_id)

    @staticmethod
    def _reason_not_to_keep(plan: Plan) -> str:
        if has_restricted_columns(plan):
            return "the run has restricted columns: their values leave nothing behind"
        return "rows are erased by tombstones" if plan.resolved.tombstones else ""

    def _find(self, table: str, key: str) -> int | None:
        """Return the snapshot of a kept result; None unless the table is exactly what was kept."""
        found = find_kept(self._tables, table, KEY_PROPERTY, key)
        return found.snapshot_id if found else None

    def _write(self, plan: Plan, table: str, key: str, frame: DataFrame) -> None:
        with spark_errors(f"keeping the intermediate result {table}"):
            write_kept(
                self._tables, table, frame, plan, _CHUNK,
                window=commit_window("Spark.keep_intermediate"),
                own={KEY_PROPERTY: key},
                properties={_USED_PROPERTY: _now_text()},
            )  # fmt: skip
        with self._lock:
            self._noted[table] = time.monotonic()

    def _note_use(self, table: str) -> None:
        """Note that the table is used, unless that was noted a short while ago.

        A use that cannot be noted is no fault: the next one is.
        """
        with self._lock:
            self._noted[table] = time.monotonic()
        noted = self._tables.properties(table).get(_USED_PROPERTY, "")
        with suppress(ValueError):
            if datetime.now(timezone.utc) - datetime.fromisoformat(noted) < _NOTED_EVERY:
                return
        change = f"SET TBLPROPERTIES ({_quoted(_USED_PROPERTY)} = {_quoted(_now_text())})"
        doing = spark_errors(f"noting the use of {table}")
        with suppress(BackfillError), doing, write_guard.allow_own_writes():
            self._tables.spark.sql(f"ALTER TABLE {self._tables.quoted_name(table)} {change}")


def _package_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that code of a job calls most."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _now_text() -> str:
    return datetime.now(timezone.utc).isoformat()


def _quoted(text: str) -> str:
    return f"'{text}'"
