"""What stops a replay before it begins: events that are not consistent, versions without a chain.

Schemas of writers are JSON Schemas. Versions are *backward compatible* when upcasters lead from the
older to the newest one (new code reads old events), and *forward compatible* when the newer one
keeps each required field of the older one, and the types (old code reads new events).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from lakehouse_backfill.domain.sources.events import (
    EventFindings,
    EventStoreDeclaration,
    WriterSchema,
)
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
    store: EventStoreDeclaration, schemas: Mapping[int, WriterSchema], upcasters: Upcasters
) -> None:
    """Raise Unsupported when schemas break what `version.compatibility` declares."""
    mode = store.version.compatibility if store.version else "none"
    faults: list[str] = []
    for old, new in _followers(schemas):
        pair = f"{old.event_type} {old.version} to {new.version}"
        if mode in ("forward", "both"):
            faults += [f"{pair}: {fault}" for fault in _forward_faults(old, new)]
        if mode not in ("backward", "both"):
            continue
        if old.event_type not in upcasters.current and old.version != new.version:
            faults.append(f"{pair}: nothing says which version of {old.event_type} is current")
        elif upcasters.missing_link(old.event_type, old.version):
            faults.append(f"{pair}: no upcasters lead from the older one to the newest")
    if mode in ("backward", "both"):
        # The newest ones: old code is declared, and writers are ahead of it.
        newest = {one.event_type: one for one in _in_order(schemas)}.values()
        whys = (upcasters.missing_link(one.event_type, one.version) for one in newest)
        faults += [why for why in whys if why]
    if faults:
        raise Unsupported(
            f"the schemas of {store.events} are not compatible: {'; '.join(faults)}",
            state=_NOTHING_REPLAYED,
            fix="correct the newer schema, declare the upcasters, or weaken version.compatibility "
            f"in catalog/events/{store.events}.yaml",
        )


def _followers(
    schemas: Mapping[int, WriterSchema],
) -> list[tuple[WriterSchema, WriterSchema]]:
    """Return each schema with the one of the next version of its event type."""
    pairs = itertools.pairwise(_in_order(schemas))
    return [(old, new) for old, new in pairs if old.event_type == new.event_type]


def _in_order(schemas: Mapping[int, WriterSchema]) -> list[WriterSchema]:
    return sorted(schemas.values(), key=lambda one: (one.event_type, one.version))


def _forward_faults(old: WriterSchema, new: WriterSchema) -> list[str]:
    """Return why code that knows the older schema cannot read events of the newer one."""
    required, kept = _required(old), _required(new)
    before, after = _fields(old), _fields(new)
    faults = [f"the required field {name} is gone" for name in sorted(required - kept)]
    return faults + [
        f"the field {name} changes its type"
        for name in sorted(before.keys() & after.keys())
        if before[name].get("type") != after[name].get("type")
    ]


def _required(schema: WriterSchema) -> set[str]:
    found = schema.schema_.get("required")
    return set(map(str, found)) if isinstance(found, list) else set()


def _fields(schema: WriterSchema) -> dict[str, Mapping[str, Any]]:
    found = schema.schema_.get("properties")
    fields = found.items() if isinstance(found, Mapping) else ()
    return {str(name): one for name, one in fields if isinstance(one, Mapping)}
