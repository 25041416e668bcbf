"""datacompy on polars frames of the changed files."""

import datacompy
import polars as pl
from asked import answer, asked

question = asked()


def count() -> tuple[int, int, int]:
    old, new = (pl.read_parquet(question[side], hive_partitioning=False) for side in ("old", "new"))
    found = datacompy.PolarsCompare(old, new, join_columns=question["key"])
    unequal = len(found.intersect_rows) - found.count_matching_rows()
    return len(found.df2_unq_rows), len(found.df1_unq_rows), unequal


answer(count, question["rounds"])
