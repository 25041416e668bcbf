"""The product contract and the catalog profiles, as written in YAML under `catalog/`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lakehouse_backfill.model.manifest import Name, SuiteRef, TableName, Text
from lakehouse_backfill.model.value import Value


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
    """An additive total that the owner watches, e.g. `sum: flights`; exactly one of sum, count."""

    name: Name
    sum: Name | None = Field(None, description="Column to sum up.")
    count: Name | None = Field(None, description="Column whose non-null values are counted.")


class SourceTotal(Value):
    """A total of the candidate that must equal one of a source (Q4)."""

    measure: Name = Field(description="A measure of this contract, over the whole candidate.")
    source: Name = Field(description="A source of the run manifest.")
    sum: Name | None = Field(None, description="Column of the source to sum; rows if absent.")
    tolerance: float = Field(0.0, ge=0, description="Share by which they may differ.")


class Threshold(Value):
    """A change of a measure that needs the owner's recorded review (Q6)."""

    measure: Name
    max_change: float = Field(gt=0, description="Share of the old total, e.g. 0.2.")


class Consumer(Value):
    """Somebody who relies on the product."""

    name: Text
    contact: str = ""
    tolerates_restatement: bool = Field(description="Whether history may change under them.")


class Roles(Value):
    """Who may do what; an empty list means everybody."""

    approve: tuple[Text, ...] = ()
    accept: tuple[Text, ...] = ()
    publish: tuple[Text, ...] = ()
    waive: tuple[Text, ...] = ()


class Contract(Value):
    """What consumers may rely on, and who decides about changes of it."""

    api_version: Literal["lakehouse-backfill/v1"] = Field(description="Version of this format.")
    product: TableName
    table: TableName = Field(description="The table that holds the product.")
    description: Text
    owner: Text
    publication: Literal["follow", "pinned"] = Field(
        "follow", description="follow: readers read the table; pinned: they resolve the pointer."
    )
    view: TableName | None = Field(
        None,
        description="SQL view that always shows the accepted version. Spark makes it, so that "
        "publish and rollback of the product start Spark.",
    )
    key: tuple[Name, ...] = Field(description="Columns that identify a row; may be empty.")
    partitioning: tuple[ContractPartition, ...] = Field(min_length=1)
    columns: tuple[ContractColumn, ...] = Field(min_length=1)
    lineage_columns: bool = Field(
        default=False, description="Whether rows carry the run that made them."
    )
    measures: tuple[Measure, ...] = ()
    source_totals: tuple[SourceTotal, ...] = ()
    thresholds: tuple[Threshold, ...] = ()
    suites: tuple[SuiteRef, ...] = ()
    consumers: tuple[Consumer, ...] = ()
    classification: Literal["public", "internal", "confidential", "restricted"] = "internal"
    retention_days: int | None = Field(None, ge=1)
    roles: Roles = Field(default_factory=Roles)
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


class Profiles(Value):
    """The profiles of a project."""

    api_version: Literal["lakehouse-backfill/v1"]
    default: str
    profiles: dict[str, Profile] = Field(min_length=1)
