"""Declared migrations, as written in `catalog/migrations/NAME.yaml`; what is found and done.

Field descriptions become the JSON Schema that editors use (`lakehouse-backfill schema migration`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import uuid4

from pydantic import Field

from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.rollout import ReaderQuery
from lakehouse_backfill.domain.serialization import Name, TableName, Text, Value, digest

#: What is done with a part of the old place: `adopt`: its file becomes a file of the table where it
#: lies; `rewrite`: its rows are written again; `reject`: it is bad, and none of it is migrated.
PartAction = Literal["adopt", "rewrite", "reject"]
#: The branch that holds what is not accepted yet; `main` stays empty until then.
MIGRATION_BRANCH = "migration"


class ParquetFolder(Value):
    """A folder of Parquet files, with or without Hive-style partition folders `column=value`."""

    location: Text = Field(
        description="Folder, relative to the project, or a URI such as s3://bucket/trips."
    )
    pattern: Text = Field(
        "**", description="Which files, e.g. **/*.parquet; ** crosses folders. Names that begin "
        "with . or _ are left alone, as Spark leaves them."
    )  # fmt: skip


class PostgresTable(Value):
    """A table of PostgreSQL, read in one snapshot of the database."""

    dsn: Name = Field(
        description="Environment variable that holds the connection string; it is stored nowhere."
    )
    table: Text = Field(description="Table or view, e.g. public.trips.")
    key: Name = Field(description="Column by whose order it is read: unique, and never null.")
    rows_per_part: int = Field(
        100_000, ge=1, le=10_000_000, description="Rows of one range of keys, which is one part."
    )


class MigrationDeclaration(Value):
    """One migration: the old place, and the product that its rows become."""

    api_version: Literal["lakehouse-backfill/v1"] = Field(description="Version of this format.")
    migration: Name = Field(description="Name of the migration; the file is called like it.")
    kind: Literal["migration"] = Field("migration", description="The run kind.")
    product: TableName = Field(
        description="The product; its contract says table, columns and partitioning."
    )
    reason: Text = Field(description="Why, in a sentence.")
    parquet: ParquetFolder | None = Field(None, description="The old place is a folder.")
    postgres: PostgresTable | None = Field(None, description="The old place is a database.")
    bad_parts: Literal["block", "leave_out"] = Field(
        "block",
        description="What bad files mean: nothing is migrated, or everything else is, and the "
        "evidence names them.",
    )
    copy_files: Literal["when_needed", "always"] = Field(
        "when_needed",
        description="when_needed: files that Iceberg can read stay where they are; always: every "
        "file is written again, so that the old place can be deleted later.",
    )
    files_per_commit: int = Field(1000, ge=1, le=10_000, description="Parts in one commit at most.")
    readers: tuple[ReaderQuery, ...] = Field(
        (),
        description="Queries of readers over the relation `product`: they must have the same "
        "answer in the old place and in the table before the table is accepted.",
    )


class MigrationPart(Value):
    """One file or range of keys: what it is, what it holds, and what is done with it."""

    name: str
    action: PartAction
    because: str = ""
    size_bytes: int = 0
    #: Time of change and digest of the footer, as they were when it was read.
    modified: str = ""
    footer: str = ""
    rows: int = 0
    #: By partition of the table: the checksum of its rows.
    sums: dict[str, Checksum] = Field(default_factory=dict)
    #: Values of the partition of an adopted file in Iceberg's binary form, as hex; None: null.
    partition: tuple[str | None, ...] = ()
    #: Where Iceberg reads an adopted file.
    path: str = ""
    #: The rows of a range of keys: after the first key, up to the last one, as texts.
    keys: tuple[str | None, str] | None = None


class MigrationState(Value):
    """How far a migration is; a property of its table, committed together with rows."""

    migration_id: str
    migration: str
    product: str
    #: Digests of the declaration with the contract's table, and of the recorded survey.
    declared: str
    survey: str
    parts: int
    #: Good parts that are committed, in the order of their names.
    position: int = 0
    files: int = 0
    step: int = 0
    started_at: datetime
    #: Names this commit, and the one before it.
    token: str = ""
    follows: str = ""
    #: Whether files of the old place are files of the table.
    keeps_files: bool = False
    #: Digest of the evidence that both sides agree, once they do.
    proof: str = ""
    is_accepted: bool = False
    #: Who began it.
    by: str

    @property
    def mode(self) -> str:
        """The mode of its commits and log lines."""
        return "backfill"


@dataclass(frozen=True)
class MigrationSurvey:
    """What the old place holds, every row of it read and summed."""

    parts: tuple[MigrationPart, ...]
    notes: tuple[str, ...] = ()

    @property
    def good(self) -> tuple[MigrationPart, ...]:
        """The parts that are migrated, in the order of their names."""
        return tuple(part for part in self.parts if part.action != "reject")

    @property
    def rejected(self) -> tuple[MigrationPart, ...]:
        """The parts that are bad."""
        return tuple(part for part in self.parts if part.action == "reject")

    @property
    def sums(self) -> dict[str, Checksum]:
        """The checksum of each partition over all good parts."""
        return total_sums(part.sums for part in self.good)


def total_sums(found: Any) -> dict[str, Checksum]:
    """Add the checksums of parts up, by partition."""
    total: dict[str, Checksum] = {}
    for sums in found:
        for label, checksum in sums.items():
            total[label] = total[label] + checksum if label in total else checksum
    return total


def next_migration_state(state: MigrationState, **changes: Any) -> MigrationState:
    """Return the state after the next commit: it names the commit that it follows."""
    links = {"step": state.step + 1, "follows": state.token, "token": uuid4().hex}
    return state.model_copy(update={**changes, **links})


def new_migration_id(migration: str, began_at: datetime) -> str:
    """Return the id of a migration that begins now."""
    return f"{MIGRATION_ID_PREFIX}{digest([migration, began_at.isoformat()])[:10]}"


#: Evidence of ids that begin so is of a migration, which has no log of events.
MIGRATION_ID_PREFIX = "mg-"
