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
        self._is_recursive = _refers_to_itself(self.parsed, frozenset())
        roots = (self.parsed, *named.values())
        self._is_endless = any(_has_endless_array(one, named) for one in roots)

    def read(self, payload: bytes, reader: AvroSchema | None) -> Any:
        """Return the record of a payload, as the reader's schema has it.

        Raises UndecodablePayload when it is cut off, goes on behind its end, is nested too deeply,
        can be of any length, or does not resolve.
        """
        if self._is_endless:
            # Ten bytes could ask for 2**60 items.
            raise UndecodablePayload("has an array whose items take no bytes")
        from fastavro import _read_py, schemaless_reader
        from fastavro.read import SchemaResolutionError

        # The compiled reader has no limit of depth: a few KB would end the process.
        decode = _read_py.schemaless_reader if self._is_recursive else schemaless_reader

        stream = io.BytesIO(payload)
        wanted = None if reader is None or reader is self else reader.parsed
        try:
            found = decode(stream, self.parsed, wanted)
        except SchemaResolutionError:
            raise UndecodablePayload(
                "has a schema that does not resolve into the reader's"
            ) from None
        except Exception as error:  # noqa: BLE001 (damaged bytes lead to errors of any kind)
            raise UndecodablePayload(f"is no Avro of its schema: {type(error).__name__}") from None
        if stream.tell() != len(payload):
            raise UndecodablePayload("is no Avro of its schema: bytes follow its end")
        return found


def _refers_to_itself(schema: Any, around: frozenset[str]) -> bool:
    """Return whether a type is used inside its own definition: its values nest without an end."""
    if isinstance(schema, str):
        return schema in around
    if isinstance(schema, list):
        return any(_refers_to_itself(one, around) for one in schema)
    inside = around | {schema["name"]} if "name" in schema else around
    inner = [schema[name] for name in ("type", "items", "values") if name in schema]
    inner += [field["type"] for field in schema.get("fields", ())]
    return any(_refers_to_itself(one, inside) for one in inner)


def _has_endless_array(schema: Any, named: dict[str, Any]) -> bool:
    """Return whether there is an array whose items take no bytes: its payload does not bound it.

    Names are not followed: what they stand for is looked at on its own.
    """
    if isinstance(schema, str):
        return False
    if isinstance(schema, list):
        return any(_has_endless_array(one, named) for one in schema)
    if schema["type"] == "array" and _takes_no_bytes(schema["items"], named, frozenset()):
        return True
    inner = [schema[name] for name in ("type", "items", "values") if name in schema]
    inner += [field["type"] for field in schema.get("fields", ())]
    return any(_has_endless_array(one, named) for one in inner)


def _takes_no_bytes(schema: Any, named: dict[str, Any], around: frozenset[str]) -> bool:
    if isinstance(schema, str):
        if schema == "null" or schema not in named or schema in around:
            return schema == "null"
        return _takes_no_bytes(named[schema], named, around | {schema})
    if isinstance(schema, list):
        return False
    if schema["type"] == "fixed":
        return bool(schema["size"] == 0)
    if schema["type"] == "record":
        return all(_takes_no_bytes(one["type"], named, around) for one in schema["fields"])
    return _takes_no_bytes(schema["type"], named, around)
