"""Labels of ranges of an ordered key: `[lower, upper]` as JSON; an end that is null is open."""

from __future__ import annotations

import json

from lakehouse_backfill.domain.labels import row_values
from lakehouse_backfill.domain.labels.row_values import NamedValue
from lakehouse_backfill.domain.serialization import to_json_value
from lakehouse_backfill.errors import ConfigError

#: The transform of a scope of ranges; no table is partitioned by it.
KEY_RANGE = "range"


def cuts_into_ranges(kind: str) -> bool:
    """Return whether Spark and Iceberg order all values of the type alike; text by code points.

    Floats are not: NaN and -0.0 have another place in each.
    """
    return row_values.is_ordered(kind) or kind == "string"


def range_label(lower: NamedValue, upper: NamedValue) -> str:
    """Return the label of the values from `lower` to before `upper`."""
    return json.dumps([to_json_value(lower), to_json_value(upper)], ensure_ascii=False)


def range_ends(kind: str, label: str) -> tuple[NamedValue, NamedValue]:
    """Return the ends that a label names, as values of the type; raises ValueError."""
    try:
        lower, upper = (row_values.typed_value("it", kind, end) for end in json.loads(label))
    except (ConfigError, TypeError) as error:
        raise ValueError(label) from error
    return lower, upper


def describe_range(label: str) -> str:
    """Return a range as text for people: `from 10 to before 20`, `below 10`, `from 20 on`."""
    lower, upper = json.loads(label)
    if lower is None:
        return f"below {upper}"
    return f"from {lower} on" if upper is None else f"from {lower} to before {upper}"
