"""Projects that restate two days of a table by Spark: sessions of their own, or a server's."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import yaml

from lakehouse_backfill.project import Project
from tests.support.lakes.deletes import hide_equal
from tests.support.oracles.row_hash import checksum
from tests.support.spark.declared import CATALOG, CHECKS, JOBS, SUITE
from tests.support.spark.reading import Rows, day_of, live, rows_of

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

DAYS = tuple(f"2024-01-0{day}" for day in range(1, 6))
SCOPE = DAYS[1:3]
_numbers = itertools.count(1)
_MERGE_ON_READ = ", ".join(
    f"'write.{verb}.mode' = 'merge-on-read'" for verb in ("delete", "update", "merge")
)


def expected_checksums(chunk_size: int, scope: tuple[str, ...] = SCOPE) -> dict[str, str]:
    """Give the checksums of a run's chunks as any engine must compute them: by the oracle."""
    chunks = [scope[first : first + chunk_size] for first in range(0, len(scope), chunk_size)]
    found = {}
    for days in chunks:
        rows = [
            {"id": n, "d": date.fromisoformat(DAYS[n % 5]), "v": n * 10}
            for n in range(50) if DAYS[n % 5] in days
        ]  # fmt: skip
        count, xor, total = checksum({"id": "long", "d": "date", "v": "long"}, rows)
        found[" ".join(days)] = f"{count}:{xor:016x}{total:016x}"
    return found


