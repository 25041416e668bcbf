"""Derives the settings of a Spark session, and of its catalog, from one profile.

The module is pure. PyIceberg's properties define the catalog once for two engines: both read the
same tables in the same catalog. A property without a counterpart keeps its own name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit
from zipfile import BadZipFile, ZipFile

from lakehouse_backfill.adapters.spark.session.read_guard import NO_EXTERNAL_XML, without_servers
from lakehouse_backfill.domain.profile import REST_TIMEOUTS_MS, Profile
from lakehouse_backfill.errors import ConfigError

ICEBERG_VERSION = "1.12.0"
ICEBERG_COORDINATES = f"org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:{ICEBERG_VERSION}"
SQLITE_COORDINATES = "org.xerial:sqlite-jdbc:3.54.1.0"
POSTGRESQL_COORDINATES = "org.postgresql:postgresql:42.7.7"
AWS_COORDINATES = f"org.apache.iceberg:iceberg-aws-bundle:{ICEBERG_VERSION}"

#: Properties that only PyIceberg reads, or that are translated below.
_NOT_FOR_SPARK = ("name", "type", "py-io-impl", "py-catalog-impl", "echo", "pool_pre_ping")
_LOCK_TIMEOUT_MS = 30_000


def configured_cores(spark: Mapping[str, str]) -> int | None:
    """Return the cores that a profile's settings give to Spark; None where they do not say.

    A local master without a number has all cores of this machine.
    """
    master = spark.get("spark.master", _DEFAULTS["spark.master"])
    local = re.fullmatch(r"local(?:\[(\d+|\*)(?:,.*)?\])?", master)
    if local and "spark.remote" not in spark:
        number = local[1] or "1"
        return os.cpu_count() if number == "*" else int(number)
    instances, cores = (spark.get(f"spark.executor.{name}", "") for name in ("instances", "cores"))
    return int(instances) * int(cores) if instances.isdecimal() and cores.isdecimal() else None


def may_hold_secret(key: str) -> bool:
    """Return whether a setting belongs to a catalog or names a secret."""
    return key.startswith("spark.sql.catalog.") or is_secret(key)


def is_secret(key: str) -> bool:
    """Return whether the value of a setting must not be shown."""
    return key != "spark.redaction.regex" and re.search(SENSITIVE_KEYS, key) is not None


def expand_project_folder(catalog: Mapping[str, str], project: Path) -> dict[str, str]:
    """Replace `${project}` in every property by the project's absolute folder."""
    folder = str(project.resolve())
    return {key: value.replace("${project}", folder) for key, value in catalog.items()}


#: By which a client asks a REST catalog for credentials that end at a table.
_DELEGATION = "header.X-Iceberg-Access-Delegation"


def spark_catalog_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of Iceberg's `SparkCatalog` for PyIceberg's (already resolved).

    Raises ConfigError when the catalog's type or uri has no counterpart in Spark.
    """
    kind = catalog_type(properties)
    if kind == "sql" and "uri" not in properties:
        raise ConfigError(
            "the SQL catalog has no uri, neither in the profile nor in PyIceberg's environment",
            fix="write catalog.uri, or set PYICEBERG_CATALOG__NAME__URI, NAME as in catalog.name",
            field="catalog.uri",
        )
    if kind not in ("sql", *_SHARED_CATALOG_TYPES):
        raise ConfigError(
            f"catalog type {kind!r} is not known to Spark",
            fix=f"use one of {', '.join(_SHARED_CATALOG_TYPES)}, sql in the profile's catalog",
        )
    rest = {
        key: value
        for key, value in properties.items()
        if key not in _NOT_FOR_SPARK and not key.startswith(("s3.", "client."))
    }
    if kind == "rest" and not any(key.lower() == _DELEGATION.lower() for key in rest):
        # PyIceberg asks for credentials by default, Iceberg's Java client does not.
        rest[_DELEGATION] = "vended-credentials"
    if kind == "rest":
        rest = {**{key: str(limit) for key, limit in REST_TIMEOUTS_MS.items()}, **rest}
    # A session would see old data of a cached table as long as it keeps reading (pitfall 45).
    own = {"type": kind}
    if kind == "sql":
        # PyIceberg writes schema V1, which can also hold views.
        own = {"type": "jdbc", "jdbc.schema-version": "V1", **jdbc_settings(properties["uri"])}
    return {**rest, **own, **_object_store_properties(properties), "cache-enabled": "false"}


def maven_coordinates(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return the Maven artifacts, with exact versions, that the catalog and its store need."""
    uri = properties.get("uri", "")
    coordinates = [ICEBERG_COORDINATES]
    if catalog_type(properties) == "sql":
        coordinates.append(
            SQLITE_COORDINATES if uri.startswith("sqlite") else POSTGRESQL_COORDINATES
        )
    if _uses_s3(properties):
        coordinates.append(AWS_COORDINATES)
    return tuple(coordinates)


