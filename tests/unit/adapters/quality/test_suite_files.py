"""Suite files that name no columns where they should: refused by line, before data is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.adapters.quality.suite_files import check_suite_form
from lakehouse_backfill.errors import ConfigError

NOT_NULL, UNIQUE = "expect_column_values_to_not_be_null", "expect_compound_columns_to_be_unique"
GREATER = "expect_column_pair_values_a_to_be_greater_than_b"


@pytest.mark.req("Q3")
@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"type": NOT_NULL, "kwargs": {"column": 5}}, "column is 5"),
        ({"type": NOT_NULL, "kwargs": {"column": None}}, "column is None"),
        ({"type": GREATER, "kwargs": {"column_A": "a", "column_B": 5}}, "column_B is 5"),
        ({"type": UNIQUE, "kwargs": {"column_list": "ab"}}, "column_list is 'ab'"),
        ({"type": UNIQUE, "kwargs": {"column_list": ["a", ["b"]]}}, "column_list is ['a', ['b']]"),
        ({"type": NOT_NULL, "kwargs": {"column": "a"}, "meta": "x"}, "meta is 'x'"),
        # Its letters would be read as columns.
        ({"type": NOT_NULL, "kwargs": {"column": "a"}, "meta": {"columns": "ab"}}, "columns is"),
    ],
)
def test_what_names_no_column_is_a_fault_with_its_line(
    entry: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    file, good = tmp_path / "suite.json", {"type": NOT_NULL, "kwargs": {"column": "a"}}
    file.write_text(json.dumps({"expectations": [good, entry]}, indent=1), encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        check_suite_form(file, "suite.json")
    (fault,) = refused.value.faults
    assert fault.field == "expectations[2]"
    assert fault.problem.startswith(problem)
    assert fault.fix
