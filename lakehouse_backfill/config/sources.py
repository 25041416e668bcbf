"""Loading declared sources: `catalog/sources/NAME.yaml`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import date, datetime, timezone
from pathlib import Path

from lakehouse_backfill.config.faults import NamedFiles, suggest_name
from lakehouse_backfill.config.yaml_lines import YamlDocument
from lakehouse_backfill.domain.sources.declaration import (
    CHANGE_COLUMNS,
    COLUMNS_OF_KIND,
    LANDING_COLUMNS,
    SourceDeclaration,
)
from lakehouse_backfill.domain.sources.landings import LandingRequest
from lakehouse_backfill.errors import ConfigError, Fault

SOURCES_FOLDER = Path("catalog/sources")


def list_sources(project: Path) -> tuple[str, ...]:
    """List the sources that have a file."""
    return _files().names(project)


def file_sources(project: Path) -> dict[str, str]:
    """Return the sources of files by raw table; a declaration that is wrong is left out."""
    found = {}
    for name in list_sources(project):
        with suppress(ConfigError):
            source = find_source(project, name)
            if source.kind == "files":
                found[source.table] = source.source
    return found


def find_source(project: Path, name: str) -> SourceDeclaration:
    """Load a source; raises NotFound with the known names, ConfigError with all faults."""
    return _files().find(project, name)


def _files() -> NamedFiles[SourceDeclaration]:
    return NamedFiles(
        SOURCES_FOLDER, SourceDeclaration, _cross_field_faults,
        kind="source", field="source", command="lakehouse-backfill land {}",
        page="docs/sources.md", rename="rename the file or the source",
    )  # fmt: skip


def landing_request(
    from_: str | None, to: str | None, *, reconcile: bool = False
) -> LandingRequest:
    """Read the range of a landing; raises ConfigError for what is no date or instant."""
    first, stop = (_moment(name, text) for name, text in (("--from", from_), ("--to", to)))
    if first is not None and stop is not None and type(first) is not type(stop):
        raise ConfigError("--from and --to are a date and an instant", fix="write both alike")
    if first is not None and stop is not None and first >= stop:
        raise ConfigError(
            f"--from {first} is not before --to {stop}", fix="write the earlier first"
        )
    return LandingRequest(from_=first, to=stop, reconcile=reconcile)


def _moment(name: str, text: str | None) -> date | datetime | None:
    if text is None:
        return None
    try:
        if len(text) == len("2026-01-31"):
            return date.fromisoformat(text)
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as error:
        raise ConfigError(
            f"{name} {text} is no date", fix="write 2026-01-31, or 2026-01-31T06:00:00Z"
        ) from error
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def _cross_field_faults(document: YamlDocument) -> Iterator[Fault]:
    kind = document.get("kind")
    if kind == "files" and document.get("files") is None:
        yield document.fault(("kind",), "is files, and nothing says where they are", "add `files:`")
    if kind == "api" and document.get("api") is None:
        yield document.fault(("kind",), "is api, and nothing says where it is", "add `api:`")
    if kind == "kafka" and document.get("kafka") is None:
        yield document.fault(("kind",), "is kafka, and nothing says where it is", "add `kafka:`")
    yield from _missing_column_faults(document)
    yield from _column_faults(document)
    yield from _kafka_faults(document)
    yield from _schema_faults(document)
    yield from _change_log_faults(document)
    yield from _pattern_faults(document)


def _change_log_faults(document: YamlDocument) -> Iterator[Fault]:
    kind = "kafka" if document.get("kind") == "kafka" else "files"
    is_debezium = document.get(kind, "format") == "debezium"
    log = document.get("change_log")
    if is_debezium and log is None:
        fix = "add `change_log: {key: [id], position: [lsn]}`"
        yield document.fault((kind, "format"), "is debezium, and change_log is not there", fix)
    if log is not None and not is_debezium:
        fix = f"write {kind}.format: debezium, or remove it"
        yield document.fault(("change_log",), "is for files and topics of format debezium", fix)
    if is_debezium and document.get("kafka", "unreadable") == "keep":
        # A job that makes a state of the changes would not miss it.
        problem = "is keep, and a change that is left out makes the state of its row wrong"
        yield document.fault(("kafka", "unreadable"), problem, "write unreadable: block")
    columns, key = document.get("columns"), document.get("change_log", "key")
    names = [
        one.get("name")
        for one in (columns if isinstance(columns, list) else [])
        if isinstance(one, dict)
    ]
    for place, name in enumerate(key if isinstance(key, list) else []):
        if isinstance(name, str) and name not in names:
            known = sorted(one for one in names if isinstance(one, str))
            path = ("change_log", "key", place)
            yield document.fault(path, f"is {name}, which is no column", suggest_name(name, known))


def _missing_column_faults(document: YamlDocument) -> Iterator[Fault]:
    columns = document.get("columns")
    is_raw = document.get("kind") == "kafka" and document.get("kafka", "format") in (None, "raw")
    if not columns and not is_raw:
        yield document.fault(("columns",), "names no column", "declare the columns of a record")
    if columns and is_raw:
        problem = "are declared, and values of format raw are not parsed"
        yield document.fault(("columns",), problem, "remove them, or write kafka.format: json")


def _column_faults(document: YamlDocument) -> Iterator[Fault]:
    columns = document.get("columns")
    if not isinstance(columns, list):
        return
    own = COLUMNS_OF_KIND.get(str(document.get("kind")), ())
    changes = CHANGE_COLUMNS if document.get("change_log") else ()
    added = {name for name, _, _ in (*changes, *own, *LANDING_COLUMNS)}
    seen: set[str] = set()
    for position, column in enumerate(columns):
        name = column.get("name") if isinstance(column, dict) else None
        if not isinstance(name, str):
            continue
        path = ("columns", position, "name")
        if name.casefold() in added:
            yield document.fault(path, f"is {name}, which the landing adds", "use another name")
        elif name.casefold() in seen:
            yield document.fault(path, f"is {name}, like another one", "use another name")
        seen.add(name.casefold())
    yield from _partitioning_faults(document, seen | added)


def _partitioning_faults(document: YamlDocument, known: set[str]) -> Iterator[Fault]:
    fields = document.get("partitioning")
    for position, field in enumerate(fields if isinstance(fields, list) else []):
        if not isinstance(field, dict):
            continue
        name, path = field.get("column"), ("partitioning", position)
        if isinstance(name, str) and name.casefold() not in known:
            fix = suggest_name(name, sorted(known))
            yield document.fault((*path, "column"), f"is {name}, which is no column", fix)
        if field.get("grain") is not None:
            problem = "is for contracts: raw rows are no aggregate"
            yield document.fault((*path, "grain"), problem, "remove it")


def _kafka_faults(document: YamlDocument) -> Iterator[Fault]:
    if document.get("kind") != "kafka":
        return
    columns = document.get("columns")
    for position, column in enumerate(columns if isinstance(columns, list) else []):
        if isinstance(column, dict) and column.get("required"):
            problem = "is required, and a record without a value (a tombstone) has none"
            yield document.fault(
                ("columns", position, "required"), problem, "write required: false"
            )
    yield from _disorder_faults(document)


def _disorder_faults(document: YamlDocument) -> Iterator[Fault]:
    """Yield columns with a bound of disorder that are no columns of time."""
    columns, bounds = document.get("columns"), document.get("kafka", "column_disorder_s")
    declared = (
        [one for one in columns if isinstance(one, dict)] if isinstance(columns, list) else []
    )
    added = CHANGE_COLUMNS if document.get("change_log") else ()
    kinds = {one.get("name"): one.get("type") for one in declared} | {
        name: kind for name, kind, _ in added
    }
    for name in bounds if isinstance(bounds, dict) else ():
        if kinds.get(name) not in ("date", "timestamp", "timestamptz"):
            problem = f"names {name}, which is no column of dates or instants"
            fix = "name declared ones; of the records' own timestamps disorder_s speaks"
            yield document.fault(("kafka", "column_disorder_s"), problem, fix)


def _schema_faults(document: YamlDocument) -> Iterator[Fault]:
    declared = document.get("kafka", "schemas")
    if not isinstance(declared, dict):
        return
    places = [name for name in ("url", "folder") if declared.get(name) is not None]
    path = ("kafka", "schemas")
    if len(places) != 1:
        yield document.fault(path, "needs one of url, folder", "name one place")
    url = declared.get("url")
    if isinstance(url, str) and not re.fullmatch(r"https?://[^/@\s]+(/[^@\s]*)?", url):
        fix = "write https://HOST, and name the variable of the secret in `credentials`"
        yield document.fault((*path, "url"), "is no plain address of a registry", fix)


def _pattern_faults(document: YamlDocument) -> Iterator[Fault]:
    text = document.get("files", "business_date")
    if not isinstance(text, str):
        return
    path = ("files", "business_date")
    try:
        groups = re.compile(text).groups
    except re.error as error:
        yield document.fault(path, f"is no regular expression: {error}", "mend it")
        return
    if groups < 1:
        fix = r"put the date in parentheses, e.g. (\d{4}-\d{2}-\d{2})"
        yield document.fault(path, "has no group", fix)
