"""The product contract and the catalog profiles, as written in YAML under `catalog/`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lakehouse_backfill.domain import defaults
from lakehouse_backfill.domain.declared import Name, SuiteRef, TableName, Text, Threshold
from lakehouse_backfill.domain.defaults import DEFAULT_KEEP_DAYS, DEFAULT_KEEP_VERSIONS
from lakehouse_backfill.domain.hooks import AfterPublish, Hook
from lakehouse_backfill.domain.rollout import CorrectionSink
from lakehouse_backfill.domain.value import Value, added_later


class ContractColumn(Value):
    """One column that consumers rely on; `type` is Iceberg's type text."""

    name: Name
    type: Text = Field(description="Iceberg type, e.g. long, date, decimal(10, 2), list<string>.")
    required: bool = Field(default=False, description="Whether null is impossible.")
    description: str = Field("", description="Meaning and unit.")


class ContractPartition(Value):
    """One partition field: Iceberg's transform of a column."""

    column: Name
    transform: str = Field("identity", description="identity, year, month, day, hour, bucket[16] …")


class Measure(Value):
    """An additive total that the owner watches: exactly one of sum, count, counts_by."""

    name: Name
    sum: Name | None = Field(None, description="Column to sum up.")
    count: Name | None = Field(None, description="Column whose non-null values are counted.")
    counts_by: Name | None = added_later(
        None, "Column of few values, e.g. a state: the rows of each value are a total of their own."
    )


class SourceTotal(Value):
    """A total of the candidate that must equal one of a source (Q4)."""

    measure: Name = Field(description="A measure of this contract, over the whole candidate.")
    source: Name = Field(description="A source of the run manifest.")
    sum: Name | None = Field(None, description="Column of the source to sum; rows if absent.")
    counts_by: Name | None = added_later(
        None, "Column of the source whose values are counted, for a measure with counts_by."
    )
    partition: Name | None = added_later(
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

    table: TableName = Field(description="namespace.table; one row names what must go.")
    columns: dict[Name, Name] = Field(
        min_length=1, description="Column of the product: column of that table with its value."
    )


class KeepVersions(Value):
    """Which accepted versions can be gone back to: the newest `count`, and all of the last days."""

    count: int = Field(
        DEFAULT_KEEP_VERSIONS,
        ge=2,
        description="How many at least, with the accepted one; at least 2.",
    )
    days: int = Field(
        DEFAULT_KEEP_DAYS, ge=0, description="How long one that was superseded is kept in any case."
    )


class Roles(Value):
    """Who may do what; an empty list means everybody."""

    approve: tuple[Text, ...] = ()
    accept: tuple[Text, ...] = ()
    publish: tuple[Text, ...] = ()
    waive: tuple[Text, ...] = ()
    validators: tuple[Text, ...] = added_later(
        (), "Who may read a candidate before it is published."
    )


class Contract(Value):
    """What consumers may rely on, and who decides about changes of it."""

    api_version: Literal["lakehouse-backfill/v1"] = Field(description="Version of this format.")
    product: TableName = Field(description="Name of the product, and of this file.")
    table: TableName = Field(description="The table that holds the product.")
    description: Text = Field(description="What one row means.")
    owner: Text = Field(description="Who decides about restatements of it.")
    publication: Literal["follow", "pinned"] = Field(
        "follow", description="follow: readers read the table; pinned: they resolve the pointer."
    )
    view: TableName | None = Field(
        None,
        description="SQL view that always shows the accepted version. REST catalogs make it for "
        "Spark and Trino; for others Spark makes it, so publish and rollback start Spark.",
    )
    key: tuple[Name, ...] = Field(description="Columns that identify a row; may be empty.")
    partitioning: tuple[ContractPartition, ...] = Field(
        min_length=1, description="The partitions that a run may restate."
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
    consumers: tuple[Consumer, ...] | None = Field(
        None, description="Who relies on the product; an empty list says: nobody."
    )
    classification: Literal["public", "internal", "confidential", "restricted"] | None = Field(
        None, description="How private the rows are; no run is approved before it is said."
    )
    retention_days: Annotated[int, Field(ge=1)] | Literal["unlimited"] | None = Field(
        None,
        description="How many days a row may be kept, or `unlimited`; no run is approved before "
        "it is said.",
    )
    corrections: CorrectionSink | None = added_later(
        None, "Where correction events go, for runs that publish in that mode."
    )
    deletions: Literal["block", "reapply"] = added_later(
        defaults.DEFAULT_DELETIONS,
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
    after_publish: AfterPublish | None = added_later(
        None, "What is checked once readers see a publication, and what a failure does."
    )
    roles: Roles = Field(default_factory=Roles, description="Who may decide what.")
    four_eyes: bool | None = Field(
        None, description="Whether approver and requester differ; default: on in prod."
    )


class Prices(Value):
    """What the plan multiplies its estimates with; all in US dollars."""

    core_hour: float | None = Field(None, ge=0)
    read_gb: float | None = Field(None, ge=0)
    write_gb: float | None = Field(None, ge=0)
    requests_1000: float | None = Field(None, ge=0)


class Profile(Value):
    """One lake: a catalog in PyIceberg's property names, and how Spark runs against it."""

    environment: Literal["dev", "prod"] = "dev"
    catalog: dict[str, str] = Field(
        description="PyIceberg properties with `name`; ${project} is the project's folder."
    )
    spark: dict[str, str] = Field(
        default_factory=dict, description="Spark settings, e.g. spark.master."
    )
    control_namespace: Name = "lakehouse_backfill"
    shadow_namespace: Name = "lakehouse_backfill_shadow"
    prices: Prices = Field(default_factory=Prices)
    lease_seconds: int = Field(
        300,
        ge=3,
        description="How long a run stays with a process that gives no sign of life any more.",
    )
    local_diff_limit_mib: int = Field(
        512,
        ge=0,
        description="Up to this size of changed files, in MiB, a diff needs no Spark.",
    )
    task_diff_limit_mib: int = Field(
        64,
        ge=0,
        description="Up to this size of changed files, in MiB, a Spark task compares a partition.",
    )


class Profiles(Value):
    """The profiles of a project."""

    api_version: Literal["lakehouse-backfill/v1"]
    default: str
    profiles: dict[str, Profile] = Field(min_length=1)
