"""The plan of a run: a run manifest with every input, partition and setting resolved.

Also holds the facts by which the write path of a table is chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date, datetime
from typing import Any, Literal

from pydantic import Field

from lakehouse_backfill.domain.cascade.graph import CandidatePin, CascadeMembership
from lakehouse_backfill.domain.catch_up import CatchUp, TombstonePin
from lakehouse_backfill.domain.contract import Consumer, Contract
from lakehouse_backfill.domain.guards.determinism import Finding
from lakehouse_backfill.domain.guards.privacy import InputPrivacy, MaskKeyPin
from lakehouse_backfill.domain.manifest import InputRange, RunManifest
from lakehouse_backfill.domain.partitions import Chunk, Scope, describe_labels
from lakehouse_backfill.domain.run import ChunkRecord
from lakehouse_backfill.domain.serialization import Value, added_later, digest
from lakehouse_backfill.domain.sources.topic_offsets import TopicPin, TopicWindow
from lakehouse_backfill.domain.stateful.declaration import StateStart
from lakehouse_backfill.domain.tables.files import SpecPartitions
from lakehouse_backfill.domain.tables.schema_change import SchemaChange
from lakehouse_backfill.domain.tables.table import Column

WritePath = Literal["pyiceberg", "java", "rewrite"]


class TableFacts(Value):
    """Facts from a table's metadata about writing to it.

    `registers`: its catalog offers to register a clone; some do not keep it as registered.
    `equality_deletes` counts the live equality delete files that may hide rows of the scope.
    `entries` counts the entries of the manifests that a swap of the scope rewrites.
    """

    format_version: int
    equality_deletes: int = 0
    entries: int = 0
    registers: bool = True


class JvmState(Value):
    """Whether a JVM already runs in this process, and whether Spark runs through Connect."""

    is_up: bool = False
    is_connect: bool = False


class ChosenWritePath(Value):
    """The write path, and the reason as a sentence."""

    way: WritePath
    why: str


class SourcePin(Value):
    """One input, resolved to a snapshot; `range` is None for reference data.

    `schema_id` and `columns` are those with which the snapshot is read.
    """

    name: str
    role: Literal["source", "reference"]
    table: str
    requested: str
    snapshot_id: int
    mode: Literal["tag", "lease_only"]
    range: InputRange | None = None
    warm_up_days: int = 0
    cool_down_days: int = 0
    schema_id: int | None = None
    columns: tuple[Column, ...] = ()
    privacy: InputPrivacy | None = added_later(
        None, "What its contract, or the run manifest, declares of its privacy."
    )
    candidate: CandidatePin | None = added_later(
        None, "For an input that another run of the cascade stages."
    )
    partition_column: str | None = added_later(
        None, "Column by which a chunk reads only the rows of its own partitions."
    )
    topic: TopicPin | None = added_later(
        None, "For a raw table of a topic: the offsets whose records the snapshot holds."
    )

    @property
    def is_bound(self) -> bool:
        """Whether the snapshot to read is known: that of a candidate is once it is validated."""
        return self.candidate is None or self.table != self.candidate.table

    @property
    def as_planned(self) -> SourcePin:
        """The pin as it was when planned: of a candidate, before its snapshot was known."""
        if self.candidate is None:
            return self
        was = {"table": self.candidate.table, "snapshot_id": self.candidate.snapshot_id}
        return self.model_copy(update=was)

    @property
    def product_table(self) -> str:
        """The table of the product that is read: a candidate is in a table of its run."""
        return self.candidate.product_table if self.candidate else self.table


class PreviousCodePin(Value):
    """The code that the manifest names as the one that made the old rows, as it was when planned.

    `files` holds the SHA-256 of the job and of the modules that it imports, by path in the project,
    or in the project at `git_commit`.
    """

    name: str
    version: str
    file: str
    git_commit: str | None
    code_hash: str
    files: dict[str, str]

    def __str__(self) -> str:
        origin = f" of git commit {self.git_commit[:12]}" if self.git_commit else ""
        return f"{self.file}{origin} ({self.name} {self.version}, code {self.code_hash[:12]})"


class TargetPin(Value):
    """The target as it was when planned; None fields mean that it does not exist or is empty."""

    table: str
    uuid: str | None
    snapshot_id: int | None
    schema_id: int | None
    spec_id: int | None
    format_version: int | None


class ResolvedManifest(Value):
    """Everything that decides what the run computes and changes.

    Its digest is the manifest hash. `files` holds the SHA-256 of every project file that also
    decides: job, the modules that it imports, suites, golden rows; paths are relative.
    `environment` is the one that was planned for, so four eyes apply whichever profile a later
    command uses.
    """

    manifest: RunManifest
    contract: Contract
    scope: Scope
    chunks: tuple[Chunk, ...]
    sources: tuple[SourcePin, ...]
    target: TargetPin
    code_hash: str
    git_commit: str | None
    lock_hash: str | None
    config_hash: str = ""
    files: dict[str, str] = Field(default_factory=dict)
    environment: str = "dev"
    tombstones: tuple[TombstonePin, ...] = added_later((), "Tables that name rows to leave out.")
    catch_up: CatchUp | None = added_later(None, "For a revision that was made as live data moved.")
    previous_code: PreviousCodePin | None = added_later(
        None, "The code that the manifest names for rows that no run made."
    )
    mask_key: MaskKeyPin | None = added_later(
        None, "The secret of the masks, by place, version and id."
    )
    cascade_graph: str = added_later(
        "", "For a run of a cascade: SHA-256 of what its products declare, and of their code."
    )
    topic_partitions: int = added_later(
        0, "Partitions of the topic that gets the correction events; 0: no topic."
    )
    rehearses: str = added_later("", "For a rehearsal: the manifest hash of the real run.")
    may_reuse: bool = added_later(
        False,  # noqa: FBT003 (a default, not an argument)
        "For a run of a cascade: partitions whose inputs turn out equal to live are kept.",
    )
    state_start: StateStart | None = added_later(None, "What a stateful run starts from.")

    @property
    def manifest_hash(self) -> str:
        """SHA-256 of the canonical JSON: equal for the same intent on the same snapshots.

        A candidate counts as it was planned: by its run and that run's manifest hash.
        """
        pins = tuple(pin.as_planned for pin in self.sources)
        return digest(self if pins == self.sources else self.model_copy(update={"sources": pins}))


class Spread(Value):
    """How a number varies between runs: its 10th, 50th and 90th percentile."""

    p10: float
    p50: float
    p90: float


class History(Value):
    """The earlier runs behind an estimate: the same code on the same engine profile.

    Times are in seconds, ages in days. `duration_s` is all that the toolkit does: it stages,
    validates and publishes; people's decisions take no time in it. None: no run has done that yet.
    """

    engine: str
    runs: int
    chunks: int
    oldest_days: float
    newest_days: float
    rows_per_s: Spread
    bytes_per_s: Spread
    rows_per_partition: Spread
    duration_s: Spread
    staging_s: Spread
    validation_s: Spread | None
    publication_s: Spread | None


class ChunkEstimate(Value):
    """What the partitions of one chunk hold now: data files, rows and bytes."""

    chunk_id: str
    files: int
    rows: int
    size_bytes: int


class Estimate(Value):
    """What the run will cost, from metadata; None means not known yet, never zero.

    `duration_s` and what follows from it are the 50th percentile of `history`. Without a history,
    `floor_s` is the least time that reading takes; None: no run has computed on this engine.
    """

    input_files: int
    input_rows: int
    input_bytes: int
    output_rows: int | None
    output_bytes: int | None
    output_files: int | None
    shuffle_bytes: int | None
    duration_s: float | None
    core_hours: float | None
    cost_usd: float | None
    basis: str
    history: History | None = added_later(None, "The earlier runs behind the duration.")
    floor_s: float | None = added_later(None, "Seconds that reading takes at least.")
    by_chunk: tuple[ChunkEstimate, ...] = added_later((), "What the rows of each chunk are now.")

    @property
    def not_in_cost(self) -> tuple[str, ...]:
        """What the cost leaves out, as it is not known: so the cost is only a least one."""
        unknown = (("computing", self.core_hours), ("writing", self.output_bytes))
        return tuple(name for name, amount in unknown if amount is None)


class ConflictingRun(Value):
    """An open run whose partitions overlap."""

    run_id: str
    state: str
    partitions: tuple[str, ...]


class ChecklistQuestion(Value):
    """One of the 16 questions of the design checklist, with its answer.

    Without an answer, `how` names the file and the field that would answer it.
    """

    number: int
    question: str
    answer: str | None
    how: str = ""


class WindowCommit(Value):
    """A commit of a source that added, or changed, rows of a corruption window."""

    snapshot_id: int
    at: datetime
    operation: str
    writer: str
    partitions: tuple[str, ...]


class WindowSource(Value):
    """What is known of a source and a corruption window; `unknown`: why no commit can be named.

    Without partitions of the column the commits are those whose files may hold rows of the window,
    by their statistics.
    """

    name: str
    table: str
    partitions: tuple[str, ...] = ()
    commits: tuple[WindowCommit, ...] = ()
    unknown: str = ""
    last_good_snapshot_id: int | None = added_later(
        None, "The source's state before the first of the commits, where it is still there."
    )
    reaches_to: datetime | date | None = added_later(
        None, "The last value of the column in the state that is read, by statistics of its files."
    )
    topic: TopicWindow | None = added_later(
        None, "For a raw table of a topic: the offsets of all events of the window."
    )


class LastGoodState(Value):
    """A state of the product from before a corruption window; None: no accepted version."""

    table: str
    snapshot_id: int
    at: datetime
    version: int | None


class CorruptionWindow(Value):
    """Event times `first <= t < stop` whose rows were wrong, and what follows from them.

    `partitions` are those of the target that were computed from such rows; the run restates those
    in `beyond` too. What is computed from `replay_to` on reads no row of the window; `closes_with`
    is the partition that closes it. No `last_good`: a cold start.
    """

    first: datetime
    stop: datetime
    partitions: tuple[str, ...]
    beyond: tuple[str, ...]
    sources: tuple[WindowSource, ...]
    last_good: LastGoodState | None
    replay_to: datetime
    closes_with: str
    is_closed: bool


_BOUND_FIELDS = ("table", "snapshot_id")


class ReusedPartition(Value):
    """A partition whose live rows are kept: what it reads is equal to what they were made of.

    `run_id` published them; `rows` and `checksum` are those that were accepted.
    """

    partition: str
    run_id: str
    rows: int
    checksum: str


class Plan(Value):
    """The plan that `plan` shows, `approve` binds to, and every later command reads."""

    run_id: str
    revises: str | None
    created_at: datetime
    created_by: str
    resolved: ResolvedManifest
    manifest_hash: str
    estimate: Estimate
    conflicts: tuple[ConflictingRun, ...]
    checklist: tuple[ChecklistQuestion, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    manifest_file: str
    shadow_table: str
    way: ChosenWritePath | None = added_later(
        None, "Who writes the commits on the target, and why."
    )
    code_of: str = added_later("", "The run whose archived code is executed, if not its own.")
    places: tuple[SpecPartitions, ...] = added_later(
        (), "Partition tuples that hold files of the scope, by spec."
    )
    repeats: str = added_later(
        "", "The run whose published rows it would compute again; empty: none that is known."
    )
    window: CorruptionWindow | None = added_later(
        None, "The event times whose rows were wrong, where they were named."
    )
    findings: tuple[Finding, ...] = added_later(
        (), "Places of the job's code whose result may differ between two runs."
    )
    cascade: CascadeMembership | None = added_later(None, "The cascade that the run belongs to.")
    reused: tuple[ReusedPartition, ...] = added_later(
        (), "Partitions that are not computed, by the run's log."
    )

    def reused_of(self, labels: Iterable[str]) -> tuple[ReusedPartition, ...]:
        """Return those of the partitions whose live rows are kept."""
        wanted = frozenset(labels)
        return tuple(one for one in self.reused if one.partition in wanted)

    def rows_written(self, record: ChunkRecord) -> int:
        """Return how many rows the commit of a chunk added, which are not those that are kept."""
        return record.output_rows - sum(one.rows for one in self.reused_of(record.partitions))

    def with_inputs(
        self, bound: Mapping[str, Mapping[str, Any]], reused: tuple[ReusedPartition, ...] = ()
    ) -> Plan:
        """Return the plan with snapshots of its candidates, by input, and what it does not compute.

        `reused` is said by a note, too. Without candidates the plan is returned as it is.
        """
        pins = tuple(
            pin.model_copy(update={name: bound[pin.name][name] for name in _BOUND_FIELDS})
            if pin.candidate is not None and pin.name in bound
            else pin
            for pin in self.resolved.sources
        )
        if pins == self.resolved.sources:
            return self
        kept: dict[str, list[str]] = {}
        for one in reused:
            kept.setdefault(one.run_id, []).append(one.partition)
        notes = tuple(
            f"{describe_labels(tuple(labels))} not computed: input partitions equal to live; "
            f"skipped, the rows of {run_id} stay"
            for run_id, labels in kept.items()
        )
        resolved = self.resolved.model_copy(update={"sources": pins})
        update = {"resolved": resolved, "reused": reused, "notes": (*self.notes, *notes)}
        return self.model_copy(update=update)

    def chunk_scope(self, chunk: Chunk) -> Scope:
        """Return the scope of a chunk's partitions alone: what its transform computes."""
        return Scope(field=self.resolved.scope.field, partitions=chunk.partitions)

    def chunk_rows(self, chunk: Chunk) -> Scope:
        """Return the scope of the rows that a chunk writes: a part of a partition, or all of it."""
        return chunk.keys or self.chunk_scope(chunk)

    @property
    def registered_digest(self) -> str:
        """SHA-256 of what decides: the intent, who planned it, and where its code and rows are.

        The same intent that the same person plans again has it too: costs and times are left out.
        """
        names = {
            "run_id", "revises", "created_by", "manifest_hash", "manifest_file", "shadow_table",
            "code_of", "places", "findings", "cascade",
        }  # fmt: skip
        return digest(self.model_dump(mode="json", include=names))

    @property
    def product(self) -> str:
        """The product that the run restates."""
        return self.resolved.manifest.product

    @property
    def consumers(self) -> tuple[Consumer, ...]:
        """Who relies on the product."""
        return self.resolved.contract.consumers or ()

    @property
    def labels(self) -> dict[str, Any]:
        """The fields in every log line, metric and snapshot of the run."""
        manifest, reference = self.resolved.manifest, reference_data_version(self)
        return {
            "run_id": self.run_id,
            "product": manifest.product,
            "target": self.resolved.target.table,
            "transform": manifest.transform.name,
            "transform_version": manifest.transform.version,
            "processing_mode": manifest.run.mode,
            **({"reference_data_version": reference} if reference else {}),
        }


