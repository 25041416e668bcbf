"""How fast a run may go: limits of its staging, as a manifest or a profile declares them."""

from __future__ import annotations

from lakehouse_backfill.domain.guards.safety import PublishWindow
from lakehouse_backfill.domain.serialization import Value, added_later


class PaceLimits(Value):
    """How many chunks are computed at once, and how fast they may follow each other."""

    parallel: int = added_later(1, "Most chunks that are computed side by side.", ge=1, le=64)
    rows_per_minute: int | None = added_later(
        None,
        "Most rows a minute, over any 5 minutes; of a chunk the rows that it reads or those that "
        "it writes, whichever are more.",
        ge=1,
    )
    bytes_per_minute: int | None = added_later(
        None,
        "Most input bytes a minute, over any 5 minutes, by the size that an input row has on "
        "average in the plan.",
        ge=1,
    )
    commits_per_hour: int | None = added_later(
        None, "Most commits to the shadow an hour, evenly: also over any 5 minutes.", ge=1
    )
    pause_seconds: float = added_later(
        0.0, "Seconds between the end of a chunk and the start of the next.", ge=0, le=86_400
    )
    hours: PublishWindow | None = added_later(
        None, "Hours of the day, in UTC, in which chunks are started; at any time if absent."
    )
    failures_in_a_row: int = added_later(
        1,
        "After so many failures in a row the run fails; before that, a chunk that met a conflict "
        "or an outage is tried again, later and later.",
        ge=1,
        le=100,
    )
