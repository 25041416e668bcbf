"""What is wrong in a run manifest is named with file, line, field, and what to write."""

from __future__ import annotations

from datetime import date, datetime, timezone
from pathlib import Path

import pytest

from lakehouse_backfill.config.manifests import load_manifest
from lakehouse_backfill.domain.manifest import RunManifest
from lakehouse_backfill.errors import ConfigError, Fault, Unsupported
from tests.support.examples.declarations import MANIFEST, changed, project

NAME = "jobs/arrivals_daily/run.yaml"


def load(folder: Path, text: str) -> RunManifest:
    path = project(folder) / NAME
    path.write_text(text)
    return load_manifest(path, folder)


def faults(folder: Path, text: str) -> tuple[Fault, ...]:
    with pytest.raises(ConfigError) as caught:
        load(folder, text)
    assert (caught.value.code, caught.value.exit_code) == ("invalid-config", 2)
    return caught.value.faults


@pytest.mark.req("M2")
def test_a_right_manifest_loads_with_its_days_and_instants(tmp_path: Path) -> None:
    manifest = load(tmp_path, MANIFEST)
    assert manifest.target.partitions.from_ == date(2013, 2, 15)
    assert manifest.target.partitions.except_ == (date(2013, 3, 1),)
    assert manifest.sources["flights"].range.from_ == datetime(2013, 2, 12, tzinfo=timezone.utc)
    assert manifest.validation.suites[0].on == "output"  # `on` is a name, not YAML 1.1's boolean
    assert manifest.safety.manual_publish is True


RANGE = "    from: 2013-02-15\n    to: 2013-04-01\n    except: [2013-03-01]\n"
M5 = pytest.mark.req("M5")
M2 = pytest.mark.req("M2")

