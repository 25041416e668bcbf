"""The catalog of a profile: opening it, translating its errors, retrying commits.

Also parallel requests to a table's store, and the distinction between a server that does not
support a request and one that does not answer now.
"""

from __future__ import annotations

import importlib
import random
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn, TypeVar
from urllib.parse import urlsplit

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    RESTError,
)
from pyiceberg.io import FileIO, InputFile
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.utils.config import Config

from lakehouse_backfill import errors
from lakehouse_backfill.adapters.iceberg.clock import guard_commits
from lakehouse_backfill.adapters.iceberg.metadata import require_known_format, view_of
from lakehouse_backfill.adapters.iceberg.rest.answers import is_denied, refusal_error
from lakehouse_backfill.adapters.iceberg.shadow.branch_table import adapt_table_names
from lakehouse_backfill.domain.labels import names
from lakehouse_backfill.domain.profile import Profile

_SQL = ("sqlite", "postgresql")
_SQLITE_WAIT_S = 30
#: The schemes of uris for which SQLAlchemy takes this driver of PostgreSQL.
_PSYCOPG2 = ("postgresql", "postgresql+psycopg2")
_S3_RETRIES = "lakehouse_backfill.adapters.iceberg.rest.store_retries.PatientS3Retries"
_SCHEME_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*", re.ASCII)
_SCHEMES_BY_TYPE = {"rest": ("http", "https"), "hive": ("thrift",)}
_CATALOG_TYPES = ("rest", "hive", "glue", "dynamodb", "sql", "in-memory", "bigquery")
#: Errors of the library for a wrong type, and by name for a missing or malformed uri.
_CONFIGURATION_ERRORS = (NotInstalledError, ValueError, TypeError, KeyError)
_URI_ERROR_NAMES = ("ArgumentError", "NoSuchModuleError", "NoSuchPropertyException")
_URI_EXAMPLES = {
    "sql": "write e.g. uri: sqlite:///${project}/catalog.db",
    "rest": "write e.g. uri: https://catalog.example.com",
    "hive": "write e.g. uri: thrift://metastore.example.com:9083",
}
#: A new SQL catalog creates two tables, so two races can be lost.
_MAX_LOST_RACES = 3
#: Names of tables or namespaces that an error lists.
_MAX_NAMED = 12
#: Readers report damage as an `OSError` too; it names the format, and an outage does not.
_FORMAT_WORDS = ("parquet", "thrift", "magic bytes")
#: PyIceberg's functions that read one file each, which they hold as an argument.
_FILE_READERS = frozenset(
    (
        "table_metadata",
        "read_manifest_list",
        "fetch_manifest_entry",
        "read_manifest_entries",
        "_task_to_record_batches",
        "read_data_file",
    )
)
#: Libraries below PyIceberg whose errors mean "does not answer"; by name, to import none of them.
_TRANSPORT_LIBRARIES = ("sqlalchemy", "sqlite3", "psycopg2", "requests", "urllib3", "botocore")


def open_catalog(profile: Profile, project: Path, *, must_exist: bool = False) -> Catalog:
    """Open the profile's catalog; `${project}` stands for the project's folder.

    With `must_exist` a SQLite file that is missing raises NotFound: a mistyped path would otherwise
    create a new, empty lake in which nothing was ever published.
    The catalog raises Unsupported on `purge_table`, which would delete files that a shadow shares
    with its target (it ignores `gc.enabled=false`). Raises ConfigError and CatalogDown.
    """
    root = str(project.resolve())
    whole = with_pyiceberg_settings(profile).catalog
    properties = {key: text.replace("${project}", root) for key, text in whole.items()}
    name = properties.pop("name", "")
    if not name:
        raise errors.ConfigError(
            "the profile's catalog has no name", fix="add catalog.name", field="catalog"
        )
    _check_uri(properties)
    _check_driver(properties)
    _check_warehouse(properties)
    _check_file_io(properties)
    properties.setdefault("s3.retry-strategy-impl", _S3_RETRIES)
    if properties.get("uri", "").startswith("sqlite"):
        properties["uri"] = _sqlite_uri(properties["uri"], must_exist=must_exist)
        if must_exist:
            properties.setdefault("init_catalog_tables", "false")
    with translate_errors():
        try:
            catalog = _load_catalog(name, properties)
        except Exception as error:
            is_uri_error = type(error).__name__ in _URI_ERROR_NAMES
            if is_uri_error or isinstance(error, _CONFIGURATION_ERRORS):
                raise _configuration_error(name, properties, error) from error
            raise
    vars(catalog)["purge_table"] = _refuse_purge
    adapt_table_names(catalog)
    guard_commits(catalog, profile.control_namespace)
    return catalog


