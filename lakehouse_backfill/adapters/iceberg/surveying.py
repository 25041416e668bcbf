"""Looking at what a change of a table's partitions would have to write."""

from __future__ import annotations

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFileContent, ManifestContent, ManifestFile
from pyiceberg.table.refs import MAIN_BRANCH

from lakehouse_backfill.adapters.iceberg.catalog import advertised, load_or_none, translated
from lakehouse_backfill.adapters.iceberg.manifests import ManifestCache, ScopedReader
from lakehouse_backfill.adapters.iceberg.metadata import is_live, summary_of
from lakehouse_backfill.domain.scope import Scope
from lakehouse_backfill.domain.ways import TableFacts
from lakehouse_backfill.ports.surveying import Surveying

_REGISTER = "POST /v1/{prefix}/namespaces/{namespace}/register"


class IcebergSurveying(Surveying):
    """Reads manifest lists, and manifests of delete files where there are equality deletes."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def survey(self, table: str, scope: Scope | None) -> TableFacts | None:
        """Give the facts; of the manifests of data files only the list is read."""
        loaded = load_or_none(self._catalog, table)
        if loaded is None:
            return None
        head = loaded.metadata.snapshot_by_name(MAIN_BRANCH)
        version = loaded.metadata.format_version
        registers = _offers_register(self._catalog)
        if scope is None or head is None:
            return TableFacts(format_version=version, registers=registers)
        with translated():
            manifests = [m for m in head.manifests(loaded.io) if is_live(m)]
            reader = ScopedReader(loaded, scope, ManifestCache())
            near = [m for m in manifests if reader.may_hold(m)]
            has_equality = summary_of(head).get("total-equality-deletes", "1") != "0"
            return TableFacts(
                format_version=version,
                registers=registers,
                equality_deletes=_equality_deletes(reader, near) if has_equality else 0,
                entries=sum(_entries(m) for m in near if m.content == ManifestContent.DATA),
            )


def _offers_register(catalog: Catalog) -> bool:
    """Look at what a REST server advertises; one that advertises nothing is tried when needed."""
    offered = advertised(catalog)
    return not offered or _REGISTER in offered


def _equality_deletes(reader: ScopedReader, manifests: list[ManifestFile]) -> int:
    found = 0
    for manifest in manifests:
        if manifest.content == ManifestContent.DELETES:
            live = reader.live_deletes(manifest)
            found += sum(e.data_file.content == DataFileContent.EQUALITY_DELETES for e in live)
    return found


def _entries(manifest: ManifestFile) -> int:
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
