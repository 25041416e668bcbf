"""Loading declared event stores, `catalog/events/NAME.yaml`, and the schemas of their writers."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from datetime import date, datetime, time, timezone
from pathlib import Path

from pydantic import ValidationError

from lakehouse_backfill.config.faults import (
    NamedFiles,
    display_path,
    resolve_inside,
    suggest_name,
)
from lakehouse_backfill.config.sources import find_source, landing_request, list_sources
from lakehouse_backfill.config.yaml_lines import YamlDocument
from lakehouse_backfill.domain.sources.events import (
    EventStoreDeclaration,
    HandlerDeclaration,
    ReplayRequest,
)
from lakehouse_backfill.domain.sources.schemas import WriterSchema
from lakehouse_backfill.errors import ConfigError, Fault, NotFound

EVENTS_FOLDER = Path("catalog/events")
_SCHEMA_FILE = re.compile(r"[0-9]{1,10}")


def find_event_store(project: Path, name: str) -> EventStoreDeclaration:
    """Load an event store; raises NotFound with the known names, ConfigError with all faults."""
    files = NamedFiles(
        EVENTS_FOLDER, EventStoreDeclaration, _cross_field_faults,
        kind="event store", field="events", command="lakehouse-backfill replay {} --dry-run",
        page="docs/events.md", rename="rename one of them",
    )  # fmt: skip
    return files.find(project, name)


def find_handler(store: EventStoreDeclaration, name: str) -> HandlerDeclaration:
    """Return a declared handler; raises NotFound with the known names."""
    if name not in store.handlers:
        raise NotFound(
            f"{store.events} has no handler {name!r}; {suggest_name(name, list(store.handlers))}",
            fix=f"declare it under handlers in catalog/events/{store.events}.yaml",
        )
    return store.handlers[name]


def find_store_of_topic(project: Path, events: str, name: str) -> EventStoreDeclaration:
    """Return an event store that declares a topic; raises as `find_event_store`.

    Raises NotFound too for a topic that is not declared, ConfigError for one that is landed: what
    a source of the project reads is written by others, so it is a live topic.
    """
    store = find_event_store(project, events)
    if name not in store.topics:
        raise NotFound(
            f"{store.events} has no topic {name!r}; {suggest_name(name, list(store.topics))}",
            fix=f"declare it under topics in catalog/events/{store.events}.yaml",
        )
    topic = store.topics[name]
    for source in list_sources(project):
        landed = find_source(project, source).kafka
        if landed is not None and landed.topic == topic.name:
            raise ConfigError(
                f"topics.{name}: {topic.name} is landed by the source {source}: it is a live topic",
                state="nothing was sent",
                fix="name a topic that only gets replayed events of this store",
                field=f"topics.{name}.name",
            )
    return store


def replay_request(
    aggregate: str | None, from_: str | None, to: str | None, event_types: tuple[str, ...]
) -> ReplayRequest:
    """Read a selection of events; raises ConfigError for what is no date or instant."""
    span = landing_request(from_, to)
    first, stop = (None if one is None else _instant(one) for one in (span.from_, span.to))
    types = tuple(sorted(set(event_types)))
    return ReplayRequest(aggregate=aggregate, from_=first, to=stop, event_types=types)


def _instant(moment: date | datetime) -> datetime:
    """Return an instant; a day begins at midnight, UTC."""
    if isinstance(moment, datetime):
        return moment.astimezone(timezone.utc)
    return datetime.combine(moment, time(), timezone.utc)


def load_schemas(project: Path, store: EventStoreDeclaration) -> dict[int, WriterSchema]:
    """Load the schemas of writers by id; none without a folder. Raises ConfigError."""
    if store.version is None or store.version.schemas is None:
        return {}
    found = schemas_in(project, store.version.schemas, "version.schemas")
    for number, one in found.items():
        if one.event_type is None or one.version is None:
            raise ConfigError(
                f"{store.version.schemas}/{number}.json is no schema of a writer: it says no event "
                "type, or no version",
                fix='write {"event_type": …, "version": …, "schema": {…}}',
            )
    return found


def schemas_in(project: Path, place: str, field: str) -> dict[int, WriterSchema]:
    """Load the schemas of a folder of the project, by id. Raises ConfigError."""
    folder = resolve_inside(project, place)
    if folder is None or not folder.is_dir():
        raise ConfigError(
            f"{place}, where the schemas of writers are, is no folder of the project",
            fix=f"correct {field}",
            field=field,
        )
    found: dict[int, WriterSchema] = {}
    for path in sorted(folder.glob("*.json")):
        if not _SCHEMA_FILE.fullmatch(path.stem):
            continue
        if int(path.stem) in found:
            raise ConfigError(
                f"{display_path(path, project)} is a second schema of the id {int(path.stem)}",
                fix="keep one of them",
            )
        try:
            found[int(path.stem)] = WriterSchema(**json.loads(path.read_text("utf-8")))
        except (ValueError, TypeError, RecursionError, ValidationError) as error:
            raise ConfigError(
                f"{display_path(path, project)} is no schema of a writer: {type(error).__name__}",
                fix='write {"event_type": …, "version": …, "schema": {…}}',
            ) from error
    return found


def _cross_field_faults(document: YamlDocument) -> Iterator[Fault]:
    version = document.get("version")
    places = ("column", "field", "schemas", "landed_schemas")
    if isinstance(version, dict) and sum(version.get(name) is not None for name in places) != 1:
        problem = "needs one of column, field, schemas, landed_schemas"
        yield document.fault(("version",), problem, "name one place")
    if isinstance(version, dict) and version.get("landed_schemas") is False:
        yield document.fault(("version", "landed_schemas"), "is false", "write true, or remove it")
    yield from _reader_faults(document)
    for name in ("upcasters", "current"):
        if document.get(name) and version is None:
            problem = "is there, and nothing says where the version is"
            yield document.fault((name,), problem, "add `version:`")
    yield from _upcaster_faults(document)
    yield from _handler_faults(document)


def _reader_faults(document: YamlDocument) -> Iterator[Fault]:
    readers = document.get("version", "readers")
    if not isinstance(readers, dict):
        return
    if not (document.get("version", "schemas") or document.get("version", "landed_schemas")):
        fix = "write version.schemas, or version.landed_schemas"
        yield document.fault(("version", "readers"), "are there, and no schemas of writers", fix)
    for kind in readers:
        listed = document.get("upcasters")
        has_steps = any(
            isinstance(one, dict) and one.get("event_type") == kind
            for one in (listed if isinstance(listed, list) else [])
        )
        if has_steps:
            yield document.fault(
                ("version", "readers", kind),
                "has upcasters too, which would not be applied",
                "keep one of both",
            )


def _upcaster_faults(document: YamlDocument) -> Iterator[Fault]:
    listed = document.get("upcasters")
    seen: set[tuple[object, object]] = set()
    for position, one in enumerate(listed if isinstance(listed, list) else []):
        if not isinstance(one, dict):
            continue
        kind, first, last = one.get("event_type"), one.get("from"), one.get("to")
        path = ("upcasters", position, "to")
        if isinstance(kind, str) and kind not in (document.get("current") or ()):
            # It would never be applied.
            yield document.fault(
                ("upcasters", position, "event_type"),
                f"is {kind}, whose newest version nothing says",
                f"add `current: {{{kind}: {last}}}`",
            )
        if isinstance(first, int) and isinstance(last, int) and last <= first:
            yield document.fault(path, f"is {last}, not above {first}", "name a newer version")
        if (repr(kind), repr(first)) in seen:
            yield document.fault(path, f"begins at {first} of {kind} again", "keep one of them")
        seen.add((repr(kind), repr(first)))


def _handler_faults(document: YamlDocument) -> Iterator[Fault]:
    handlers = document.get("handlers")
    listed = handlers.items() if isinstance(handlers, dict) else ()
    tables = [one.get("table") for _, one in listed if isinstance(one, dict)]
    shared = {name for name, count in Counter(map(str, tables)).items() if count > 1}
    for name, one in listed:
        table = one.get("table") if isinstance(one, dict) else None
        if table is not None and (str(table) in shared or table == document.get("table")):
            yield document.fault(
                ("handlers", name, "table"), f"is {table}, like another one", "use another name"
            )