def with_pyiceberg_settings(profile: Profile) -> Profile:
    """Return the profile with what PyIceberg's own configuration adds to its catalog.

    PyIceberg reads environment variables and `.pyiceberg.yaml` for itself; properties of the
    profile win. Spark knows neither, so its session is opened with this profile.
    """
    found = Config().get_catalog_config(profile.catalog.get("name", "")) or {}
    own = {key: str(text) for key, text in found.items()}
    return profile.model_copy(update={"catalog": {**own, **profile.catalog}})


def _load_catalog(name: str, properties: dict[str, str]) -> Catalog:
    """Load the catalog; retry while other processes create the tables of a new SQL catalog."""
    if _is_rest(properties):
        from lakehouse_backfill.adapters.iceberg.rest.rest_catalog import ResendingRestCatalog

        return ResendingRestCatalog(name, **properties)
    if _uses_psycopg2(properties):
        from lakehouse_backfill.adapters.iceberg.sql.uris import postgres_uri

        properties = {**properties, "uri": postgres_uri(properties)}
    for _ in range(_MAX_LOST_RACES):
        try:
            return load_catalog(name, **properties)
        except Exception as error:
            if "already exists" not in str(error):
                raise
    return load_catalog(name, **properties)


def _is_rest(properties: Mapping[str, str]) -> bool:
    """Return whether PyIceberg would open a REST catalog: by its type, or by the uri's scheme."""
    if "uri" not in properties or "py-catalog-impl" in properties:
        return False
    kind = properties.get("type")
    return kind.lower() == "rest" if kind else properties["uri"].startswith("http")


def load_table(catalog: Catalog, table: str) -> Table:
    """Load the table from the catalog, once in a view of it; raises NotFound and CatalogDown."""
    with translate_errors():
        view = view_of(catalog)
        if view is None:
            return catalog.load_table(table)
        return view.tables.get(table, lambda: catalog.load_table(table))


def missing_table_error(catalog: Catalog, table: str) -> errors.NotFound:
    """Build the error for a table that does not exist; it names those that may be meant."""
    namespace = names.namespace_text(table) if names.is_table_text(table) else ""
    known = list_table_names(catalog, namespace) if namespace else []
    kind = f"tables of {namespace}"
    if not known:
        kind = "namespaces"
        with translate_errors():
            known = [names.table_text(found) for found in catalog.list_namespaces()]
    near = get_close_matches(table, known, 1) or sorted(known)[:_MAX_NAMED]
    return errors.NotFound(
        f"{table} does not exist; {kind}: {', '.join(sorted(known)[:_MAX_NAMED]) or 'none'}",
        fix=f"name one that exists: {' or '.join(near)}"
        if near
        else "check the profile: lakehouse-backfill doctor",
    )


def load_table_or_none(catalog: Catalog, table: str) -> Table | None:
    """Load the table from the catalog, or return None where the catalog does not have it.

    Raises CatalogDown, and NotFound when the catalog has it and its metadata file is missing.
    """
    try:
        return load_table(catalog, table)
    except errors.LostFile:
        raise
    except errors.NotFound:
        return None


