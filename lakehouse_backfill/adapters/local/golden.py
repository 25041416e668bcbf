"""Golden files: CSV with a header line; an empty cell is null."""

from __future__ import annotations

import csv
from pathlib import Path

from lakehouse_backfill.errors import ConfigError


def read_golden(path: Path) -> list[dict[str, str | None]]:
    """Read the expected rows as texts; raises ConfigError, naming the line, when it is no table."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            rows = [(reader.line_num, row) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(
            f"the golden file {path} cannot be read: {error}",
            fix="write it as CSV in UTF-8, with a header line",
        ) from error
    if not rows or len(set(header)) < len(header) or "" in header:
        raise ConfigError(
            f"the golden file {path} holds no table: header {header}, {len(rows)} rows",
            fix="begin with a line of column names, each once, and give at least one row",
        )
    for line, row in rows:
        if len(row) != len(header):
            raise ConfigError(
                f"{path}:{line}: {len(row)} cells, but the header names {len(header)} columns",
                fix="give every row one cell for each column",
            )
    return [{name: cell or None for name, cell in zip(header, row, strict=True)} for _, row in rows]
