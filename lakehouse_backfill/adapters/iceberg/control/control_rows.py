"""Rows of control tables as values, also rows that an older release wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel


def row_fields(
    row: Mapping[str, Any], model: type[BaseModel], renamed: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Give the fields of `model` that the row has a value for; `renamed` is field to column.

    Null, and a column that the table lacks, leave a field with a default out.
    """
    names = renamed or {}
    found = {name: row.get(names.get(name, name)) for name in model.model_fields}
    return {
        name: value
        for name, value in found.items()
        if value is not None or model.model_fields[name].is_required()
    }