def list_table_names(catalog: Catalog, namespace: str) -> list[str]:
    """List the full names of a namespace's tables; none where there is no such namespace."""
    with translate_errors():
        try:
            return [names.table_text(identifier) for identifier in catalog.list_tables(namespace)]
        except NoSuchNamespaceError:
            return []


@contextmanager
def translate_errors() -> Iterator[None]:
    """Translate the library's errors into ours; unknown errors pass unchanged."""
    try:
        yield
    except (NoSuchTableError, NoSuchNamespaceError) as error:
        raise errors.NotFound(
            f"the catalog has no such table or namespace: {error}",
            fix="check the name and the profile: lakehouse-backfill doctor",
        ) from error
    except CommitFailedException as error:
        raise errors.TooBusy(f"another writer won: {error}", fix="try again") from error
    except FileNotFoundError as error:
        raise errors.LostFile(
            f"a file that the table lists is gone: {error}",
            fix="restore the file, or plan against a newer snapshot",
        ) from error
    except Exception as error:
        require_undamaged(error)
        if not is_outage(error):
            raise
        raise (refusal_error(error) or _outage_error(error)) from error


def _outage_error(error: Exception) -> errors.CatalogDown:
    problem = "the catalog or its store does not answer"
    fix = "try again; lakehouse-backfill doctor says what does not answer"
    if _is_read_only(error):
        problem = "the lake is read-only here"
        fix = "use an account, or a machine, that may write to catalog and warehouse"
    elif is_denied(error):
        problem = "the credentials do not reach a file in the store"
        fix = (
            "use an account that reaches it; where the catalog hands out credentials that end "
            "at each table: lakehouse-backfill doctor, then isolation: auto in the profile"
        )
    cause = f"{type(error).__name__}: {first_error_line(error)}"
    return errors.CatalogDown(f"{problem}: {cause}", fix=fix)


def require_undamaged(error: Exception) -> None:
    """Raise DamagedFile when the error is a reader's, on a file that it could not read.

    Raises Unsupported for the metadata of a table of a newer format, or with unknown types.

    Readers of Avro, JSON and Parquet fail with errors of many types that name no file. The frames
    of the traceback hold the file that was read.
    """
    if isinstance(error, errors.BackfillError):
        return
    if is_outage(error) and not any(word in str(error).lower() for word in _FORMAT_WORDS):
        return
    require_known_format(error)
    found, traceback = None, error.__traceback__
    while traceback is not None:
        frame, traceback = traceback.tb_frame, traceback.tb_next
        if frame.f_code.co_name in _FILE_READERS:
            found = next(filter(None, map(_file_location, frame.f_locals.values())), found)
    if found is not None:
        raise errors.DamagedFile(found, error) from error


def _file_location(value: object) -> str | None:
    if isinstance(value, InputFile):
        return value.location
    if isinstance(value, ManifestFile):
        return str(value.manifest_path)
    file = value.file if isinstance(value, FileScanTask) else value
    return str(file.file_path) if isinstance(file, DataFile) else None


def is_outage(error: BaseException) -> bool:
    """Return whether the error means that catalog or store did not answer."""
    library = type(error).__module__.split(".")[0]
    return isinstance(error, (RESTError, OSError)) or library in _TRANSPORT_LIBRARIES


def _is_read_only(error: BaseException) -> bool:
    """Return whether catalog or store answered that it is read-only."""
    return isinstance(error, PermissionError) or bool(re.search("(?i)read-?only", str(error)))


def first_error_line(error: BaseException) -> str:
    """Return the first line: the rest is SQL with its values, and a link to a manual."""
    return next(iter(str(error).strip().splitlines()), "")


def is_sqlite_locked(error: BaseException) -> bool:
    """Return whether SQLite's wait for its lock timed out; nothing was written then."""
    return type(error).__name__ == "OperationalError" and "database is locked" in str(error)


def _refuse_purge(identifier: object) -> NoReturn:
    raise errors.Unsupported(
        f"purging {identifier} would delete files that other tables may share",
        fix="drop it without purge",
    )


