"""Which adapter stands behind each port.

The only module that picks adapters. Each is made on first use, and imports are inside functions: a
command loads what it uses, and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.adapters.system.journal import JsonJournal
from lakehouse_backfill.adapters.system.process import (
    NullProgress,
    SystemClock,
    describe_git_commit,
    describe_head,
    find_commit,
    is_driver_alive,
    read_committed_code,
    this_driver,
)
from lakehouse_backfill.command_lines import (
    DEFAULT_INVOCATION,
    PROFILE_VARIABLE,
    Invocation,
    command_line,
)
from lakehouse_backfill.config.contracts import (
    find_contract,
    find_contracts_of_tables,
    list_valid_contracts,
    load_contracts,
    require_suites,
)
from lakehouse_backfill.config.faults import (
    PROFILES_FILE,
    display_path,
    locate_errors,
    resolve_inside,
)
from lakehouse_backfill.config.manifests import load_manifest
from lakehouse_backfill.config.previous_code import resolve_previous_code
from lakehouse_backfill.config.profiles import choose_profile, load_profiles
from lakehouse_backfill.config.project_files import file_hash, find_file_hash, hash_run_files
from lakehouse_backfill.domain.contract import Contract, Profile
from lakehouse_backfill.domain.manifest import Compute
from lakehouse_backfill.errors import ConfigError, NotFound, Unsupported, attach_error_field
from lakehouse_backfill.fault_points import watch_ports_if_hooked
from lakehouse_backfill.ports.system import Progress
from lakehouse_backfill.wiring import places

if TYPE_CHECKING:
    from lakehouse_backfill.adapters.iceberg.table_writers import TableWriters
    from lakehouse_backfill.adapters.spark.commits.java_commits import JavaCommits
    from lakehouse_backfill.adapters.spark.commits.row_rewrite import SparkRewrites
    from lakehouse_backfill.adapters.spark.dataframes import SparkTables
    from lakehouse_backfill.core.cascade.plan import CascadeFiles
    from lakehouse_backfill.core.planning.plan import DeclaredRun
    from lakehouse_backfill.core.runs.context import Context
    from lakehouse_backfill.ports.compute import ComputePorts, Views
    from lakehouse_backfill.ports.system import Anchor, Identity
    from lakehouse_backfill.ports.tables import Shadows


SIGNING_KEY_VARIABLE = "LAKEHOUSE_BACKFILL_SIGNING_KEY"
STATE_FOLDER = ".lakehouse-backfill"
LOCK_FILE = "requirements.lock"


def _require_project(folder: Path) -> None:
    """Raise NotFound unless the folder is that of a project."""
    if not folder.is_dir():
        raise NotFound(
            f"{folder} is no folder",
            fix="name the project's folder: lakehouse-backfill --project DIR …; "
            f"a new one: {command_line('init', str(folder))}",
        )
    if not (folder / PROFILES_FILE).is_file():
        # Without this, a command in the wrong folder would make an empty lake and see no runs.
        raise NotFound(
            f"{folder} is no project: it has no {PROFILES_FILE.as_posix()}",
            fix="go to the project's folder, or name it: lakehouse-backfill --project DIR …; "
            f"a new one: {command_line('init', str(folder))}",
        )


#: The contracts of a project, by product, where they were all read before.
_Contracts = Mapping[str, Contract] | None


class Adapters:
    """The adapters of one project folder and profile, each made on first use."""

    def __init__(
        self,
        folder: Path,
        profile: Profile,
        progress: Progress,
        profile_name: str = "",
        invocation: Invocation = DEFAULT_INVOCATION,
    ) -> None:
        """Use `Wiring.open`."""
        self.folder = folder
        self.profile = profile
        self.profile_name = profile_name
        self.progress = progress
        self.invocation = invocation  # What printed commands need to reach the same lake.
        #: What decisions are signed with: a key file, or `oidc`.
        self.signing_key: str | None = os.environ.get(SIGNING_KEY_VARIABLE) or None
        #: Whether the process ends with one command, so that a session is made for its run alone.
        self.is_one_command = False
        self.expected_rows: int | None = None  # The input rows of the run at hand, if known.
        self.place = Compute()  # Where the run computes that the next session is opened for.
        self.judges_rows = False

    @staticmethod
    def open(folder: Path, profile: str | None, progress: Progress | None) -> Adapters:
        """Read the project's profiles and choose one; nothing is connected yet."""
        profile = profile or os.environ.get(PROFILE_VARIABLE) or None
        invocation = Invocation.of(folder, profile)
        folder = folder.resolve()
        _require_project(folder)
        profiles = load_profiles(folder)
        chosen = choose_profile(profiles, profile, folder)
        name = profile or profiles.default
        return Adapters(folder, chosen, progress or NullProgress(), name, invocation)

    @cached_property
    def catalog(self) -> Any:
        """The PyIceberg catalog of the profile; a lake that is not there is not made."""
        return self._open_catalog(must_exist=True)

    def create_lake(self) -> None:
        """Make the embedded lake, if it is not there: an empty catalog that tables can go into."""
        self.__dict__["catalog"] = self._open_catalog(must_exist=False)

    def _open_catalog(self, *, must_exist: bool) -> Any:
        from lakehouse_backfill.adapters.iceberg.catalog import open_catalog

        place = self.folder / PROFILES_FILE
        with locate_errors(place, self.folder, f"profiles.{self.profile_name}."):
            return open_catalog(self.profile, self.folder, must_exist=must_exist)

    @cached_property
    def spark(self) -> Any:
        """The Spark session of the profile; starts a JVM."""
        from lakehouse_backfill.wiring.engine import open_engine

        return open_engine(self)

    @cached_property
    def context(self) -> Context:
        """The ports that the verbs of the core work with."""
        from lakehouse_backfill.adapters.iceberg.commit.corrections import IcebergCorrections
        from lakehouse_backfill.adapters.iceberg.commit.publisher import IcebergPublisher
        from lakehouse_backfill.adapters.iceberg.commit.version_tables import IcebergVersionTables
        from lakehouse_backfill.adapters.iceberg.refs import IcebergPins
        from lakehouse_backfill.adapters.iceberg.tables import IcebergTables
        from lakehouse_backfill.adapters.local.row_reader import LocalRowReader
        from lakehouse_backfill.adapters.system.hooks import LocalHooks
        from lakehouse_backfill.adapters.system.process import LocalSecrets
        from lakehouse_backfill.core.runs.context import Context
        from lakehouse_backfill.wiring.correction_topics import LateCorrectionTopics

        catalog, profile = self.catalog, self.profile
        is_connect = partial(places.is_connect, self)
        writers = table_writers(catalog, profile, lambda: self.spark, is_connect)
        ports = Context(
            tables=IcebergTables(catalog),
            pins=IcebergPins(catalog, writers),
            shadows=_shadows_port(catalog, profile, writers),
            version_tables=IcebergVersionTables(catalog),
            publisher=IcebergPublisher(catalog, writers=writers),
            choose_write_path=writers.choose,
            **control_ports(catalog, profile),
            compute=cache(partial(_looking_ports, self)),
            differ=self._make_differ,
            row_reader=LocalRowReader(catalog, self.folder),
            views=views_port(catalog, profile, partial(_spark_for_views, self)),
            hooks=LocalHooks(self.folder),
            identity=identity_port(self),
            anchor=anchor_port(profile),
            contract=self.contract,
            secrets=LocalSecrets(self.folder),
            corrections=IcebergCorrections(catalog),
            correction_topics=LateCorrectionTopics(),
            clock=SystemClock(),
            journal=JsonJournal(self.folder),
            progress=self.progress,
            profile=profile,
            driver=this_driver(),
            cores=partial(places.place_cores, self),
            place=lambda: self.place,
            check_files=profile.environment == "prod",
            is_alive=is_driver_alive,
            code_hash=lambda file: file_hash(self.folder, file),
            committed_files=partial(read_committed_code, self.folder),
            file_text=lambda file: (self.folder / file).read_bytes().decode("utf-8", "replace"),
        )
        return watch_ports_if_hooked(ports)

    def contract(self, product: str) -> Contract:
        """Load the contract of a product; raises NotFound, ConfigError."""
        return find_contract(self.folder, product)

    def contracts(self) -> list[Contract]:
        """Load all contracts of the project."""
        return load_contracts(self.folder)

    def valid_contracts(self) -> list[Contract]:
        """Load the contracts that are valid: one that is wrong is no obstacle to other products."""
        return list_valid_contracts(self.folder)

    def load_declaration(
        self,
        manifest_file: Path,
        known: _Contracts = None,
        head: Callable[[], str] | None = None,
        *,
        is_template: bool = False,
    ) -> DeclaredRun:
        """Read a manifest, its contract and the code's hash; contracts that are `known` once."""
        from lakehouse_backfill.adapters.quality.suite_files import check_suite_form
        from lakehouse_backfill.core.planning.plan import DeclaredRun

        path = manifest_file if manifest_file.is_absolute() else self.folder / manifest_file
        if not path.is_file() and manifest_file.is_file():
            path = manifest_file.resolve()
        manifest = load_manifest(path, self.folder, self.profile.limits, is_template=is_template)
        with locate_errors(path, self.folder):
            with attach_error_field("product"):
                contract = (known or {}).get(manifest.product) or self.contract(manifest.product)
            require_suites(self.folder, contract)
            files = hash_run_files(self.folder, manifest, contract)
            named = resolve_previous_code(self.folder, manifest, find_commit, read_committed_code)
        own = steps.suites if (steps := manifest.target.progressive) else ()
        for suite in (*contract.suites, *manifest.validation.suites, *own):
            check_suite_form(self.folder / suite.file, suite.file)
        return DeclaredRun(
            manifest=manifest,
            contract=contract,
            manifest_file=display_path(path, self.folder),
            code_hash=files[manifest.transform.file],
            git_commit=describe_git_commit(self.folder, tuple(files), head),
            lock_hash=find_file_hash(self.folder, LOCK_FILE),
            files=files,
            previous_code=named,
            input_contracts=find_contracts_of_tables(self.folder, manifest.input_tables, known),
        )

    def read_snapshot(self, engine: str, table: str, snapshot_id: int) -> Any:
        """Read a table's snapshot with Spark, Arrow or DuckDB."""
        if engine == "spark":
            return self._spark_tables().read(table, snapshot_id)
        from lakehouse_backfill.adapters.local import reader

        readers = {"arrow": reader.read_snapshot_arrow, "duckdb": reader.open_snapshot_duckdb}
        if engine not in readers:
            raise ConfigError(f"no engine {engine!r}", fix="choose spark, arrow or duckdb")
        return readers[engine](self.catalog, table, snapshot_id)

    @property
    def evidence_folder(self) -> Path:
        """Where pages and archives lie unless they are exported."""
        return self.folder / STATE_FOLDER / "evidence"

    def require_java(self) -> None:
        """Raise JavaMissing, before anything is changed, when Spark could not start for want of it.

        A Spark Connect server has its own.
        """
        from lakehouse_backfill.adapters.spark.session.java import require_java

        if not places.is_connect(self):
            require_java()

    def preload_suites(self) -> None:
        """Have Great Expectations loaded in the background, while Spark starts."""
        self.judges_rows = True

    def _spark_tables(self) -> SparkTables:
        return spark_tables(self.spark, self.profile, lambda: self.catalog)

    def _make_compute_ports(self) -> ComputePorts:
        tables = self._spark_tables()
        from lakehouse_backfill.adapters.iceberg.control.schemas import (
            CURRENT_VIEW,
            current_view_select,
        )
        from lakehouse_backfill.adapters.local.inspecting import InspectingBySize, LocalInspector
        from lakehouse_backfill.adapters.local.measuring import LocalMeasurer, MeasuringBySize
        from lakehouse_backfill.adapters.quality.judge import ExpectationsJudge
        from lakehouse_backfill.adapters.spark.attribution.attribution import SparkAttributing
        from lakehouse_backfill.adapters.spark.measuring.inspecting import SparkInspecting
        from lakehouse_backfill.adapters.spark.measuring.measuring import SparkMeasuring
        from lakehouse_backfill.adapters.spark.staging.staging import SparkStaging
        from lakehouse_backfill.adapters.spark.views import ensure_view
        from lakehouse_backfill.adapters.system.project_code import CodeArchive
        from lakehouse_backfill.core.planning.job_code import archived_texts
        from lakehouse_backfill.core.staging.sinks import RunSinks
        from lakehouse_backfill.ports.compute import ComputePorts

        catalog, control = self.profile.catalog["name"], self.profile.control_namespace
        kept = partial(archived_texts, self.context)
        code = CodeArchive(self.folder, self.folder / STATE_FOLDER / "code", kept)
        try:
            ensure_view(tables, control, CURRENT_VIEW, current_view_select(catalog, control))
        except Unsupported as error:
            self.context.journal.log("no view", problem=error.problem)
        secret, sinks = self.context.secrets.read, partial(RunSinks, self.context)
        shadows = self.profile.shadow_namespace
        ports = ComputePorts(
            staging=SparkStaging(tables, code.restore_folder, secret, sinks, shadows),
            measuring=MeasuringBySize(LocalMeasurer(self.catalog), SparkMeasuring(tables, secret)),
            inspecting=InspectingBySize(LocalInspector(self.catalog), SparkInspecting(tables)),
            attributing=SparkAttributing(tables, code.restore_folder, secret),
            judge=ExpectationsJudge(self.folder),
        )
        return watch_ports_if_hooked(ports)

    def _make_differ(self, engine: str) -> Any:
        from lakehouse_backfill.adapters.local.diff.differ import LocalDiffer

        local = LocalDiffer(self.catalog, progress=self.progress)
        if engine == "local":
            return local
        if engine == "spark":
            from lakehouse_backfill.adapters.local.distributed.key_groups import (
                DistributedDiffer,
                GroupedDiffer,
            )
            from lakehouse_backfill.adapters.local.distributed.parallel import ParallelDiffer
            from lakehouse_backfill.adapters.spark.workers import SparkWorkers

            limit = self.profile.task_diff_limit_mib * 1024 * 1024
            workers = SparkWorkers(self._spark_tables())
            return DistributedDiffer(
                ParallelDiffer(local, workers, limit), GroupedDiffer(local, workers)
            )
        raise ConfigError(f"no engine {engine!r}", fix="choose auto, local or spark")


