"""The product contract, as written in `catalog/contracts/PRODUCT.yaml`.

The defaults are the careful choices that docs/manifest.md documents (M8).
"""

from __future__ import annotations

from datetime import date
from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from lakehouse_backfill.domain.cascade.graph import CascadeTemplate, Upstream
from lakehouse_backfill.domain.guards.outside import CorrectionSink, Hook, Sink
from lakehouse_backfill.domain.guards.privacy import Classification, ColumnPrivacy, Privacy
from lakehouse_backfill.domain.labels.values import Grain
from lakehouse_backfill.domain.profile import Environment
from lakehouse_backfill.domain.serialization import (
    ColumnName,
    Name,
    TableName,
    TableText,
    Text,
    Value,
    added_later,
)


class SuiteRef(Value):
    """A Great Expectations suite to run on the output or on one input."""

    file: Text = Field(description="Suite file inside the project, under expectations/.")
    on: Name = Field("output", description="`output`, or the name of a source or reference.")
    parameters: dict[Name, str] = Field(
        default_factory=dict,
        description="Suite parameters filled from data: `name: input.column`, its distinct values.",
    )


class Threshold(Value):
    """A change of a measure that needs the owner's recorded review (Q6)."""

    measure: Name = Field(description="A measure of the contract.")
    max_change: float = Field(ge=0, description="Share of the old total, e.g. 0.2.")
    each_partition: bool = added_later(
        False,  # noqa: FBT003 (a default, not an argument)
        "Whether it holds for each partition by itself, not only for all of them together.",
    )


#: Days for which the pins of a run are kept after its result was accepted.
PIN_DAYS: Final = 30


class AfterPublish(Value):
    """What is checked once readers see a publication, read as a consumer reads it."""

    suites: tuple[SuiteRef, ...] = Field(
        (), description="Suites that the accepted version must pass, of the restated partitions."
    )
    on_failed: Literal["alert", "rollback"] = Field(
        "alert", description="alert: exit code 3 and a failed check; rollback: also roll back."
    )


class ContractColumn(Value):
    """One column that consumers rely on; `type` is Iceberg's type text."""

    name: ColumnName
    type: Text = Field(description="Iceberg type, e.g. long, date, decimal(10, 2), list<string>.")
    required: bool = Field(default=False, description="Whether null is impossible.")
    description: str = Field("", description="Meaning and unit.")


class ContractPartition(Value):
    """One partition field: Iceberg's transform of a column."""

    column: ColumnName
    transform: str = Field("identity", description="identity, year, month, day, hour, bucket[16] …")
    path: tuple[ColumnName, ...] = added_later(
        (), "Of a field of a struct: the names that lead to it; `column` is its full name."
    )
    type: Text | None = added_later(None, "Iceberg type of a field of a struct.")
    grain: Grain | None = added_later(
        None, "What rows are aggregated over, if more than a partition: month, or a width of ids."
    )

    @property
    def root(self) -> str:
        """The column of the product that holds the values."""
        return self.path[0] if self.path else self.column


class Measure(Value):
    """An additive total that the owner watches: exactly one of sum, count, counts_by."""

    name: Name
    sum: ColumnName | None = Field(None, description="Column to sum up.")
    count: ColumnName | None = Field(None, description="Column whose non-null values are counted.")
    counts_by: ColumnName | None = added_later(
        None, "Column of few values, e.g. a state: the rows of each value are a total of their own."
    )


class SourceTotal(Value):
    """A total of the candidate that must equal one of a source (Q4)."""

    measure: Name = Field(description="A measure of this contract, over the whole candidate.")
    source: Name = Field(description="A source of the run manifest.")
    sum: ColumnName | None = Field(None, description="Column of the source to sum; rows if absent.")
    counts_by: ColumnName | None = added_later(
        None, "Column of the source whose values are counted, for a measure with counts_by."
    )
    partition: ColumnName | None = added_later(
        None,
        "Column of the source that says the product's partition: the run's partitions are compared "
        "one by one, instead of both tables as a whole.",
    )
    tolerance: float = Field(0.0, ge=0, description="Share by which they may differ.")


class Watch(Value):
    """Whether what is unusual about a result is reported, blocks, or is not looked at."""

    anomalies: Literal["report", "block", "off"] = Field(
        "report",
        description="Row counts and measures of a partition, far from those of at least 8 earlier "
        "partitions of the same weekday.",
    )
    distributions: Literal["report", "block", "off"] = Field(
        "report", description="Columns whose values are spread otherwise than before."
    )


