"""reble's own comparison of two views; it reads both snapshots whole."""

import duckdb
from asked import answer, asked
from reble.diff import diff_snapshots

question = asked()
db = duckdb.connect(config={"threads": question["threads"]})
for view, side in (("base_tbl", "old_all"), ("branch_tbl", "new_all")):
    db.read_parquet(question[side], hive_partitioning=False).create_view(view)


def count() -> tuple[int, int, int]:
    found = diff_snapshots(db, "li", question["key"], max_rows_dumped=5)
    return found.added_count, found.removed_count, found.changed_count


answer(count, question["rounds"])