def table_writers(
    catalog: Any, profile: Profile, spark: Callable[[], Any], is_connect: Callable[[], bool]
) -> TableWriters:
    """Make what chooses the writer of a table; `spark` starts a JVM, when a table needs it."""
    from lakehouse_backfill.adapters.iceberg.table_writers import TableWriters
    from lakehouse_backfill.domain.plan import JvmState

    name = profile.catalog["name"]

    def jvm_state() -> JvmState:
        from lakehouse_backfill.adapters.spark.session.session import is_session_open

        return JvmState(is_up=is_session_open(), is_connect=is_connect())

    def java() -> JavaCommits:
        from lakehouse_backfill.adapters.spark.commits.java_api import JavaApi
        from lakehouse_backfill.adapters.spark.commits.java_commits import JavaCommits

        return JavaCommits(JavaApi(spark, name))

    def rows() -> SparkRewrites:
        from lakehouse_backfill.adapters.spark.commits.row_rewrite import SparkRewrites

        return SparkRewrites(lambda: spark_tables(spark(), profile))

    return TableWriters(catalog, jvm_state, cache(java), cache(rows))


def cascade_files(wiring: Adapters) -> CascadeFiles:
    """Return how the files of a project are read for a cascade."""
    from lakehouse_backfill.adapters.system.project_code import load_mapping
    from lakehouse_backfill.core.cascade.plan import CascadeFiles

    # Read once: each run would look for the contracts of its inputs in all files.
    contracts = {one.product: one for one in wiring.contracts()}
    head = cache(partial(describe_head, wiring.folder))
    return CascadeFiles(
        contracts=contracts,
        locate=lambda file: locate_errors(wiring.folder / file, wiring.folder),
        declare=lambda file: wiring.load_declaration(Path(file), contracts, head, is_template=True),
        custom=partial(load_mapping, wiring.folder),
    )


