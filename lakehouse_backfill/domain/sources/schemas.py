"""Schemas of writers, by id: of payloads that begin with Confluent's header."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, model_validator

from lakehouse_backfill.domain.serialization import Text, Value

Compatibility = Literal["none", "backward", "forward", "both"]
#: Of a Protobuf message: name, kind and label of each field, by number.
ProtobufFields = Mapping[int, tuple[str, str, str]]


class WriterSchema(Value):
    """The schema of a writer: `ID.json` in a folder, or what a registry said of an id."""

    kind: Literal["json", "avro", "protobuf"] = Field("json", description="What a payload is.")
    event_type: Text | None = Field(None, description="Type of the events.")
    version: int | None = Field(None, ge=0, description="Version of their payload.")
    schema_: Any = Field(
        default_factory=dict,
        alias="schema",
        description="JSON Schema; or an Avro schema; or a FileDescriptorSet of Protobuf in Base64, "
        "imported files first, as `protoc --include_imports` writes it.",
    )
    references: tuple[Any, ...] = Field(
        (), description="Avro schemas that it names, those that others need first."
    )
    subject: Text | None = Field(None, description="Where a registry has it.")

    @model_validator(mode="after")
    def _fits(self) -> WriterSchema:
        if self.kind == "json" and not isinstance(self.schema_, dict):
            raise ValueError("a JSON Schema is an object")
        if self.kind == "protobuf" and not isinstance(self.schema_, str):
            raise ValueError("a FileDescriptorSet is a text in Base64")
        return self


class SchemaRegistry(Value):
    """Where the schemas of a topic come from: a registry, or a folder of the project."""

    url: Text | None = Field(
        None, description="A registry that speaks Confluent's protocol, e.g. https://host:8081."
    )
    folder: Text | None = Field(None, description="A folder with ID.json for each schema.")
    credentials: Text | None = Field(
        None,
        description="Environment variable with what the registry wants: `user:password`, or a "
        "token.",
    )
    timeout_s: float = Field(30, gt=0, le=600, description="How long one answer may take.")
    retries: int = Field(5, ge=0, le=20, description="How often a request is given again.")
    reader: int | None = Field(
        None, ge=0, description="Id of the schema that payloads are read as; else the writer's."
    )
    compatibility: Compatibility = Field(
        "none", description="What a schema is held to that follows another one of its subject."
    )


@dataclass(frozen=True)
class DecodedPayload:
    """A payload as JSON, and the schema that it was written with; None: it has no header."""

    text: bytes
    schema: WriterSchema | None = None


class UndecodablePayload(Exception):
    """Raised for a payload that cannot be decoded: its reason, which quotes no value."""
