"""Looking at what a change of a table's partitions would have to write."""

from __future__ import annotations

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFileContent, ManifestContent, ManifestFile
from pyiceberg.table.refs import MAIN_BRANCH

from lakehouse_backfill.adapters.iceberg.catalog import (
    advertised_endpoints,
    load_table_or_none,
    translate_errors,
)
from lakehouse_backfill.adapters.iceberg.manifests import ManifestCache, ScopedReader
from lakehouse_backfill.adapters.iceberg.metadata import has_live_files, snapshot_summary
from lakehouse_backfill.domain.scope import Scope
from lakehouse_backfill.domain.ways import TableFacts
from lakehouse_backfill.ports.surveying import TableSurveyor

_REGISTER_ENDPOINT = "POST /v1/{prefix}/namespaces/{namespace}/register"


class IcebergTableSurveyor(TableSurveyor):
    """Reads manifest lists, and manifests of delete files where there are equality deletes."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def survey(self, table: str, scope: Scope | None) -> TableFacts | None:
        """Give the facts; of the manifests of data files only the list is read."""
        loaded = load_table_or_none(self._catalog, table)
        if loaded is None:
            return None
        head = loaded.metadata.snapshot_by_name(MAIN_BRANCH)
        version = loaded.metadata.format_version
        registers = _offers_register(self._catalog)
        if scope is None or head is None:
            return TableFacts(format_version=version, registers=registers)
        with translate_errors():
            manifests = [m for m in head.manifests(loaded.io) if has_live_files(m)]
            reader = ScopedReader(loaded, scope, ManifestCache())
            near = [m for m in manifests if reader.may_hold(m)]
            has_equality = snapshot_summary(head).get("total-equality-deletes", "1") != "0"
            return TableFacts(
                format_version=version,
                registers=registers,
                equality_deletes=_count_equality_deletes(reader, near) if has_equality else 0,
                entries=sum(_count_entries(m) for m in near if m.content == ManifestContent.DATA),
            )


def _offers_register(catalog: Catalog) -> bool:
    """Look at what a REST server advertises; one that advertises nothing is tried when needed."""
    offered = advertised_endpoints(catalog)
    return not offered or _REGISTER_ENDPOINT in offered


def _count_equality_deletes(reader: ScopedReader, manifests: list[ManifestFile]) -> int:
    found = 0
    for manifest in manifests:
        if manifest.content == ManifestContent.DELETES:
            live = reader.live_deletes(manifest)
            found += sum(e.data_file.content == DataFileContent.EQUALITY_DELETES for e in live)
    return found


def _count_entries(manifest: ManifestFile) -> int:
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
