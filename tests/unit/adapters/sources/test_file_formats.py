"""Files are read strictly by the declared columns; no reason quotes a value."""

from __future__ import annotations

import gzip
import io
import os
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from lakehouse_backfill.adapters.sources.files.config import FilePlaces, compile_pattern
from lakehouse_backfill.adapters.sources.files.formats import parse
from lakehouse_backfill.domain.sources.declaration import FileSource
from lakehouse_backfill.errors import Blocked, RejectedInput

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
    declared = FileSource(location="inbox", format=format_, csv=csv)
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


def parsed(kind: pa.DataType, format_: str, content: bytes, path: str = "f") -> list[Any]:
    """Parse the one column v."""
    declared = FileSource(location="inbox", format=format_, max_file_mib=2)
    schema = pa.schema([pa.field("v", kind)])
    return list(parse(declared, path, content, schema)["v"].to_pylist())


@pytest.mark.req("S4")
@pytest.mark.parametrize("content", [b'v\n"a\nb\nc\n', b'v\n"a\nb"c\nd\n'])
def test_a_quote_that_is_not_closed_swallows_no_rows(content: bytes) -> None:
    with pytest.raises(RejectedInput, match="a quote is not closed"):
        parsed(pa.large_string(), "csv", content)
    # A quote within a value, a doubled one, a line break in quotes, a long row.
    good = b'\xef\xbb\xbfv\r\n5"\r\n"a ""b"" \nc"\r\n' + b"x" * 1_100_000 + b"\r\n"
    assert parsed(pa.large_string(), "csv", good) == ['5"', 'a "b" \nc', "x" * 1_100_000]


@pytest.mark.parametrize(
    ("kind", "format_", "content"),
    [
        (pa.int64(), "csv", b"v\nit's secret's here\n"),
        (pa.decimal128(4, 2), "json", b'{"v": "777777.1"}'),
        (pa.timestamp("us", tz="UTC"), "json", b'{"v": "secret\'s"}'),
    ],
)
def test_reasons_quote_no_value_that_has_quotes_or_is_a_number(
    kind: pa.DataType, format_: str, content: bytes
) -> None:
    with pytest.raises(RejectedInput) as caught:
        parsed(kind, format_, content)
    assert "secret" not in caught.value.problem
    assert "777" not in caught.value.problem


@pytest.mark.parametrize("format_", ["csv", "json"])
def test_an_instant_without_its_zone_is_rejected_in_every_format(format_: str) -> None:
    text = b"2026-01-02T03:04:05"
    for moment, is_good in ((text, False), (text + b"+02:00", True)):
        content = b"v\n" + moment if format_ == "csv" else b'{"v": "' + moment + b'"}'
        if is_good:
            found = parsed(pa.timestamp("us", tz="UTC"), format_, content)
            assert found == [datetime(2026, 1, 2, 1, 4, 5, tzinfo=timezone.utc)]
        else:
            with pytest.raises(RejectedInput):
                parsed(pa.timestamp("us", tz="UTC"), format_, content)


def test_json_is_utf_8_and_has_nested_values() -> None:
    with pytest.raises(RejectedInput, match="JSON is no UTF-8"):
        parsed(pa.large_string(), "json", b'{"v": "\xe9"}')
    nested = pa.struct(
        [("names", pa.large_list(pa.large_string())), ("day", pa.date32()), ("n", pa.int64())]
    )
    content = b'{"v": {"names": ["a"], "day": "2026-01-02", "n": 9007199254740993}}'
    value = {"names": ["a"], "day": date(2026, 1, 2), "n": 2**53 + 1}
    assert parsed(nested, "json", content) == [value]


def test_what_a_compressed_file_grows_to_is_limited() -> None:
    content = gzip.compress(b"v\n" + b"1\n" * 1_100_000)
    with pytest.raises(RejectedInput, match="larger than max_file_mib when decompressed: 2"):
        parsed(pa.int64(), "csv", content, "f.gz")


@pytest.mark.req("S4")
@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (pa.array([2.555]), pa.decimal128(10, 2)),
        (pa.array([1e300]), pa.float32()),
        (pa.array(["007"]), pa.int64()),
        (pa.array([5]), pa.bool_()),
        (pa.array([5]), pa.timestamp("us", tz="UTC")),
        (pa.array([5], pa.timestamp("us")), pa.timestamp("us", tz="UTC")),
        (pa.array([5], pa.timestamp("us", tz="UTC")), pa.timestamp("us")),
        (pa.array([5], pa.timestamp("us")), pa.date32()),
        (pa.array([{"a": 1, "b": 2}]), pa.struct([("a", pa.int64())])),
        (pa.array([{"a": 1}]), pa.struct([("a", pa.int64()), ("b", pa.int64())])),
    ],
)
def test_parquet_values_are_not_rounded_guessed_or_left_out(
    found: pa.Array, wanted: pa.DataType
) -> None:
    with pytest.raises(RejectedInput, match=r"v is .*, not "):
        parsed(wanted, "parquet", as_parquet(pa.table({"v": found})))


def test_parquet_types_that_keep_each_value_are_read() -> None:
    instant = datetime(2026, 1, 2, tzinfo=timezone.utc)
    for found, wanted, values in (
        (pa.array(["a"]).dictionary_encode(), pa.large_string(), ["a"]),
        (pa.array([7], pa.int32()), pa.int64(), [7]),
        (pa.array([7], pa.int32()), pa.decimal128(12, 2), [Decimal(7)]),
        (pa.array([0.5], pa.float32()), pa.float64(), [0.5]),
        (pa.array([["a"]]), pa.large_list(pa.large_string()), [["a"]]),
        (
            pa.array([instant], pa.timestamp("ns", "Europe/Rome")),
            SCHEMA.field("at").type,
            [instant],
        ),
        (pa.nulls(1), pa.date32(), [None]),
    ):
        assert parsed(wanted, "parquet", as_parquet(pa.table({"v": found}))) == values
    # Spark writes an instant without its zone, as INT96.
    out = io.BytesIO()
    moment = pa.array([datetime(3026, 1, 2)], pa.timestamp("us"))  # noqa: DTZ001 (as it is stored)
    parquet.write_table(pa.table({"v": moment}), out, use_deprecated_int96_timestamps=True)
    kind = SCHEMA.field("at").type
    assert parsed(kind, "parquet", out.getvalue()) == [datetime(3026, 1, 2, tzinfo=timezone.utc)]


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


def test_odd_names_are_found_and_files_behind_a_link_once(tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    (inbox / "in").mkdir(parents=True)
    for name in ("a\nb.csv", "a#b?c %20.csv", "in/z.csv"):
        (inbox / name).write_text("v\n")
    (inbox / "all").symlink_to(inbox)
    (inbox / "l.csv").symlink_to(inbox / "in/z.csv")
    (tmp_path / "beside.csv").write_text("v\n")
    (inbox / "linked.csv").symlink_to(tmp_path / "beside.csv")
    places = FilePlaces.open(FileSource(location="inbox", format="csv"), tmp_path)
    wanted = ["a\nb.csv", "a#b?c %20.csv", "in/z.csv", "linked.csv"]
    assert sorted(places.list_names("**", frozenset())) == sorted(wanted)
    Path(os.fsdecode(os.fsencode(inbox) + b"/\xff.csv")).touch()
    with pytest.raises(Blocked, match=r"a name in .* is no UTF-8"):
        places.list_names("**", frozenset())
