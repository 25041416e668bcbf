"""What is outside: Iceberg, Spark, local engines, Great Expectations, the operating system."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def keep_null_lists() -> None:
    """Let PyIceberg read and write a null list, or map, of structs as null, in this process.

    PyIceberg 0.12 builds these columns anew, and makes of a null an empty one, in what it reads and
    in what it writes. A second call changes nothing.
    """
    from pyiceberg.io.pyarrow import ArrowProjectionVisitor

    for name in ("list", "map"):
        visit = getattr(ArrowProjectionVisitor, name)
        if not hasattr(visit, "__wrapped__"):
            setattr(ArrowProjectionVisitor, name, _with_nulls(visit))


def _with_nulls(visit: Callable[..., Any]) -> Callable[..., Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    @functools.wraps(visit)
    def visiting(visitor: Any, kind: Any, stored: Any, *inner: Any) -> Any:
        """Return the column with the nulls that the stored one has."""
        made = visit(visitor, kind, stored, *inner)
        if made is None or made.null_count == stored.null_count:
            return made
        # A mask fits no slice: the sum is an array of its own. The type keeps the ids of fields.
        offsets, nulls = pc.add(made.offsets, 0), stored.is_null()
        if isinstance(made, pa.MapArray):
            return pa.MapArray.from_arrays(offsets, made.keys, made.items, made.type, mask=nulls)
        return type(made).from_arrays(offsets, made.values, made.type, mask=nulls)

    return visiting