def catalog_type(properties: Mapping[str, str]) -> str:
    """Return the catalog's type; when absent, guess it from the uri as PyIceberg does."""
    kind = properties.get("type")
    if kind:
        return kind.lower()
    scheme = properties.get("uri", "").split(":", 1)[0].split("+", 1)[0]
    guesses = {"http": "rest", "https": "rest", "thrift": "hive"}
    return guesses.get(scheme, "sql" if scheme in ("sqlite", "postgresql") else "rest")


def jdbc_settings(uri: str) -> dict[str, str]:
    """Translate an SQLAlchemy uri to a JDBC uri, with user and password as separate properties.

    Raises ConfigError for a database that is neither SQLite nor PostgreSQL.
    """
    scheme = uri.split(":", 1)[0].split("+", 1)[0]
    if scheme == "sqlite":
        return {"uri": _sqlite_uri(uri)}
    if scheme in ("postgresql", "postgres"):
        return _postgresql_settings(uri)
    raise ConfigError(
        f"the SQL catalog's uri has scheme {scheme!r}, which Spark's JDBC catalog cannot open here",
        fix="use sqlite:////absolute/file.db or postgresql+psycopg2://user:password@host/database",
    )


def _sqlite_uri(uri: str) -> str:
    """Return a JDBC uri with a long lock timeout, and WAL so that a writer blocks no reader.

    The drivers' default timeouts (3 s and 5 s) end in "Unknown failure" and "database is locked"
    while the other engine commits.
    """
    path = uri.split(":///", 1)[-1].split("?", 1)[0]
    return f"jdbc:sqlite:{Path(path).absolute()}?busy_timeout={_LOCK_TIMEOUT_MS}&journal_mode=WAL"


def _postgresql_settings(uri: str) -> dict[str, str]:
    parts = urlsplit(uri)
    host = parts.hostname or "localhost"
    port = f":{parts.port}" if parts.port else ""
    query = f"?{parts.query}" if parts.query else ""
    settings = {"uri": f"jdbc:postgresql://{host}{port}{parts.path}{query}"}
    secrets = dict(parse_qsl(parts.query))
    user, password = parts.username or secrets.get("user"), parts.password
    if user:
        settings["jdbc.user"] = unquote(user)
    if password:
        settings["jdbc.password"] = unquote(password)
    return settings


#: Catalogs whose properties have the same names on both sides.
_SHARED_CATALOG_TYPES = ("glue", "hive", "rest")


def _uses_s3(properties: Mapping[str, str]) -> bool:
    warehouse = properties.get("warehouse", "")
    return warehouse.startswith(("s3:", "s3a:")) or any(key.startswith("s3.") for key in properties)


def _object_store_properties(properties: Mapping[str, str]) -> dict[str, str]:
    if not _uses_s3(properties):
        return {}
    renamed = {"s3.region": "client.region"}
    python_only = ("s3.force-virtual-addressing", "s3.connect-timeout", "s3.request-timeout")
    translated = {
        renamed.get(key, key): value
        for key, value in properties.items()
        if key.startswith(("s3.", "client.")) and key not in python_only
    }
    translated["io-impl"] = "org.apache.iceberg.aws.s3.S3FileIO"
    if "s3.endpoint" in translated:
        virtual = properties.get("s3.force-virtual-addressing", "false").lower() == "true"
        translated.setdefault("s3.path-style-access", "false" if virtual else "true")
    return translated


