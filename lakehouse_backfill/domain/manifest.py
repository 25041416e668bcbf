"""The run manifest: the declared intent of a run, as written in YAML.

Field descriptions become the JSON Schema that editors use (`lakehouse-backfill schema manifest`).
`NOT_YET_SUPPORTED` lists what a manifest may say but this release refuses when planning.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, StringConstraints

from lakehouse_backfill.domain.contract import SuiteRef
from lakehouse_backfill.domain.guards.outside import CorrectionSink
from lakehouse_backfill.domain.guards.privacy import InputPrivacy
from lakehouse_backfill.domain.guards.safety import PaceLimits, Safety
from lakehouse_backfill.domain.labels.key_ranges import KeyBuckets, KeyRanges
from lakehouse_backfill.domain.labels.row_values import NamedValue
from lakehouse_backfill.domain.labels.values import NamedRange
from lakehouse_backfill.domain.partitions import ANY_COLUMN
from lakehouse_backfill.domain.rollout import DualRead, Progressive
from lakehouse_backfill.domain.serialization import (
    ColumnName,
    KeepNumericText,
    Name,
    PartitionValue,
    RunMode,
    TableName,
    TableText,
    Text,
    Value,
    added_later,
)
from lakehouse_backfill.domain.stateful.declaration import Stateful
from lakehouse_backfill.domain.tables.schema_change import SchemaStep
from lakehouse_backfill.errors import Unsupported

RowValue = Annotated[bool | date | datetime | int | str | None, KeepNumericText]
#: Column -> the values that a row may have there; a row is named when all columns match.
RowPredicate = Mapping[str, tuple[NamedValue, ...] | NamedRange]
#: What a transform reads from its context: a value, or a list of values.
ConfigValue = str | int | float | bool | tuple[str | int | float | bool, ...]


RunKind = Literal[
    "backfill",
    "reprocessing",
    "restatement",
    "repair",
    "migration",
    "bootstrap",
    "replay",
    "reconciliation",
]
ReasonCode = Literal[
    "new_field",
    "bug_fix",
    "missing_source",
    "late_data",
    "schema_evolution",
    "new_product",
    "compliance",
    "migration",
]
PublishMode = Literal[
    "append",
    "replace_partitions",
    "merge",
    "versioned",
    "shadow_only",
    "pointer_swap",
    "correction_events",
]
SemanticVersion = Annotated[str, StringConstraints(pattern=r"^\d+\.\d+\.\d+$")]
InstantOrDay = datetime | date


class RunIntent(Value):
    """Who asks for what, and why."""

    kind: RunKind = Field("restatement", description="What sort of run this is.")
    mode: RunMode = Field("backfill", description="Execution mode; written into every output.")
    requested_by: Text = Field(description="Person or system that asks for the run.")
    reason: Text = Field(description="Why, in a sentence that a consumer understands.")
    reason_code: ReasonCode = Field(description="The reason as a code, for reports.")
    deadline: datetime | None = Field(
        None,
        description="`plan` refuses the run once it has passed, when half of the earlier runs of "
        "the transform would end after it, or when the publish window opens after it.",
    )
    error_rate: float | None = added_later(
        None, "Share of the rows believed wrong, from 0 to 1; `plan` advises by it.", ge=0, le=1
    )
    purpose: Name | None = added_later(
        None, "What the data is used for: one of the purposes in the contracts."
    )


class TransformRef(Value):
    """The code to run: a decorated function of a Python file, or a SQL file."""

    name: Name = Field(description="Name given to @transform, or `-- name:` in a SQL file.")
    version: SemanticVersion = Field(description="Semantic version of the transform, e.g. 1.2.0.")
    file: Text = Field(description="Path inside the project, e.g. jobs/arrivals/transform.py.")
    writer: Literal["job", "external"] = added_later(
        "job",
        "`external`: another engine writes the shadow table, by what `file` says (a script, a "
        "query: kept as evidence, never run); see `lakehouse-backfill shadow open`.",
    )
    config: dict[str, ConfigValue] = Field(
        default_factory=dict,
        description="Values, and lists of values, that the transform reads from its context.",
    )
    image_digest: Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")] | None = (
        Field(None, description="Container image that computes, as sha256:…; recorded only.")
    )
    schema_versions: dict[Name, Text] = Field(
        default_factory=dict,
        description="Versions of the event or message schemas that the transform reads, by name.",
    )


class PreviousCode(Value):
    """The code that made the rows which no run made, as the author of the manifest knows it.

    Absent name, version and config are those of the file's only transform and `transform.config`.
    """

    file: Text = Field(description="Path inside the project, e.g. jobs/arrivals/old.py.")
    git_commit: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{7,40}$")] | None = Field(
        None,
        description="Commit of the project's repository whose `file` is meant; the file as it is "
        "when planned if absent.",
    )
    name: Name | None = Field(None, description="Its transform; the only one of `file` if absent.")
    version: SemanticVersion | None = Field(
        None, description="Version of that transform; the one that `file` declares if absent."
    )
    config: dict[str, ConfigValue] | None = Field(
        None, description="Values that it read from its context; `transform.config` if absent."
    )


class InputRange(Value):
    """The rows of one source that the run may read: `from <= column < to`."""

    column: ColumnName = Field(description="Column of the source, a date or a timestamp.")
    from_: InstantOrDay = Field(alias="from", description="First instant or day that may be read.")
    to: InstantOrDay = Field(description="First instant or day that may not be read any more.")


_INPUT_PRIVACY = "What is declared of an input that has no contract in the project."


class Source(Value):
    """One input table, read at a pinned snapshot."""

    type: Literal["iceberg"] = Field("iceberg", description="Kind of source.")
    table: TableText = Field(description="namespace.table")
    at: str | int | datetime | None = Field(
        None, description="Snapshot id, tag, branch or timestamp; the current state if absent."
    )
    pin: Literal["tag", "lease_only"] = Field(
        "tag", description="`tag` protects the snapshot; `lease_only` for read-only sources."
    )
    range: InputRange = Field(description="Rows that may be read at most; never open-ended.")
    warm_up_days: int = Field(
        0, ge=0, le=3660, description="Days read before a chunk, to build its state."
    )
    cool_down_days: int = Field(0, ge=0, le=3660, description="Days read after a chunk.")
    partition_column: ColumnName | None = added_later(
        None,
        "Column with the values of the target's partition column, such as a tenant, an id or an "
        "offset: a chunk reads only the rows of its own partitions.",
    )
    complete: Literal["none", "hour", "day", "month"] = Field(
        "none",
        description="Each hour, day or month that the run reads must hold a row, else the run "
        "halts before staging; `none`: days without a row are only reported.",
    )
    complete_after_hours: float = added_later(
        0,
        "Freshness: hours after an instant until all of its rows are there. A partition that needs "
        "rows of later instants is refused by `plan`.",
        ge=0,
        le=24 * 366,
    )
    privacy: InputPrivacy | None = added_later(None, _INPUT_PRIVACY)


class Reference(Value):
    """Reference data, read whole at a pinned snapshot."""

    table: TableText = Field(description="namespace.table")
    at: str | int | datetime | None = Field(None, description="As for sources.")
    pin: Literal["tag", "lease_only"] = Field("tag", description="As for sources.")
    semantics: Literal[
        "as_recorded", "corrected_truth", "current_accepted", "as_used_by_original"
    ] = Field(
        "corrected_truth",
        description="Which version is read. `corrected_truth`: `at`, or the newest; "
        "`current_accepted`: the accepted version of the product that has the table; "
        "`as_recorded`: the one in force when the rows to be replaced were first recorded; "
        "`as_used_by_original`: the one that the run behind these rows read.",
    )
    privacy: InputPrivacy | None = added_later(None, _INPUT_PRIVACY)


class PartitionRange(Value):
    """The partitions to restate: a half-open range, or a list of values, minus exceptions.

    Or the whole table, whatever its partitions are.
    """

    column: ColumnName = added_later("", "Source column of the target's partition field.")
    from_: PartitionValue = Field(None, alias="from", description="First partition.")
    to: PartitionValue = Field(None, description="First partition that is not restated.")
    values: tuple[PartitionValue, ...] = Field(
        (),
        description="An explicit list instead of a range; null, without quotes, names the "
        'partition of rows without a value, and "null" that of the text null.',
    )
    except_: tuple[PartitionValue, ...] = Field(
        (), alias="except", description="Partitions inside the range that stay as they are."
    )
    except_because: Text | None = added_later(
        None, "Why the partitions of `except` stay as they are; the plan shows it."
    )
    whole_table: bool = added_later(
        False,  # noqa: FBT003 (a default, not an argument)
        "The whole table, in place of column and partitions: all of its files are swapped by one "
        "commit, and any live commit is a conflict.",
    )

    @property
    def scoped_by(self) -> str:
        """The column of the partitions; `*` for the whole table."""
        return ANY_COLUMN if self.whole_table else self.column


class RowValues(Value):
    """The values of a column that rows may have: `from <= value < to`."""

    from_: Annotated[date | datetime | int | str, KeepNumericText] = Field(
        alias="from", description="First day, instant or number."
    )
    to: Annotated[date | datetime | int | str, KeepNumericText] = Field(
        description="First day, instant or number that is not named any more."
    )


class MergeBy(Value):
    """How change rows are merged into the target, by the product's key."""

    version: ColumnName = Field(
        description="Column that says which of two rows with one key is newer: a number, a date or "
        "an instant that the source sets; never the time of processing."
    )
    deleted: ColumnName | None = Field(
        None,
        description="Boolean column of the job's rows, not of the table: true removes the key.",
    )


