"""Probes of what a catalog supports, on temporary tables: its name and type prove nothing."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    CommitStateUnknownException,
    RESTError,
)
from pyiceberg.io import OutputFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import AssertTableUUID, AssignUUIDUpdate, SetPropertiesUpdate
from pyiceberg.types import LongType, NestedField

from lakehouse_backfill.adapters.iceberg import catalog as catalogs
from lakehouse_backfill.adapters.iceberg.commit.multi_table import commit_tables, why_not_together
from lakehouse_backfill.adapters.iceberg.commit.snapshot_producer import TableChange
from lakehouse_backfill.adapters.iceberg.metadata import (
    BUILT_BECAUSE_PROPERTY,
    CAPABILITIES_PROPERTY,
    NEVER_EXPIRES_MS,
)
from lakehouse_backfill.adapters.iceberg.rest.answers import (
    is_denied,
    is_unsupported_by_server,
)
from lakehouse_backfill.adapters.iceberg.rest.offers import (
    announces_keys,
    can_unregister,
)
from lakehouse_backfill.adapters.iceberg.shadow.clone import BuiltClone, build_clone_metadata
from lakehouse_backfill.adapters.iceberg.shadow.shadows import IcebergShadows
from lakehouse_backfill.adapters.iceberg.views import build_view_version
from lakehouse_backfill.domain.tables.capabilities import Capabilities
from lakehouse_backfill.errors import BackfillError, CatalogDown, WrongClock

_PROBE_SCHEMA = Schema(NestedField(1, "id", LongType()))
_PROBE_BRANCH, _PROBE_TAG = "lhb-probe-branch", "lhb-probe-tag"
_PROBE_PROPERTY = "lakehouse-backfill.probe"


def probe_capabilities(catalog: Catalog, shadow_namespace: str) -> Capabilities:
    """Probe all capabilities; the tables are dropped without purge, and their files deleted.

    A server that refuses a request or loses data counts as unsupported. Raises CatalogDown when a
    server does not answer.
    """
    with catalogs.translate_errors():
        catalog.create_namespace_if_not_exists(shadow_namespace)
    probe = _CapabilityProbe(catalog, shadow_namespace)
    try:
        with catalogs.translate_errors():
            probe.create_probe_table()
        return probe.probe_all()
    finally:
        probe.clean_up()


def keep_capabilities(catalog: Catalog, shadow_namespace: str, found: Capabilities) -> None:
    """Keep what was found on the namespace of shadows, where `plan` reads it.

    Without the catalog's answers: SQL catalogs keep 1000 characters. Raises CatalogDown.
    """
    text = found.model_dump_json(exclude={"seen"})
    with catalogs.translate_errors():
        catalog.update_namespace_properties(shadow_namespace, updates={CAPABILITIES_PROPERTY: text})


class _CapabilityProbe:
    """The tables and findings of one probe."""

    def __init__(self, catalog: Catalog, namespace: str) -> None:
        self._catalog = catalog
        self._namespace = namespace
        self._name = f"{namespace}.probe_{uuid.uuid4().hex}"
        self._shadow = f"{self._name}_shadow"
        self._built = f"{self._name}_built"
        self._files: dict[str, Table] = {}
        self._faults: dict[str, str] = {}

    def create_probe_table(self) -> None:
        """Create a table with one snapshot, which holds no row."""
        self._catalog.create_table(self._name, _PROBE_SCHEMA)
        _commit_empty_snapshot(self._load_table())

    def probe_all(self) -> Capabilities:
        probes: dict[str, Callable[[], str]] = {
            "tags": self._probe_tags,
            "branches": self._probe_branches,
            "branch_commits": self._probe_branch_commits,
            "register_table": self._probe_register,
            "built_clones": self._probe_built_clone,
            "new_uuid": self._probe_new_uuid,
            "data_path": self._probe_data_path,
            "views": self._probe_views,
            "multi_table_commit": self._probe_multi_table,
            "overlap": self._probe_overlap,
            "rights_beside": self._probe_rights_beside,
            "client_planning": self._probe_client_planning,
            "idempotency_keys": self._probe_keys,
            "unregister": self._probe_unregister,
        }
        supported = {name: self._is_supported(name, attempt) for name, attempt in probes.items()}
        return Capabilities(**supported, seen=self._faults)

    def clean_up(self) -> None:
        """Drop the tables; an interrupted probe leaves its tables, which are named probe_ID."""
        for name in (self._built, self._shadow, self._name):
            with suppress(Exception):
                self._track_files(self._catalog.load_table(name))
            with suppress(Exception):
                self._catalog.drop_table(name)
        for file, table in self._files.items():
            with suppress(Exception):
                table.io.delete(file)

    def _is_supported(self, name: str, attempt: Callable[[], str]) -> bool:
        """Return whether the attempt worked: it returns a fault, or an empty text."""
        try:
            with catalogs.translate_errors():
                fault = attempt()
        except CatalogDown as error:
            cause = error.__cause__
            is_known = cause is not None and (is_unsupported_by_server(cause) or is_denied(cause))
            if cause is None or not is_known:
                raise
            fault = catalogs.first_error_line(cause)
        except WrongClock:
            raise
        except BackfillError as error:
            fault = error.problem
        except NotImplementedError as error:
            fault = catalogs.first_error_line(error) or "not implemented"
        if fault:
            self._faults[name] = fault
        return not fault

    def _load_table(self, name: str = "") -> Table:
        table = catalogs.load_table(self._catalog, name or self._name)
        self._track_files(table)
        return table

    def _track_files(self, table: Table) -> None:
        """Track the files to delete: existing ones, and those that the table writes later."""
        self._files[table.metadata_location] = table
        for entry in table.metadata.metadata_log:
            self._files[entry.metadata_file] = table
        new_output = table.io.new_output

        def noted(location: str) -> OutputFile:
            self._files[location] = table
            return new_output(location)

        vars(table.io)["new_output"] = noted

    def _probe_tags(self) -> str:
        table = self._load_table()
        head = table.metadata.current_snapshot_id or 0
        with table.manage_snapshots() as changes:
            changes.create_tag(head, _PROBE_TAG, max_ref_age_ms=NEVER_EXPIRES_MS)
        tag = self._load_table().metadata.refs.get(_PROBE_TAG)
        if tag is None or tag.snapshot_id != head:
            return "a tag was accepted and is not there"
        is_aged = tag.max_ref_age_ms == NEVER_EXPIRES_MS
        return "" if is_aged else "a tag lost the age that it was given"

    def _probe_branches(self) -> str:
        table = self._load_table()
        head = table.metadata.current_snapshot_id or 0
        with table.manage_snapshots() as changes:
            changes.create_branch(head, _PROBE_BRANCH)
        branch = self._load_table().metadata.refs.get(_PROBE_BRANCH)
        is_kept = branch is not None and branch.snapshot_id == head
        return "" if is_kept else "a branch was accepted and is not there"

    def _probe_branch_commits(self) -> str:
        """Commit to a branch, then to main with metadata loaded before that, as live writers do."""
        if "branches" in self._faults:
            return "there are no branches"
        live = self._load_table()
        _commit_empty_snapshot(self._load_table(), _PROBE_BRANCH)
        try:
            _commit_empty_snapshot(live)
        except Exception as error:
            if not catalogs.is_lost_race(error):
                raise
            return catalogs.first_error_line(error)
        metadata = self._load_table().metadata
        refs = {name: ref.snapshot_id for name, ref in metadata.refs.items()}
        is_separate = refs.get(_PROBE_BRANCH) != refs.get("main")
        return "" if is_separate else "commits went to the wrong branch"

    def _probe_register(self) -> str:
        base = self._load_table().metadata.current_snapshot_id
        IcebergShadows(self._catalog, self._namespace).open(self._name, base, self._shadow, {})
        properties = self._load_table(self._shadow).metadata.properties
        return str(properties.get(BUILT_BECAUSE_PROPERTY, ""))

    def _probe_built_clone(self) -> str:
        """Build a clone also where one can be registered: the catalog may change its behaviour."""
        source = self._load_table()
        base = source.metadata.current_snapshot_id
        clone_metadata = build_clone_metadata(source.metadata, base, source.location(), {})
        BuiltClone(self._catalog, self._track_files).build(self._built, clone_metadata, "tried out")
        self._load_table(self._built)
        return ""

    def _probe_new_uuid(self) -> str:
        """Fence the clone if there is one, as a run does; else assign a UUID to the probe table."""
        if self._catalog.table_exists(self._shadow):
            IcebergShadows(self._catalog, self._namespace).fence(self._shadow, 1)
            self._load_table(self._shadow)
            return ""
        table, new_uuid = self._load_table(), uuid.uuid4()
        requirement = AssertTableUUID(uuid=table.metadata.table_uuid)
        try:
            self._catalog.commit_table(table, (requirement,), (AssignUUIDUpdate(uuid=new_uuid),))
        except RESTError as error:
            # Iceberg's own server commits and then fails because it finds another UUID, so the
            # table is loaded again.
            if is_unsupported_by_server(error):
                raise
        is_kept = self._load_table().metadata.table_uuid == new_uuid
        return "" if is_kept else "a new UUID was accepted and is not there"

    def _clone(self) -> str:
        """Name the clone that a run would have: where none is registered, it is built."""
        is_there = self._catalog.table_exists(self._shadow)
        return self._shadow if is_there else self._built

    def _probe_data_path(self) -> str:
        table = self._load_table()
        path = f"{table.location().rstrip('/')}_beside/data"
        with table.transaction() as change:
            change.set_properties({"write.data.path": path})
        kept_path = self._load_table().metadata.properties.get("write.data.path")
        return "" if kept_path == path else "write.data.path was accepted and is not there"

    def _probe_overlap(self) -> str:
        """Let files of the clone, or else of the table, lie where files under a target would."""
        name = self._name if "register_table" in self._faults else self._shadow
        path = f"{self._load_table().location().rstrip('/')}/data/probe"
        with self._load_table(name).transaction() as change:
            change.set_properties({"write.data.path": path})
        kept_path = self._load_table(name).metadata.properties.get("write.data.path")
        return "" if kept_path == path else "write.data.path was accepted and is not there"

    def _probe_rights_beside(self) -> str:
        """Write where a clone lies, with the credentials of its target; read back with its own.

        Some stores allow only files of Iceberg in the place of a table, so it is named as one.
        """
        if "register_table" in self._faults and "built_clones" in self._faults:
            return "there are no clones"
        clone, table = self._clone(), self._load_table()
        path = f"{self._load_table(clone).location().rstrip('/')}/data/probe.parquet"
        try:
            with table.io.new_output(path).create(overwrite=True) as file:
                file.write(b"probe")
            with self._load_table(clone).io.new_input(table.metadata_location).open():
                pass
        except OSError as error:
            if not is_denied(error):
                raise
            return f"files outside of a table's location: {catalogs.first_error_line(error)}"
        return ""

    def _probe_client_planning(self) -> str:
        """Ask the catalog's settings and those of a table, which override them."""
        settings = {**self._catalog.properties, **self._load_table().config}
        mode = settings.get("scan-planning-mode", "client").lower()
        return "" if mode == "client" else f"the server asks for scan-planning-mode: {mode}"

    def _probe_keys(self) -> str:
        return "" if announces_keys(self._catalog) else "the catalog does not announce them"

    def _probe_unregister(self) -> str:
        """Take the second table out where that is offered, as `maintain` does; its files must stay.

        It is the last probe: the table is gone after it.
        """
        if not can_unregister(self._catalog):
            return "the catalog does not offer it"
        name = self._second_table()
        table = self._load_table(name)
        rest: Any = self._catalog  # PyIceberg's base class does not know it
        rest.unregister_table(name)
        if self._catalog.table_exists(name):
            return "it was accepted, and the table is still there"
        is_kept = table.io.new_input(table.metadata_location).exists()
        return "" if is_kept else "it was accepted, and the table's files are gone"

    def _probe_views(self) -> str:
        """Probe views; PyIceberg's SQL catalog makes none, but Spark does in a V1 database."""
        version = getattr(self._catalog, "_schema_version", None)
        if version is not None:
            return "" if version == "v1" else "the database has the V0 schema, without views"
        self._catalog.list_views(self._namespace)
        name = f"{self._name}_view"
        view_version = build_view_version({"spark": "SELECT 1 AS id"}, (self._namespace,))
        self._catalog.create_view(name, _PROBE_SCHEMA, view_version)
        is_kept = self._catalog.view_exists(name)
        self._catalog.drop_view(name)
        return "" if is_kept else "a view was accepted and is not there"

    def _second_table(self) -> str:
        """Name the clone that a run would have; where none can be made, a table is."""
        name = self._clone()
        if not self._catalog.table_exists(name):
            self._catalog.create_table(name, _PROBE_SCHEMA)
        return name

    def _probe_multi_table(self) -> str:
        if why := why_not_together(self._catalog):
            return why
        return _try_two_tables(self._catalog, self._load_table, (self._name, self._second_table()))


