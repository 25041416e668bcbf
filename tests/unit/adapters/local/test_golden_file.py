"""Golden CSV files."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse_backfill.adapters.local.reader import read_golden
from lakehouse_backfill.errors import ConfigError


@pytest.mark.req("Q5", "T7")
def test_cells_are_texts_and_empty_cells_null(tmp_path: Path) -> None:
    file = tmp_path / "golden.csv"
    file.write_text(
        '\ufeffday,dest,mean\n2013-02-15,"A,T",\n\n2013-02-16,B,1.50\n', encoding="utf-8"
    )
    assert read_golden(file) == [
        {"day": "2013-02-15", "dest": "A,T", "mean": None},
        {"day": "2013-02-16", "dest": "B", "mean": "1.50"},
    ]


@pytest.mark.req("Q5", "T7")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no table"),
        ("a,b\n", "holds no table"),
        ("a,a\n1,2\n", "holds no table"),
        ("a,b\n1,2\n1\n", "golden.csv:3: 1 cells"),
        ('a,b\n"1,2\n', "cannot be read"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "golden.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=words):
        read_golden(file)


@pytest.mark.req("Q5", "T7")
def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_golden(tmp_path / "none.csv")
