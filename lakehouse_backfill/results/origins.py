"""Results about where partitions come from: what needs restating, lineage, and the story of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from lakehouse_backfill.command_lines import command_line, plan_command
from lakehouse_backfill.errors import BackfillError, ChecksFailed
from lakehouse_backfill.results.base import Record, Result, optional

if TYPE_CHECKING:
    from lakehouse_backfill.core.evidence.lineage import Lineage, LineageEdge
    from lakehouse_backfill.core.evidence.staleness import PartitionStatus, ProductStatus
    from lakehouse_backfill.core.evidence.story import PartitionStory


class StaleProduct(Record):
    """How many partitions of a product are in which state; `notes` say what cannot be story.

    `manifest` is the drafted run manifest that repairs those that are stale or missing. `judged`:
    False where the contract is wrong, or something of the product cannot be read.
    """

    product: str
    judged: bool
    states: Mapping[str, int]
    notes: tuple[str, ...]
    manifest: str | None = optional()


class StalePartition(Record):
    """A partition that is not complete; `because` says in sentences what changed, by `causes`.

    `run_id` is the open run on it, else the run that made it; None: no run did. `place` counts the
    product's known partitions, complete ones too: neighbours follow each other.
    """

    product: str
    partition: str
    place: int
    state: str
    causes: tuple[str, ...]
    because: tuple[str, ...]
    run_id: str | None


class StaleResult(Result):
    """What of each product is not complete.

    `nothing_to_do`: all products were judged, and nothing is stale or missing.
    """

    products: tuple[StaleProduct, ...]
    partitions: tuple[StalePartition, ...]
    nothing_to_do: bool
    next_command: str | None = optional()

    @classmethod
    def of(
        cls, found: tuple[ProductStatus, ...], drafts: Mapping[str, str], *, is_drafted: bool
    ) -> StaleResult:
        """Describe the products; `drafts` are the files that were written, by product."""
        to_repair = [one for one in found if one.to_repair and one.repair_of is not None]
        following = None
        if to_repair and not is_drafted:
            following = f"{command_line('stale', to_repair[0].product)} --draft"
        elif drafts:
            following = plan_command(next(iter(drafts.values())))
        return cls(
            products=tuple(
                StaleProduct(
                    product=one.product,
                    judged=one.is_judged,
                    states=dict(Counter(each.state for each in one.partitions)),
                    notes=one.notes,
                    manifest=drafts.get(one.product),
                )
                for one in found
            ),
            partitions=tuple(
                StalePartition(
                    product=one.product,
                    partition=each.partition,
                    place=place,
                    state=each.state,
                    causes=tuple(dict.fromkeys(cause.kind for cause in each.causes)),
                    because=(*(cause.text for cause in each.causes), *each.remarks),
                    run_id=each.run_id,
                )
                for one in found
                for place, each in enumerate(one.partitions)
                if each.state != "complete"
            ),
            nothing_to_do=all(one.is_judged and not one.to_repair for one in found),
            next_command=following,
        )

    def error(self) -> BackfillError | None:
        """Return ChecksFailed when a product could not be judged."""
        names = [one.product for one in self.products if not one.judged]
        if not names:
            return None
        return ChecksFailed(
            f"not judged: {', '.join(names)}",
            state="nothing was changed; the other products were judged",
            fix=f"{command_line('stale', names[0])}   # says what is wrong with it",
        )


class ReadWindow(Record):
    """Half-open instants of an input that a run read."""

    read_from: datetime
    read_to: datetime


class LineageLine(Record):
    """Partitions of a product, and the rows of one input that a run computed them from.

    `windows` are exactly the instants that were read; none where all of it was. `read_from` and
    `read_to` are their first and last instant. `input_partitions` held rows of them; None where
    that is not known.
    """

    product: str
    partitions: tuple[str, ...]
    run_id: str
    input: str
    role: str
    table: str
    snapshot_id: int
    input_partitions: tuple[str, ...] | None
    read_from: datetime | None = optional()
    read_to: datetime | None = optional()
    windows: tuple[ReadWindow, ...] = ()

    @classmethod
    def of(cls, edge: LineageEdge) -> LineageLine:
        """Describe an edge."""
        windows = tuple(ReadWindow(read_from=one[0], read_to=one[1]) for one in edge.windows)
        return cls.from_fields(edge, read_from=edge.first, read_to=edge.stop, windows=windows)


class LineageResult(Result):
    """What a table was computed from, and what was computed from it, one step each way.

    `columns` names, for a SQL transform, the input columns of each column: information, no proof.
    `events` counts the OpenLineage events that were written to `events_file`.
    """

    table: str
    partition: str | None
    upstream: tuple[LineageLine, ...]
    downstream: tuple[LineageLine, ...]
    columns: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]
    events_file: str | None = optional()
    events: int | None = optional()

    @classmethod
    def of(
        cls, found: Lineage, events_file: str | None = None, events: int | None = None
    ) -> LineageResult:
        """Describe what was found, and the file of its events."""
        return cls.from_fields(
            found,
            events_file=events_file,
            events=events,
            upstream=tuple(map(LineageLine.of, found.upstream)),
            downstream=tuple(map(LineageLine.of, found.downstream)),
        )


class StoryAct(Record):
    """A publication or rollback: when, by whom, why."""

    at: datetime
    action: str
    version: int
    run_id: str | None
    by: str
    reason: str


class WhyResult(Result):
    """Why a partition (None: a product) is as it is: acts, decisions, input, code, rows, checks.

    `run_id` made the rows that readers see; None: no run did. `written_since` are commits of others
    after the newest act. `state` is that of `stale`, `because` why; `open_run`, where there is one,
    is to make the partition anew, and has that state.
    """

    product: str
    table: str
    partition: str | None
    state: str | None
    because: tuple[str, ...]
    open_run: str | None
    acts: tuple[StoryAct, ...]
    written_since: tuple[str, ...]
    run_id: str | None
    version: int | None
    reason: str | None
    reason_code: str | None
    requested_by: str | None
    approved_by: tuple[str, ...]
    accepted_by: tuple[str, ...]
    published_by: str | None
    published_at: datetime | None
    transform: str | None
    file: str | None
    code_hash: str | None
    git_commit: str | None
    output: str | None
    inputs: tuple[LineageLine, ...]
    rows: Mapping[str, int] | None
    checks: str
    not_passed: tuple[str, ...]
    side_effects: tuple[str, ...]
    notes: tuple[str, ...]
    next_command: str | None = optional()

    @classmethod
    def of(cls, story: PartitionStory, status: PartitionStatus | None) -> WhyResult:
        """Describe a story, and how the partition stands by now."""
        row, resolved = story.publication, story.plan.resolved if story.plan else None
        run = resolved.manifest.run if resolved else None
        code = resolved.manifest.transform if resolved else None
        made_by = story.plan.run_id if story.plan else None
        following = command_line("evidence", story.plan.run_id) if story.plan else None
        if status and status.state == "missing":
            following = f"{command_line('stale', story.product)} --draft"
        return cls.from_fields(
            story,
            state=status.state if status else None,
            because=tuple(cause.text for cause in status.causes) if status else (),
            open_run=status.run_id if status and status.run_id != made_by else None,
            acts=tuple(map(StoryAct.from_fields, story.acts)),
            run_id=made_by,
            version=row.version if row else None,
            reason=run.reason if run else None,
            reason_code=run.reason_code if run else None,
            requested_by=run.requested_by if run else None,
            approved_by=row.approved_by if row else (),
            accepted_by=row.accepted_by if row else (),
            published_by=row.by if row else None,
            published_at=row.at if row else None,
            transform=f"{code.name} {code.version}" if code else None,
            file=code.file if code else None,
            code_hash=resolved.code_hash if resolved else None,
            git_commit=resolved.git_commit if resolved else None,
            output=f"{row.table}@{row.snapshot_id}" if row else None,
            inputs=tuple(map(LineageLine.of, story.inputs)),
            next_command=following,
        )