def _configuration_error(
    name: str, properties: dict[str, str], error: Exception
) -> errors.ConfigError:
    """Build the error that names the field of the catalog that the library could not use."""
    kind = properties.get("type")
    if isinstance(error, NotInstalledError):
        field, fix = "type", "install what it names, or use another type of catalog"
    elif kind is not None and kind not in _CATALOG_TYPES:
        field, fix = "type", f"write one of {', '.join(_CATALOG_TYPES)}"
    else:
        field, fix = "uri", _URI_EXAMPLES.get(kind or "", _URI_EXAMPLES["sql"])
    if field == "uri" and field not in properties:
        fix, field = f"{fix}, or set it in PyIceberg's environment variables", ""
    place = f"catalog.{field}" if field else "catalog"
    return errors.ConfigError(f"catalog {name}: {first_error_line(error)}", fix=fix, field=place)


def _check_uri(properties: dict[str, str]) -> None:
    """Raise ConfigError for a malformed uri, which would otherwise look like an outage.

    PyIceberg itself requires the form `scheme://…`, and infers the type from the scheme.
    """
    uri, kind = properties.get("uri"), properties.get("type", "")
    if uri is None:
        return  # PyIceberg itself says what its type needs
    scheme, _, rest = uri.partition("://")
    problem = ""
    if not rest or not _SCHEME_PATTERN.fullmatch(scheme):
        problem = "names no catalog: it lacks the form scheme://place"
    elif kind in _SCHEMES_BY_TYPE and not scheme.startswith(_SCHEMES_BY_TYPE[kind]):
        problem = f"is none of a catalog of type {kind}"
    if problem:
        fix = _URI_EXAMPLES.get(kind, _URI_EXAMPLES["sql"])
        raise errors.ConfigError(f"catalog.uri {uri!r} {problem}", fix=fix, field="catalog.uri")


def _uses_psycopg2(properties: Mapping[str, str]) -> bool:
    return properties.get("uri", "").partition("://")[0] in _PSYCOPG2


def _check_driver(properties: dict[str, str]) -> None:
    """Raise EnvironmentDown when PostgreSQL's driver is missing: PyIceberg names another extra."""
    if _uses_psycopg2(properties) and find_spec("psycopg2") is None:
        raise errors.EnvironmentDown(
            "the catalog is on PostgreSQL, and its driver, the package psycopg2, is not installed",
            state="nothing was read or changed",
            fix="pip install 'lakehouse-backfill[postgres]'",
        )


def _check_warehouse(properties: dict[str, str]) -> None:
    kind = properties.get("type") or properties.get("uri", "").split(":")[0].split("+")[0]
    warehouse = properties.get("warehouse", "")
    if kind not in ("sql", *_SQL) or not warehouse:
        return
    path = urlsplit(warehouse).path if "://" in warehouse else warehouse.removeprefix("file:")
    if ("://" not in warehouse or warehouse.startswith("file:")) and not path.startswith("/"):
        raise errors.ConfigError(
            f"warehouse {warehouse!r} is relative, so it depends on the current folder",
            fix="write warehouse: file://${project}/warehouse",
            field="catalog.warehouse",
        )


def _check_file_io(properties: Mapping[str, str]) -> None:
    """Raise ConfigError unless `py-io-impl` names a class that reads files: it will be called."""
    name = properties.get("py-io-impl")
    if name is None:
        return
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except (ImportError, ValueError):
        found = None
    if not (isinstance(found, type) and issubclass(found, FileIO)):
        raise errors.ConfigError(
            f"py-io-impl {name!r} is no class of PyIceberg's FileIO",
            fix="write pyiceberg.io.pyarrow.PyArrowFileIO or pyiceberg.io.fsspec.FsspecFileIO, or "
            "remove it",
            field="catalog.py-io-impl",
        )


