"""The ports of the context; each adapter is imported and made on first use.

Most commands use a few of them: `status` neither publishes nor reads rows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar, cast

from lakehouse_backfill.adapters.system.journal import JsonJournal
from lakehouse_backfill.adapters.system.process import (
    LocalSecrets,
    SystemClock,
    is_driver_alive,
    read_committed_code,
    this_driver,
)
from lakehouse_backfill.config.faults import PROFILES_FILE, locate_errors, resolve_inside
from lakehouse_backfill.config.project_files import file_hash
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import ChosenWritePath, JvmState
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.errors import ConfigError, attach_error_field
from lakehouse_backfill.fault_points import watch_ports_if_hooked
from lakehouse_backfill.wiring import places

if TYPE_CHECKING:
    from lakehouse_backfill.adapters.iceberg.control.tables import ControlTables
    from lakehouse_backfill.adapters.iceberg.table_writers import TableWriters
    from lakehouse_backfill.adapters.spark.commits.java_commits import JavaCommits
    from lakehouse_backfill.adapters.spark.commits.row_rewrite import SparkRewrites
    from lakehouse_backfill.adapters.spark.dataframes import SparkTables
    from lakehouse_backfill.ports.comparison import Corrections, CorrectionTopics
    from lakehouse_backfill.ports.compute import ComputePorts, RowReader, Views
    from lakehouse_backfill.ports.control import Audit, Evidence, RunFiles, Runs, Versions
    from lakehouse_backfill.ports.system import Anchor, Hooks, Identity
    from lakehouse_backfill.ports.tables import (
        LandedTopics,
        Pins,
        Publisher,
        Shadows,
        StoredFiles,
        Tables,
        VersionTables,
    )
    from lakehouse_backfill.wiring.adapters import Adapters

PortT = TypeVar("PortT")


def make_context(wiring: Adapters) -> Context:
    """Make the context of a project; the catalog is opened, and no other adapter is made yet."""
    lake, control = _Lake(wiring), _Control(wiring)
    ports = Context(
        tables=_late(lake.tables),
        pins=_late(lake.pins),
        shadows=_late(lake.shadows),
        version_tables=_late(lake.version_tables),
        publisher=_late(lake.publisher),
        choose_write_path=lake.choose_write_path,
        stored_files=_late(lake.stored_files),
        run_files=_late(lake.run_files),
        topics=_late(lake.topics),
        corrections=_late(lake.corrections),
        runs=_late(control.runs),
        versions=_late(control.versions),
        evidence=_late(control.evidence),
        audit=_late(control.audit),
        compute=cache(partial(_looking_ports, wiring)),
        differ=wiring._make_differ,
        row_reader=_late(partial(_row_reader, wiring)),
        views=_late(partial(_views, wiring)),
        hooks=_late(partial(_hooks, wiring.folder)),
        identity=identity_port(wiring),
        anchor=_anchor(wiring.profile),
        contract=wiring.contract,
        secrets=LocalSecrets(wiring.folder),
        correction_topics=_late(_correction_topics),
        clock=SystemClock(),
        journal=JsonJournal(wiring.folder),
        progress=wiring.progress,
        profile=wiring.profile,
        driver=this_driver(),
        cores=partial(places.place_cores, wiring),
        place=lambda: wiring.place,
        check_files=wiring.profile.environment == "prod",
        is_alive=is_driver_alive,
        code_hash=partial(file_hash, wiring.folder),
        committed_files=partial(read_committed_code, wiring.folder),
        file_text=lambda file: (wiring.folder / file).read_bytes().decode("utf-8", "replace"),
    )
    return watch_ports_if_hooked(ports)


class _LatePort:
    """A port that makes its adapter on first use, once, and has all that the adapter has."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._made: list[Any] = []
        self._lock = RLock()

    def __getattr__(self, name: str) -> Any:
        with self._lock:
            if not self._made:
                self._made.append(self._make())
        return getattr(self._made[0], name)


def _late(make: Callable[[], PortT]) -> PortT:
    return cast("PortT", _LatePort(make))


