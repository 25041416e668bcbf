"""What stops a replay before it begins: events that are not consistent, versions without a chain.

Versions of schemas are *backward compatible* when new code reads old events: upcasters lead from
the older to the newest one, or the older one resolves into the reader's. They are *forward
compatible* when old code reads new events, by the rules of their format.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from lakehouse_backfill.domain.sources.compatibility import Messages, schema_faults
from lakehouse_backfill.domain.sources.events import (
    EventFindings,
    EventStoreDeclaration,
)
from lakehouse_backfill.domain.sources.schemas import WriterSchema
from lakehouse_backfill.errors import RejectedInput, Unsupported
from lakehouse_backfill.events import Upcasters

_NOTHING_REPLAYED = "nothing was replayed"


def stopping_faults(store: EventStoreDeclaration, findings: EventFindings) -> tuple[str, ...]:
    """Return the faults of events that stop a replay."""
    return (*findings.faults, *(findings.gaps if store.gaps == "refuse" else ()))


def require_sound(store: EventStoreDeclaration, findings: EventFindings) -> None:
    """Raise RejectedInput when events contradict each other, or miss where gaps are refused."""
    if faults := stopping_faults(store, findings):
        raise RejectedInput(
            f"the events of {store.table} are not consistent: {'; '.join(faults)}",
            state=_NOTHING_REPLAYED,
            fix=f"correct the events in {store.table}"
            + (
                f", or write gaps: allow in catalog/events/{store.events}.yaml"
                if findings.gaps and not findings.faults
                else ""
            ),
        )


def missing_links(upcasters: Upcasters, findings: EventFindings) -> tuple[str, ...]:
    """Return why events of a version that can be read cannot be made current."""
    known = [(kind, version) for kind, version, _ in findings.versions if version is not None]
    whys = [upcasters.missing_link(kind, version) for kind, version in known]
    return tuple(why for why in whys if why)


def require_versions(
    store: EventStoreDeclaration, upcasters: Upcasters, findings: EventFindings
) -> None:
    """Raise Unsupported when events have a version that no chain of upcasters makes current.

    Events whose version cannot be read do not stop a replay: each is rejected.
    """
    if missing := missing_links(upcasters, findings):
        raise Unsupported(
            f"{store.events}: {'; '.join(missing)}",
            state=_NOTHING_REPLAYED,
            fix=f"declare the upcasters in catalog/events/{store.events}.yaml",
        )


def require_compatible(
    store: EventStoreDeclaration,
    schemas: Mapping[int, WriterSchema],
    upcasters: Upcasters,
    messages: Mapping[int, Messages] | None = None,
) -> None:
    """Raise Unsupported when schemas break what `version.compatibility` declares.

    `messages` are those of the schemas of Protobuf, by id. Old events of a type that has a current
    version are made current by upcasters, or by the reader's schema that is declared for it, which
    each schema then must resolve into; events of other types by the rules of their format.
    """
    mode = store.version.compatibility if store.version else "none"
    faults: list[str] = []
    for before, after in _followers(schemas):
        old, new = schemas[before], schemas[after]
        pair = f"{_name(old, store)} {old.version} to {new.version}"
        both = (messages or {}).get(before, {}), (messages or {}).get(after, {})
        if mode in ("forward", "both"):
            faults += [f"{pair}: {fault}" for fault in schema_faults(old, new, "forward", both)]
        if mode in ("backward", "both"):
            found = _backward_faults(store, old, new, upcasters, both)
            faults += [f"{pair}: {fault}" for fault in found]
    if mode in ("backward", "both"):
        # The newest ones: old code is declared, and writers are ahead of it.
        newest = {one.event_type: one for one in map(schemas.__getitem__, _in_order(schemas))}
        readers = store.version.readers if store.version else {}
        whys = (_missing(upcasters, one) for kind, one in newest.items() if kind not in readers)
        faults += [why for why in whys if why]
        faults += _reader_faults(store, schemas, messages or {})
    if faults:
        raise Unsupported(
            f"the schemas of {store.events} are not compatible: {'; '.join(faults)}",
            state=_NOTHING_REPLAYED,
            fix="correct the newer schema, declare the upcasters, or weaken version.compatibility "
            f"in catalog/events/{store.events}.yaml",
        )


def _backward_faults(
    store: EventStoreDeclaration,
    old: WriterSchema,
    new: WriterSchema,
    upcasters: Upcasters,
    messages: tuple[Messages, Messages],
) -> list[str]:
    """Return why new code cannot read events of the older schema."""
    kind = old.event_type
    if store.version is not None and kind in store.version.readers:
        return []
    if kind is None or (kind not in upcasters.current and old.kind != "json"):
        return schema_faults(old, new, "backward", messages)
    if kind not in upcasters.current and old.version != new.version:
        return [f"nothing says which version of {kind} is current"]
    if upcasters.missing_link(kind, old.version):
        return ["no upcasters lead from the older one to the newest"]
    return []


def _missing(upcasters: Upcasters, schema: WriterSchema) -> str | None:
    kind = schema.event_type
    return None if kind is None else upcasters.missing_link(kind, schema.version)


def _name(schema: WriterSchema, store: EventStoreDeclaration) -> str:
    return schema.event_type or schema.subject or store.events


def _reader_faults(
    store: EventStoreDeclaration,
    schemas: Mapping[int, WriterSchema],
    messages: Mapping[int, Messages],
) -> list[str]:
    """Return why schemas do not resolve into the reader's schema of their event type."""
    faults = []
    for kind, number in (store.version.readers if store.version else {}).items():
        reader = schemas.get(number)
        if reader is None:
            faults.append(f"there is no schema {number}, which {kind} is read as")
            continue
        for own, one in sorted(schemas.items()):
            if one.event_type not in (kind, None) or one.kind == "json":
                continue
            both = messages.get(own, {}), messages.get(number, {})
            found = schema_faults(one, reader, "backward", both)
            faults += [f"{kind}: schema {own} read as {number}: {fault}" for fault in found]
    return faults


def _followers(schemas: Mapping[int, WriterSchema]) -> list[tuple[int, int]]:
    """Return the ids of each schema and of the next version of its event type, or subject."""
    pairs = itertools.pairwise(_in_order(schemas))
    return [(old, new) for old, new in pairs if _group(schemas[old]) == _group(schemas[new])]


def _in_order(schemas: Mapping[int, WriterSchema]) -> list[int]:
    def order(number: int) -> tuple[str, int, int]:
        version = schemas[number].version
        return _group(schemas[number]), -1 if version is None else version, number

    return sorted(schemas, key=order)


def _group(schema: WriterSchema) -> str:
    return schema.event_type or f"subject {schema.subject}"
