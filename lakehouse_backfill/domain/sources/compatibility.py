"""Whether data of one schema can be read by code of another one.

*Backward*: the newer schema reads data of the older one. *Forward*: the older reads that of the
newer. Each is the same question with other roles: can this reader read what this writer wrote?
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from lakehouse_backfill.domain.sources.schemas import ProtobufFields, WriterSchema

_PROMOTED = {
    "int": {"long", "float", "double"}, "long": {"float", "double"}, "float": {"double"},
    "string": {"bytes"}, "bytes": {"string"},
}  # fmt: skip
#: Kinds of Protobuf that hold each value of another one, and have its form in bytes.
_HELD_BY = {
    "int32": {"int64"}, "uint32": {"uint64", "int64"}, "sint32": {"sint64"}, "string": {"bytes"},
    "bool": {"int32", "int64", "uint32", "uint64"}, "enum": {"int32", "int64"},
}  # fmt: skip
_NAMED = ("record", "error", "enum", "fixed")
Messages = Mapping[str, ProtobufFields]


def schema_faults(
    old: WriterSchema,
    new: WriterSchema,
    way: Literal["backward", "forward"],
    messages: tuple[Messages, Messages] = ({}, {}),
) -> list[str]:
    """Return why the newer schema cannot read the older one's data, or the other way round.

    `messages` are those of both schemas when they are Protobuf, the older one's first.
    """
    if old.kind != new.kind:
        return [f"it was {old.kind}, and is {new.kind}"]
    writer, reader = (old, new) if way == "backward" else (new, old)
    if old.kind == "avro":
        return list(_AvroPair(writer, reader).faults())
    if old.kind == "protobuf":
        return list(protobuf_faults(*(messages if way == "backward" else messages[::-1])))
    return _json_faults(writer, reader)


def _json_faults(writer: WriterSchema, reader: WriterSchema) -> list[str]:
    required, kept = _required(reader), _required(writer)
    before, after = _fields(reader), _fields(writer)
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


def protobuf_faults(writer: Messages, reader: Messages) -> Iterator[str]:
    """Yield why messages cannot be read: numbers, not names, say which field is which."""
    for name, fields in writer.items():
        if name in reader:
            yield from _message_faults(name, fields, reader[name])
        else:
            yield f"the message {name} is not known"


def _message_faults(name: str, fields: ProtobufFields, known: ProtobufFields) -> Iterator[str]:
    numbers = {field: number for number, (field, _, _) in known.items()}
    for number, (field, kind, label) in fields.items():
        _, wanted, other = known.get(number, ("", kind, label))
        if number not in known and field in numbers:
            yield f"{name}.{field} has the number {number}, and {numbers[field]} there"
        if kind != wanted and wanted not in _HELD_BY.get(kind, ()):
            yield f"{name}: the number {number} is {kind}, and {wanted} there"
        if (label == "repeated") != (other == "repeated"):
            yield f"{name}: the number {number} is repeated on one side only"
    for number, (field, _, label) in known.items():
        if label == "required" and fields.get(number, ("", "", ""))[2] != "required":
            yield f"{name}.{field} is required, and may be absent"


class _AvroPair:
    """A writer's and a reader's schema, by the rules of Avro's schema resolution."""

    def __init__(self, writer: WriterSchema, reader: WriterSchema) -> None:
        self._writer, self._reader = writer.schema_, reader.schema_
        self._names: tuple[dict[str, Any], dict[str, Any]] = (_named(writer), _named(reader))
        self._seen: set[tuple[str, str]] = set()

    def faults(self) -> Iterator[str]:
        """Yield what does not resolve, with the path of the field."""
        yield from self._compare(self._writer, self._reader, "")

    def _compare(self, writer: Any, reader: Any, path: str) -> Iterator[str]:
        writer, reader = _found(writer, self._names[0]), _found(reader, self._names[1])
        place = path.lstrip(".") or "the schema"
        if isinstance(writer, list):
            for branch in writer:
                yield from self._compare(branch, reader, path)
        elif isinstance(reader, list):
            if not any(self._fits(writer, one, path) for one in reader):
                yield f"{place}: {_kind(writer)} is none of the reader's types"
        elif _kind(writer) != _kind(reader):
            if _kind(reader) not in _PROMOTED.get(_kind(writer), ()):
                yield f"{place}: {_kind(writer)} does not become {_kind(reader)}"
        elif _kind(writer) in ("record", "error"):
            yield from self._records(writer, reader, path)
        else:
            yield from self._others(writer, reader, path)

    def _fits(self, writer: Any, reader: Any, path: str) -> bool:
        seen = set(self._seen)
        fits = not any(True for _ in self._compare(writer, reader, path))
        self._seen = self._seen if fits else seen
        return fits

    def _records(self, writer: Any, reader: Any, path: str) -> Iterator[str]:
        if not _same_name(writer, reader):
            yield f"{path.lstrip('.') or 'the schema'}: {writer['name']} is not {reader['name']}"
            return
        pair = (str(writer["name"]), str(reader["name"]))
        if pair in self._seen:
            return
        self._seen.add(pair)
        written = {one["name"]: one for one in writer.get("fields", ())}
        for field in reader.get("fields", ()):
            names = (field["name"], *field.get("aliases", ()))
            found = next((written[name] for name in names if name in written), None)
            inner = f"{path}.{field['name']}"
            if found is not None:
                yield from self._compare(found["type"], field["type"], inner)
            elif "default" not in field:
                yield f"{inner.lstrip('.')}: it is not written, and has no default"

    def _others(self, writer: Any, reader: Any, path: str) -> Iterator[str]:
        kind, place = _kind(writer), path.lstrip(".") or "the schema"
        if kind in ("array", "map"):
            inner = "items" if kind == "array" else "values"
            yield from self._compare(writer[inner], reader[inner], path)
        elif kind in ("enum", "fixed") and not _same_name(writer, reader):
            yield f"{place}: {writer['name']} is not {reader['name']}"
        elif kind == "enum":
            unknown = [one for one in writer["symbols"] if one not in reader["symbols"]]
            if unknown and "default" not in reader:
                yield f"{place}: the symbols {', '.join(unknown)} are not known"
        elif kind == "fixed" and writer["size"] != reader["size"]:
            yield f"{place}: {writer['size']} bytes do not become {reader['size']}"
        if _logical(writer) != _logical(reader):
            yield f"{place}: its logical type is not the same"


