"""PyIceberg keeps nulls of lists and maps apart from empty ones, in what it reads and writes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyarrow import parquet as pq
from pyiceberg.catalog.memory import InMemoryCatalog

from lakehouse_backfill.adapters.pyiceberg_rows import keep_null_lists

_SPOT = pa.struct([("a", pa.int64())])
_DEEP = pa.struct([("spots", pa.list_(_SPOT)), ("large", pa.large_list(_SPOT))])
_SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "spots": pa.list_(_SPOT),
        "by_name": pa.map_(pa.string(), _SPOT),
        "lists": pa.list_(pa.list_(_SPOT)),
        "maps": pa.map_(pa.string(), pa.map_(pa.string(), _SPOT)),
        "deep": _DEEP,
        "texts": pa.list_(pa.string()),
    }
)
_ROWS = pa.Table.from_pylist(
    [
        {"id": 1},
        {"id": 2, "spots": [], "by_name": [], "lists": [], "maps": [], "deep": {}, "texts": []},
        {
            "id": 3,
            "spots": [{"a": 7}, None],
            "by_name": [("k", {"a": None}), ("n", None)],
            "lists": [[{"a": 1}], None, []],
            "maps": [("k", [("n", {"a": 1})]), ("n", None), ("e", [])],
            "deep": {"spots": None, "large": []},
            "texts": [None],
        },
        {"id": 4, "deep": {"spots": [], "large": None}},
    ],
    schema=_SCHEMA,
)


def test_a_null_list_or_map_of_structs_stays_null(tmp_path: Path) -> None:
    keep_null_lists()
    keep_null_lists()
    catalog = InMemoryCatalog("lake", warehouse=str(tmp_path))
    catalog.create_namespace("n")
    for number, rows in enumerate((_ROWS, _ROWS.slice(1), _ROWS.slice(3), _ROWS.slice(0, 0))):
        table = catalog.create_table(f"n.t{number}", _SCHEMA)
        table.append(rows)
        assert table.scan().to_arrow().to_pylist() == rows.to_pylist()
        for task in table.scan().plan_files():
            with pq.ParquetFile(task.file.file_path.removeprefix("file://")) as stored:
                assert stored.read().to_pylist() == rows.to_pylist()


def test_what_lies_behind_a_null_is_no_element(tmp_path: Path) -> None:
    keep_null_lists()
    values = pa.array([{"a": number} for number in range(4)], _SPOT)
    mask = pa.array([False, True, False])
    spots = pa.ListArray.from_arrays(pa.array([0, 1, 3, 4], pa.int32()), values, mask=mask)
    catalog = InMemoryCatalog("lake", warehouse=str(tmp_path))
    catalog.create_namespace("n")
    rows = pa.table({"spots": spots})
    table = catalog.create_table("n.t", rows.schema)
    table.append(rows)
    assert table.scan().to_arrow().to_pylist() == [
        {"spots": [{"a": 0}]}, {"spots": None}, {"spots": [{"a": 3}]},
    ]  # fmt: skip
