"""The ports of the lake: tables, each with its adapters by way, and control tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from lakehouse_backfill.model.contract import Profile
from lakehouse_backfill.observe.clock import SystemClock

if TYPE_CHECKING:
    from lakehouse_backfill.ports.carrying import Carrying
    from lakehouse_backfill.ports.compute import Views
    from lakehouse_backfill.ports.lake import Pins, Publisher, Shadows
    from lakehouse_backfill.stages.ways import Ways


class LakePorts(NamedTuple):
    """What changes tables, and what says by which way."""

    pins: Pins
    shadows: Shadows
    publisher: Publisher
    carrying: Carrying
    ways: Ways


def lake_ports(catalog: Any, profile: Profile, spark: Callable[[], Any]) -> LakePorts:
    """Make the ports over one PyIceberg catalog; `spark` starts a JVM, when a table needs it."""
    from lakehouse_backfill.iceberg.carrying import IcebergCarrying
    from lakehouse_backfill.iceberg.pins import IcebergPins
    from lakehouse_backfill.iceberg.publisher import IcebergPublisher
    from lakehouse_backfill.iceberg.shadows import IcebergShadows
    from lakehouse_backfill.iceberg.surveying import IcebergSurveying
    from lakehouse_backfill.model.ways import Engine
    from lakehouse_backfill.spark.java_api import JavaApi
    from lakehouse_backfill.spark.java_commits import JavaCommits
    from lakehouse_backfill.spark.session import is_open
    from lakehouse_backfill.stages import ways

    java = JavaCommits(JavaApi(spark, profile.catalog["name"]))
    is_connect, namespace = "spark.remote" in profile.spark, profile.shadow_namespace
    choosing = ways.Ways(
        IcebergSurveying(catalog), lambda: Engine(is_up=is_open(), is_connect=is_connect)
    )
    return LakePorts(
        pins=ways.PinsByWay(
            choosing, {"pyiceberg": IcebergPins(catalog), "java": IcebergPins(catalog, java)}
        ),
        shadows=ways.ShadowsByWay(
            choosing,
            {
                "pyiceberg": IcebergShadows(catalog, namespace),
                "java": IcebergShadows(catalog, namespace, java),
            },
        ),
        publisher=ways.PublisherByWay(
            choosing,
            {
                "pyiceberg": IcebergPublisher(catalog),
                "java": IcebergPublisher(catalog, commits=java),
            },
        ),
        carrying=ways.CarryingByWay(
            choosing,
            {
                "pyiceberg": IcebergCarrying(catalog),
                "java": IcebergCarrying(catalog, commits=java),
            },
        ),
        ways=choosing,
    )


def control_ports(catalog: Any, profile: Profile, spark: Callable[[], Any]) -> dict[str, Any]:
    """Make the ports over the control tables, by the workbench's names for them."""
    from lakehouse_backfill.iceberg.audit import IcebergAudit
    from lakehouse_backfill.iceberg.control import ControlTables
    from lakehouse_backfill.iceberg.control_upkeep import IcebergControlUpkeep
    from lakehouse_backfill.iceberg.evidence import IcebergEvidence
    from lakehouse_backfill.iceberg.fences import IcebergFences
    from lakehouse_backfill.iceberg.ledger import IcebergLedger
    from lakehouse_backfill.iceberg.pin_leases import IcebergPinLeases
    from lakehouse_backfill.iceberg.runs import IcebergRuns
    from lakehouse_backfill.iceberg.upkeep import IcebergUpkeep
    from lakehouse_backfill.iceberg.versions import IcebergVersions
    from lakehouse_backfill.spark.java_api import JavaApi
    from lakehouse_backfill.spark.java_commits import JavaCommits

    java = JavaCommits(JavaApi(spark, profile.catalog["name"]))
    control = ControlTables(catalog, profile.control_namespace)
    return {
        "runs": IcebergRuns(control),
        "ledger": IcebergLedger(control),
        "versions": IcebergVersions(control),
        "evidence": IcebergEvidence(control),
        "fences": IcebergFences(control),
        "audit": IcebergAudit(control),
        "pin_leases": IcebergPinLeases(control),
        "upkeep": IcebergUpkeep(catalog, profile.shadow_namespace, SystemClock(), java),
        "control_upkeep": IcebergControlUpkeep(catalog, profile.control_namespace, control),
    }


def views(catalog: Any, profile: Profile, spark: Callable[[], Any]) -> Views:
    """REST catalogs make views without a JVM, for Spark and Trino; the others by Spark."""
    if profile.catalog.get("type") == "rest":
        from lakehouse_backfill.iceberg.views import RestViews

        return RestViews(catalog)
    from lakehouse_backfill.spark.views import SparkViews

    return SparkViews(spark, profile.catalog["name"])
