"""Payloads with Confluent's header as JSON: the schema by id, then Avro, Protobuf or JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from math import isfinite
from typing import Any
from uuid import UUID

from lakehouse_backfill.adapters.payloads.avro import AvroSchema
from lakehouse_backfill.adapters.payloads.protobuf import ProtobufSchema
from lakehouse_backfill.domain.sources.schemas import (
    DecodedPayload,
    ProtobufFields,
    UndecodablePayload,
    WriterSchema,
)
from lakehouse_backfill.errors import ConfigError
from lakehouse_backfill.events import split_wire_format

_PARSED: dict[str, Callable[[int, WriterSchema], AvroSchema | ProtobufSchema]] = {
    "avro": AvroSchema, "protobuf": ProtobufSchema,
}  # fmt: skip


class PayloadDecoder:
    """`ports.events.PayloadSchemas` over schemas by id; `ask` gives those that are not known."""

    def __init__(
        self,
        schemas: Mapping[int, WriterSchema],
        ask: Callable[[int], WriterSchema | None] | None = None,
    ) -> None:
        """Start with known schemas. None of them is asked for again."""
        self._schemas: dict[int, WriterSchema | None] = dict(schemas)
        self._ask = ask
        self._parsed: dict[int, AvroSchema | ProtobufSchema] = {}

    def find(self, number: int) -> WriterSchema | None:
        """Return a schema; None when there is none of this id. Raises SourceDown, Blocked."""
        if number not in self._schemas:
            self._schemas[number] = self._ask(number) if self._ask else None
        return self._schemas[number]

    def known(self) -> dict[int, WriterSchema]:
        """Return the schemas that were given, or found until now."""
        return {number: one for number, one in self._schemas.items() if one is not None}

    def decode(self, data: bytes, reader: int | None = None) -> DecodedPayload:
        """Return a payload as JSON; what has no header is returned as it is.

        `reader` is the schema that it is resolved into. Raises UndecodablePayload with the reason,
        ConfigError for a schema that cannot be used, SourceDown.
        """
        number, rest = split_wire_format(data)
        if number is None:
            return DecodedPayload(data)
        schema = self.find(number)
        if schema is None:
            raise UndecodablePayload(f"has the schema {number}, which is not known")
        if schema.kind == "json":
            return DecodedPayload(rest, schema)
        wanted = None if reader is None else self._reader(reader, schema.kind)
        found = self._schema(number, schema).read(rest, wanted)  # type: ignore[arg-type]
        return DecodedPayload(_json_text(found), schema)

    def protobuf_fields(self) -> dict[int, dict[str, ProtobufFields]]:
        """Return the fields of all messages of Protobuf schemas, by id.

        Raises ConfigError for a schema in Avro or Protobuf that is none.
        """
        known = {number: one for number, one in self.known().items() if one.kind != "json"}
        parsed = {number: self._schema(number, one) for number, one in known.items()}
        return {
            number: one.fields()
            for number, one in parsed.items()
            if isinstance(one, ProtobufSchema)
        }

    def _reader(self, number: int, kind: str) -> AvroSchema | ProtobufSchema:
        schema = self.find(number)
        if schema is None:
            raise ConfigError(
                f"there is no schema {number}, which payloads are to be read as",
                fix="correct the id of the reader's schema",
            )
        if schema.kind != kind:
            raise UndecodablePayload(f"is {kind}, and the reader's schema is {schema.kind}")
        return self._schema(number, schema)

    def _schema(self, number: int, schema: WriterSchema) -> AvroSchema | ProtobufSchema:
        if number not in self._parsed:
            self._parsed[number] = _PARSED[schema.kind](number, schema)
        return self._parsed[number]


def _json_text(value: Any) -> bytes:
    try:
        return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False).encode()
    except UndecodablePayload:
        raise
    except (ValueError, TypeError, RecursionError) as error:
        problem = f"has a value that JSON cannot hold: {type(error).__name__}"
        raise UndecodablePayload(problem) from None


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: decimals and instants are texts, bytes are in Base64."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not isfinite(value):
        raise UndecodablePayload("has a value that JSON cannot hold: NaN or Infinity")
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return str(value) if isinstance(value, UUID) else value
