"""Declared sources, as written in `catalog/sources/NAME.yaml`: what is landed, and where.

Field descriptions become the JSON Schema that editors use (`lakehouse-backfill schema source`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lakehouse_backfill.domain.contract import ContractColumn, ContractPartition
from lakehouse_backfill.domain.serialization import Name, TableName, Text, Value

SourceKind = Literal["files"]
DuplicatePolicy = Literal["ignore", "reprocess", "correction", "reject"]

#: Columns that a landing adds to those of each source: name, Iceberg type, meaning.
LANDING_COLUMNS = (
    ("landing_id", "string", "The landing that brought the row in."),
    ("landed_at", "timestamptz", "When the row was read from its source."),
)
#: Columns that a landing of files adds, before those of all landings.
FILE_COLUMNS = (
    ("source_file", "string", "Path of the file, relative to the folder of the source."),
    ("source_row", "long", "Number of the row in its file, from 1."),
    ("source_attempt", "int", "Which delivery of the file it is: 1, 2, 3 …"),
    ("business_date", "date", "The business date of the file; null: it has none."),
)


class CsvFormat(Value):
    """How CSV files are written; the first row names the columns."""

    delimiter: Annotated[str, Field(min_length=1, max_length=1)] = Field(
        ",", description="One character between two values."
    )
    null_texts: tuple[str, ...] = Field(("",), description="Texts that stand for no value.")


class LandingManifestRef(Value):
    """The list of expected files that the producer delivers beside them."""

    file: Text = Field(description="Path of the list, relative to the folder; JSON or YAML.")
    required: bool = Field(default=True, description="Whether nothing is landed without it.")


class FileArchive(Value):
    """Where files are moved once they are landed or rejected."""

    accepted: Text = Field(description="Folder or URI for files whose rows were landed.")
    rejected: Text = Field(description="Folder or URI for files that were rejected or ignored.")


class FileSource(Value):
    """Files in a folder or bucket; a file is landed whole or not at all."""

    location: Text = Field(
        description="Folder, relative to the project, or a URI such as s3://bucket/inbox."
    )
    pattern: Text = Field("*", description="Which files, e.g. trips-*.csv; ** crosses folders.")
    format: Literal["csv", "json", "parquet"] = Field(description="json: one object a line.")
    csv: CsvFormat = Field(default_factory=CsvFormat)
    on_duplicate: DuplicatePolicy = Field(
        "reject",
        description="What a file means that was landed before: `ignore` it, `reprocess` (its rows "
        "replace the earlier ones), `correction` (its rows are added beside the earlier ones, with "
        "the next source_attempt), or `reject` it.",
    )
    business_date: Text | None = Field(
        None,
        description="Regular expression on the path, whose first group is the date: "
        "YYYY-MM-DD or YYYYMMDD.",
    )
    landing_manifest: LandingManifestRef | None = Field(
        None, description="List of expected files: missing or extra ones block."
    )
    archive: FileArchive | None = Field(None, description="Files stay in their folder if absent.")
    schema_version: Text | None = Field(None, description="Recorded in the ledger.")
    max_file_mib: int = Field(1024, ge=1, description="Larger files are rejected.")
    files_per_commit: int = Field(64, ge=1, le=1000, description="Files in one commit at most.")


class SourceDeclaration(Value):
    """One source: its kind, and the raw table that it is landed in."""

    api_version: Literal["lakehouse-backfill/v1"] = Field(description="Version of this format.")
    source: Name = Field(description="Name of the source; the file is called like it.")
    kind: SourceKind = Field(description="What the source is.")
    table: TableName = Field(description="Raw table; created when it does not exist.")
    description: str = Field("", description="What the source holds.")
    owner: str = Field("", description="Who answers for it.")
    columns: tuple[ContractColumn, ...] = Field(
        min_length=1, description="Columns of a record; the landing adds its own."
    )
    partitioning: tuple[ContractPartition, ...] = Field(
        (), description="Partitioning of the raw table; none if absent."
    )
    keep_days: int = Field(
        90, ge=1, le=36500, description="How long the tag of a landing keeps its snapshot."
    )
    files: FileSource | None = Field(None, description="For kind files.")

    @property
    def added_columns(self) -> tuple[tuple[str, str, str], ...]:
        """Columns of the raw table beside those of a record: name, type, meaning."""
        return (*FILE_COLUMNS, *LANDING_COLUMNS)

    @property
    def all_columns(self) -> tuple[ContractColumn, ...]:
        """The columns of the raw table, in order."""
        added = (
            ContractColumn(name=name, type=kind, description=meaning)
            for name, kind, meaning in self.added_columns
        )
        return (*self.columns, *added)
