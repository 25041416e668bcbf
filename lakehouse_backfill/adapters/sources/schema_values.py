"""Values of a topic that have the id of their schema in front: decoded, and their schemas kept."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from lakehouse_backfill.domain.sources.compatibility import schema_faults
from lakehouse_backfill.domain.sources.schemas import (
    SchemaRegistry,
    UndecodablePayload,
    WriterSchema,
)
from lakehouse_backfill.errors import Blocked
from lakehouse_backfill.events import split_wire_format
from lakehouse_backfill.ports.events import PayloadSchemas


class RegisteredValues:
    """Decodes the values of one landing; knows which schemas are not kept with the table yet."""

    def __init__(
        self, declared: SchemaRegistry, schemas: PayloadSchemas, kept: Mapping[int, WriterSchema]
    ) -> None:
        """Begin with the schemas that earlier commits have kept."""
        self._declared, self._schemas = declared, schemas
        self._kept = set(kept)
        self._used: set[int] = set()

    def decode(self, value: bytes | None) -> tuple[bytes | None, str | None]:
        """Return a value as JSON, and why it is none; a tombstone stays one.

        Raises SourceDown, Blocked (a registry that refuses), ConfigError.
        """
        if value is None:
            return None, None
        number, _ = split_wire_format(value)
        if number is None:
            return None, "has no header with the id of a schema"
        try:
            found = self._schemas.decode(value, self._declared.reader)
        except UndecodablePayload as why:
            return None, str(why)
        finally:
            self._used.add(number)
        return found.text, None

    def check(self, value: bytes | None) -> str | None:
        """Return why the schema of a value that is not parsed is not there; its id is noted."""
        number, _ = (None, b"") if value is None else split_wire_format(value)
        if number is None:
            return None if value is None else "has no header with the id of a schema"
        self._used.add(number)
        return (
            None if self._schemas.find(number) else f"has the schema {number}, which is not known"
        )

    def take_new(self) -> dict[int, WriterSchema]:
        """Return the schemas that were used and are not kept yet; they count as kept then.

        Raises Blocked when one is not compatible with another one of its subject, as declared.
        """
        known = self._schemas.known()
        if self._used and self._declared.reader is not None:
            self._used.add(self._declared.reader)
        new = {number: known[number] for number in self._used - self._kept if number in known}
        if new:
            held = {number: known[number] for number in known if number in self._used | self._kept}
            self._require_compatible(held, new)
        self._kept |= new.keys()
        return new

    def _require_compatible(
        self, held: Mapping[int, WriterSchema], new: Mapping[int, WriterSchema]
    ) -> None:
        mode = self._declared.compatibility
        if mode == "none":
            return
        messages = self._schemas.protobuf_fields()
        faults = []
        for older, newer in _followers(held):
            if older not in new and newer not in new:
                continue
            both = messages.get(older, {}), messages.get(newer, {})
            for way in ("backward", "forward"):
                if mode in (way, "both"):
                    found = schema_faults(held[older], held[newer], way, both)
                    faults += [f"schema {older} to {newer} ({way}): {fault}" for fault in found]
        if faults:
            raise Blocked(
                f"schemas of the topic are not compatible: {'; '.join(faults)}",
                state="what was landed before it stays; no record with the newer schema is landed",
                fix="correct the newer schema at its producer, or weaken "
                "kafka.schemas.compatibility",
            )


def _followers(held: Mapping[int, WriterSchema]) -> list[tuple[int, int]]:
    """Return each id with the one of the next version of its subject."""
    by_subject: dict[str, list[tuple[int, int]]] = {}
    for number, one in held.items():
        version = number if one.version is None else one.version
        by_subject.setdefault(one.subject or "", []).append((version, number))
    return [
        (older[1], newer[1])
        for versions in map(sorted, by_subject.values())
        for older, newer in itertools.pairwise(versions)
    ]