class _Lake:
    """The adapters over the tables of the profile's catalog."""

    def __init__(self, wiring: Adapters) -> None:
        self._wiring = wiring
        self._catalog: Any = wiring.catalog
        self._shadow_namespace = wiring.profile.shadow_namespace

    @cached_property
    def _writers(self) -> TableWriters:
        return _table_writers(self._wiring)

    def choose_write_path(self, table: str, scope: Scope | None) -> ChosenWritePath:
        """Return the write path by which a table is changed, in a scope of it or as a whole."""
        return self._writers.choose(table, scope)

    def tables(self) -> Tables:
        """Metadata of tables."""
        from lakehouse_backfill.adapters.iceberg.tables import IcebergTables

        return IcebergTables(self._catalog)

    def pins(self) -> Pins:
        """Tags that keep snapshots."""
        from lakehouse_backfill.adapters.iceberg.refs import IcebergPins

        return IcebergPins(self._catalog, self._writers)

    def shadows(self) -> Shadows:
        """Clones, or branches of the target."""
        from lakehouse_backfill.adapters.iceberg.shadow.branches import (
            BranchShadows,
            IsolatedShadows,
        )
        from lakehouse_backfill.adapters.iceberg.shadow.shadows import IcebergShadows

        clones = IcebergShadows(self._catalog, self._shadow_namespace, self._writers)
        return IsolatedShadows(clones, BranchShadows(self._catalog))

    def version_tables(self) -> VersionTables:
        """Tables of all kept versions."""
        from lakehouse_backfill.adapters.iceberg.commit.version_tables import IcebergVersionTables

        return IcebergVersionTables(self._catalog)

    def publisher(self) -> Publisher:
        """What adopts and reverts."""
        from lakehouse_backfill.adapters.iceberg.commit.publisher import IcebergPublisher

        return IcebergPublisher(self._catalog, writers=self._writers)

    def stored_files(self) -> StoredFiles:
        """What lies in the store."""
        from lakehouse_backfill.adapters.iceberg.files import IcebergStoredFiles

        return IcebergStoredFiles(self._catalog)

    def run_files(self) -> RunFiles:
        """Files that a run staged and nobody published."""
        from lakehouse_backfill.adapters.iceberg.shadow.run_files import IcebergRunFiles

        return IcebergRunFiles(self._catalog, self._shadow_namespace)

    def topics(self) -> LandedTopics:
        """Raw tables of topics."""
        from lakehouse_backfill.adapters.iceberg.landing.landed_topics import IcebergLandedTopics

        return IcebergLandedTopics(self._catalog)

    def corrections(self) -> Corrections:
        """Correction events in a table."""
        from lakehouse_backfill.adapters.iceberg.commit.corrections import IcebergCorrections

        return IcebergCorrections(self._catalog)


@dataclass
class _Control:
    """The adapters over tables of our own; they share what was loaded of them."""

    wiring: Adapters

    @cached_property
    def _tables(self) -> ControlTables:
        from lakehouse_backfill.adapters.iceberg.control.tables import ControlTables

        return ControlTables(self.wiring.catalog, self.wiring.profile.control_namespace)

    def runs(self) -> Runs:
        """Runs, their logs and chunks."""
        from lakehouse_backfill.adapters.iceberg.control.runs import IcebergRuns

        return IcebergRuns(self._tables)

    def versions(self) -> Versions:
        """Pointers."""
        from lakehouse_backfill.adapters.iceberg.control.versions import IcebergVersions

        return IcebergVersions(self._tables)

    def evidence(self) -> Evidence:
        """Documents, fingerprints and leases of pins."""
        from lakehouse_backfill.adapters.iceberg.control.evidence import IcebergEvidence

        return IcebergEvidence(self._tables)

    def audit(self) -> Audit:
        """The stored rows of all runs."""
        from lakehouse_backfill.adapters.iceberg.control.audit import IcebergAudit

        return IcebergAudit(self._tables)


