"""Right declarations, and a way to make one thing in them wrong."""

from __future__ import annotations

from pathlib import Path

MANIFEST = """\
api_version: lakehouse-backfill/v1
run:
  requested_by: ana
  reason: New York days were written instead of local ones
  reason_code: bug_fix
product: silver.arrivals_daily
transform:
  name: arrivals_daily
  version: 1.2.0
  file: jobs/arrivals_daily/transform.py
sources:
  flights:
    table: bronze.flights
    range:
      column: time_hour
      from: 2013-02-12T00:00:00Z
      to: 2013-04-05T00:00:00Z
    warm_up_days: 2
reference_data:
  airports: {table: bronze.airports, at: complete}
target:
  partitions:
    column: arrival_date
    from: 2013-02-15
    to: 2013-04-01
    except: [2013-03-01]
validation:
  suites:
    - file: expectations/arrivals.json
      on: output
      parameters: {dests: airports.faa}
"""

CONTRACT = """\
api_version: lakehouse-backfill/v1
product: silver.arrivals_daily
table: silver.arrivals_daily
description: arrivals
owner: ana
key: [arrival_date, dest]
partitioning:
  - column: arrival_date
columns:
  - {name: arrival_date, type: date, required: true}
  - {name: dest, type: string}
  - {name: flights, type: long}
measures:
  - {name: flights, sum: flights}
thresholds:
  - {measure: flights, max_change: 0.2}
suites:
  - {file: expectations/arrivals.json}
consumers: []
classification: internal
retention_days: 365
"""

PROFILES = """\
api_version: lakehouse-backfill/v1
default: embedded
profiles:
  embedded:
    catalog: {name: lake, type: sql, uri: "sqlite:///${project}/x.db"}
  prod:
    environment: prod
    catalog: {name: lake, type: rest, uri: "https://lake.example.com"}
"""


def project(folder: Path) -> Path:
    """Make a project in which MANIFEST and CONTRACT are right."""
    for name, text in {
        "jobs/arrivals_daily/transform.py": "",
        "jobs/arrivals_daily/run.yaml": MANIFEST,
        "expectations/arrivals.json": "{}",
        "catalog/contracts/silver.arrivals_daily.yaml": CONTRACT,
        "catalog/profiles.yaml": PROFILES,
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def changed(text: str, old: str, new: str) -> str:
    """Replace one piece of a declaration, which must be there exactly once."""
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times"
    return text.replace(old, new)