ICEBERG_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
JARS_VARIABLE = "LAKEHOUSE_BACKFILL_JARS"
#: Settings by which a profile names its jars itself.
JAR_SETTINGS = ("spark.jars", "spark.jars.packages")
_REPOSITORY_ROOT = Path(__file__).resolve().parents[4]

#: Keys whose values Spark must not show; its own default leaves out headers and credentials.
SENSITIVE_KEYS = (
    r"(?i)secret|password|token|access[.-]?key|credential|authorization|header[.]|jdbc[.]user"
)
#: Settings that safety or the meaning of stored checksums depends on; a profile cannot change them.
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
    # Off: it inspects the Python stack for every column expression.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.redaction.regex": SENSITIVE_KEYS,
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
#: Empty shuffle partitions are costly on a small machine; a cluster keeps its own default.
_LOCAL_DEFAULTS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "8",
    # Chunks that are computed side by side share the cores: `limits.parallel`.
    "spark.scheduler.mode": "FAIR",
}
#: How long the client of YARN tries to reach the cluster: its own default is 15 minutes. Each try
#: lasts ten seconds.
_YARN_DEFAULTS = {
    "spark.hadoop.yarn.resourcemanager.connect.max-wait.ms": "20000",
    "spark.hadoop.yarn.resourcemanager.connect.retry-interval.ms": "10000",
}
#: A JVM that dies writes neither a report nor its memory: both hold values.
_NO_DUMPS = (
    "-XX:+SuppressFatalErrorMessage -XX:-CreateCoredumpOnCrash -XX:-HeapDumpOnOutOfMemoryError"
)
#: Spark's own log configuration, which each executor has. In that of a cluster, a logger may have a
#: level, or a place, of its own.
_LOGGING = "-Dlog4j2.configurationFile="
_SPARKS_LOGGING = f"{_LOGGING}classpath:org/apache/spark/log4j2-defaults.properties"
_EXECUTOR_OPTIONS = "spark.executor.extraJavaOptions"
#: The level is that of the start: one that is set later does not reach an executor that starts.
_SILENT_EXECUTORS = {"spark.log.level": "OFF", "spark.executor.syncLogLevel.enabled": "true"}
#: Shuffles and spills are rows, and stay on the disk when a process is killed.
_ENCRYPTED_SCRATCH = {"spark.io.encryption.enabled": "true"}
#: With so many input rows the start still weighs more than the work: of 1.7 million, the first
#: compiler alone took 31 processor seconds to stage, and both of them 41 (`benchmarks/README.md`).
_FEW_ROWS = 2_000_000
#: Few rows: the second compiler of Java costs several times what it saves. By default, the first
#: one alone has room for 48 MB of code, which Spark fills.
_FEW_ROWS_JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
#: Threads that collect garbage beside the work take its cores, and a small heap is collected all
#: the time. Only where the profile says nothing: Java refuses two collectors.
_FEW_ROWS_HEAP = "-XX:+UseSerialGC -Xmn400m"
#: With so many input rows, making Java code for a query takes longer than to interpret it, and
#: planning it anew between its stages longer than its tasks. An estimate, too.
_TINY_ROWS = 20_000
TINY_QUERIES = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}
#: Session-wide write-audit-publish settings would redirect every write (pitfall 22).
_REFUSED = ("spark.wap.branch", "spark.wap.id")