#: what is replaced, by what, then line, field, and pieces of problem and fix
WRONG = {
    "misspelt code": (
        ("bug_fix", "bugfix"),
        (5, "run.reason_code", "is 'bugfix'", "did you mean bug_fix? write one of: new_field"),
    ),
    "missing field": (
        ("  reason_code: bug_fix\n", ""),
        (2, "run.reason_code", "is missing", "add `reason_code:` below line 2; The reason as"),
    ),
    "empty text": (
        ("  requested_by: ana", "  requested_by: ''"),
        (3, "run.requested_by", "is empty", "write some text"),
    ),
    "no version": (
        ("version: 1.2.0", "version: 1.2"),
        (9, "transform.version", "is 1.2", "write text (quote it)"),
    ),
    "short version": (
        ("version: 1.2.0", "version: '1.2'"),
        (9, "transform.version", "is '1.2'", "three numbers, e.g. 1.2.0"),
    ),
    "negative days": (
        ("warm_up_days: 2", "warm_up_days: -2"),
        (18, "sources.flights.warm_up_days", "is -2", "write at least 0"),
    ),
    "boolean for a number": (
        ("warm_up_days: 2", "warm_up_days: true"),
        (18, "sources.flights.warm_up_days", "is true (true/false)", "quote it if it is text"),
    ),
    "number for an instant": (
        ("from: 2013-02-12T00:00:00Z", "from: 20130212"),
        (16, "sources.flights.range.from", "is the number 20130212", "write one, e.g."),
    ),
    "decimal without quotes in a range of rows": (
        (RANGE, RANGE + "  row_predicate: {fare: {from: 1.5, to: '2.5'}}\n"),
        (27, "target.row_predicate.fare.from", "is the number 1.5", 'a decimal is meant: "1.5"'),
    ),
    "text for a day": (
        ("from: 2013-02-12T00:00:00Z", "from: soon"),
        (16, "sources.flights.range.from", "is 'soon'", "write an instant"),
    ),
    "no such day": (
        ("from: 2013-02-15", "from: 2013-02-30"),
        (24, "target.partitions.from", "is no timestamp: day", "correct it, or quote it"),
    ),
    "group instead of a list": (
        ("except: [2013-03-01]", "except: {a: b}"),
        (26, "target.partitions.except", "is a group of fields", "write a list"),
    ),
    "input without bounds": (
        (
            "    range:\n      column: time_hour\n      from: 2013-02-12T00:00:00Z\n"
            "      to: 2013-04-05T00:00:00Z\n",
            "",
        ),
        (12, "sources.flights.range", "is missing", "below line 12; Rows that may be read at most"),
    ),
    "input range reversed": (
        ("to: 2013-04-05T00:00:00Z", "to: 2012-04-05T00:00:00Z"),
        (17, "sources.flights.range.to", "before from", "swap them: from: 2012-04-05"),
    ),
    "scope of two kinds": (
        (RANGE, "    from: 2013-02-15\n    to: 20\n"),
        (25, "target.partitions.to", "is a number, but from is a day", "in the same way"),
    ),
    "neither range nor values": (
        (RANGE, ""),
        (22, "target.partitions", "is unbounded: it names neither", "give from and to"),
    ),
    "range beside the whole table": (
        (RANGE, RANGE + "    whole_table: true\n"),
        (23, "target.partitions.column", "is given beside whole_table", "remove one of them"),
    ),
    "no bucket of keys": (
        ("target:\n", "limits: {key_buckets: {column: carrier, count: 0}}\ntarget:\n"),
        (21, "limits.key_buckets.count", "is 0", "write at least 1"),
    ),
    "buckets and ranges of keys": (
        (
            "target:\n",
            "limits:\n  key_buckets: {column: carrier, count: 2}\n"
            "  key_ranges: {column: carrier, bounds: [B]}\ntarget:\n",
        ),
        (23, "limits.key_ranges", "is given beside key_buckets", "remove one of them"),
    ),
    "no bound of ranges": (
        ("target:\n", "limits: {key_ranges: {column: carrier, bounds: []}}\ntarget:\n"),
        (21, "limits.key_ranges.bounds", "is empty", "write at least one entry"),
    ),
    "no way to cut ranges": (
        ("target:\n", "limits: {key_ranges: {column: carrier}}\ntarget:\n"),
        (21, "limits.key_ranges", "neither bounds nor size nor count", "write size: how many"),
    ),
    "ranges by size and by bounds": (
        ("target:\n", "limits: {key_ranges: {column: c, bounds: [B], size: 9}}\ntarget:\n"),
        (21, "limits.key_ranges.size", "is given beside bounds", "remove one of them"),
    ),
    "ranges of no rows": (
        ("target:\n", "limits: {key_ranges: {column: carrier, size: 0}}\ntarget:\n"),
        (21, "limits.key_ranges.size", "is 0", "write at least 1"),
    ),
    "too many ranges": (
        ("target:\n", "limits: {key_ranges: {column: carrier, count: 10001}}\ntarget:\n"),
        (21, "limits.key_ranges.count", "is 10001", "write at most 10000"),
    ),
    "several partition fields": (
        ("column: arrival_date\n    from", "column: [arrival_date, carrier]\n    from"),
        (23, "target.partitions.column", "several partition fields", "target.row_predicate"),
    ),
    "pairs of partitions": (
        ("    column: arrival_date\n" + RANGE, "    - {column: arrival_date}\n    - {column: c}\n"),
        (22, "target.partitions", "several partition fields", "target.row_predicate"),
    ),
    "a range of rows without an end": (
        ("target:\n", "target:\n  row_predicate: {carrier: {from: 1}}\n"),
        (22, "target.row_predicate.carrier", "is no range", "without `to` itself"),
    ),
    "a range of rows reversed": (
        ("target:\n", "target:\n  row_predicate: {n: {from: 3, to: 1}}\n"),
        (22, "target.row_predicate.n.to", "is 1, before from (3)", "swap them"),
    ),
    "no column of the partitions": (
        ("    column: arrival_date\n    from", "    from"),
        (22, "target.partitions.column", "is missing", "or write whole_table: true"),
    ),
    "open start": (
        (RANGE, "    to: 2013-02-15\n"),
        (24, "target.partitions.to", "it has `to` but no `from`", "add `from:`, the first part"),
    ),
    "null end": (
        (RANGE, "    from: 2013-02-15\n    to: null\n"),
        (24, "target.partitions.from", "it has `from` but no `to`", "what live jobs write later"),
    ),
    "empty values": (
        (RANGE, "    values: []\n"),
        (22, "target.partitions", "is unbounded", "changes declared partitions only"),
    ),
    "range and values": (
        (RANGE, "    from: 2013-02-15\n    to: 2013-04-01\n    values: [2013-02-15]\n"),
        (26, "target.partitions.values", "the scope is said twice", "keep the range or the values"),
    ),
    "except outside": (
        ("except: [2013-03-01]", "except: [2013-03-01, 2013-04-01]"),
        (26, "target.partitions.except[1]", "is 2013-04-01, which is outside", "remove it"),
    ),
    "except not in values": (
        (RANGE, "    values: [1, 2]\n    except: [3]\n"),
        (25, "target.partitions.except[0]", "is 3, which is not in values", "remove it"),
    ),
    "gate with another effect": (
        ("validation:\n", "validation:\n  gates: {edges: ignore}\n"),
        (28, "validation.gates.edges", "is 'ignore'", "write one of: block, report"),
    ),
    "image without digest": (
        ("  version: 1.2.0", "  version: 1.2.0\n  image_digest: repo/jobs:latest"),
        (10, "transform.image_digest", "is 'repo/jobs:latest'", "sha256: and 64 hexadecimal"),
    ),
    "no such file": (
        ("jobs/arrivals_daily/transform.py", "jobs/arrivals_daily/transfrom.py"),
        (10, "transform.file", "which does not exist", "did you mean `transform.py`?"),
    ),
    "a file name that no disk takes": (
        ("jobs/arrivals_daily/transform.py", "jobs/arrivals_daily/" + "x" * 300 + ".py"),
        (10, "transform.file", "which does not exist", "in jobs/arrivals_daily"),
    ),
    "suite on nothing": (
        ("      on: output", "      on: flihgts"),
        (30, "validation.suites[0].on", "is no input of the run", "did you mean `flights`?"),
    ),
    "parameter from nothing": (
        ("airports.faa", "airport.faa"),
        (31, "validation.suites[0].parameters.dests", "names no input", "inputs: airports, fli"),
    ),
    "name twice": (
        ("  airports: {table", "  flights: {table"),
        (20, "reference_data.flights", "is also the name of a source", "rename one"),
    ),
    "deadline without zone": (
        ("  requested_by: ana", "  requested_by: ana\n  deadline: 2026-01-31T18:00:00"),
        (4, "run.deadline", "has no time zone", "write 2026-01-31T18:00:00Z"),
    ),
    "deadline is a tag": (
        ("  requested_by: ana", "  requested_by: ana\n  deadline: later"),
        (4, "run.deadline", "is 'later'", "write an instant"),
    ),
    "unbounded tolerance": (
        ("validation:\n", "validation:\n  count_tolerance: inf\n"),
        (28, "validation.count_tolerance", "which has no bound", "write a number"),
    ),
    "no version of the format": (
        ("api_version: lakehouse-backfill/v1\n", ""),
        (1, "api_version", "is missing", "at the top level; Version of this format"),
    ),
}
#: what is replaced, by what, then line, field, problem, and what can be done today
UNBUILT = {
    "deletions": (
        ("validation:\n", "safety: {on_deletions: allow}\nvalidation:\n"),
        (27, "safety.on_deletions", "allow is not built yet", "target.partitions.except"),
    ),
}
WRONG["a window that is no time of day"] = (
    ("validation:\n", 'safety: {publish_window: {from: "25:00", to: "04:00"}}\nvalidation:\n'),
    (27, "safety.publish_window.from", "is '25:00'", 'a time of day in UTC, quoted, e.g. "22:00"'),
)
UNBOUNDED = {
    "input without bounds",
    "neither range nor values",
    "open start",
    "null end",
    "empty values",
}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(*case, id=name, marks=[M2, *([M5] if name in UNBOUNDED else [])])
        for name, case in WRONG.items()
    ],
)
def test_a_wrong_manifest_is_refused_with_line_field_and_fix(tmp_path, change, expected) -> None:
    line, field, problem, fix = expected
    (fault,) = [
        fault for fault in faults(tmp_path, changed(MANIFEST, *change)) if fault.field == field
    ]
    assert (fault.file, fault.line) == (NAME, line)
    assert problem in fault.problem
    assert fix in fault.fix


