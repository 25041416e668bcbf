"""TPC-H's lineitem by month as an Iceberg table of three snapshots, and what is true of them.

A is what `tpchgen-cli` made. In B three months are written anew: 1 % of their rows changed, 0.1 %
are gone, 0.1 % came. In C, which follows A as well, all months are. Which rows, a hash of the key
says: so the counts are known without any differ.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

NAMESPACE, NAME = "tpch", "li"
TABLE = f"{NAMESPACE}.{NAME}"
KEY = ("l_orderkey", "l_linenumber")
MONTHS_OF_B = ("1994-02-01", "1994-05-01")
_PER_THOUSAND = "CAST(hash(l_orderkey, l_linenumber) % 1000 AS INTEGER)"
_GONE, _CAME, _CHANGED = "0", "1", "BETWEEN 10 AND 19"


@dataclass(frozen=True)
class Truth:
    """How many rows differ between A and a variant, by construction."""

    added: int
    removed: int
    changed: int


@dataclass(frozen=True)
class Lake:
    """The table's snapshots and the truth, as `lake.json` keeps them."""

    folder: Path
    a: int
    b: int
    c: int
    truth_b: Truth
    truth_c: Truth

    def variant(self, name: str) -> tuple[int, Truth]:
        """Give the new snapshot of a variant and its counts."""
        return (self.b, self.truth_b) if name == "B" else (self.c, self.truth_c)

    def catalog(self) -> Any:
        """Open the table's catalog."""
        from pyiceberg.catalog.sql import SqlCatalog

        return SqlCatalog("lake", **properties(self.folder))


def properties(folder: Path) -> dict[str, str]:
    """Give the catalog's properties."""
    return {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


def make(folder: Path, generator: Path, scale: float) -> Lake:
    """Make the table, or take the one that is there."""
    known = folder / "lake.json"
    if known.exists():
        return _read(folder)
    folder.mkdir(parents=True, exist_ok=True)
    command = [str(generator), "parquet", "-s", f"{scale:g}", "--tables", "lineitem"]
    subprocess.run([*command, "--output-dir", str(folder)], check=True, capture_output=True)
    lake = _fill(folder)
    known.write_text(json.dumps(asdict(lake) | {"folder": ""}, indent=2), encoding="utf-8")
    (folder / "lineitem.parquet").unlink()
    return lake


def _read(folder: Path) -> Lake:
    kept = json.loads((folder / "lake.json").read_text(encoding="utf-8"))
    truths = {name: Truth(**kept.pop(name)) for name in ("truth_b", "truth_c")}
    return Lake(**(kept | truths | {"folder": folder}))


def _fill(folder: Path) -> Lake:
    import duckdb
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("lake", **properties(folder))
    db = duckdb.connect()
    source = f"read_parquet('{folder}/lineitem.parquet')"
    table = _create(catalog, db.sql(f"SELECT * FROM {source} LIMIT 0").to_arrow_table().schema)
    # Year by year, so that memory does not follow the scale.
    for first, stop in _years():
        table.append(_rows(db, f"SELECT * FROM {source}", table, first, stop))
    a = table.metadata.current_snapshot_id
    _rewrite(db, source, table, *MONTHS_OF_B)
    b = table.metadata.current_snapshot_id
    # C follows A too: a changelog from A to C is then one of C alone.
    with table.manage_snapshots() as change:
        change.set_current_snapshot(snapshot_id=a)
    for first, stop in _years():
        _rewrite(db, source, table, first, stop)
    c = table.metadata.current_snapshot_id
    truth_b = _truth(db, source, *MONTHS_OF_B)
    return Lake(folder, a, b, c, truth_b, _truth(db, source, "1992-01-01", "1999-01-01"))


def _create(catalog: Any, schema: Any) -> Any:
    import pyarrow as pa
    from pyiceberg.transforms import MonthTransform

    catalog.create_namespace(NAMESPACE)
    fields = [pa.field(each.name, _plain(each.type)) for each in schema]
    table = catalog.create_table(TABLE, pa.schema(fields), properties={"format-version": "2"})
    with table.update_spec() as update:
        update.add_field("l_shipdate", MonthTransform(), "l_shipdate_month")
    return table


def _plain(kind: Any) -> Any:
    import pyarrow as pa

    return pa.large_string() if pa.types.is_string_view(kind) else kind


def _years() -> list[tuple[str, str]]:
    return [(f"{year}-01-01", f"{year + 1}-01-01") for year in range(1992, 1999)]


def _between(first: str, stop: str) -> str:
    return f"l_shipdate >= DATE '{first}' AND l_shipdate < DATE '{stop}'"


def _rows(db: Any, query: str, table: Any, first: str, stop: str) -> Any:
    found = db.sql(f"SELECT * FROM ({query}) WHERE {_between(first, stop)}").to_arrow_table()
    return found.cast(table.schema().as_arrow())


def _rewrite(db: Any, source: str, table: Any, first: str, stop: str) -> None:
    from pyiceberg.expressions import And, GreaterThanOrEqual, LessThan
    from pyiceberg.io.pyarrow import _dataframe_to_data_files

    kept = (
        f"SELECT * REPLACE (CASE WHEN {_PER_THOUSAND} {_CHANGED} THEN l_quantity + 1 "
        f"ELSE l_quantity END AS l_quantity, CASE WHEN {_PER_THOUSAND} {_CHANGED} "
        f"THEN l_comment || '!' ELSE l_comment END AS l_comment) "
        f"FROM {source} WHERE {_PER_THOUSAND} <> {_GONE}"
    )
    came = (
        f"SELECT * REPLACE (l_linenumber + 100 AS l_linenumber) FROM {source} "
        f"WHERE {_PER_THOUSAND} = {_CAME}"
    )
    rows = _rows(db, f"{kept} UNION ALL {came}", table, first, stop)
    what = And(GreaterThanOrEqual("l_shipdate", first), LessThan("l_shipdate", stop))
    # One snapshot, as an engine's overwrite is: PyIceberg's own deletes, then appends, and a
    # changelog of that holds every row twice.
    with table.transaction() as change, change.update_snapshot().overwrite() as snapshot:
        snapshot.delete_by_predicate(what)
        for task in table.scan(row_filter=what).plan_files():
            snapshot.delete_data_file(task.file)
        for file in _dataframe_to_data_files(table_metadata=table.metadata, df=rows, io=table.io):
            snapshot.append_data_file(file)


def _truth(db: Any, source: str, first: str, stop: str) -> Truth:
    counts = [
        f"count(*) FILTER ({_PER_THOUSAND} {test})"
        for test in (f"= {_CAME}", f"= {_GONE}", _CHANGED)
    ]
    query = f"SELECT {', '.join(counts)} FROM {source} WHERE {_between(first, stop)}"
    return Truth(*db.sql(query).fetchall()[0])