def reference_data_version(plan: Plan, inputs: Mapping[str, int] | None = None) -> str | None:
    """List the reference data: the tag, branch or time that was asked for, and the snapshot.

    `NAME=ASKED@SNAPSHOT`, or `NAME=SNAPSHOT` where none was asked for. `inputs` are the snapshots
    of an earlier plan, which say nothing of what was asked. None: the run has no reference data.
    """
    texts = []
    for pin in plan.resolved.sources:
        if pin.role != "reference":
            continue
        snapshot_id = (inputs or {}).get(pin.name, pin.snapshot_id)
        asked = pin.requested.partition("@")[2] if snapshot_id == pin.snapshot_id else ""
        is_named = asked not in ("", str(snapshot_id))
        texts.append(f"{pin.name}={asked + '@' if is_named else ''}{snapshot_id}")
    return ",".join(texts) or None


def has_restricted_columns(plan: Plan) -> bool:
    """Return whether the product, or an input of the run, has restricted columns."""
    pins = plan.resolved.sources
    return bool(plan.resolved.contract.restricted_columns) or any(
        pin.privacy is not None and pin.privacy.is_restricted for pin in pins
    )


def declared_schema_change(plan: Plan) -> SchemaChange:
    """Return the schema change that the run declares."""
    return plan.resolved.manifest.target.schema_change
