"""Copies of tables in another lake, by their metadata alone: what a rehearsal works on.

A copy has the real table's whole history, and shares its data files. Its UUID, its location and
its properties of location are its own, so everything that is written to it lies in its lake.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataUtil

from lakehouse_backfill.adapters.iceberg import metadata as meta
from lakehouse_backfill.adapters.iceberg.catalog import (
    load_table,
    load_table_or_none,
    translate_errors,
)
from lakehouse_backfill.adapters.iceberg.shadow.clone import (
    CLONE_PROPERTIES,
    LOCATION_PROPERTIES,
    differing_parts,
    read_metadata_file,
    write_metadata_file,
)
from lakehouse_backfill.domain.labels.names import namespace_text, table_parts, unique_plain_name
from lakehouse_backfill.domain.publication import REHEARSAL_PROPERTY
from lakehouse_backfill.errors import Conflict, Unsupported
from lakehouse_backfill.fault_points import commit_window
from lakehouse_backfill.ports.tables import TableCopies

#: Fields of the metadata that name files which commits, or expiry, would delete.
_OWN_FILES = ("metadata-log", "statistics", "partition-statistics")


@dataclass(frozen=True)
class IcebergCopies(TableCopies):
    """Copies from the real catalog, which is only read, into that of a rehearsal."""

    real: Catalog
    place: Catalog

    def real_metadata(self, table: str) -> str:
        """Return the location of the real table's newest metadata file."""
        return str(load_table(self.real, table).metadata_location)

    def require_other_lake(self, tables: tuple[str, ...]) -> None:
        """Raise Conflict when the rehearsal's catalog has one of the tables, and it is no copy."""
        for table in tables:
            found = load_table_or_none(self.place, table)
            if found is not None and REHEARSAL_PROPERTY not in found.properties:
                raise Conflict(
                    f"the lake of the rehearsal has a table {table} that is no copy of a "
                    "rehearsal: it is the real lake, or somebody uses that table",
                    state="nothing was copied or registered",
                    fix="name a profile whose catalog has none of the tables that the run reads "
                    "or changes; docs/rollout.md has one to copy",
                )

    def copy(self, table: str) -> None:
        """Copy the table as it is now; a copy of an earlier rehearsal is replaced.

        Raises Unsupported where the catalog does not keep what is registered.
        """
        source = load_table(self.real, table)
        with translate_errors():
            namespace = namespace_text(table)
            with commit_window("Catalog.create_namespace"):
                self.place.create_namespace_if_not_exists(namespace)
            location = self._location(namespace, table)
            found = read_metadata_file(source.io, source.metadata_location)
            document = _copied(found, location, str(source.metadata.table_uuid))
            file = f"{location}/metadata/00000-{uuid4()}.metadata.json"
            with commit_window("Shadows.metadata_file"):
                write_metadata_file(self.place._load_file_io(location=location), file, document)
            self._register(table, file, document)

    def _register(self, table: str, file: str, document: dict[str, Any]) -> None:
        earlier = load_table_or_none(self.place, table)
        if earlier is not None:
            self._drop(table, earlier)
        with commit_window("Shadows.register"):
            kept = self.place.register_table(table, file)
        wanted = TableMetadataUtil.parse_obj(json.loads(json.dumps(document)))
        differing = differing_parts(kept.metadata, wanted)
        if differing:
            self._drop(table, kept)
            raise Unsupported(
                f"the rehearsal's catalog does not keep what is registered: {', '.join(differing)} "
                f"of {table} differ",
                state="nothing was published; the real table was only read",
                fix="use another catalog for rehearsals, such as an SQLite file",
            )

    def _drop(self, table: str, earlier: Table) -> None:
        """Take an earlier copy out of the catalog; no file is deleted."""
        if REHEARSAL_PROPERTY not in earlier.properties:
            self.require_other_lake((table,))
        with commit_window("Shadows.drop"):
            self.place.drop_table(table)

    def _location(self, namespace: str, table: str) -> str:
        """Return a folder that no table had before."""
        *levels, last = map(unique_plain_name, table_parts(table))
        name = f"{last}__rehearsal_{uuid4().hex[:12]}"
        found = self.place.load_namespace_properties(table_parts(namespace)).get("location")
        warehouse = self.place.properties.get("warehouse", "").rstrip("/")
        root = found or f"{warehouse}/{'.'.join(levels)}"
        if "://" not in root and not root.startswith(("/", "file:")):
            raise Unsupported(
                f"the rehearsal's catalog says of no folder that tables of {namespace} lie in",
                state="nothing was copied or registered",
                fix="give the profile's catalog a warehouse: with an address",
            )
        return f"{root.rstrip('/')}/{name}"


def _copied(found: dict[str, Any], location: str, real_uuid: str) -> dict[str, Any]:
    """Return the metadata of the copy: the real history, and nothing that leads to real folders."""
    dropped = set(LOCATION_PROPERTIES)
    kept = {
        name: text
        for name, text in found.get("properties", {}).items()
        if name not in dropped and not name.startswith(meta.PROPERTY_PREFIX)
    }
    own: dict[str, Any] = {name: [] for name in _OWN_FILES if name in found}
    return {
        **found,
        **own,
        "table-uuid": str(uuid4()),
        "location": location,
        "properties": {**kept, **CLONE_PROPERTIES, REHEARSAL_PROPERTY: real_uuid},
    }