class Target(Value):
    """What the run may change, and how it becomes visible."""

    publish_mode: PublishMode = Field("replace_partitions", description="How to publish.")
    partitions: PartitionRange = Field(description="Which partitions may change.")
    row_predicate: dict[ColumnName, RowValue | tuple[RowValue, ...] | RowValues] | None = Field(
        None,
        description="Only these rows of the partitions: column and its value, a list of values "
        "(null: no value), or `{from: …, to: …}` of days, instants or numbers, without `to`; "
        "all columns must match. All other rows stay as they are.",
    )
    merge: MergeBy | None = added_later(
        None, "How publish_mode merge decides; required there, refused elsewhere."
    )
    progressive: Progressive | None = added_later(
        None, "Publish in steps, each checked before the next; all at once if absent."
    )
    dual_read: DualRead | None = added_later(
        None, "Readers that compare old and new before the switch; none if absent."
    )
    corrections: CorrectionSink | None = added_later(
        None, "Where publish_mode correction_events writes; the contract's if absent."
    )
    schema_change: tuple[SchemaStep, ...] = added_later(
        (), "Columns that are added, widened or renamed by the commit of the publication."
    )
    columns: tuple[ColumnName, ...] | None = added_later(
        None,
        "Only these columns are restated, in rows found by the product's key: rows stay, and all "
        "other columns are carried over and proven equal; all columns if absent.",
    )