def identity_port(wiring: Adapters) -> Identity:
    """Make what signs with the key of the acting person, and checks those who may sign."""
    from lakehouse_backfill.adapters.signing.identity import ProjectIdentity

    folder, profile = wiring.folder, wiring.profile
    signers = resolve_inside(folder, profile.signers)
    name = f"profiles.{wiring.profile_name}."
    with locate_errors(folder / PROFILES_FILE, folder, name), attach_error_field("signers"):
        if signers is None:
            raise ConfigError(
                f"{profile.signers} lies outside the project",
                fix="write a path relative to the project's folder, without ..",
            )
    return ProjectIdentity(folder, signers, profile.oidc, wiring.signing_key)


def anchor_port(profile: Profile) -> Anchor | None:
    """Make what keeps heads of logs outside the lake; None where the profile names no place."""
    place = profile.anchor
    if place is None:
        return None
    from lakehouse_backfill.adapters.anchors.places import FolderAnchor, GitAnchor

    if place.folder is not None:
        return FolderAnchor(Path(place.folder).expanduser())
    return GitAnchor(str(place.git))


def control_ports(catalog: Any, profile: Profile) -> dict[str, Any]:
    """Make the ports over tables of our own, under the names of the context's fields."""
    from lakehouse_backfill.adapters.iceberg.control.audit import IcebergAudit
    from lakehouse_backfill.adapters.iceberg.control.evidence import IcebergEvidence
    from lakehouse_backfill.adapters.iceberg.control.log import ControlTables
    from lakehouse_backfill.adapters.iceberg.control.runs import IcebergRuns
    from lakehouse_backfill.adapters.iceberg.control.versions import IcebergVersions
    from lakehouse_backfill.adapters.iceberg.files import IcebergStoredFiles
    from lakehouse_backfill.adapters.iceberg.landing.landed_topics import IcebergLandedTopics
    from lakehouse_backfill.adapters.iceberg.shadow.run_files import IcebergRunFiles

    control = ControlTables(catalog, profile.control_namespace)
    return {
        "runs": IcebergRuns(control),
        "versions": IcebergVersions(control),
        "evidence": IcebergEvidence(control),
        "stored_files": IcebergStoredFiles(catalog),
        "audit": IcebergAudit(control),
        "topics": IcebergLandedTopics(catalog),
        "run_files": IcebergRunFiles(catalog, profile.shadow_namespace),
    }