@dataclass(frozen=True)
class SparkSettings:
    """The settings of one session; `catalog` is the name of the lake's catalog in Spark."""

    catalog: str
    options: Mapping[str, str]

    @property
    def remote(self) -> str | None:
        """The address of a Spark Connect server, or None for a session of this process."""
        return self.options.get("spark.remote")

    @property
    def is_local(self) -> bool:
        """Whether driver and executors are one process on this machine."""
        return self.remote is None and is_local_master(self.options["spark.master"])

    def without_values(self) -> SparkSettings:
        """Return the settings of a session that writes values to no log, dump or scratch file."""
        own = {**self.options, **_ENCRYPTED_SCRATCH}
        ends = {"spark.driver.extraJavaOptions": _NO_DUMPS}
        if not self.is_local:
            own |= _SILENT_EXECUTORS
            ends[_EXECUTOR_OPTIONS] = f"{_SPARKS_LOGGING} {_NO_DUMPS}"
        # Of two options, Java takes the last.
        options = {key: f"{own.get(key, '')} {end}".strip() for key, end in ends.items()}
        return SparkSettings(catalog=self.catalog, options={**own, **options})

    def for_rows(self, rows: int) -> SparkSettings:
        """Return the settings of a session that starts soonest for so few rows; else these.

        What the profile sets wins, unless it is our own default. A cluster's settings stay as they
        are.
        """
        if not (self.is_local and has_few_rows(rows)):
            return self
        key = "spark.driver.extraJavaOptions"
        options = dict(self.options)
        for name, text in TINY_QUERIES.items() if rows <= _TINY_ROWS else ():
            ours = {**_DEFAULTS, **_LOCAL_DEFAULTS}.get(name)
            if options.get(name, ours) == ours:
                options[name] = text
        # Of two options, Java takes the last.
        options[key] = f"{_few_rows_java(options)} {options.get(key, '')}".strip()
        return SparkSettings(catalog=self.catalog, options=options)

    @staticmethod
    def for_session(
        profile: Profile, project: Path, *, hides_values: bool, rows: int | None = None
    ) -> SparkSettings:
        """Return the settings of a session for restricted columns, or for a number of rows."""
        settings = SparkSettings.from_profile(profile, project)
        if hides_values and settings.remote is None:
            settings = settings.without_values()
        return settings if rows is None else settings.for_rows(rows)

    def may_archive(self, *, hides_values: bool, rows: int | None) -> bool:
        """Return whether the JVM of the session may keep its classes when it ends."""
        return self.is_local and not hides_values and has_few_rows(rows)

    @staticmethod
    def from_profile(profile: Profile, project: Path) -> SparkSettings:
        """Derive the settings; those of the profile win, except where safety depends on ours.

        Raises ConfigError when the catalog has no counterpart in Spark, or a setting is refused.
        """
        refused = [key for key in _REFUSED if key in profile.spark]
        if refused:
            raise ConfigError(
                f"profile sets {', '.join(refused)}, which would redirect every write",
                fix="remove it from the profile's spark settings",
            )
        properties = expand_project_folder(profile.catalog, project)
        name = properties.get("name", "lake")
        own = expand_project_folder(profile.spark, project)
        fixed = {**_FIXED, **without_servers(properties.get("warehouse", ""))}
        options = {**_DEFAULTS, **own, **fixed, **_catalog_options(name, properties)}
        extensions = [part for part in own.get("spark.sql.extensions", "").split(",") if part]
        options["spark.sql.extensions"] = ",".join(dict.fromkeys([*extensions, ICEBERG_EXTENSIONS]))
        for key in ("spark.driver.extraJavaOptions", _EXECUTOR_OPTIONS):
            options[key] = f"{options.get(key, '')} {NO_EXTERNAL_XML}".strip()
        settings = SparkSettings(catalog=name, options=options)
        if settings.remote is None:
            options = {**options, **_jar_settings(settings, properties, project)}
        if settings.is_local:
            options = {**_LOCAL_DEFAULTS, **options}
        if settings.remote is None and options["spark.master"] == "yarn":
            options = {**_YARN_DEFAULTS, **options}
        return SparkSettings(catalog=name, options=options)


def _few_rows_java(options: Mapping[str, str]) -> str:
    java = options.get("spark.driver.extraJavaOptions", "")
    is_our_heap = options["spark.driver.memory"] == _DEFAULTS["spark.driver.memory"]
    if is_our_heap and not re.search(r"-XX:[+-]Use\w+GC|-Xm|HeapSize|NewSize|NewRatio", java):
        return f"{_FEW_ROWS_JAVA} {_FEW_ROWS_HEAP}"
    return _FEW_ROWS_JAVA


def has_few_rows(rows: int | None) -> bool:
    """Return whether a start of Spark weighs more than the work on so many rows."""
    return rows is not None and rows <= _FEW_ROWS


