"""A reader's query: from a file of the project, or as columns."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import ValidationError

from lakehouse_backfill.config import places
from lakehouse_backfill.domain.rollout import ReaderQuery
from lakehouse_backfill.errors import ConfigError, NotFound

_COLUMN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


def load_reader_query(
    project: Path, reader: str, sql: str | None, columns: tuple[str, ...], tolerance: float
) -> ReaderQuery:
    """Read what a reader asks; raises ConfigError, NotFound (the file).

    `sql` is a file of the project with one SELECT over `product`; `columns` are a shorter way to
    ask for some columns of all rows. Exactly one of them is given.
    """
    if bool(sql) is bool(columns):
        raise ConfigError(
            "a comparison needs the reader's query, once",
            fix="add --sql FILE (one SELECT over `product`) or --columns A,B",
        )
    text = _columns_query(columns) if columns else _read_query_file(project, str(sql))
    try:
        return ReaderQuery(reader=reader, sql=text, tolerance=_check_tolerance(tolerance))
    except ValidationError as error:
        raise ConfigError(
            f"{reader!r} is no name of a reader, or {sql} is empty",
            fix="use letters, digits and _, as target.dual_read.readers names it",
        ) from error


def _check_tolerance(tolerance: float) -> float:
    if not 0 <= tolerance < 1:
        raise ConfigError(
            f"the tolerance {tolerance} is no share", fix="write e.g. 0.001 for a thousandth"
        )
    return tolerance


def _columns_query(columns: tuple[str, ...]) -> str:
    """Columns are plain names only, so that none of them can be anything but a column."""
    wrong = [name for name in columns if not _COLUMN_NAME.fullmatch(name)]
    if wrong:
        raise ConfigError(
            f"{wrong[0]!r} is no plain column name", fix="write the query to a file: --sql FILE"
        )
    quoted = ", ".join(f'"{name}"' for name in columns)
    return f"SELECT {quoted} FROM product"  # noqa: S608 (names of letters, digits and _)


def _read_query_file(project: Path, file: str) -> str:
    path = places.resolve_inside(project, file)
    if path is None:
        raise ConfigError(
            f"{file} lies outside the project",
            fix="write a path relative to the project's folder, without ..",
        )
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NotFound(
            f"{file} cannot be read: {error}", fix="name a text file with one SELECT"
        ) from error