class Assumption(Value):
    """Something that the transform takes for granted of its input: a text and its proof."""

    text: Text = Field(description="What is assumed, in a sentence that the owner understands.")
    file: Text = Field(description="Suite file inside the project that holds when the text does.")
    on: Name = Field(description="The source or reference that it is about.")
    parameters: dict[Name, str] = Field(
        default_factory=dict, description="As for suites: `name: input.column`."
    )


class TransformRule(Value):
    """Versions of a transform that must not be used for the product any more."""

    name: Name = Field(description="Name of the transform.")
    versions: Annotated[str, StringConstraints(pattern=r"^(<|<=)?\d+\.\d+\.\d+$")] = Field(
        description="One version, e.g. 1.2.0, or all before it: <1.2.0, <=1.2.0."
    )
    forbidden: bool = Field(default=False, description="`plan` refuses them.")
    deprecated_after: date | None = Field(
        None, description="`plan` warns of them until the end of this day (UTC), then refuses them."
    )
    reason: Text = Field(description="Why, in a sentence that `plan` shows.")

    def covers(self, name: str, version: str) -> bool:
        """Return whether the rule is about a version of a transform."""
        bound = self.versions.lstrip("<=")
        order = [tuple(int(part) for part in each.split(".")) for each in (version, bound)]
        is_before = self.versions.startswith("<") and order[0] < order[1]
        is_same = not self.versions.startswith("<") or self.versions.startswith("<=")
        return name == self.name and (is_before or (is_same and order[0] == order[1]))


class Consumer(Value):
    """Somebody who relies on the product."""

    name: Text
    contact: str = ""
    tolerates_restatement: bool = Field(description="Whether history may change under them.")
    reads: Literal["batch", "stream"] = added_later(
        "batch", "`stream`: follows the table's snapshots, e.g. a Spark streaming reader."
    )


class Tombstones(Value):
    """A table that names rows which must not be in the product any more, e.g. erased people."""

    table: TableText = Field(description="namespace.table; one row names what must go.")
    columns: dict[ColumnName, ColumnName] = Field(
        min_length=1, description="Column of the product: column of that table with its value."
    )


class KeepVersions(Value):
    """Which accepted versions can be gone back to: the newest `count`, and all of the last days."""

    count: int = Field(
        10,
        ge=2,
        description="How many at least, with the accepted one; at least 2.",
    )
    days: int = Field(90, ge=0, description="How long one that was superseded is kept in any case.")


class Roles(Value):
    """Who may do what; an empty list means everybody."""

    approve: tuple[Text, ...] = ()
    accept: tuple[Text, ...] = ()
    publish: tuple[Text, ...] = ()
    waive: tuple[Text, ...] = ()
    validators: tuple[Text, ...] = added_later(
        (), "Who may read a candidate before it is published."
    )
    rollback: tuple[Text, ...] = added_later((), "Who may roll back; empty: those of publish.")