def _table_writers(wiring: Adapters) -> TableWriters:
    """Make what chooses the writer of a table; it starts a JVM when a table needs it."""
    from lakehouse_backfill.adapters.iceberg.table_writers import TableWriters

    name = wiring.profile.catalog["name"]

    def jvm_state() -> JvmState:
        # Where its module is not loaded, no session was opened; loading it would only say that.
        session = sys.modules.get("lakehouse_backfill.adapters.spark.session.session")
        is_up = session is not None and session.is_session_open()
        return JvmState(is_up=is_up, is_connect=places.is_connect(wiring))

    def java() -> JavaCommits:
        from lakehouse_backfill.adapters.spark.commits.java_api import JavaApi
        from lakehouse_backfill.adapters.spark.commits.java_commits import JavaCommits

        return JavaCommits(JavaApi(lambda: wiring.spark, name))

    def rows() -> SparkRewrites:
        from lakehouse_backfill.adapters.spark.commits.row_rewrite import SparkRewrites

        return SparkRewrites(lambda: _plain_tables(wiring.spark, wiring.profile))

    return TableWriters(wiring.catalog, jvm_state, cache(java), cache(rows))


def identity_port(wiring: Adapters) -> Identity:
    """Make what signs with the key of the acting person, and checks those who may sign.

    Raises ConfigError, at once, when the file of signers lies outside the project.
    """
    folder, profile, key = wiring.folder, wiring.profile, wiring.signing_key
    signers = resolve_inside(folder, profile.signers)
    name = f"profiles.{wiring.profile_name}."
    with locate_errors(folder / PROFILES_FILE, folder, name), attach_error_field("signers"):
        if signers is None:
            raise ConfigError(
                f"{profile.signers} lies outside the project",
                fix="write a path relative to the project's folder, without ..",
            )

    def identity() -> Identity:
        from lakehouse_backfill.adapters.signing.identity import ProjectIdentity

        return ProjectIdentity(folder, signers, profile.oidc, key)

    return _late(identity)


def _anchor(profile: Profile) -> Anchor | None:
    """Make what keeps heads of logs outside the lake; None where the profile names no place."""
    place = profile.anchor
    if place is None:
        return None
    from lakehouse_backfill.adapters.anchors.places import FolderAnchor, GitAnchor

    if place.folder is not None:
        return FolderAnchor(Path(place.folder).expanduser())
    return GitAnchor(str(place.git))


def _row_reader(wiring: Adapters) -> RowReader:
    from lakehouse_backfill.adapters.local.row_reader import LocalRowReader

    return LocalRowReader(wiring.catalog, wiring.folder)


def _hooks(folder: Path) -> Hooks:
    from lakehouse_backfill.adapters.system.hooks import LocalHooks

    return LocalHooks(folder)


def _correction_topics() -> CorrectionTopics:
    from lakehouse_backfill.adapters.sources.kafka.producer import KafkaCorrectionTopics

    return KafkaCorrectionTopics()


def _views(wiring: Adapters) -> Views:
    """REST catalogs make views without a JVM, for Spark and Trino; the others by Spark."""
    from lakehouse_backfill.adapters.iceberg.catalog import with_pyiceberg_settings

    if with_pyiceberg_settings(wiring.profile).catalog.get("type") == "rest":
        from lakehouse_backfill.adapters.iceberg.views import RestViews

        return RestViews(wiring.catalog)
    from lakehouse_backfill.adapters.spark.views import SparkViews

    return SparkViews(lambda: _plain_tables(_spark_for_views(wiring), wiring.profile))


def _plain_tables(session: Any, profile: Profile) -> SparkTables:
    """Make what reads the tables of the catalog through a session, but no shadows on branches."""
    from lakehouse_backfill.adapters.spark.dataframes import SparkTables

    return SparkTables(session, profile.catalog["name"])


def _spark_for_views(wiring: Adapters) -> Any:
    """Return the session; say before it starts what it is for."""
    if "spark" not in vars(wiring):
        wiring.progress.say("Spark has to start: it writes the contract's view")
    return wiring.spark


def _looking_ports(wiring: Adapters) -> ComputePorts:
    """Return the ports that compute; reads of `lease_only` inputs look for their snapshots."""
    from lakehouse_backfill.core.planning.inputs.pins import look_before_reads

    return look_before_reads(lambda: wiring.context, wiring._make_compute_ports())
