"""The ports of the lake: tables, each with its adapters by way, and control tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from lakehouse_backfill.adapters.system.clock import SystemClock
from lakehouse_backfill.domain.contract import Profile

if TYPE_CHECKING:
    from lakehouse_backfill.adapters.spark.commits.java_commits import JavaCommits
    from lakehouse_backfill.adapters.spark.commits.rewriting import SparkRewrites
    from lakehouse_backfill.ports.carrying import Carrying
    from lakehouse_backfill.ports.compute import Views
    from lakehouse_backfill.ports.lake import Pins, Publisher, Shadows
    from lakehouse_backfill.wiring.ways import PublisherByWritePath, WritePathChooser


class LakePorts(NamedTuple):
    """What changes tables, and what says by which way."""

    pins: Pins
    shadows: Shadows
    publisher: Publisher
    carrying: Carrying
    ways: WritePathChooser


def lake_ports(catalog: Any, profile: Profile, spark: Callable[[], Any]) -> LakePorts:
    """Make the ports over one PyIceberg catalog; `spark` starts a JVM, when a table needs it."""
    from lakehouse_backfill.adapters.iceberg.commit.carrying import IcebergChunkCarrier
    from lakehouse_backfill.adapters.iceberg.pins import IcebergPins
    from lakehouse_backfill.adapters.iceberg.shadow.file_clones import FileCloneCommitter
    from lakehouse_backfill.adapters.iceberg.shadow.shadows import IcebergShadows
    from lakehouse_backfill.wiring import ways

    java, rows = _spark_writers(profile, spark)
    namespace = profile.shadow_namespace
    choosing = _write_path_chooser(catalog, profile)
    return LakePorts(
        pins=ways.PinsByWritePath(
            choosing,
            {
                "pyiceberg": IcebergPins(catalog),
                "java": IcebergPins(catalog, java),
                "rewrite": IcebergPins(catalog, rows),
            },
        ),
        shadows=ways.ShadowsByWritePath(
            choosing,
            {
                "pyiceberg": IcebergShadows(catalog, namespace),
                "java": IcebergShadows(catalog, namespace, java),
                "rewrite": IcebergShadows(catalog, namespace, FileCloneCommitter(catalog)),
            },
        ),
        publisher=_publisher_by_write_path(catalog, choosing, java, rows),
        carrying=ways.CarryingByWritePath(
            choosing,
            {
                "pyiceberg": IcebergChunkCarrier(catalog),
                "java": IcebergChunkCarrier(catalog, commits=java),
                "rewrite": IcebergChunkCarrier(catalog, commits=rows),
            },
        ),
        ways=choosing,
    )


def _spark_writers(profile: Profile, spark: Callable[[], Any]) -> tuple[JavaCommits, SparkRewrites]:
    """Make what writes tables that PyIceberg cannot: with a JVM in reach, and without."""
    from lakehouse_backfill.adapters.spark.commits.java_api import JavaApi
    from lakehouse_backfill.adapters.spark.commits.java_commits import JavaCommits
    from lakehouse_backfill.adapters.spark.commits.rewriting import SparkRewrites

    name = profile.catalog["name"]
    return JavaCommits(JavaApi(spark, name)), SparkRewrites(spark, name)


def _write_path_chooser(catalog: Any, profile: Profile) -> WritePathChooser:
    from lakehouse_backfill.adapters.iceberg.surveying import IcebergTableSurveyor
    from lakehouse_backfill.adapters.spark.session.session import is_session_open
    from lakehouse_backfill.domain.ways import JvmState
    from lakehouse_backfill.wiring.ways import WritePathChooser

    is_connect = "spark.remote" in profile.spark
    return WritePathChooser(
        IcebergTableSurveyor(catalog),
        lambda: JvmState(is_up=is_session_open(), is_connect=is_connect),
    )


def _publisher_by_write_path(
    catalog: Any, choosing: WritePathChooser, java: JavaCommits, rows: SparkRewrites
) -> PublisherByWritePath:
    """Make the publishers; each finishes a swap by rows that was cut off."""
    from lakehouse_backfill.adapters.iceberg.commit.publisher import IcebergPublisher
    from lakehouse_backfill.adapters.iceberg.commit.settling import RowRewriteFinalizer
    from lakehouse_backfill.wiring.ways import PublisherByWritePath

    settling = RowRewriteFinalizer(catalog, rows, rows)
    return PublisherByWritePath(
        choosing,
        {
            "pyiceberg": IcebergPublisher(catalog, settling=settling),
            "java": IcebergPublisher(catalog, commits=java, settling=settling),
            "rewrite": IcebergPublisher(catalog, commits=rows, settling=settling),
        },
    )


def control_ports(catalog: Any, profile: Profile, spark: Callable[[], Any]) -> dict[str, Any]:
    """Make the ports over the control tables, by the workbench's names for them."""
    from lakehouse_backfill.adapters.iceberg.control.audit import IcebergAudit
    from lakehouse_backfill.adapters.iceberg.control.control import ControlTables
    from lakehouse_backfill.adapters.iceberg.control.control_upkeep import IcebergControlUpkeep
    from lakehouse_backfill.adapters.iceberg.control.evidence import IcebergEvidence
    from lakehouse_backfill.adapters.iceberg.control.fences import IcebergFences
    from lakehouse_backfill.adapters.iceberg.control.fingerprints import IcebergFingerprints
    from lakehouse_backfill.adapters.iceberg.control.ledger import IcebergLedger
    from lakehouse_backfill.adapters.iceberg.control.pin_leases import IcebergPinLeases
    from lakehouse_backfill.adapters.iceberg.control.runs import IcebergRuns
    from lakehouse_backfill.adapters.iceberg.control.versions import IcebergVersions
    from lakehouse_backfill.adapters.iceberg.data_files import IcebergDataFiles
    from lakehouse_backfill.adapters.iceberg.stored import IcebergStoredFiles
    from lakehouse_backfill.adapters.iceberg.upkeep import IcebergUpkeep
    from lakehouse_backfill.adapters.spark.commits.java_api import JavaApi
    from lakehouse_backfill.adapters.spark.commits.java_commits import JavaCommits

    java = JavaCommits(JavaApi(spark, profile.catalog["name"]))
    control = ControlTables(catalog, profile.control_namespace)
    return {
        "runs": IcebergRuns(control),
        "ledger": IcebergLedger(control),
        "versions": IcebergVersions(control),
        "evidence": IcebergEvidence(control),
        "fingerprints": IcebergFingerprints(control),
        "data_files": IcebergDataFiles(catalog),
        "stored": IcebergStoredFiles(catalog),
        "fences": IcebergFences(control),
        "audit": IcebergAudit(control),
        "pin_leases": IcebergPinLeases(control),
        "upkeep": IcebergUpkeep(catalog, profile.shadow_namespace, SystemClock(), java),
        "control_upkeep": IcebergControlUpkeep(catalog, profile.control_namespace, control),
    }


def views_port(catalog: Any, profile: Profile, spark: Callable[[], Any]) -> Views:
    """REST catalogs make views without a JVM, for Spark and Trino; the others by Spark."""
    if profile.catalog.get("type") == "rest":
        from lakehouse_backfill.adapters.iceberg.views import RestViews

        return RestViews(catalog)
    from lakehouse_backfill.adapters.spark.views import SparkViews

    return SparkViews(spark, profile.catalog["name"])
