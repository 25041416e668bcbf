"""Declared sources, as written in `catalog/sources/NAME.yaml`: what is landed, and where.

Field descriptions become the JSON Schema that editors use (`lakehouse-backfill schema source`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lakehouse_backfill.domain.contract import ContractColumn, ContractPartition
from lakehouse_backfill.domain.serialization import Name, TableName, Text, Value
from lakehouse_backfill.domain.sources.schemas import SchemaRegistry

SourceKind = Literal["files", "api", "kafka"]
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
#: Columns that a landing of a change log adds, before those of its kind of source.
CHANGE_COLUMNS = (
    ("change_op", "string", "c, u, d, r (read by a snapshot), or tombstone."),
    ("change_position", "decimal(38, 0)", "Place in the log of the database, as one number."),
    ("change_at", "timestamptz", "When the database made the change."),
    ("change_emitted_at", "timestamptz", "When the connector wrote the record."),
    ("change_transaction", "string", "Transaction in the database."),
    ("change_snapshot", "string", "Mark of a snapshot: true, first, last …; false: none."),
    ("change_before", "string", "The row before, as JSON; null: not sent."),
    ("change_after", "string", "The row after, as JSON; null: deleted."),
    ("change_origin", "string", "The whole `source` of the record, as JSON."),
    ("change_hash", "string", "SHA-256 of operation, row before and row after."),
)
#: Columns that a landing of an API adds.
API_COLUMNS = (
    ("record_id", "string", "Id of the record, as text."),
    ("change", "string", "insert, update, correction (same version, other content) or deletion."),
    ("record_hash", "string", "SHA-256 of the record's canonical JSON."),
    ("record", "string", "The whole record as JSON, as it was received."),
    ("page", "long", "Number of the response in its landing; null for a deletion."),
    ("sequence", "long", "Order of the rows of this table: of a record the highest counts."),
)
#: Columns that a landing of a topic adds.
KAFKA_COLUMNS = (
    ("kafka_topic", "string", "The topic."),
    ("kafka_partition", "int", "Partition of the topic."),
    ("kafka_offset", "long", "Offset in its partition."),
    ("kafka_timestamp", "timestamptz", "Timestamp of the record; null: it has none."),
    ("kafka_timestamp_type", "string", "create_time (of the event) or log_append_time."),
    ("kafka_key", "binary", "The key as it is."),
    ("kafka_value", "binary", "The value as it is; null: a tombstone."),
    ("kafka_headers", "list<struct<key: string, value: binary>>", "The headers, in their order."),
    ("parse_error", "string", "Why the value is no record of the declared columns; null: it is."),
)
#: What a landing adds, by kind.
COLUMNS_OF_KIND = {"files": FILE_COLUMNS, "api": API_COLUMNS, "kafka": KAFKA_COLUMNS}
#: Columns of the table of raw responses, TABLE_responses.
RESPONSE_COLUMNS = (
    ("page", "long", "Number of the response in its landing, from 1."),
    ("request", "string", "Where the request stood, as JSON; without credentials."),
    ("status", "int", "HTTP status."),
    ("body", "string", "The response as it was received."),
    ("body_hash", "string", "SHA-256 of the body."),
    ("received_at", "timestamptz", "When it was received."),
)


class CsvFormat(Value):
    """How CSV files are written; the first row names the columns."""

    delimiter: Annotated[str, Field(min_length=1, max_length=1)] = Field(
        ",", description="One character between two values."
    )
    null_texts: tuple[str, ...] = Field(("",), description="Texts that stand for no value.")


class LandingManifestRef(Value):
    """The list of expected files that the producer delivers beside them."""

    file: Text = Field(description="Path of the list, relative to the folder; JSON.")
    required: bool = Field(default=True, description="Whether nothing is landed without it.")


class FileArchive(Value):
    """Where files are moved once they are landed or rejected."""

    accepted: Text = Field(description="Folder or URI for files whose rows were landed.")
    rejected: Text = Field(description="Folder or URI for files that were rejected or ignored.")


class ChangeLog(Value):
    """Records of a database's change log, as Debezium writes them."""

    key: tuple[Name, ...] = Field(
        min_length=1, description="Columns that identify a row in the database."
    )
    position: tuple[Text, ...] = Field(
        min_length=1,
        max_length=3,
        description="Fields of `source` that order the changes, whole numbers or names that end "
        "with .NUMBER: [lsn] of PostgreSQL, [file, pos, row] of MySQL.",
    )
    instants: Literal["ms", "us", "ns"] | None = Field(
        None,
        description="Unit of whole numbers in columns of instants, since 1970; none: numbers there "
        "reject the file.",
    )


