"""SQLMesh's table_diff inside DuckDB; loading the changed files into tables is not counted."""

from pathlib import Path

import duckdb
from asked import answer, asked
from sqlmesh.core.engine_adapter import create_engine_adapter
from sqlmesh.core.table_diff import TableDiff

question = asked()
place = Path(question["scratch"]) / "sqlmesh.duckdb"
place.unlink(missing_ok=True)
db = duckdb.connect(str(place), config={"threads": question["threads"]})
for name in ("old", "new"):
    db.read_parquet(question[name], hive_partitioning=False).create(f"t_{name}")
adapter = create_engine_adapter(lambda: db, "duckdb")


def count() -> tuple[int, int, int]:
    found = TableDiff(adapter, "t_old", "t_new", question["key"]).row_diff()
    stats = found.stats
    changed = stats["join_count"] - stats["full_match_count"]
    return int(stats["t_only_count"]), int(stats["s_only_count"]), int(changed)


answer(count, question["rounds"])
