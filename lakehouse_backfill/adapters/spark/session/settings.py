"""Everything that a Spark session is started with, derived from one profile."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lakehouse_backfill.adapters.spark.session import catalog_settings
from lakehouse_backfill.domain.contract import Profile
from lakehouse_backfill.errors import ConfigError

ICEBERG_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
JARS_VARIABLE = "LAKEHOUSE_BACKFILL_JARS"
_REPOSITORY_ROOT = Path(__file__).resolve().parents[4]

#: What a run's safety or the meaning of stored checksums rests on; a profile cannot change it.
_FIXED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.defaultCatalog": "spark_catalog",
}
_DEFAULTS = {
    "spark.app.name": "lakehouse-backfill",
    "spark.master": "local[*]",
    "spark.driver.memory": "2g",
    # Off: it walks the Python stack for every column expression.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
#: A small machine pays for every empty shuffle partition; a cluster's own default is better there.
_LOCAL_DEFAULTS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "8",
}
#: Session-wide write-audit-publish settings would send every write somewhere else (pitfall 22).
_REFUSED = ("spark.wap.branch", "spark.wap.id")


@dataclass(frozen=True)
class SparkSettings:
    """The settings of one session: `catalog` is the name under which the lake's tables stand."""

    catalog: str
    options: Mapping[str, str]

    @property
    def remote(self) -> str | None:
        """The address of a Spark Connect server, or None for a session of this process."""
        return self.options.get("spark.remote")

    @property
    def is_local(self) -> bool:
        """Whether driver and executors are this machine's one process."""
        return self.remote is None and self.options["spark.master"].startswith("local")

    @staticmethod
    def of(profile: Profile, project: Path) -> SparkSettings:
        """Derive the settings; the profile's own win except where safety rests on ours.

        Raises ConfigError when the catalog has no counterpart in Spark, or a setting is refused.
        """
        refused = [key for key in _REFUSED if key in profile.spark]
        if refused:
            raise ConfigError(
                f"profile sets {', '.join(refused)}, which would redirect every write",
                fix="remove it from the profile's spark settings",
            )
        properties = catalog_settings.expand_project_folder(profile.catalog, project)
        name = properties.get("name", "lake")
        own = catalog_settings.expand_project_folder(profile.spark, project)
        options = {**_DEFAULTS, **own, **_FIXED, **_catalog_options(name, properties)}
        options["spark.sql.extensions"] = _extensions(own)
        settings = SparkSettings(catalog=name, options=options)
        if settings.remote is None:
            options = {**options, **_jar_settings(settings, properties, project)}
        if settings.is_local:
            options = {**_LOCAL_DEFAULTS, **options}
        return SparkSettings(catalog=name, options=options)


def _catalog_options(name: str, properties: Mapping[str, str]) -> dict[str, str]:
    prefix = f"spark.sql.catalog.{name}"
    derived = catalog_settings.spark_catalog_properties(properties)
    options = {f"{prefix}.{key}": value for key, value in derived.items()}
    return {prefix: "org.apache.iceberg.spark.SparkCatalog", **options}


def _extensions(own: Mapping[str, str]) -> str:
    wanted = [part for part in own.get("spark.sql.extensions", "").split(",") if part]
    return ",".join(dict.fromkeys([*wanted, ICEBERG_EXTENSIONS]))


def _jar_settings(
    settings: SparkSettings, properties: Mapping[str, str], project: Path
) -> dict[str, str]:
    """Use the jars of a folder when there is one, else let Spark fetch exact coordinates."""
    if {"spark.jars", "spark.jars.packages"} & set(settings.options):
        return {}
    jars = find_local_jars(project)
    if not jars:
        return {"spark.jars.packages": ",".join(catalog_settings.maven_coordinates(properties))}
    if not settings.is_local:
        return {"spark.jars": ",".join(map(str, jars))}
    # On the class path a local session neither copies the jars nor opens a second class loader.
    own = settings.options.get("spark.driver.extraClassPath")
    parts = [*([own] if own else []), *map(str, jars)]
    return {"spark.driver.extraClassPath": os.pathsep.join(parts)}


def find_local_jars(project: Path, environ: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """Find the jars of `LAKEHOUSE_BACKFILL_JARS`, of the project's or the clone's `.tools/jars`."""
    env = os.environ if environ is None else environ
    named = env.get(JARS_VARIABLE)
    folders = (
        [Path(named)]
        if named
        else [project / ".tools" / "jars", _REPOSITORY_ROOT / ".tools" / "jars"]
    )
    for folder in folders:
        jars = tuple(sorted(folder.resolve().glob("*.jar")))
        if jars:
            return jars
    if named:
        raise ConfigError(f"{JARS_VARIABLE} names {named}, which holds no jars", fix="correct it")
    return ()
