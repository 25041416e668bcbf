"""Table facts from metadata, declared schema changes, stored files, and catalog capabilities."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from datetime import date, datetime
from typing import Any, NamedTuple

from pydantic import Field

from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.labels import names
from lakehouse_backfill.domain.partitions import ANY_COLUMN
from lakehouse_backfill.domain.serialization import ColumnName, Text, Value, added_later


class Capabilities(Value):
    """Observed behaviour of one catalog on test tables; `seen` explains each false capability."""

    tags: bool = Field(description="A tag is kept, with the age that it was given.")
    branches: bool = Field(description="A branch is kept.")
    branch_commits: bool = Field(
        description="A live writer on main goes on when a branch got a commit in between."
    )
    register_table: bool = Field(
        description="A table registered from a metadata file comes back as it was written."
    )
    built_clones: bool = Field(
        description="A new table takes another's columns, by their ids, and its snapshot."
    )
    new_uuid: bool = Field(description="A table takes a new UUID: an overtaken writer is shut out.")
    data_path: bool = Field(
        description="A table keeps a write.data.path outside of its own location."
    )
    views: bool = Field(description="SQL views can be made, by PyIceberg or by Spark.")
    multi_table_commit: bool = Field(
        description="The server offers to commit to several tables at once."
    )
    # What older releases kept lacks these: nobody has looked, and runs go on as before.
    overlap: bool = Field(
        default=True,
        description="A table keeps a write.data.path inside of another table's location.",
    )
    rights_beside: bool = Field(
        default=True,
        description="With the credentials that come with a table, files beside it are written, "
        "and with those of its clone its own are read.",
    )
    client_planning: bool = Field(
        default=True,
        description="The server lets clients read manifests, and plan scans themselves.",
    )
    idempotency_keys: bool = Field(
        default=False, description="The server executes a change once for each Idempotency-Key."
    )
    unregister: bool = Field(
        default=False, description="A table is taken out of the catalog without a drop."
    )
    seen: dict[str, str] = Field(
        default_factory=dict, description="What was answered instead, by capability."
    )

    @property
    def clones(self) -> bool:
        """Whether a run may use a zero-copy clone that shuts out writers with an expired lease."""
        return (self.register_table or self.built_clones) and self.new_uuid


class SchemaStep(Value):
    """One step: exactly one of `add`, `widen` and `rename`; all name the columns as they are."""

    add: ColumnName | None = Field(
        None, description="Name of a new column; rows of before hold null."
    )
    type: Text | None = Field(None, description="With `add`: its Iceberg type, a simple one.")
    doc: Text | None = Field(None, description="With `add`: what it means.")
    widen: ColumnName | None = Field(None, description="Column that gets a wider type.")
    rename: ColumnName | None = Field(None, description="Column that gets another name.")
    to: Text | None = Field(
        None, description="With `widen`: the new type. With `rename`: the new name."
    )


class AddedColumn(Value):
    """A column that only the new side of a diff has, and how many compared rows hold a value."""

    name: str
    rows: int


#: The declared steps, in order; empty: the columns stay unchanged.
SchemaChange = tuple[SchemaStep, ...]


class MetadataFile(Value):
    """A manifest list or a manifest of a snapshot, with its SHA-256.

    `listed_bytes` is the size that the manifest list gives a manifest; None for the list itself.
    """

    path: str
    size_bytes: int
    sha256: str
    listed_bytes: int | None = None


class StoredCheck(Value):
    """One comparison of stored state with accepted state; `because` names the method.

    `ok` is None where nothing could be compared; `because` then gives the reason.
    """

    name: str
    ok: bool | None
    expected: Any = None
    found: Any = None
    because: str = ""


class BranchShadow(NamedTuple):
    """A shadow that is a branch of its target: one branch for each epoch of the run."""

    target: str
    stem: str

    @property
    def name(self) -> str:
        """The name that stands for the newest branch wherever a table is named."""
        run = self.stem.removeprefix(BRANCH_PREFIX).replace("-", "_")
        return f"{self.target}.{_BRANCH_PART}{run}"

    @property
    def branch_pattern(self) -> str:
        """The names of its branches, for people: `lhb-RUN-eN`."""
        return f"{self.stem}-eN"

    def branch(self, epoch: int) -> str:
        """Return the branch that only the driver of this epoch commits to."""
        return f"{self.stem}-e{epoch}"

    def epoch_of(self, branch: str) -> int | None:
        """Return the epoch of one of the shadow's branches; None for any other reference."""
        found = _EPOCH_BRANCH.fullmatch(branch)
        return int(found[2]) if found and found[1] == self.stem else None