_LoadTable = Callable[[str], Table]


def _try_two_tables(catalog: Catalog, load: _LoadTable, names: tuple[str, str]) -> str:
    """Change properties of two tables at once; then ask for a commit that must fail as a whole."""
    commit_tables(catalog, _property_changes(load, names, "all"))
    if _with_property(load, names, "all") != names:
        return "a commit of two tables was accepted and is not in both"
    first, second = _property_changes(load, names, "none")
    stale = replace(second, requirements=(AssertTableUUID(uuid=uuid.uuid4()),))
    try:
        commit_tables(catalog, [first, stale])
    except CommitStateUnknownException as error:
        why = catalogs.first_error_line(error)
        return f"what came of a commit that must be refused is not known: {why}"
    except (CommitFailedException, BadRequestError):
        changed = _with_property(load, names, "none")
        return "a commit that was refused changed one of two tables" if changed else ""
    return "a commit was accepted that one of its tables does not allow"


def _property_changes(load: _LoadTable, names: tuple[str, ...], value: str) -> list[TableChange]:
    changed = SetPropertiesUpdate(updates={_PROBE_PROPERTY: value})
    return [
        TableChange(table, (AssertTableUUID(uuid=table.metadata.table_uuid),), (changed,))
        for table in map(load, names)
    ]


def _with_property(load: _LoadTable, names: tuple[str, ...], value: str) -> tuple[str, ...]:
    return tuple(name for name in names if load(name).properties.get(_PROBE_PROPERTY) == value)


def _commit_empty_snapshot(table: Table, branch: str = "main") -> None:
    """Add a snapshot without files."""
    with table.transaction() as change, change.update_snapshot(branch=branch).fast_append():
        pass
