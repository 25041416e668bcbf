"""Some rows of a partition, named by columns and values; never by SQL text."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime

RowValue = bool | date | datetime | int | str | None
#: Column -> the values that a row may have there; a row is named when all columns match.
RowPredicate = Mapping[str, tuple[RowValue, ...]]