class FileSource(Value):
    """Files in a folder or bucket; a file is landed whole or not at all."""

    location: Text = Field(
        description="Folder, relative to the project, or a URI such as s3://bucket/inbox."
    )
    pattern: Text = Field("*", description="Which files, e.g. trips-*.csv; ** crosses folders.")
    format: Literal["csv", "json", "parquet", "debezium"] = Field(
        description="json: one object a line; debezium: one record of a change log a line."
    )
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


class CursorPaging(Value):
    """Each response names the next one."""

    by: Literal["cursor"]
    parameter: Text = Field(description="Query parameter that takes the cursor.")
    next: Text = Field(description="Where a response holds the next cursor, e.g. meta.next.")
    continues: bool = Field(
        default=False,
        description="Whether a later landing goes on from the last cursor, as in a feed of "
        "changes; else each landing reads everything and lands what is new.",
    )


class WindowPaging(Value):
    """Requests for half-open windows of time; a window may have several pages."""

    by: Literal["window"]
    from_: Text = Field(alias="from", description="Query parameter of the first instant.")
    to: Text = Field(description="Query parameter of the first instant after the window.")
    column: Name = Field(description="Column of a record that holds its instant or date.")
    hours: int = Field(24, ge=1, le=87600, description="Length of a window.")
    cursor: Text | None = Field(None, description="Query parameter of the next page in a window.")
    next: Text | None = Field(None, description="Where a response holds the next cursor.")


class IdRangePaging(Value):
    """Requests for records with ids after the last one; responses are in the order of ids."""

    by: Literal["id_range"]
    parameter: Text = Field(description="Query parameter that takes the last id that was read.")
    first: str = Field("0", description="Id to begin after.")


class ApiCredentials(Value):
    """A secret header; its value is read from the environment and stored nowhere."""

    header: Text = Field("Authorization", description="Name of the header.")
    prefix: str = Field("Bearer ", description="What stands before the secret.")
    env: Text = Field(description="Environment variable that holds the secret.")


class Webhook(Value):
    """Requests that the vendor sends by itself; `land SOURCE --listen PORT` takes them."""

    secret: Text = Field(description="Environment variable with the secret of the signatures.")
    signature_header: Text = Field(
        "X-Signature", description="Header with the HMAC-SHA256 of the body, in hex digits."
    )
    signature_prefix: str = Field("sha256=", description="What stands before the digits.")
    delivery_header: Text | None = Field(
        None, description="Header that names a delivery; one that is sent again is left out."
    )
    path: str = Field("/", pattern=r"^/", description="Path that requests are sent to.")
    records: str = Field(
        "", description="Where a body holds its records, one or a list; '': it is them."
    )
    max_body_kib: int = Field(1024, ge=1, le=65536, description="Larger bodies are refused.")
    max_waiting: int = Field(
        10000, ge=1, description="Requests that wait to be landed; further ones are refused."
    )
    requests_per_commit: int = Field(500, ge=1, le=10000, description="At most.")
    commit_every_s: float = Field(10, gt=0, le=3600, description="Pause between two commits.")


class ApiSource(Value):
    """An HTTP API that answers with pages of JSON records."""

    url: Text = Field(description="http:// or https:// address of the records.")
    parameters: dict[str, str] = Field(
        default_factory=dict, description="Further query parameters, e.g. {limit: 500}."
    )
    headers: dict[str, str] = Field(default_factory=dict, description="Headers without secrets.")
    credentials: ApiCredentials | None = Field(None, description="A secret header.")
    records: str = Field("", description="Where a response holds its records; '' : it is the list.")
    id: Name = Field(description="Field that identifies a record.")
    version: Name | None = Field(
        None,
        description="Field that the vendor raises with every change; other content with the same "
        "version is a silent correction.",
    )
    paging: (
        Annotated[CursorPaging | WindowPaging | IdRangePaging, Field(discriminator="by")] | None
    ) = Field(None, description="None: one response holds everything (a snapshot export).")
    requests_per_second: float = Field(10, ge=0.0001, description="At most.")
    retries: int = Field(6, ge=0, le=100, description="Of one request.")
    timeout_s: float = Field(60, gt=0, description="Of one request.")
    longest_wait_s: float = Field(
        900, ge=0, le=86400, description="Longest pause that the server may ask for."
    )
    retention_days: int | None = Field(
        None,
        ge=1,
        le=36500,
        description="How far back the vendor keeps records; earlier ranges are refused.",
    )
    pages_per_commit: int = Field(10, ge=1, le=1000, description="Responses in one commit.")
    max_response_mib: int = Field(
        64, ge=1, le=1024, description="Larger responses, once decompressed, are refused."
    )
    webhook: Webhook | None = Field(None, description="What the vendor sends by itself.")