def is_local_master(master: str) -> bool:
    """Return whether executors are threads of the driver; those of `local-cluster` are not."""
    return master == "local" or master.startswith("local[")


def loud_executor_settings(setting: Callable[[str, str], str | None]) -> tuple[str, ...]:
    """Return the settings that executors lack to keep errors of tasks out of their logs.

    None where driver and executors are one process.
    """
    if is_local_master(str(setting("spark.master", ""))):
        return ()
    loud = [
        f"{name}={wanted}"
        for name, wanted in _SILENT_EXECUTORS.items()
        if str(setting(name, "")).upper() != wanted.upper()
    ]
    words = str(setting(_EXECUTOR_OPTIONS, "")).split()
    if [word for word in words if word.startswith(_LOGGING)][-1:] != [_SPARKS_LOGGING]:
        loud.append(f"{_EXECUTOR_OPTIONS}={_SPARKS_LOGGING}")
    return tuple(loud)


def _catalog_options(name: str, properties: Mapping[str, str]) -> dict[str, str]:
    prefix = f"spark.sql.catalog.{name}"
    derived = spark_catalog_properties(properties)
    options = {f"{prefix}.{key}": value for key, value in derived.items()}
    return {prefix: "org.apache.iceberg.spark.SparkCatalog", **options}


def _jar_settings(
    settings: SparkSettings, properties: Mapping[str, str], project: Path
) -> dict[str, str]:
    """Return settings for the jars of a local folder, else for exact Maven coordinates."""
    if set(JAR_SETTINGS) & set(settings.options):
        return {}
    jars = find_local_jars(project)
    if not jars:
        return {"spark.jars.packages": ",".join(maven_coordinates(properties))}
    missing = () if os.environ.get(JARS_VARIABLE) else missing_artifacts(jars, properties)
    if missing:
        # Not from the class path: JDBC finds a driver only through the loader of its caller.
        return {"spark.jars": ",".join(map(str, jars)), "spark.jars.packages": ",".join(missing)}
    if not settings.is_local:
        return {"spark.jars": ",".join(map(str, jars))}
    # From the class path, a local session neither copies jars nor opens a second class loader.
    own = settings.options.get("spark.driver.extraClassPath")
    parts = [*([own] if own else []), *map(str, jars)]
    return {"spark.driver.extraClassPath": os.pathsep.join(parts)}


#: A class of each artifact, by which a jar of another name is recognised.
_CLASSES = {
    ICEBERG_COORDINATES: "org/apache/iceberg/spark/SparkCatalog.class",
    SQLITE_COORDINATES: "org/sqlite/JDBC.class",
    POSTGRESQL_COORDINATES: "org/postgresql/Driver.class",
    AWS_COORDINATES: "software/amazon/awssdk/services/s3/S3Client.class",
}


def missing_artifacts(jars: Iterable[Path], properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return the Maven artifacts that the catalog needs and that none of the jars is or holds."""
    files = tuple(jars)
    return tuple(one for one in maven_coordinates(properties) if not _has_artifact(files, one))


def _has_artifact(jars: tuple[Path, ...], coordinates: str) -> bool:
    artifact = coordinates.split(":")[1]
    if any(jar.name.startswith(f"{artifact}-") for jar in jars):
        return True
    return any(_holds(jar, _CLASSES[coordinates]) for jar in jars)


def _holds(jar: Path, entry: str) -> bool:
    try:
        with ZipFile(jar) as archive:
            return entry in archive.namelist()
    except (OSError, BadZipFile):
        return False


def describe_start(profile: Profile, project: Path) -> str:
    """Describe what the start of Spark does, and what makes it long; nothing is started."""
    settings = SparkSettings.from_profile(profile, project)
    if settings.remote:
        # What follows the address may be a token.
        return f"connecting to Spark at {settings.remote.partition('/;')[0]}"
    names = settings.options.get("spark.jars.packages")
    if names:
        count = len(names.split(","))
        return f"starting Spark: a JVM; it downloads what it lacks of {count} packages of jars"
    return "starting Spark: a JVM with Iceberg's jars"


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
