"""Protobuf payloads, by descriptors: no code is generated, and no compiler is called."""

from __future__ import annotations

import base64
import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.adapters.payloads.errors import missing_package
from lakehouse_backfill.domain.sources.schemas import (
    ProtobufFields,
    UndecodablePayload,
    WriterSchema,
)
from lakehouse_backfill.errors import ConfigError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import Message

#: Files that every Protobuf has, by their module.
_WELL_KNOWN = (
    "any", "api", "duration", "empty", "field_mask", "source_context", "struct", "timestamp",
    "type", "wrappers", "descriptor",
)  # fmt: skip
_LONGEST_VARINT = 5
_MOST_INDEXES = 32


class ProtobufSchema:
    """The messages of one file, with the files that it imports."""

    def __init__(self, number: int, schema: WriterSchema) -> None:
        """Load descriptors; raises ConfigError."""
        try:
            from google.protobuf import descriptor_pb2, descriptor_pool
        except ImportError as error:
            raise missing_package("Protobuf", "protobuf") from error
        try:
            text = base64.b64decode(schema.schema_, validate=True)
            files = descriptor_pb2.FileDescriptorSet.FromString(text).file
            self._pool = descriptor_pool.DescriptorPool()
            present = {one.name for one in files}
            for one in (*_known_files(files, present), *files):
                self._pool.Add(one)
            self._file: Any = self._pool.FindFileByName(files[-1].name)
            self._messages = files[-1].message_type
        except Exception as error:
            raise ConfigError(
                f"the schema {number} is no set of Protobuf descriptors: {type(error).__name__}",
                fix="write what `protoc --include_imports --descriptor_set_out` gives, in Base64",
            ) from error

    def read(self, payload: bytes, reader: ProtobufSchema | None) -> dict[str, Any]:
        """Return the message of a payload that begins with Confluent's message indexes.

        A reader's schema reads the same bytes by the numbers of its own fields. Raises
        UndecodablePayload.
        """
        indexes, rest = _message_indexes(payload)
        kind = (reader or self)._message(indexes)
        from google.protobuf.message_factory import GetMessageClass

        try:
            message = GetMessageClass(kind).FromString(rest)
        except Exception as error:  # noqa: BLE001 (damaged bytes lead to errors of any kind)
            problem = f"is no Protobuf of its schema: {type(error).__name__}"
            raise UndecodablePayload(problem) from None
        return plain_message(message)

    def fields(self) -> dict[str, ProtobufFields]:
        """Return the fields of each message, by its full name."""
        return {
            one.full_name: {field.number: _shape(field) for field in one.fields}
            for one in _descriptors(self._file.message_types_by_name.values())
        }

    def _message(self, indexes: tuple[int, ...]) -> Descriptor:
        messages, names = self._messages, [self._file.package] if self._file.package else []
        for index in indexes:
            if index >= len(messages):
                raise UndecodablePayload("names a message that its schema has not")
            names.append(messages[index].name)
            messages = messages[index].nested_type
        found: Descriptor = self._pool.FindMessageTypeByName(".".join(names))
        return found


def plain_message(message: Message) -> dict[str, Any]:
    """Return a message with the names of its schema; a field without a value is None."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            found[field.name] = None
        else:
            found[field.name] = _plain_field(field, getattr(message, field.name))
    return found


def _plain_field(field: Any, value: Any) -> Any:
    if not field.is_repeated:
        return _plain_value(field, value)
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        inner = kind.fields_by_name["value"]
        return {_key(key): _plain_value(inner, value[key]) for key in value}
    return [_plain_value(field, one) for one in value]


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _plain_value(field: Any, value: Any) -> Any:
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return value if named is None else named.name
    if field.message_type is None:
        return value
    if not field.message_type.full_name.startswith("google.protobuf."):
        return plain_message(value)
    from google.protobuf import json_format

    try:  # instants, durations and wrappers have texts of their own
        return json_format.MessageToDict(value, preserving_proto_field_name=True)
    except Exception as error:  # noqa: BLE001 (values that these kinds do not allow)
        problem = f"has a {field.message_type.name} without a form: {type(error).__name__}"
        raise UndecodablePayload(problem) from None


def _message_indexes(payload: bytes) -> tuple[tuple[int, ...], bytes]:
    """Return which message of the file it is, and the bytes behind that."""
    count, at = _varint(payload, 0)
    if count == 0:
        return (0,), payload[at:]
    if not 0 < count <= _MOST_INDEXES:
        raise UndecodablePayload("has no message indexes")
    found = []
    for _ in range(count):
        index, at = _varint(payload, at)
        if index < 0:
            raise UndecodablePayload("has no message indexes")
        found.append(index)
    return tuple(found), payload[at:]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag number, and the place behind it."""
    raw = 0
    for position in range(_LONGEST_VARINT):
        if at + position >= len(data):
            break
        byte = data[at + position]
        raw |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at + position + 1
    raise UndecodablePayload("has no message indexes")


def _known_files(files: Any, present: set[str]) -> Iterator[FileDescriptorProto]:
    """Yield the files of Protobuf itself that are imported and not given."""
    from google.protobuf import descriptor_pb2, descriptor_pool

    for name in _WELL_KNOWN:
        importlib.import_module(f"google.protobuf.{name}_pb2")
    default: Any = descriptor_pool.Default()
    waiting = [name for one in files for name in one.dependency]
    found: dict[str, FileDescriptorProto] = {}
    while waiting:
        name = waiting.pop()
        if name in present or name in found or not name.startswith("google/protobuf/"):
            continue
        proto = descriptor_pb2.FileDescriptorProto()
        default.FindFileByName(name).CopyToProto(proto)
        found[name] = proto
        waiting += proto.dependency
    yield from found.values()


def _descriptors(messages: Any) -> Iterator[Any]:
    for one in messages:
        yield one
        yield from _descriptors(one.nested_types)


def _shape(field: Any) -> tuple[str, str, str]:
    kind = _KINDS[field.type]
    if field.message_type is not None:
        kind = f"message {field.message_type.full_name}"
    elif field.enum_type is not None:
        kind = "enum"
    label = "repeated" if field.is_repeated else "required" if field.is_required else "one"
    return field.name, kind, label


_KINDS = {
    1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 6: "fixed64", 7: "fixed32",
    8: "bool", 9: "string", 10: "group", 11: "message", 12: "bytes", 13: "uint32", 14: "enum",
    15: "sfixed32", 16: "sfixed64", 17: "sint32", 18: "sint64",
}  # fmt: skip