class Limits(PaceLimits):
    """How the work is cut, and how fast it may go; where these are left out, the profile's."""

    partitions_per_chunk: int = Field(16, ge=1, le=10_000, description="Partitions in one commit.")
    key_buckets: KeyBuckets | None = added_later(
        None,
        "Chunks of a whole table without partitions: the rows of one bucket of a key column each; "
        "one chunk of all rows if absent.",
    )
    key_ranges: KeyRanges | None = added_later(
        None, "The same by ranges of an ordered key column, in place of `key_buckets`."
    )

    @property
    def key_chunks_field(self) -> str:
        """The field that cuts a whole table into chunks by its key; empty: none does."""
        names = (name for name in ("key_buckets", "key_ranges") if getattr(self, name) is not None)
        return next((f"limits.{name}" for name in names), "")


class Compute(Value):
    """Where the run computes and stages."""

    pool: Text = Field(
        "default",
        description="Pool that computes: one of `compute.pools` of the profile; `default` is the "
        "profile's Spark.",
    )
    scratch: Text = Field(
        "default",
        description="Place for temporary data: one of `compute.scratch` of the profile; `default` "
        "is what its Spark uses.",
    )
    staging_location: Literal["shadow", "under_target"] = Field(
        "shadow", description="Where staged files lie: beside the target, or under its prefix."
    )

    @property
    def named_place(self) -> Compute:
        """The pool and the scratch place alone."""
        return Compute(pool=self.pool, scratch=self.scratch)


class SpotCheck(Value):
    """One named record and what it must say after the restatement."""

    key: dict[ColumnName, PartitionValue] = Field(description="Values of the product's key.")
    expect: dict[ColumnName, PartitionValue | float] = Field(description="Expected column values.")


