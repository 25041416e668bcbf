"""Less work for the same reads and commits: PyIceberg, as tests use it.

Everything is still read from its file and written to it. What follows from a text alone is worked
out once: metadata from its JSON, readers of Avro from the schema in the file. Objects that cannot
change are shared instead of copied.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any


def make_quick() -> None:
    """Make the PyIceberg of this process quick; a second call changes nothing."""
    from pyiceberg.table import Transaction

    if getattr(Transaction, "is_quick", False):
        return
    Transaction.is_quick = True  # type: ignore[attr-defined]
    remember_metadata(Transaction)
    _share_frozen_parts()
    _parse_texts_once()
    _resolve_readers_once()
    _build_statements_once()


def remember_metadata(transactions: type[Any]) -> None:
    """Let transactions compute their metadata once per update.

    PyIceberg makes a deep copy of the whole metadata at each look, 15 times in one append: a third
    of the CPU of the tests on an embedded lake.
    """
    compute = transactions.table_metadata.fget
    if compute is None or getattr(compute, "remembers", False):
        return

    def table_metadata(transaction: Any) -> Any:
        known = transaction.__dict__.get("_known_metadata")
        base, updates = transaction._table.metadata, transaction._updates
        if known is None or known[0] is not base or known[1] is not updates:
            known = transaction.__dict__["_known_metadata"] = (base, updates, compute(transaction))
        return known[2]

    table_metadata.remembers = True  # type: ignore[attr-defined]
    transactions.table_metadata = property(table_metadata)


def _share_frozen_parts() -> None:
    """Let a copy of metadata hold the same schemas, specs and snapshots: none of them can change.

    The metadata itself is copied, and with it its lists and properties.
    """
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.refs import SnapshotRef
    from pyiceberg.table.snapshots import MetadataLogEntry, Snapshot, SnapshotLogEntry
    from pyiceberg.table.sorting import SortOrder

    for frozen in (
        MetadataLogEntry, PartitionSpec, Schema, Snapshot, SnapshotLogEntry, SnapshotRef, SortOrder,
    ):  # fmt: skip
        frozen.__deepcopy__ = _same  # type: ignore[attr-defined]


def _same(part: Any, _: Any = None) -> Any:
    return part


def _parse_texts_once() -> None:
    """Parse the same JSON of a table's metadata, or of an Avro file's schema, once."""
    from pyiceberg.avro.file import AvroFileHeader
    from pyiceberg.table.metadata import TableMetadataUtil

    parse = TableMetadataUtil.parse_raw
    TableMetadataUtil.parse_raw = staticmethod(lru_cache(256)(parse))  # type: ignore[assignment]

    known: dict[str, Any] = {}
    convert = AvroFileHeader.get_schema

    def get_schema(header: AvroFileHeader) -> Any:
        text = header.meta.get("avro.schema", "")
        if text not in known:
            known[text] = convert(header)
        return known[text]

    AvroFileHeader.get_schema = get_schema  # type: ignore[method-assign]


def forget_metadata() -> None:
    """Drop parsed metadata with its table again, in a process whose memory is measured."""
    from pyiceberg.table.metadata import TableMetadataUtil

    cached: Any = TableMetadataUtil.parse_raw
    if hasattr(cached, "cache_clear"):
        cached.cache_clear()
        TableMetadataUtil.parse_raw = staticmethod(cached.__wrapped__)


def _resolve_readers_once() -> None:
    """Keep the reader for a pair of schemas; a reader holds nothing of the file that it reads."""
    from pyiceberg.avro import file as avro

    resolve, construct = avro.resolve_reader, avro.construct_reader
    known: dict[Any, tuple[Any, ...]] = {}

    def resolved(file: Any, wanted: Any, types: Any = (), enums: Any = ()) -> Any:
        key = (id(file), id(wanted), *dict(types).items(), *dict(enums).items())
        if key not in known:
            # With the schemas, so that no other object gets their ids.
            known[key] = (resolve(file, wanted, dict(types), dict(enums)), file, wanted)
        return known[key][0]

    header = construct(avro.META_SCHEMA, {-1: avro.AvroFileHeader})

    def constructed(schema: Any, types: Any = ()) -> Any:
        return header if schema is avro.META_SCHEMA else construct(schema, dict(types))

    avro.resolve_reader, avro.construct_reader = resolved, constructed


def _build_statements_once() -> None:
    """Find a table in a catalog's database by one statement, built once for all.

    SQLAlchemy makes and compares the parts of a new one at each load: a quarter of the CPU of a
    command on an embedded lake.
    """
    from pyiceberg.catalog import Catalog
    from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
    from pyiceberg.exceptions import NoSuchTableError
    from sqlalchemy import bindparam, select

    column = IcebergTables.__table__.c
    statement = select(column.metadata_location, column.table_namespace, column.table_name).where(
        column.catalog_name == bindparam("catalog"),
        column.table_namespace == bindparam("namespace"),
        column.table_name == bindparam("table"),
    )
    known: dict[Any, Any] = {}

    def load_table(catalog: SqlCatalog, identifier: Any) -> Any:
        wanted = {
            "catalog": catalog.name,
            "namespace": Catalog.namespace_to_string(Catalog.namespace_from(identifier)),
            "table": Catalog.table_name_from(identifier),
        }
        version = catalog._schema_version
        if version not in known:
            tables_only = catalog._iceberg_type_filter()
            known[version] = statement if tables_only is None else statement.where(tables_only)
        with catalog.engine.connect() as connection:
            row = connection.execute(known[version], wanted).first()
        if row is None:
            raise NoSuchTableError(f"Table does not exist: {wanted['namespace']}.{wanted['table']}")
        return catalog._convert_orm_to_iceberg(row)  # type: ignore[arg-type]

    SqlCatalog.load_table = load_table  # type: ignore[method-assign,assignment]