class BranchHead(NamedTuple):
    """The newest branch of a shadow: its epoch, and its head."""

    shadow: BranchShadow
    epoch: int
    head_id: int


#: Prefix of the branches of runs. Run ids hold no underscore.
BRANCH_PREFIX, _BRANCH_PART = "lhb-", "branch_lhb_"
_EPOCH_BRANCH = re.compile(rf"({BRANCH_PREFIX}.+)-e(\d+)")


def branch_shadow(target: str, run_id: str) -> BranchShadow:
    """Return the shadow of a run as a branch of its target."""
    return BranchShadow(target, BRANCH_PREFIX + run_id)


def parse_branch_shadow(name: str) -> BranchShadow | None:
    """Return the shadow that `BranchShadow.name` stands for; None for the name of a table."""
    target, _, last = name.rpartition(".")
    if not last.startswith(_BRANCH_PART) or not names.is_table_text(target):
        return None
    return branch_shadow(target, last.removeprefix(_BRANCH_PART).replace("_", "-"))


def table_of_snapshots(name: str) -> str:
    """Return the table whose history holds the snapshots of a shadow: its own, or its target's."""
    shadow = parse_branch_shadow(name)
    return shadow.target if shadow else name


def shadow_of_branch(target: str, branch: str) -> BranchShadow | None:
    """Return the shadow that a branch belongs to; None for a branch of somebody else."""
    found = _EPOCH_BRANCH.fullmatch(branch)
    return BranchShadow(target, found[1]) if found else None


#: A part in backticks may hold the mark before a reference.
_REFERENCE = re.compile(r"((?:`(?:[^`]|``)+`|[^`@])+)(?:@(.*))?", re.DOTALL)


class TableRef(Value):
    """A table, optionally at a snapshot id, tag, branch or ISO timestamp: `ns.table@at`."""

    table: str
    at: str | None = None

    @staticmethod
    def parse(text: str) -> TableRef:
        """Parse `ns.table[@at]`; raise ValueError for another text."""
        found = _REFERENCE.fullmatch(text)
        if found is None or found[2] == "":
            raise ValueError(f"{text!r} is not namespace.table or namespace.table@reference")
        return TableRef(table=names.normal_table_text(found[1]), at=found[2])

    def __str__(self) -> str:
        return f"{self.table}@{self.at}" if self.at else self.table


class Column(Value):
    """One top-level column; `type` is Iceberg's type text, e.g. `decimal(10, 2)`."""

    field_id: int
    name: str
    type: str
    required: bool = False
    doc: str | None = None


class Snapshot(Value):
    """One snapshot: instants in milliseconds since 1970 UTC; `columns` are those of its schema."""

    snapshot_id: int
    parent_id: int | None
    sequence_number: int
    committed_at_ms: int
    operation: str
    summary: dict[str, str]
    schema_id: int | None = None
    columns: tuple[Column, ...] = ()


class PartitionField(Value):
    """One field of the default partition spec: Iceberg's transform text of a source column."""

    name: str
    column: str
    transform: str
    path: tuple[str, ...] = added_later(
        (), "Of a field of a struct: the names that lead to it; `column` is its full name."
    )
    type: str = added_later("", "Type of a field of a struct.")

    @property
    def root(self) -> str:
        """The column of the table that holds the values."""
        return self.path[0] if self.path else self.column


class TableInfo(Value):
    """The current state of a table, from its metadata alone."""

    table: str
    uuid: str
    location: str
    format_version: int
    snapshot_id: int | None
    schema_id: int
    spec_id: int
    columns: tuple[Column, ...]
    partitioning: tuple[PartitionField, ...]
    spec_count: int
    properties: dict[str, str]
    refs: dict[str, int]

    def column(self, name: str) -> Column | None:
        """Return the column called `name`, or None."""
        return next((column for column in self.columns if column.name == name), None)