class Contract(Value):
    """What consumers may rely on, and who decides about changes of it."""

    api_version: Literal["lakehouse-backfill/v1"] = Field(description="Version of this format.")
    product: TableName = Field(description="Name of the product, and of this file.")
    table: TableText = Field(description="The table that holds the product.")
    description: Text = Field(description="What one row means.")
    owner: Text = Field(description="Who decides about restatements of it.")
    publication: Literal["follow", "pinned"] = Field(
        "follow", description="follow: readers read the table; pinned: they resolve the pointer."
    )
    view: TableText | None = Field(
        None,
        description="SQL view that always shows the accepted version. REST catalogs make it for "
        "Spark and Trino; for others Spark makes it, so publish and rollback start Spark.",
    )
    versions_table: TableName | None = added_later(
        None,
        "Table of all kept versions of a pinned product, with the columns `output_version` and "
        "`output_status`; `view` then shows its accepted rows.",
    )
    key: tuple[ColumnName, ...] = Field(description="Columns that identify a row; may be empty.")
    partitioning: tuple[ContractPartition, ...] = Field(
        description="The partitions that a run may restate; [] where it restates the whole table."
    )
    columns: tuple[ContractColumn, ...] = Field(
        min_length=1, description="What consumers may rely on."
    )
    lineage_columns: bool | None = Field(
        None,
        description="Whether rows carry the run that made them; default: in a table that the run "
        "creates, and in one that has all of these columns.",
    )
    measures: tuple[Measure, ...] = Field((), description="Additive totals that the owner watches.")
    source_totals: tuple[SourceTotal, ...] = Field(
        (), description="Totals that must equal those of a source."
    )
    thresholds: tuple[Threshold, ...] = Field(
        (), description="Changes of a measure that the owner must have looked at."
    )
    watch: Watch = added_later(
        Watch(), "What is said of numbers and distributions that are unusual."
    )
    suites: tuple[SuiteRef, ...] = Field((), description="Suites that every run must pass.")
    assumptions: tuple[Assumption, ...] = Field(
        (), description="What every run takes for granted of its pinned input, each with a suite."
    )
    business_rules: tuple[Text, ...] = added_later(
        (), "What holds of the rows for the business, in sentences; `plan` shows them."
    )
    transform_versions: tuple[TransformRule, ...] = added_later(
        (), "Versions of transforms that are deprecated or forbidden."
    )
    consumers: tuple[Consumer, ...] | None = Field(
        None, description="Who relies on the product; an empty list says: nobody."
    )
    classification: Classification | None = Field(
        None, description="How private the rows are; no run is approved before it is said."
    )
    retention_days: Annotated[int, Field(ge=1)] | Literal["unlimited"] | None = Field(
        None,
        description="How many days a row may be kept, or `unlimited`; no run is approved before "
        "it is said.",
    )
    privacy: Privacy | None = added_later(
        None, "Classes and masks of columns, and what the data may be used for by whom."
    )
    corrections: CorrectionSink | None = added_later(
        None, "Where correction events go, for runs that publish in that mode."
    )
    deletions: Literal["block", "reapply"] = added_later(
        "block",
        "Rows that were deleted from the table while a run was open, or since the version that is "
        "rolled back to: `block` stops, `reapply` leaves them out there too. Without a key it is "
        "always `block`.",
    )
    tombstones: tuple[Tombstones, ...] = added_later(
        (), "Tables that name rows which no run may write, publish or bring back."
    )
    keep_versions: KeepVersions = added_later(
        KeepVersions(),
        "Accepted versions that rollback can lead to; older ones are let go by `maintain`.",
    )
    hooks: tuple[Hook, ...] = added_later(
        (), "Commands and webhooks that are called around publication: pause, rebuild, tell."
    )
    sinks: tuple[Sink, ...] = added_later(
        (), "What the product's code acts on outside, and what it may do in which mode."
    )
    after_publish: AfterPublish | None = added_later(
        None, "What is checked once readers see a publication, and what a failure does."
    )
    upstreams: tuple[Upstream, ...] = added_later(
        (), "Products that this one is computed from, and which of its partitions theirs reach."
    )
    cascade: CascadeTemplate | None = added_later(
        None, "How the product is restated when an upstream is; without it a cascade leaves it out."
    )
    critical: bool = added_later(
        False,  # noqa: FBT003 (a default, not an argument)
        "Whether a cascade computes it first among the products that are ready.",
    )
    roles: Roles = Field(default_factory=Roles, description="Who may decide what.")
    roles_in: dict[Environment, Roles] = added_later(
        {}, "Roles of one environment, in place of `roles`: `prod: {publish: [ana]}`."
    )
    four_eyes: bool | None = Field(
        None, description="Whether approver and requester differ; default: on in prod."
    )

    def holders(self, role: str, environment: str) -> tuple[str, ...]:
        """Return who may act as `role` in an environment; an empty tuple means everybody."""
        found = next((ours for name, ours in self.roles_in.items() if name == environment), None)
        roles = found or self.roles
        holders: tuple[str, ...] = getattr(roles, role)
        return roles.publish if role == "rollback" and not holders else holders

    def partition_type(self, partition: ContractPartition) -> str:
        """Return the type of a partition field's source; empty where no column has the name."""
        by_name = {column.name: column.type for column in self.columns}
        return partition.type or by_name.get(partition.column, "")

    def class_of(self, column: str) -> Classification | None:
        """Return the class of a column: its own, else that of the rows."""
        if self.privacy is not None:
            for name, declared in self.privacy.columns.items():
                if name.casefold() == column.casefold() and declared.classification is not None:
                    return declared.classification
        return self.classification

    @property
    def masked_columns(self) -> dict[str, ColumnPrivacy]:
        """The columns that the toolkit masks, by name."""
        declared = self.privacy.columns if self.privacy else {}
        return {name: column for name, column in declared.items() if column.mask is not None}

    @property
    def restricted_columns(self) -> tuple[str, ...]:
        """The columns whose values no report shows: restricted ones, and masked ones.

        Columns that partitions are named by are left out unless they say so themselves: their
        values are in paths and labels.
        """
        labels = {item.column for item in self.partitioning}
        masked = self.masked_columns
        own = self.privacy.columns if self.privacy else {}
        return tuple(
            column.name
            for column in self.columns
            if column.name in masked
            or (
                self.class_of(column.name) == "restricted"
                and (column.name not in labels or column.name in own)
            )
        )