def _sqlite_uri(uri: str, *, must_exist: bool) -> str:
    """Create the file's folder, and set a timeout so that writers wait for each other."""
    scheme, _, rest = uri.partition("://")
    path, _, query = rest.partition("?")
    file = Path(path.removeprefix("/").removeprefix("file:"))
    if not file.is_absolute():
        raise errors.ConfigError(
            f"{uri!r} is relative, so it depends on the current folder",
            fix="write uri: sqlite:///${project}/catalog.db",
            field="catalog.uri",
        )
    if must_exist and not file.is_file():
        raise errors.NotFound(
            f"there is no lake at {file}",
            state="nothing was made there",
            fix="correct catalog.uri in catalog/profiles.yaml; a new lake begins with its first "
            "table, written by Spark or PyIceberg",
            field="catalog.uri",
        )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise errors.CatalogDown(f"cannot make {file.parent}: {error}") from error
    options = [option for option in query.split("&") if option]
    if not any(option.startswith("timeout=") for option in options):
        options.append(f"timeout={_SQLITE_WAIT_S}")
    return f"{scheme}://{path}?{'&'.join(options)}"


ResultT = TypeVar("ResultT")
#: Stores have a high latency and serve many requests in parallel.
_CONCURRENT_REQUESTS = 8


def fetch_all(
    request: Callable[[str], ResultT], paths: Collection[str], at_once: int = _CONCURRENT_REQUESTS
) -> dict[str, ResultT]:
    """Call `request` for each path in parallel; paths of missing files are left out."""

    def request_or_none(path: str) -> ResultT | None:
        with suppress(FileNotFoundError):
            return request(path)
        return None

    with translate_errors(), ThreadPoolExecutor(at_once, thread_name_prefix="store") as pool:
        results = zip(paths, pool.map(request_or_none, paths), strict=True)
        return {path: result for path, result in results if result is not None}


COMMIT_BUDGET_S = 30.0
#: As many attempts are made also where the time is over: a process that was stopped in its first
#: one has seen no other writer but the one that it met then.
LEAST_ATTEMPTS = 3
_PAUSE_STEP_S = 0.02
_MAX_PAUSE_S = 0.5


def retry_attempts(budget_s: float) -> Iterator[int]:
    """Yield 1, 2, 3 … with growing, random pauses between, until the budget is spent.

    To be used after attempts that the catalog refused only. At least `LEAST_ATTEMPTS` are given.
    """
    end = time.monotonic() + budget_s
    number = 1
    while True:
        yield number
        pause = min(_PAUSE_STEP_S * number, _MAX_PAUSE_S) * random.uniform(0.5, 1.5)  # noqa: S311 (jitter)
        if time.monotonic() + pause > end and number >= LEAST_ATTEMPTS:
            return
        time.sleep(pause)
        number += 1


def commit_with_retry(
    action: Callable[[], ResultT], what: str, budget_s: float = COMMIT_BUDGET_S
) -> ResultT:
    """Run `action` again while other writers win; raises TooBusy when the budget is spent.

    `action` must load the table itself and must be safe to repeat.
    """
    for _ in retry_attempts(budget_s):
        try:
            with translate_errors():
                return action()
        except errors.TooBusy:
            continue
        except Exception as error:
            if error.__cause__ is None or not is_sqlite_locked(error.__cause__):
                raise
    raise errors.TooBusy(
        f"other writers kept winning for {budget_s:.0f} s: {what}",
        fix="try again, or pause the writer",
    )


def is_lost_race(error: Exception) -> bool:
    """Return whether the commit certainly failed because another writer was first."""
    if isinstance(error, CommitFailedException | errors.TooBusy) or is_sqlite_locked(error):
        return True
    # A commit on another branch uses the sequence number and leaves the head unchanged. Servers
    # then answer 400 instead of 409 (SeaweedFS also when the head moved), and PyIceberg's own
    # catalogs raise a ValueError. In both cases the metadata was refused before it was written.
    is_refused = isinstance(error, (BadRequestError, ValueError))
    return is_refused and errors.LOST_RACE in str(error)