class LiveFile(Value):
    """A data file that is live in a snapshot; `partition` is its label for the scoped field.

    It is None beside the tuples of a narrowed field. `deletes` names the live delete files that
    apply to it: readers see fewer than its `rows` then. A file of a coarser spec (a month, where
    days are scoped) `spans` several of the field's partitions, and has the coarser label. `values`
    counts non-null values of the requested columns, where metadata has them. `hidden` counts the
    rows that each position delete file names, in any file; `vector_rows` those of its vector.
    """

    path: str
    spec_id: int
    partition: str | None
    rows: int
    size_bytes: int
    deletes: tuple[str, ...] = ()
    spans: tuple[str, ...] = ()
    values: dict[str, int] = Field(default_factory=dict)
    hidden: dict[str, int] = added_later({}, "Rows that position delete files name, by file.")
    vector_rows: int | None = added_later(None, "Rows that its deletion vector hides.")
    place: str = added_later("", "Tells partitions of one label apart, by their other fields.")

    def is_in(self, labels: Collection[str]) -> bool:
        """Return whether all of the file's rows are in the partitions."""
        own = self.spans or (self.partition,)
        return all(label in labels for label in own)

    @property
    def content(self) -> tuple[str, str | None, tuple[str, ...]]:
        """The identity of its rows: other delete files or another partition mean other rows."""
        return self.path, self.partition, self.deletes


def visible_rows(files: Iterable[LiveFile]) -> tuple[int, int]:
    """Return how many rows readers see of files: at least, and at most, by metadata alone.

    A deletion vector tells exactly. A position delete file may name a row twice, or rows of other
    files. An equality delete may hide any row.
    """
    least = most = 0
    rows_in_reach, counts = dict[str, int](), dict[str, int]()
    for file in files:
        rows = file.rows - (file.vector_rows or 0)
        most += rows
        if any(name not in file.hidden for name in file.deletes):
            continue
        least += rows
        # Where a file has a deletion vector, position delete files do not apply to it.
        for name, count in file.hidden.items() if file.vector_rows is None else ():
            rows_in_reach[name] = rows_in_reach.get(name, 0) + file.rows
            counts[name] = count
    hidden = sum(min(counts[name], rows) for name, rows in rows_in_reach.items())
    return max(0, least - hidden), most


class ColumnSpan(Value):
    """The values of a column that one data file holds, from `first` to `last`, by its metadata.

    Both are None where metadata does not tell. `least_rows` and `most_rows` bound the rows with a
    value that readers see. `is_exact`: readers see rows with both `first` and `last`. `added_by`:
    the snapshot that added the file, if known. `deletes`: the delete files that apply to it.
    """

    path: str
    first: datetime | date | None
    last: datetime | date | None
    least_rows: int
    most_rows: int
    is_exact: bool = False
    added_by: int | None = None
    deletes: tuple[str, ...] = ()


class ScanEstimate(Value):
    """An upper bound of what a pruned scan reads, from metadata: whole files, rows and bytes."""

    files: int
    rows: int
    size_bytes: int


class SpecPartitions(Value):
    """The partition tuples of one spec for labels of a scope, as `name=value/name=value`.

    `spans` holds, for tuples of a coarser spec, the labels that each holds rows of.
    """

    spec_id: int
    spec: str
    partitions: tuple[str, ...]
    spans: tuple[tuple[str, ...], ...] = ()


class ScopedFiles(NamedTuple):
    """The live data files of a scope, and the partition tuples that hold them, by spec."""

    files: tuple[LiveFile, ...] = ()
    places: tuple[SpecPartitions, ...] = ()


def first_scope_column(of: TableInfo | Contract) -> str:
    """Return the first column that partitions are by; `*`, the whole table, without one."""
    return of.partitioning[0].column if of.partitioning else ANY_COLUMN


def added_column_names(change: SchemaChange) -> tuple[str, ...]:
    """Return the names of the added columns."""
    return tuple(step.add for step in change if step.add is not None)