def _kind(schema: Any) -> str:
    return str(schema["type"]) if isinstance(schema, dict) else str(schema)


def _logical(schema: Any) -> tuple[Any, ...]:
    if not isinstance(schema, dict):
        return (None, None, None)
    kind = schema.get("logicalType")
    # Only of decimals these numbers decide what a value means.
    return (kind, schema.get("precision"), schema.get("scale", 0)) if kind == "decimal" else (
        kind, None, None)  # fmt: skip


def _same_name(writer: Any, reader: Any) -> bool:
    names = (reader["name"], *reader.get("aliases", ()))
    last = str(writer["name"]).rpartition(".")[2]
    return any(str(name).rpartition(".")[2] == last for name in names)


def _named(schema: WriterSchema) -> dict[str, Any]:
    """Return the named types of a schema, by their last name."""
    found: dict[str, Any] = {}

    def collect(one: Any) -> None:
        if isinstance(one, list):
            inner = one
        elif isinstance(one, dict):
            if one.get("type") in _NAMED:
                found.setdefault(str(one.get("name")).rpartition(".")[2], one)
            types = (one.get("type"), one.get("items"), one.get("values"))
            inner = [*types, *(field.get("type") for field in one.get("fields", ()))]
        else:
            return
        for each in inner:
            collect(each)

    for one in (*schema.references, schema.schema_):
        collect(one)
    return found


def _found(schema: Any, names: Mapping[str, Any]) -> Any:
    """Return what a type is: a name stands for its definition, {type: {…}} for what is inside."""
    while isinstance(schema, dict) and isinstance(schema.get("type"), dict | list):
        schema = schema["type"]
    if isinstance(schema, str):
        return names.get(schema.rpartition(".")[2], schema)
    return schema