@dataclass
class RestateLab:
    """Projects over one lake, each in a namespace of its own; `lake` is its part of the profile."""

    folder: Path
    settings: dict[str, str]
    namespace: str = field(default_factory=lambda: f"r{next(_numbers)}")
    lake: dict[str, Any] = field(default_factory=lambda: {"catalog": CATALOG})

    def declare(self, job: str, *, has_checks: bool = False, **contract: Any) -> Project:
        """Write what a project needs, with one of `JOBS`, and open it.

        With checks: a suite, measures, totals of the source, edges, and chunks that are judged
        each by itself. More fields of the contract may be given.
        """
        out, src = self.table("out"), self.table("src")
        profile = {
            "environment": "dev", "control_namespace": f"{self.namespace}_control",
            "shadow_namespace": f"{self.namespace}_shadow", "spark": self.settings, **self.lake,
        }  # fmt: skip
        product = self._product(has_checks=has_checks) | contract
        manifest: dict[str, Any] = {
            "api_version": "lakehouse-backfill/v1", "product": out,
            "run": {"requested_by": "ana", "reason": "wrong rate", "reason_code": "bug_fix"},
            "transform": {
                "name": "tenfold", "version": "1.0.0", "file": f"jobs/{job}",
                "config": {"factor": 10},
            },
            "sources": {
                "src": {"table": src, "range": {"column": "d", "from": DAYS[0], "to": "2024-02-01"}}
            },
            "target": {"partitions": {"column": "d", "from": SCOPE[0], "to": DAYS[3]}},
            "limits": {"partitions_per_chunk": 1 if has_checks else 2},
            "validation": {"edge_partitions": int(has_checks)},
        }  # fmt: skip
        self._write(
            "catalog/profiles.yaml",
            {
                "api_version": "lakehouse-backfill/v1", "default": "lab",
                "profiles": {"lab": profile},
            },
        )  # fmt: skip
        self._write(f"catalog/contracts/{out}.yaml", product)
        if job == "noted.py":
            manifest["target"] |= {"schema_change": [{"add": "note", "type": "string"}]}
        if contract.get("publication") == "pinned":
            manifest["target"] |= {"publish_mode": "pointer_swap"}
        self.manifest = manifest
        self._write("jobs/run.yaml", manifest)
        self._write("expectations/out.json", SUITE)
        for name, text in JOBS.items():
            (self.folder / "jobs" / name).write_text(text, encoding="utf-8")
        self.project = Project.open(self.folder)
        self.project.wiring.create_lake()
        return self.project

    def _product(self, *, has_checks: bool) -> dict[str, Any]:
        out = self.table("out")
        return {
            "api_version": "lakehouse-backfill/v1", "product": out, "table": out,
            "description": "Amounts per day.", "owner": "ana", "key": ["d", "id"],
            "partitioning": [{"column": "d"}], "lineage_columns": False, "consumers": [],
            "columns": [
                {"name": "id", "type": "long"}, {"name": "d", "type": "date"},
                {"name": "v", "type": "long"},
            ],
            "classification": "internal", "retention_days": "unlimited", "deletions": "block",
            **(CHECKS if has_checks else {}),
        }  # fmt: skip

    def amend(self, **fields: Any) -> None:
        """Write the run manifest again, with other values for some of its fields."""
        self.manifest |= fields
        self._write("jobs/run.yaml", self.manifest)

    def fill(self, version: int) -> Rows:
        """Make source and target; the target's rate is wrong on the days of the run."""
        self.sql("CREATE NAMESPACE {ns}")
        for short in ("src", "out"):
            self.sql(
                f"CREATE TABLE {{ns}}.{short} (id bigint, d date, v bigint) PARTITIONED BY (d) "
                f"TBLPROPERTIES ('format-version' = '{version}', {_MERGE_ON_READ})"
            )
        self.sql(
            "INSERT INTO {ns}.src SELECT id, date_add(date'2024-01-01', CAST(id % 5 AS int)), id "
            "FROM range(50)"
        )
        wrong = " OR ".join(f"d = DATE '{day}'" for day in SCOPE)
        self.sql(f"INSERT INTO {{ns}}.out SELECT id, d, v * IF({wrong}, 100, 10) FROM {{ns}}.src")
        return {(DAYS[n % 5], n, n * (100 if DAYS[n % 5] in SCOPE else 10)) for n in range(50)}

    @property
    def spark(self) -> SparkSession:
        """The program's own session."""
        return self.project.wiring.spark  # type: ignore[no-any-return]

    @property
    def catalog(self) -> Catalog:
        return self.project.wiring.catalog  # type: ignore[no-any-return]

    def sql(self, text: str) -> Any:
        """Run SQL in which `{ns}` stands for the namespace: what live jobs do."""
        return self.spark.sql(text.replace("{ns}", f"lake.{self.namespace}"))

    def hide_equal(self, key: int, day: str) -> None:
        """Delete a row of a day by an equality delete file, as Flink does."""
        table = self.catalog.load_table(self.table("out"))
        kit: Any = SimpleNamespace(live=SimpleNamespace(load_table=lambda _: table))
        days = (date.fromisoformat(day) - date(1970, 1, 1)).days
        hide_equal(kit, key, partition=(days,), spec_id=0)

    def table(self, short: str) -> str:
        return f"{self.namespace}.{short}"

    def head(self) -> int | None:
        found = self.catalog.load_table(self.table("out")).current_snapshot()
        return found.snapshot_id if found else None

    def files(self, *days: str) -> dict[str, int]:
        """Give the files of these days with their sequence numbers, delete files too."""
        table = self.catalog.load_table(self.table("out"))
        return {
            f"{file.file_path}#{file.content}": sequence
            for file, sequence in live(table)
            if day_of(file) in days
        }

    def rows(self) -> Rows:
        """What readers see of the target, worked out from its files."""
        return rows_of(self.catalog.load_table(self.table("out")))

    def tokens(self) -> list[str]:
        """Give the publications and rollbacks that snapshots of the target name."""
        table = self.catalog.load_table(self.table("out"))
        summaries = [one.summary.additional_properties for one in table.snapshots() if one.summary]
        name = "lakehouse-backfill.publication"
        return [each[name] for each in summaries if name in each]

    def checksums(self, run: str) -> dict[str, str]:
        """Give the chunks' checksums as the ledger has them, without the shape of the columns."""
        return {
            " ".join(one.partitions): str(one.checksum).split(":", 2)[2]
            for one in self.project.chunks(run).chunks
        }

    def state(self, run: str) -> str:
        return self.project.status(run).runs[0].state

    def command(self, *arguments: str) -> None:
        """Run the program from the command line."""
        program = Path(sys.executable).parent / "lakehouse-backfill"
        done = subprocess.run(
            [str(program), "--project", str(self.folder), *arguments],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"

    def forget(self) -> None:
        """Take the product's declarations away: the next one's project lies in the same folder."""
        (self.folder / f"catalog/contracts/{self.table('out')}.yaml").unlink(missing_ok=True)

    def _write(self, name: str, content: dict[str, Any]) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        dump = json.dumps if path.suffix == ".json" else yaml.safe_dump
        path.write_text(dump(content), encoding="utf-8")