def renamed_columns(change: SchemaChange) -> dict[str, str]:
    """Return the new name of each renamed column."""
    return {step.rename: step.to or "" for step in change if step.rename is not None}


def widened_columns(change: SchemaChange) -> dict[str, str]:
    """Return the new type of each widened column, by its old name."""
    return {step.widen: normalise_type(step.to or "") for step in change if step.widen is not None}


def normalise_type(kind: str) -> str:
    """Return a type's text without spaces, the form in which types are compared."""
    return re.sub(r"\s+", "", kind)


def describe_schema_step(step: SchemaStep) -> str:
    """Return a step in words."""
    if step.add is not None:
        return f"add {step.add} {normalise_type(step.type or '')}"
    if step.widen is not None:
        return f"widen {step.widen} to {normalise_type(step.to or '')}"
    return f"rename {step.rename} to {step.to}"


def schema_differences(
    before: Iterable[Column], after: Iterable[Column], change: SchemaChange
) -> tuple[str, ...]:
    """Return the columns in which `after` differs from `before` with the change; empty: none.

    Existing columns are matched by id, added columns by name, type and a higher id.
    """
    names, types = renamed_columns(change), widened_columns(change)
    expected = {
        column.field_id: (
            names.get(column.name, column.name),
            types.get(column.name, normalise_type(column.type)),
            column.required,
        )
        for column in before
    }
    last = max(expected, default=0)
    added_columns = {
        step.add: normalise_type(step.type or "") for step in change if step.add is not None
    }
    differing = []
    for column in after:
        actual = (column.name, normalise_type(column.type), column.required)
        if column.field_id in expected:
            if expected.pop(column.field_id) != actual:
                differing.append(column.name)
        elif column.field_id <= last or (added_columns.pop(column.name, None), False) != actual[1:]:
            differing.append(column.name)
    return (*differing, *(name for name, _, _ in expected.values()), *added_columns)


def schema_change_notes(change: SchemaChange, contract: Contract) -> tuple[str, ...]:
    """Return the plan's notes: what changes, for whom, and what the contract still lacks."""
    if not change:
        return ()
    contract_types = {column.name: normalise_type(column.type) for column in contract.columns}
    notes = [
        "columns change in the commit of the publication: "
        f"{', '.join(map(describe_schema_step, change))}"
    ]
    missing = [
        name
        for name in (*added_column_names(change), *renamed_columns(change).values())
        if name not in contract_types
    ]
    if missing:
        notes.append(f"the contract does not list {', '.join(missing)}: add it before the next run")
    stale = [name for name in renamed_columns(change) if name in contract_types]
    stale += [
        name
        for name, kind in widened_columns(change).items()
        if contract_types.get(name, kind) != kind
    ]
    if stale:
        notes.append(
            f"the contract says {', '.join(dict.fromkeys(stale))} as before: correct it once the "
            "run is published, or later runs fail the gate of kept columns"
        )
    readers = ", ".join(consumer.name for consumer in contract.consumers or ()) or "nobody is named"
    notes.append(f"consumers who see other columns: {readers}")
    notes.append("rollback puts the rows back and leaves the columns: old rows read null")
    return tuple(notes)


class TableMovement(Value):
    """Commits of one writer to one table; `application`: the engine's, where the commits name it.

    `made_for`: the run, or the publication, of this toolkit that made them; empty for others.
    `operations` are those of the snapshots; `set back` where main was moved to an older snapshot.
    """

    table: str
    writer: str
    application: str
    made_for: str
    commits: int
    operations: tuple[str, ...]
    last_snapshot_id: int

    def __str__(self) -> str:
        word = "commit" if self.commits == 1 else "commits"
        return (
            f"{self.table}: {self.commits} {word} ({', '.join(self.operations)}) by {self.writer}, "
            f"last snapshot {self.last_snapshot_id}"
        )


class CatalogMovements(Value):
    """What was committed to the tables of a catalog since an instant, by table and writer.

    `looked_at` tables were read; those in `unreadable` could not be. Unless `is_whole`, there are
    more tables than were looked at. Tables that were dropped since are not seen.
    """

    looked_at: int
    unreadable: tuple[str, ...]
    is_whole: bool
    moved: tuple[TableMovement, ...] = ()
