"""The lake that the demo starts from: two bronze tables, and a product with a bad release in it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from lakehouse_backfill.demo import data
from lakehouse_backfill.domain.manifest import TransformRef
from lakehouse_backfill.errors import ConfigError
from lakehouse_backfill.project import Project

PRODUCT = "silver.arrivals_daily"
BAD_FROM, BAD_TO = date(2013, 2, 15), date(2013, 4, 1)
ONE_DAY = timedelta(days=1)
PROJECT_FOLDERS = ("catalog", "expectations", "jobs")


def template_folder() -> Path:
    """Find the project that the demo copies: beside the package in a clone, inside a wheel else."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "demo_project", package.parent):
        if (folder / "catalog" / "contracts" / f"{PRODUCT}.yaml").is_file():
            return folder
    raise ConfigError(
        "the demo's project files are missing from this installation",
        fix="install the package again, or run the demo from a clone",
    )


def copy_project(folder: Path) -> None:
    """Copy the demo's declarations into `folder`, which must be absent or empty."""
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(
            f"{folder} is not empty",
            fix=f"delete it (it is only a demo), or choose another folder: demo --dir {folder}-2",
        )
    source = template_folder()
    for part in PROJECT_FOLDERS:
        shutil.copytree(source / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))


@dataclass
class DemoLake:
    """The demo's tables, and the jobs that others run on them."""

    project: Project

    @property
    def catalog(self) -> Any:
        """The PyIceberg catalog of the lake."""
        return self.project.wiring.catalog

    @property
    def spark(self) -> Any:
        """The Spark session on the same lake."""
        return self.project.wiring.spark

    def build_bronze(self) -> int:
        """Load flights and airports; give the number of flights.

        `bronze.airports` gets two snapshots, tagged `incomplete` and `complete`.
        """
        self.project.wiring.make_lake()
        for namespace in ("bronze", "silver"):
            self.catalog.create_namespace_if_not_exists(namespace)
        flights = data.flights_table()
        table = self.catalog.create_table("bronze.flights", schema=flights.schema)
        table.append(flights)
        first = data.first_airports()
        airports = self.catalog.create_table("bronze.airports", schema=first.schema)
        airports.append(first)
        for tag in ("incomplete", "complete"):
            if tag == "complete":
                airports.overwrite(data.complete_airports())
            snapshot = airports.current_snapshot()
            airports.manage_snapshots().create_tag(snapshot.snapshot_id, tag).commit()
        return int(flights.num_rows)

    def build_history(self) -> None:
        """Leave behind what the releases did: 1.0.0 everywhere, 1.1.0 in the bad partitions."""
        self.project.wiring.bench.tables.create(self.project.wiring.contract(PRODUCT))
        self._computed("1.0.0").writeTo(self._target).append()
        self._computed("1.1.0", BAD_FROM, BAD_TO).writeTo(self._target).overwritePartitions()

    def live_job(self) -> None:
        """Do what the nightly job does meanwhile: overwrite 2013-12-31, write 2014-01-01."""
        for day in (date(2013, 12, 31), date(2014, 1, 1)):
            rows = self._computed("1.0.0", day, day + ONE_DAY)
            rows.writeTo(self._target).overwritePartitions()

    def flights_counted(self) -> int:
        """Sum up the flights that readers of the product see now."""
        table = self.project.accepted(PRODUCT, "arrow", strict=False)
        return sum(table.column("flights").to_pylist())

    def files_outside(self) -> set[str]:
        """The live files of the partitions that no restatement of the demo declares."""
        table = self.catalog.load_table(PRODUCT)
        scan = table.scan(row_filter=f"arrival_date < '{BAD_FROM}' or arrival_date >= '{BAD_TO}'")
        return {task.file.file_path for task in scan.plan_files()}

    @property
    def _target(self) -> str:
        return f"{self.project.wiring.profile.catalog['name']}.{PRODUCT}"

    def _computed(self, version: str, first: date | None = None, stop: date | None = None) -> Any:
        """Compute the product as a release did, all of it or the partitions from first to stop."""
        from lakehouse_backfill.adapters.spark.staging.jobs import JobContext, load_job

        wanted = TransformRef(
            name="arrivals_daily", version=version, file="jobs/arrivals_daily/transform.py"
        )
        job = load_job(self.spark, self.project.folder, wanted, {"flights", "airports"})
        context = JobContext(
            run_id="nightly",
            mode="live",
            clock=datetime(2014, 1, 2, tzinfo=timezone.utc),
            transform_version=version,
            config={},
        )
        catalog = self.project.wiring.profile.catalog["name"]
        frames = {
            name: self.spark.table(f"{catalog}.bronze.{name}") for name in ("flights", "airports")
        }
        if first is None or stop is None:
            return job.run(context, frames)
        departures = _range_condition("CAST(time_hour AS DATE)", first - ONE_DAY, stop + ONE_DAY)
        frames["flights"] = frames["flights"].where(departures)
        return job.run(context, frames).where(_range_condition("arrival_date", first, stop))


def _range_condition(column: str, first: date, stop: date) -> str:
    return f"{column} >= DATE'{first.isoformat()}' AND {column} < DATE'{stop.isoformat()}'"