@pytest.mark.req("M1")
@pytest.mark.parametrize(("change", "expected"), UNBUILT.values(), ids=UNBUILT)
def test_what_is_not_built_is_refused_before_anything_is_planned(tmp_path, change, expected):
    line, field, problem, instead = expected
    with pytest.raises(Unsupported) as caught:
        load(tmp_path, changed(MANIFEST, *change))
    error = caught.value
    (fault,) = error.faults
    assert (fault.file, fault.line, fault.field) == (NAME, line, field)
    assert problem in fault.problem
    assert instead in error.fix == fault.fix
    assert (error.exit_code, error.state) == (2, "nothing was planned, pinned or changed")


@pytest.mark.req("M2")
def test_everything_that_is_wrong_is_named_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = changed(MANIFEST, "bug_fix", "bugfix")
    text = changed(text, "warm_up_days: 2", "warm_up_day: 2")
    text = changed(text, RANGE, "    from: 2013-02-15\n")
    found = faults(tmp_path, changed(text, "bronze.airports", "airports"))
    assert [(fault.line, fault.field) for fault in found] == [
        (5, "run.reason_code"),
        (18, "sources.flights.warm_up_day"),
        (20, "reference_data.airports.table"),
        (24, "target.partitions.from"),
    ]


@M2
def test_a_transform_that_its_file_does_not_hold_is_named_with_what_it_holds(tmp_path) -> None:
    file = project(tmp_path) / "jobs/arrivals_daily/transform.py"
    path = tmp_path / NAME
    code = '@transform(name="arrivals_daily", version="{}", inputs=())\ndef a(context): ...\n'
    for version in ("1.2.0", "1.1.0"):
        file.write_text(code.format(version))
        if version == "1.2.0":
            load_manifest(path, tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_manifest(path, tmp_path)
    assert [(fault.line, fault.field, fault.fix) for fault in caught.value.faults] == [
        (9, "transform.version", "it offers arrivals_daily 1.1.0")
    ]
    file.write_text(code.format("1.1.0") + code.format("{}").replace('"{}"', "VERSION"))
    load_manifest(path, tmp_path)  # only running it could tell


@M2
def test_a_sql_file_without_its_header_is_refused_with_the_lines_that_it_lacks(tmp_path) -> None:
    folder, path = project(tmp_path), tmp_path / NAME
    path.write_text(path.read_text().replace("transform.py", "transform.sql"))
    query = folder / "jobs/arrivals_daily/transform.sql"
    query.write_text("-- name: arrivals_daily\nSELECT 1 FROM {flights}\n")
    with pytest.raises(ConfigError, match=r"lacks '-- version:' and '-- inputs:'"):
        load_manifest(path, tmp_path)
    query.write_text("-- name : arrivals_daily\n-- version: 1.2.0\n-- inputs:\nSELECT 1\n")
    load_manifest(path, tmp_path)
