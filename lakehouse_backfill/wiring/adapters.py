"""The project at hand: its catalog, its Spark, what its files declare, the adapters that compute.

Each is made on first use, and imports are inside functions: a command loads what it uses, and
nothing else. The adapters behind the ports of the context are picked in `ports`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.adapters.system.process import (
    NullProgress,
    describe_git_commit,
    describe_head,
    find_commit,
    read_committed_code,
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
)
from lakehouse_backfill.config.profiles import choose_profile, load_profiles
from lakehouse_backfill.config.project_files import find_file_hash, hash_run_files
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.manifest import Compute
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.errors import ConfigError, NotFound, Unsupported, attach_error_field
from lakehouse_backfill.fault_points import watch_ports_if_hooked
from lakehouse_backfill.ports.system import Progress
from lakehouse_backfill.wiring import places

if TYPE_CHECKING:
    from lakehouse_backfill.adapters.spark.dataframes import SparkTables
    from lakehouse_backfill.core.cascade.plan import CascadeFiles
    from lakehouse_backfill.core.planning.plan import DeclaredRun
    from lakehouse_backfill.core.runs.context import Context
    from lakehouse_backfill.ports.compute import ComputePorts


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
        from lakehouse_backfill.wiring.ports import make_context

        return make_context(self)

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
        from lakehouse_backfill.config.manifests import load_manifest
        from lakehouse_backfill.config.previous_code import resolve_previous_code
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
        """Make what reads tables with Spark, shadows on branches too, and writes shadows."""
        from lakehouse_backfill.adapters.iceberg.clock import require_right_clock
        from lakehouse_backfill.adapters.iceberg.shadow import branches
        from lakehouse_backfill.adapters.local.scan import PinnedCounts
        from lakehouse_backfill.adapters.spark.dataframes import SparkTables

        return SparkTables(
            self.spark,
            self.profile.catalog["name"],
            lambda shadow: branches.find_newest_branch(self.catalog, shadow),
            lambda table: branches.load_stored_table(self.catalog, table),
            PinnedCounts(self.catalog).count,
            partial(require_right_clock, self.catalog),
        )

    def _make_compute_ports(self) -> ComputePorts:
        tables = self._spark_tables()
        from lakehouse_backfill.adapters.iceberg.control.schemas import (
            CURRENT_VIEW,
            current_view_select,
        )
        from lakehouse_backfill.adapters.local.inspecting import InspectingBySize, LocalInspector
        from lakehouse_backfill.adapters.local.measuring.measuring import (
            LocalMeasurer,
            MeasuringBySize,
        )
        from lakehouse_backfill.adapters.quality.judge import ExpectationsJudge
        from lakehouse_backfill.adapters.spark.attribution.attribution import SparkAttributing
        from lakehouse_backfill.adapters.spark.measuring.inspecting import SparkInspecting
        from lakehouse_backfill.adapters.spark.measuring.measuring import SparkMeasuring
        from lakehouse_backfill.adapters.spark.session.write_guard import allow_own_writes
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
            judge=ExpectationsJudge(self.folder, allow_own_writes),
        )
        return watch_ports_if_hooked(ports)

    @cached_property
    def _listing(self) -> Any:
        """Lists files for all diffs: what one of them previews another one compares."""
        from lakehouse_backfill.adapters.local.diff.snapshot_lister import SnapshotLister

        return SnapshotLister(self.catalog)

    def _make_differ(self, engine: str) -> Any:
        from lakehouse_backfill.adapters.local.diff.differ import LocalDiffer

        local = LocalDiffer(self.catalog, progress=self.progress, listing=self._listing)
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
