"""One view of a catalog for a command that only reads: each table is loaded once.

A view is open while a plan is worked out. Conditional commits never decide by it: they load the
head that they replace, and what the view holds of that table is dropped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

T = TypeVar("T")
#: The metadata of a table with a long history takes tens of megabytes.
_MAX_TABLES, _MAX_MANIFESTS = 32, 256
#: Entries of larger manifests are read again: a few of them would fill the memory.
_MAX_ENTRIES = 200


class _Kept:
    """The newest things that were loaded, by name."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._loaded: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, name: Hashable, load: Callable[[], T]) -> T:
        """Return what was loaded under this name before, else load it; errors are not kept."""
        if name in self._loaded:
            self._loaded.move_to_end(name)
            found: T = self._loaded[name]
            return found
        found = self._loaded[name] = load()
        while len(self._loaded) > self._limit:
            self._loaded.popitem(last=False)
        return found

    def drop(self, name: Hashable) -> None:
        """Forget what was loaded under this name."""
        self._loaded.pop(name, None)


class ReadView:
    """What was loaded since the view was opened; the least recently used goes first."""

    def __init__(self) -> None:
        self.tables = _Kept(_MAX_TABLES)
        self.control_tables = _Kept(_MAX_TABLES)
        #: Manifest lists and manifests never change.
        self.manifests = _Kept(_MAX_MANIFESTS)
        #: Whether a manifest may list files of a scope: by table state, scope and spec.
        self.evaluators = _Kept(_MAX_TABLES)


_OPEN: WeakKeyDictionary[Catalog, ReadView] = WeakKeyDictionary()


@contextmanager
def one_view(catalog: Catalog) -> Iterator[None]:
    """Load each table once until the block ends; inside another view nothing changes.

    For code that commits to no table but control tables: other commits of the same command are not
    seen in it.
    """
    if catalog in _OPEN:
        yield
        return
    _OPEN[catalog] = ReadView()
    try:
        yield
    finally:
        del _OPEN[catalog]


def view_of(catalog: Catalog) -> ReadView | None:
    """Return the open view of the catalog, or None."""
    return _OPEN.get(catalog) if _OPEN else None


def list_manifests(table: Table, snapshot: Snapshot) -> list[ManifestFile]:
    """Return the manifests of a snapshot, read once in a view of the table's catalog."""
    view = view_of(table.catalog)
    if view is None:
        return snapshot.manifests(table.io)
    found = view.manifests.get(snapshot.manifest_list, lambda: snapshot.manifests(table.io))
    return list(found)


def known_entries(
    table: Table, manifest: ManifestFile, read: Callable[[], list[ManifestEntry]]
) -> list[ManifestEntry]:
    """Return the entries of a manifest; those of a small one are read once in a view."""
    view = view_of(table.catalog)
    counts = (manifest.added_files_count, manifest.existing_files_count)
    if view is None or None in counts or sum(filter(None, counts)) > _MAX_ENTRIES:
        return read()
    return view.manifests.get(manifest.manifest_path, read)
