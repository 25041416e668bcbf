"""Bounds, switches and waivers of a run, as its manifest declares them.

How fast a run may go: limits of its staging, as a manifest or a profile declares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, time, timedelta
from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from lakehouse_backfill.domain.guards.determinism import AllowedNondeterminism
from lakehouse_backfill.domain.guards.outside import SinkPolicy
from lakehouse_backfill.domain.serialization import ColumnName, Name, Text, Value, added_later

TimeOfDay = Annotated[str, StringConstraints(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")]


_WAIVES = "Who decides, with the role `waive`; where signatures are required, they approve the run."


class PublishWindow(Value):
    """Hours of each day in which a run may be published, in UTC; may cross midnight."""

    from_: TimeOfDay = Field(alias="from", description='First minute, e.g. "22:00".')
    to: TimeOfDay = Field(description='First minute that is too late, e.g. "04:00".')


def next_opening(window: PublishWindow, now: datetime) -> datetime | None:
    """Return the time at which the window opens next, or None when it is open.

    `from` is inside the window, `to` is outside; `from` equal to `to` is the whole day.
    """
    opens, closes = time.fromisoformat(window.from_), time.fromisoformat(window.to)
    clock = now.time().replace(tzinfo=None)
    is_overnight = opens >= closes
    is_open = clock >= opens or clock < closes if is_overnight else opens <= clock < closes
    if is_open:
        return None
    today = datetime.combine(now.date(), opens, tzinfo=now.tzinfo)
    return today if clock < opens else today + timedelta(days=1)


class RetentionException(Value):
    """A person's decision that rows older than their retention are computed in this run."""

    by: Text = Field(description=_WAIVES)
    reason: Text = Field(description="Why; shown to whoever approves the run.")


class IncompleteInput(Value):
    """A person's decision that partitions are computed before all of their input is there."""

    by: Text = Field(description=_WAIVES)
    reason: Text = Field(description="Why; shown to whoever approves the run.")


class RestrictedFlow(Value):
    """A person's decision that a column of this run may hold values of restricted columns."""

    column: ColumnName = Field(description="Column of the output.")
    by: Text = Field(description=_WAIVES)
    reason: Text = Field(description="Why; shown to whoever approves the run.")


class Safety(Value):
    """Bounds and switches; the defaults are the careful ones."""

    side_effects: bool = Field(
        default=False,
        description="Whether the job may act outside its shadow; only false is built.",
    )
    sinks: dict[Name, SinkPolicy] = added_later(
        {}, "Policy of this run for sinks of the contract; the contract's for the mode if absent."
    )
    max_rows: int | None = Field(None, ge=1, description="Most output rows.")
    max_rejected_share: float = added_later(
        0.0,
        "Most rows that the transform may reject, as a share of a chunk's rows, and of all rows.",
        ge=0,
        le=1,
    )
    max_bytes: int | None = Field(None, ge=1, description="Most input bytes.")
    max_cost_usd: float | None = Field(None, ge=0, description="Most estimated cost.")
    manual_publish: bool = Field(default=True, description="`run` stops before publication.")
    on_conflict: Literal["fail", "catch_up"] = Field(
        "fail",
        description="When a live commit changed the run's partitions: `fail` names it, `catch_up` "
        "computes just those partitions again, from what is there by then.",
    )
    catch_up_attempts: int = added_later(
        3,
        "How often `catch_up` tries before it says that the table is too busy.",
        ge=1,
        le=20,
    )
    publish_window: PublishWindow | None = added_later(
        None, "When the run may be published; at any time if absent."
    )
    freeze: bool = added_later(
        False,  # noqa: FBT003 (a default, not an argument)
        "Whether any live commit on the target since the plan, also in other partitions, stops "
        "the publication.",
    )
    allow_nondeterminism: tuple[AllowedNondeterminism, ...] = added_later(
        (), "Findings of docs/determinism.md in the job's code that don't stop this run."
    )
    retention_exception: RetentionException | None = added_later(
        None, "Who allows partitions, or input, older than `retention_days` in this run, and why."
    )
    incomplete_input: IncompleteInput | None = added_later(
        None, "Who allows partitions whose input is not complete yet, such as today's, and why."
    )
    restricted_flows: tuple[RestrictedFlow, ...] = added_later(
        (), "Columns of a lower class that may be made of restricted columns of inputs in this run."
    )
    on_deletions: Literal["block", "allow"] = Field(
        "block",
        description="When a partition would lose all of its rows; only block is built.",
    )

    @property
    def waivers(self) -> Mapping[str, str]:
        """By waiver of this manifest, the person in whose name it is written."""
        single = ("retention_exception", "incomplete_input")
        found = {name: each.by for name in single if (each := getattr(self, name)) is not None}
        flows = {f"restricted_flows of {one.column}": one.by for one in self.restricted_flows}
        return found | flows


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

    @property
    def hold_for_reads(self) -> bool:
        """Whether only so many rows or bytes may be read a minute."""
        return self.rows_per_minute is not None or self.bytes_per_minute is not None


Switch = Literal["publish", "live_topic", "waivers", "hooks", "catch_up"]
#: Off unless a profile says that they are on: consumers of a topic act on what they receive.
OFF_BY_DEFAULT: Final[frozenset[Switch]] = frozenset({"live_topic"})


class Switches(Value):
    """What may be done at all; absent: as the profile says for all products, else its default."""

    publish: bool | None = Field(
        None, description="Publications may begin. One that has begun is finished in any case."
    )
    live_topic: bool | None = Field(
        None, description="Messages may be written to topics; not unless this is true."
    )
    waivers: bool | None = Field(
        None, description="Failed gates, and rules of a manifest, may be waived."
    )
    hooks: bool | None = Field(None, description="Hooks of contracts are called.")
    catch_up: bool | None = Field(
        None,
        description="Runs may follow live commits by themselves, where their manifest says so.",
    )
