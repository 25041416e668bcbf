"""A record of an anchor: the head of a run's log, or of a product's rows, at a moment."""

from __future__ import annotations

import re
from typing import Literal

from lakehouse_backfill.domain.serialization import Value

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


class AnchorRecord(Value):
    """The hash of the newest event of a run, or the seal of the newest row of a product.

    `count` is the number of events, or of rows, up to it. `at` is the time of the process that
    wrote the record; the anchor's own time is the better witness.
    """

    kind: Literal["run", "product"]
    subject: str
    count: int
    head: str
    environment: str
    at: str

    @property
    def name(self) -> str:
        """The name: one for each head and environment, and safe as the name of a file or a tag."""
        # An id or a product never starts with a dot or a dash here: the kind comes first.
        subject = _UNSAFE.sub("_", self.subject).replace("..", "_.")
        environment = _UNSAFE.sub("_", self.environment)
        return f"{self.kind}-{environment}-{subject}-{self.count:06d}-{self.head[:16]}"
