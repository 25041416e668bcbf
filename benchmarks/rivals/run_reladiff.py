"""reladiff's joindiff inside DuckDB; loading the changed files into tables is not counted."""

from pathlib import Path

import duckdb
from asked import answer, asked
from reladiff import connect_to_table, diff_tables

question = asked()
place = Path(question["scratch"]) / "reladiff.duckdb"
place.unlink(missing_ok=True)
db = duckdb.connect(str(place))
for name in ("old", "new"):
    db.read_parquet(question[name], hive_partitioning=False).create(f"t_{name}")
columns = [row[0] for row in db.execute("DESCRIBE t_old").fetchall()]
db.close()
others = tuple(name for name in columns if name not in question["key"])


def count() -> tuple[int, int, int]:
    database = {"driver": "duckdb", "filepath": str(place)}
    sides = [
        connect_to_table(database, f"t_{name}", tuple(question["key"]), extra_columns=others)
        for name in ("old", "new")
    ]
    rows = {"-": set(), "+": set()}
    # Its own check joins the texts of key columns: to it, (1, 101) and (110, 1) are one key.
    for sign, row in diff_tables(*sides, algorithm="joindiff", validate_unique_key=False):
        rows[sign].add(tuple(row[: len(question["key"])]))
    both = rows["-"] & rows["+"]
    return len(rows["+"] - both), len(rows["-"] - both), len(both)


answer(count, question["rounds"])