class KafkaSource(Value):
    """A topic of Kafka: it is read by offsets, without a consumer group and without commits."""

    bootstrap_servers: Text = Field(description="host:port of some brokers, by commas.")
    topic: Text = Field(description="Name of the topic.")
    format: Literal["raw", "json", "debezium"] = Field(
        "raw",
        description="json: the value is also parsed into the declared columns; debezium: key and "
        "value are a record of a change log.",
    )
    schemas: SchemaRegistry | None = Field(
        None,
        description="Where the schemas are whose ids values begin with (Confluent's header). By "
        "them values in Avro, Protobuf or JSON are decoded before they are parsed; those that "
        "were used are kept with the rows.",
    )
    unreadable: Literal["block", "keep"] = Field(
        "block",
        description="A value that does not fit the columns: `block` lands nothing from its "
        "checkpoint on, `keep` lands it with its value, `parse_error` and no other column.",
    )
    disorder_s: int | None = Field(
        None,
        ge=0,
        description="Seconds after its own timestamp at which a record is in the topic at the "
        "latest; no timestamp lies in the future. None: not known, so that --to reads on to the "
        "end of the topic. Not used where brokers set the timestamps.",
    )
    column_disorder_s: dict[Name, Annotated[int, Field(ge=0)]] = Field(
        default_factory=dict,
        description="The same of declared columns with the time of an event, e.g. {happened_at: "
        "3600}; of a date, after its day begins. `plan --window` by such a column needs it.",
    )
    settings: dict[str, str] = Field(
        default_factory=dict,
        description="Properties of librdkafka for the connection, e.g. {security.protocol: "
        "SASL_SSL}; no secrets.",
    )
    secrets: dict[str, Text] = Field(
        default_factory=dict,
        description="Properties whose values are read from environment variables, e.g. "
        "{sasl.password: KAFKA_PASSWORD}.",
    )
    rows_per_commit: int = Field(200_000, ge=1, description="Records in one commit at most.")
    mib_per_commit: int = Field(256, ge=1, description="MiB of keys and values in one commit.")
    timeout_s: float = Field(60, gt=0, description="How long the brokers may stay silent.")


class SourceDeclaration(Value):
    """One source: its kind, and the raw table that it is landed in."""

    api_version: Literal["lakehouse-backfill/v1"] = Field(description="Version of this format.")
    source: Name = Field(description="Name of the source; the file is called like it.")
    kind: SourceKind = Field(description="What the source is.")
    table: TableName = Field(description="Raw table; created when it does not exist.")
    description: str = Field("", description="What the source holds.")
    owner: str = Field("", description="Who answers for it.")
    columns: tuple[ContractColumn, ...] = Field(
        (),
        description="Columns of a record; the landing adds its own. A topic of format raw has "
        "none, all others have one at least.",
    )
    partitioning: tuple[ContractPartition, ...] = Field(
        (), description="Partitioning of the raw table; none if absent."
    )
    keep_days: int = Field(
        90, ge=1, le=36500, description="How long the tag of a landing keeps its snapshot."
    )
    change_log: ChangeLog | None = Field(
        None, description="For format debezium; `columns` are those of the database's table."
    )
    files: FileSource | None = Field(None, description="For kind files.")
    api: ApiSource | None = Field(None, description="For kind api.")
    kafka: KafkaSource | None = Field(None, description="For kind kafka.")

    @property
    def added_columns(self) -> tuple[tuple[str, str, str], ...]:
        """Columns of the raw table beside those of a record: name, type, meaning."""
        changes = CHANGE_COLUMNS if self.change_log else ()
        return (*changes, *COLUMNS_OF_KIND[self.kind], *LANDING_COLUMNS)

    @property
    def all_columns(self) -> tuple[ContractColumn, ...]:
        """The columns of the raw table, in order."""
        added = (
            ContractColumn(name=name, type=kind, description=meaning)
            for name, kind, meaning in self.added_columns
        )
        return (*self.record_columns, *added)

    @property
    def record_columns(self) -> tuple[ContractColumn, ...]:
        """The columns of a record; a change may lack each of them, as a tombstone does."""
        if self.change_log is None:
            return self.columns
        return tuple(one.model_copy(update={"required": False}) for one in self.columns)

    @property
    def response_table(self) -> str:
        """The table of raw responses of an API."""
        return f"{self.table}_responses"


class ResponseDeclaration(SourceDeclaration):
    """The table of raw responses of an API, declared like a raw table."""

    @staticmethod
    def of(source: SourceDeclaration) -> ResponseDeclaration:
        """Return the declaration of the responses of a source."""
        return ResponseDeclaration(
            api_version=source.api_version,
            source=source.source,
            kind=source.kind,
            table=source.response_table,
            description=f"Raw responses of the source {source.source}.",
            columns=tuple(
                ContractColumn(name=name, type=kind, description=meaning)
                for name, kind, meaning in RESPONSE_COLUMNS
            ),
        )

    @property
    def added_columns(self) -> tuple[tuple[str, str, str], ...]:
        """Columns beside those of a response."""
        return LANDING_COLUMNS
