"""Avro payloads, by fastavro: from the writer's schema, resolved into a reader's."""

from __future__ import annotations

import io
from typing import Any

from lakehouse_backfill.adapters.payloads.errors import missing_package
from lakehouse_backfill.domain.sources.schemas import UndecodablePayload, WriterSchema
from lakehouse_backfill.errors import ConfigError


class AvroSchema:
    """A parsed schema."""

    def __init__(self, number: int, schema: WriterSchema) -> None:
        """Parse a schema with those that it names; raises ConfigError."""
        try:
            import fastavro
        except ImportError as error:
            raise missing_package("Avro", "fastavro") from error
        named: dict[str, Any] = {}
        try:
            for one in schema.references:
                fastavro.parse_schema(one, named_schemas=named)
            self.parsed = fastavro.parse_schema(schema.schema_, named_schemas=named)
        except Exception as error:
            raise ConfigError(
                f"the schema {number} is no Avro schema: {type(error).__name__}",
                fix="correct it where it comes from; schemas that it names belong to `references`",
            ) from error

    def read(self, payload: bytes, reader: AvroSchema | None) -> Any:
        """Return the record of a payload, as the reader's schema has it.

        Raises UndecodablePayload when it is cut off, goes on behind its end, or does not resolve.
        """
        import fastavro
        from fastavro.read import SchemaResolutionError

        stream = io.BytesIO(payload)
        wanted = None if reader is None or reader is self else reader.parsed
        try:
            found = fastavro.schemaless_reader(stream, self.parsed, wanted)
        except SchemaResolutionError:
            raise UndecodablePayload(
                "has a schema that does not resolve into the reader's"
            ) from None
        except Exception as error:  # noqa: BLE001 (damaged bytes lead to errors of any kind)
            raise UndecodablePayload(f"is no Avro of its schema: {type(error).__name__}") from None
        if stream.tell() != len(payload):
            raise UndecodablePayload("is no Avro of its schema: bytes follow its end")
        return found