def views_port(catalog: Any, profile: Profile, spark: Callable[[], Any]) -> Views:
    """REST catalogs make views without a JVM, for Spark and Trino; the others by Spark."""
    from lakehouse_backfill.adapters.iceberg.catalog import with_pyiceberg_settings

    if with_pyiceberg_settings(profile).catalog.get("type") == "rest":
        from lakehouse_backfill.adapters.iceberg.views import RestViews

        return RestViews(catalog)
    from lakehouse_backfill.adapters.spark.views import SparkViews

    return SparkViews(lambda: spark_tables(spark(), profile))


def _looking_ports(wiring: Adapters) -> ComputePorts:
    """Return the ports that compute; reads of `lease_only` inputs look for their snapshots."""
    from lakehouse_backfill.core.planning.pins import look_before_reads

    return look_before_reads(lambda: wiring.context, wiring._make_compute_ports())


def _spark_for_views(wiring: Adapters) -> Any:
    """Return the session; say before it starts what it is for."""
    if "spark" not in vars(wiring):
        wiring.progress.say("Spark has to start: it writes the contract's view")
    return wiring.spark


def _shadows_port(catalog: Any, profile: Profile, writers: TableWriters) -> Shadows:
    from lakehouse_backfill.adapters.iceberg.shadow.branches import BranchShadows, IsolatedShadows
    from lakehouse_backfill.adapters.iceberg.shadow.shadows import IcebergShadows

    clones = IcebergShadows(catalog, profile.shadow_namespace, writers)
    return IsolatedShadows(clones, BranchShadows(catalog))


def spark_tables(
    session: Any, profile: Profile, catalog: Callable[[], Any] | None = None
) -> SparkTables:
    """Make what reads the tables of the profile's catalog through a session of Spark.

    With PyIceberg's catalog also shadows that are branches, and what a writer of shadows asks.
    """
    from lakehouse_backfill.adapters.spark.dataframes import SparkTables

    name = profile.catalog["name"]
    if catalog is None:
        return SparkTables(session, name)
    from lakehouse_backfill.adapters.iceberg.shadow import branches
    from lakehouse_backfill.adapters.local.scan import count_rows

    return SparkTables(
        session,
        name,
        lambda shadow: branches.find_newest_branch(catalog(), shadow),
        lambda table: branches.load_stored_table(catalog(), table),
        lambda table, snapshot_id, rows: count_rows(catalog(), table, snapshot_id, rows),
    )
