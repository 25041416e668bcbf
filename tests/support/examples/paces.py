"""Times of earlier runs, for tests of estimates."""

from __future__ import annotations

from typing import Any

from lakehouse_backfill.core.planning.pace import Sample
from tests.support.examples.plans import NOON


def a_sample(**changes: Any) -> Sample:
    """A run that computed 1,000 rows in 10 s, in one chunk; nothing else is known of it."""
    fields: dict[str, Any] = {
        "at": NOON, "engine": "local[4] with 4 cores", "rows": 1_000.0, "size_bytes": 50_000.0,
        "partitions": 2, "output_rows": 20, "chunks": 1, "chunk_s": 10.0,
    }  # fmt: skip
    return Sample(**(fields | changes))
