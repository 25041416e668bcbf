"""Which files of an old place Iceberg can read where they lie, and which are bad."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lakehouse_backfill.core.migration.fit import (
    FileFacts,
    TableShape,
    find_database_fault,
    find_fault,
    find_rewrite_cause,
    fit_column,
    key_kind,
)

TABLE = TableShape(
    types={
        "id": "int64", "day": "date32[day]", "at": "timestamp[us, tz=UTC]", "tags": "list<string>",
    },
    required=frozenset({"id"}),
    identity=frozenset({"day"}),
    leaves=frozenset({"id", "day", "at", "tags.list.element"}),
)  # fmt: skip
FILE = FileFacts(
    types={"id": "int32"},
    leaves=("id",),
    has_field_ids=False,
    in_path=frozenset({"day"}),
    location="file:///old/day=2024-01-01/a.parquet",
)


@pytest.mark.req("T10")
@pytest.mark.parametrize(
    ("stored", "wanted", "fit"),
    [
        ("int64", "int64", "as_is"),
        ("int8", "int32", "as_is"),
        ("int32", "int64", "as_is"),
        ("int64", "int32", "cast"),
        ("uint32", "int64", "cast"),
        ("int64", "double", "clash"),
        ("float", "double", "as_is"),
        ("double", "float", "clash"),
        ("halffloat", "float", "cast"),
        ("decimal128(8, 2)", "decimal128(12, 2)", "as_is"),
        ("decimal128(12, 2)", "decimal128(8, 2)", "cast"),
        ("decimal128(8, 3)", "decimal128(12, 2)", "cast"),
        ("int32", "decimal128(12, 2)", "cast"),
        ("double", "decimal128(12, 2)", "clash"),
        ("decimal256(8, 2)", "decimal128(12, 2)", "cast"),
        ("string", "large_string", "as_is"),
        ("dictionary<values=string, indices=int32, ordered=0>", "large_string", "as_is"),
        ("binary", "large_string", "cast"),
        ("string", "int64", "clash"),
        ("timestamp[us]", "timestamp[us]", "as_is"),
        ("timestamp[ns]", "timestamp[us]", "cast"),
        ("timestamp[ms, tz=UTC]", "timestamp[us, tz=UTC]", "cast"),
        ("timestamp[us, tz=Etc/UTC]", "timestamp[us, tz=UTC]", "as_is"),
        ("timestamp[us, tz=Europe/Rome]", "timestamp[us, tz=UTC]", "cast"),
        ("timestamp[us]", "timestamp[us, tz=UTC]", "clash"),
        ("timestamp[us, tz=UTC]", "timestamp[us]", "clash"),
        ("date64[ms]", "date32[day]", "cast"),
        ("date32[day]", "timestamp[us]", "clash"),
        ("null", "double", "cast"),
        ("extension<arrow.json>", "large_string", "cast"),
        ("fixed_size_binary[16]", "extension<arrow.uuid>", "cast"),
        ("list<element: string not null>", "large_list<element: large_string>", "as_is"),
        ("map<string, int64 ('at')>", "map<large_string, int64>", "as_is"),
        ("list<element: int32>", "large_list<element: int64>", "cast"),
        ("list<element: int32>", "struct<a: int32>", "clash"),
        ("bool", "int32", "clash"),
    ],
)
def test_a_stored_type_is_read_cast_or_refused(stored: str, wanted: str, fit: str) -> None:
    assert fit_column(stored, wanted) == fit


@pytest.mark.parametrize(
    ("facts", "fault"),
    [
        (FILE, None),
        (replace(FILE, types={}), "the required column id is missing"),
        (replace(FILE, types={"id": "int32", "x": "int32"}), "column x is not in the contract"),
        (replace(FILE, in_path=frozenset({"hour"})), "column hour is not in the contract"),
        (
            replace(FILE, types={"id": "bool"}),
            "column id is bool in the file and int64 in the table",
        ),
        (replace(FILE, types={"id": "int64", "at": "timestamp[us]"}, old_instants={"at"}), None),
    ],
)
def test_a_file_is_bad_for_the_first_reason(facts: FileFacts, fault: str | None) -> None:
    assert find_fault(facts, TABLE) == fault


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        (FILE, None),
        (replace(FILE, has_field_ids=True), "it has field ids of another table"),
        (
            replace(FILE, location="file:///old/a?.parquet"),
            "its path has a character that a location cannot hold",
        ),
        (replace(FILE, location="file:///old/k=a%2Fb/a b.parquet"), None),
        (replace(FILE, old_instants=frozenset({"at"})), "column at is stored as INT96"),
        (
            replace(FILE, types={"id": "uint8"}),
            "column id is uint8 in the file and int64 in the table",
        ),
        (
            replace(FILE, in_path=frozenset({"at"})),
            "column at is only in its path, and the table is not partitioned by it",
        ),
        (
            replace(FILE, types={}, in_path=frozenset({"id"})),
            "column id is only in its path, and the table is not partitioned by it",
        ),
        (
            replace(FILE, leaves=("id", "tags.bag.array_element")),
            "its nested column tags.bag.array_element is not stored as Iceberg stores it",
        ),
    ],
)
def test_a_file_is_written_again_for_the_first_reason(facts: FileFacts, cause: str | None) -> None:
    assert find_rewrite_cause(facts, TABLE) == cause


def test_a_required_column_that_is_only_in_the_path_is_written_into_the_file() -> None:
    table = replace(TABLE, required=frozenset({"id", "day"}))
    assert find_rewrite_cause(FILE, table) == (
        "the required column day is only in its path, where PyIceberg reads none"
    )


@pytest.mark.req("T10")
@pytest.mark.parametrize(
    ("stored", "wanted", "does_fit"),
    [
        ("integer", "int64", True),
        ("bigint", "int32", True),  # each value is held against the range of the column
        ("numeric", "decimal128(12, 2)", True),
        ("numeric", "double", False),
        ("real", "double", True),
        ("double precision", "float", False),
        ("timestamp with time zone", "timestamp[us, tz=UTC]", True),
        ("timestamp without time zone", "timestamp[us, tz=UTC]", False),
        ("timestamp with time zone", "timestamp[us]", False),
        ("uuid", "extension<arrow.uuid>", True),
        ("uuid", "large_string", True),
        ("jsonb", "large_string", True),
        ("text[]", "large_list<element: large_string>", True),
        ("text[]", "large_string", False),
        ("uuid[]", "large_list<element: large_string>", True),
        ("uuid[]", "large_list<element: extension<arrow.uuid>>", False),
        ("date[]", "large_list<element: date32[day]>", False),
        ("interval", "large_string", False),
        ("mood", "large_string", False),
        ("money", "decimal128(12, 2)", False),
    ],
)
def test_a_column_of_a_database_becomes_what_it_is(
    stored: str, wanted: str, *, does_fit: bool
) -> None:
    fault = find_database_fault({"a": stored}, {"a": wanted}, frozenset())
    assert (fault is None) is does_fit


def test_a_table_of_a_database_has_the_columns_of_the_contract() -> None:
    wanted = {"a": "int64"}
    unknown = find_database_fault({"a": "bigint", "b": "text"}, wanted, frozenset())
    assert unknown == "column b is not in the contract"
    missing = find_database_fault({}, wanted, frozenset({"a"}))
    assert missing == "the required column a is missing"


@pytest.mark.parametrize(
    ("stored", "written"),
    [("character", "bpchar"), ("character varying", "character varying"), ("bigint", "bigint")],
)
def test_a_key_is_not_cut_by_the_name_of_its_type(stored: str, written: str) -> None:
    assert key_kind(stored) == written
