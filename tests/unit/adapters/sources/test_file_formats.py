"""Files are read strictly by the declared columns; no reason quotes a value."""

from __future__ import annotations

import gzip
import io
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from lakehouse_backfill.adapters.sources.files.config import compile_pattern
from lakehouse_backfill.adapters.sources.files.formats import parse
from lakehouse_backfill.domain.sources.declaration import FileSource
from lakehouse_backfill.errors import RejectedInput

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("city", pa.large_string()),
        pa.field("fare", pa.decimal128(10, 2)),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
    ]
)
ROWS = [
    {
        "id": 1, "city": "Rome", "fare": Decimal("2.50"), "day": date(2026, 1, 2),
        "at": datetime(2026, 1, 2, 3, 4, 5, 600000, tzinfo=timezone.utc),
    },
    {"id": 2, "city": None, "fare": None, "day": None, "at": None},
]  # fmt: skip
CSV = b"""at,id,city,fare,day
2026-01-02T03:04:05.6Z,1,Rome,2.50,2026-01-02
,2,,,
"""
JSON = (
    b'{"id": 1, "city": "Rome", "fare": "2.50", "day": "2026-01-02", '
    b'"at": "2026-01-02T03:04:05.6Z"}\n{"id": 2, "city": null}\n'
)


def rows(format_: str, content: bytes, path: str = "f", **csv: Any) -> list[dict[str, Any]]:
    declared = FileSource(location="inbox", format=format_, csv=csv)  # type: ignore[arg-type]
    return list(parse(declared, path, content, SCHEMA).to_pylist())


def as_parquet(table: pa.Table) -> bytes:
    out = io.BytesIO()
    parquet.write_table(table, out)
    return out.getvalue()


@pytest.mark.req("S4")
@pytest.mark.parametrize(
    ("format_", "content", "path"),
    [
        ("csv", CSV, "f.csv"),
        ("csv", gzip.compress(CSV), "f.csv.gz"),
        ("json", JSON, "f.json"),
        ("json", gzip.compress(JSON), "f.json.gz"),
        ("parquet", as_parquet(pa.Table.from_pylist(ROWS, schema=SCHEMA)), "f.parquet"),
    ],
)
def test_every_format_gives_the_same_rows(format_: str, content: bytes, path: str) -> None:
    assert rows(format_, content, path) == ROWS


def test_delimiter_and_texts_of_no_value_are_declared() -> None:
    content = b"id;city;fare;day;at\n1;NA;NA;NA;NA\n"
    assert rows("csv", content, delimiter=";", null_texts=("NA",))[0]["city"] is None
    assert rows("csv", b'id,city,fare,day,at\n1,"",,,\n')[0]["city"] == ""


@pytest.mark.req("S4")
@pytest.mark.parametrize(
    ("format_", "content", "reason"),
    [
        ("csv", CSV.replace(b"2.50", b"secret"), "CSV"),
        ("csv", CSV.replace(b"Rome,", b"secret,,,"), "Expected 5 columns"),
        ("csv", CSV.replace(b"city", b"town"), "has no column city"),
        ("csv", CSV.replace(b",2,,,", b",,secret,,"), "id is required, and 1 rows have no value"),
        ("csv", b"", "Empty CSV"),
        ("csv", b"id,id,city,fare,day,at\n1,1,secret,,,\n", "two columns id"),
        ("json", JSON.replace(b"1,", b'"secret",', 1), "JSON"),
        ("json", JSON.replace(b"city", b"secret_column"), "JSON"),
        ("json", JSON[:40], "JSON"),
        ("json", b"\xff\xfe", "JSON"),
        ("parquet", b"PAR1 secret", "Parquet"),
        ("parquet", as_parquet(pa.table({"id": ["secret"]})), "has no column city"),
    ],
)  # fmt: skip
def test_a_bad_file_is_rejected_whole_with_its_reason_and_without_its_values(
    format_: str, content: bytes, reason: str
) -> None:
    with pytest.raises(RejectedInput, match=reason) as caught:
        rows(format_, content)
    assert "secret" not in caught.value.problem.replace("secret_column", "")
    assert not caught.value.retry_may_help


@pytest.mark.parametrize(
    ("pattern", "fits", "others"),
    [
        ("*.csv", ("a.csv",), ("b/a.csv", "a.json", "a.csvx")),
        ("**/*.csv", ("a.csv", "b/a.csv", "b/c/a.csv"), ("a.json",)),
        ("in/t-?.json", ("in/t-1.json",), ("in/t-12.json", "t-1.json")),
        ("**", ("a", "b/c"), ()),
    ],
)
def test_patterns_of_names_stay_in_a_folder_unless_they_cross(
    pattern: str, fits: tuple[str, ...], others: tuple[str, ...]
) -> None:
    found = compile_pattern(pattern)
    assert [name for name in (*fits, *others) if found.fullmatch(name)] == list(fits)