class Validation(Value):
    """The gates of the run; those of the contract always apply too."""

    count_tolerance: float = Field(0.0, ge=0, description="Share by which totals may differ.")
    checksum: Literal["required", "report"] = Field(
        "required", description="Whether a checksum that differs blocks."
    )
    gates: dict[Name, Literal["block", "report"]] = Field(
        default_factory=dict,
        description="Gates of this run that report instead of blocking, by name.",
    )
    suites: tuple[SuiteRef, ...] = Field((), description="Suites beside those of the contract.")
    chunk_checks: Literal["full", "counts"] = Field(
        "full",
        description="What each chunk is judged by as soon as it is staged: counts and keys, and "
        "with `full` also what the suites say of single rows.",
    )
    golden: Text | None = Field(None, description="CSV file of rows that the output must hold.")
    spot_checks: tuple[SpotCheck, ...] = Field((), description="Named records.")
    edge_partitions: int = Field(2, ge=0, le=366, description="Partitions compared at each edge.")
    edge_tolerance_rows: int = Field(0, ge=0, description="Differing edge rows that are accepted.")


class RunManifest(Value):
    """The whole declared intent of a run."""

    api_version: Literal["lakehouse-backfill/v1"] = Field(description="Version of this format.")
    run: RunIntent
    product: TableName = Field(description="The product to restate; has a contract.")
    transform: TransformRef
    sources: dict[Name, Source] = Field(min_length=1, description="Inputs by name.")
    reference_data: dict[Name, Reference] = Field(
        default_factory=dict, description="Reference inputs by name."
    )
    target: Target
    safety: Safety = Field(default_factory=Safety)
    limits: Limits = Field(default_factory=Limits)
    compute: Compute = Field(default_factory=Compute)
    validation: Validation = Field(default_factory=Validation)
    previous_code: PreviousCode | None = added_later(
        None,
        "The code that made the rows before any run did; `diff --attribute` computes them again "
        "with it.",
    )
    stateful: Stateful | None = added_later(
        None, "For a job that carries a state from one partition to the next."
    )

    @property
    def inputs(self) -> dict[str, Source | Reference]:
        """The sources, then the reference data, by name."""
        return {**self.sources, **self.reference_data}

    @property
    def input_tables(self) -> tuple[str, ...]:
        """The tables of the inputs."""
        return tuple(dict.fromkeys(item.table for item in self.inputs.values()))


class Tolerance(Value):
    """The tolerance of a column: values are equal up to `limit`.

    An absolute limit is in the column's own unit; a relative limit is a share of the greater of
    both absolute values.
    """

    column: str
    limit: Decimal = Field(ge=0, allow_inf_nan=False)
    is_relative: bool = False


NOTHING_PLANNED = "nothing was planned, pinned or changed"


def unplannable(problem: str, *, fix: str, field: str) -> Unsupported:
    """Build the error for what a run manifest may say, and no run can do here."""
    return Unsupported(problem, state=NOTHING_PLANNED, fix=fix, field=field)


class NotYetSupported(NamedTuple):
    """A field of which only one value is built yet, and what to do today instead of others."""

    path: tuple[str, ...]
    built: bool | str
    instead: str

    @property
    def field(self) -> str:
        """The field as people write it."""
        return ".".join(self.path)

    def refuses(self, value: Any) -> bool:
        """Return whether the value is of the field's type, and not built."""
        return type(value) is type(self.built) and value != self.built

    def problem(self, value: Any) -> str:
        """Return what is refused."""
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        return f"{shown[:60]} is not built yet"


NOT_YET_SUPPORTED = (
    NotYetSupported(
        ("safety", "side_effects"),
        built=False,
        instead="write false; act on other systems after the publication, from its event",
    ),
    NotYetSupported(
        ("safety", "on_deletions"),
        "block",
        "write block; leave partitions that shall lose all rows out with target.partitions.except",
    ),
)


def require_supported(manifest: RunManifest) -> None:
    """Raise Unsupported when the manifest uses a feature that this release lacks."""
    for feature in NOT_YET_SUPPORTED:
        value: Any = manifest
        for step in feature.path:
            value = getattr(value, step)
        if feature.refuses(value):
            raise unplannable(
                f"{feature.field}: {feature.problem(value)}",
                fix=feature.instead,
                field=feature.field,
            )
