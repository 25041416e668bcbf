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
    from lakehouse_backfill.wiring.ways import PublisherByWay, Ways


class LakePorts(NamedTuple):
    """What changes tables, and what says by which way."""

    pins: Pins
    shadows: Shadows
    publisher: Publisher
    carrying: Carrying
    ways: Ways


def lake_ports(catalog: Any, profile: Profile, spark: Callable[[], Any]) -> LakePorts:
    """Make the ports over one PyIceberg catalog; `spark` starts a JVM, when a table needs it."""
    from lakehouse_backfill.adapters.iceberg.commit.carrying import IcebergCarrying
    from lakehouse_backfill.adapters.iceberg.pins import IcebergPins
    from lakehouse_backfill.adapters.iceberg.shadow.file_clones import FileClones
    from lakehouse_backfill.adapters.iceberg.shadow.shadows import IcebergShadows
    from lakehouse_backfill.wiring import ways

    java, rows = _other_writers(profile, spark)
    namespace = profile.shadow_namespace
    choosing = _choosing(catalog, profile)
    return LakePorts(
        pins=ways.PinsByWay(
            choosing,
            {
                "pyiceberg": IcebergPins(catalog),
                "java": IcebergPins(catalog, java),
                "rewrite": IcebergPins(catalog, rows),
            },
        ),
        shadows=ways.ShadowsByWay(
            choosing,
            {
                "pyiceberg": IcebergShadows(catalog, namespace),
                "java": IcebergShadows(catalog, namespace, java),
                "rewrite": IcebergShadows(catalog, namespace, FileClones(catalog)),
            },
        ),
        publisher=_publisher(catalog, choosing, java, rows),
        carrying=ways.CarryingByWay(
            choosing,
            {
                "pyiceberg": IcebergCarrying(catalog),
                "java": IcebergCarrying(catalog, commits=java),
                "rewrite": IcebergCarrying(catalog, commits=rows),
            },
        ),
        ways=choosing,
    )


def _other_writers(profile: Profile, spark: Callable[[], Any]) -> tuple[JavaCommits, SparkRewrites]:
    """Make what writes tables that PyIceberg cannot: with a JVM in reach, and without."""
    from lakehouse_backfill.adapters.spark.commits.java_api import JavaApi
    from lakehouse_backfill.adapters.spark.commits.java_commits import JavaCommits
    from lakehouse_backfill.adapters.spark.commits.rewriting import SparkRewrites

    name = profile.catalog["name"]
    return JavaCommits(JavaApi(spark, name)), SparkRewrites(spark, name)


def _choosing(catalog: Any, profile: Profile) -> Ways:
    from lakehouse_backfill.adapters.iceberg.surveying import IcebergSurveying
    from lakehouse_backfill.adapters.spark.session.session import is_open
    from lakehouse_backfill.domain.ways import Engine
    from lakehouse_backfill.wiring.ways import Ways

    is_connect = "spark.remote" in profile.spark
    return Ways(IcebergSurveying(catalog), lambda: Engine(is_up=is_open(), is_connect=is_connect))


def _publisher(
    catalog: Any, choosing: Ways, java: JavaCommits, rows: SparkRewrites
) -> PublisherByWay:
    """Make the publishers; each finishes a swap by rows that was cut off."""
    from lakehouse_backfill.adapters.iceberg.commit.publisher import IcebergPublisher
    from lakehouse_backfill.adapters.iceberg.commit.settling import Settling
    from lakehouse_backfill.wiring.ways import PublisherByWay

    settling = Settling(catalog, rows, rows)
    return PublisherByWay(
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
    from lakehouse_backfill.adapters.iceberg.stored import IcebergStored
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
        "stored": IcebergStored(catalog),
        "fences": IcebergFences(control),
        "audit": IcebergAudit(control),
        "pin_leases": IcebergPinLeases(control),
        "upkeep": IcebergUpkeep(catalog, profile.shadow_namespace, SystemClock(), java),
        "control_upkeep": IcebergControlUpkeep(catalog, profile.control_namespace, control),
    }


def views(catalog: Any, profile: Profile, spark: Callable[[], Any]) -> Views:
    """REST catalogs make views without a JVM, for Spark and Trino; the others by Spark."""
    if profile.catalog.get("type") == "rest":
        from lakehouse_backfill.adapters.iceberg.views import RestViews

        return RestViews(catalog)
    from lakehouse_backfill.adapters.spark.views import SparkViews

    return SparkViews(spark, profile.catalog["name"])
