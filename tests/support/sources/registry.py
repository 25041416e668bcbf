"""A schema registry in a thread: the part of Confluent's protocol that is asked for."""

from __future__ import annotations

import base64
import json
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlparse

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto


def avro(*fields: tuple[Any, ...], name: str = "Paid", **more: Any) -> dict[str, Any]:
    """Return an Avro record of fields: name, type, and a default if there is one."""
    listed = [
        {"name": one[0], "type": one[1], **({"default": one[2]} if len(one) > 2 else {})}
        for one in fields
    ]
    return {"type": "record", "name": name, "namespace": "shop", "fields": listed, **more}


def protobuf(*fields: tuple[str, int, int], message: str = "Paid") -> FileDescriptorProto:
    """Return a file with one message of fields: name, number, type."""
    made = FileDescriptorProto(name=f"{message.lower()}.proto", package="shop", syntax="proto3")
    own = made.message_type.add(name=message)
    for name, number, kind in fields:
        label = FieldDescriptorProto.LABEL_OPTIONAL
        own.field.add(name=name, number=number, type=kind, label=label)  # type: ignore[arg-type]
    return made


def header(number: int, payload: bytes) -> bytes:
    """Return a payload behind Confluent's header."""
    return b"\x00" + struct.pack(">I", number) + payload


def avro_bytes(number: int, schema: dict[str, Any], record: dict[str, Any]) -> bytes:
    """Return a record as a producer sends it."""
    import io

    import fastavro

    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, record)
    return header(number, stream.getvalue())


class Registry:
    """The schemas of a registry, and what was asked."""

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[tuple[str, int], int] = {}
        self.asked: list[str] = []
        self.failures: list[int] = []
        self.secret: str | None = None
        self.url = ""
        #: Beginnings of the paths that it knows; an older registry does not know versions of ids.
        self.paths: tuple[str, ...] = ("/",)
        self.knows_versions = True

    def add(self, number: int, subject: str, version: int, body: Any, **more: Any) -> None:
        """Register a schema: an Avro one, or a file of Protobuf."""
        if isinstance(body, FileDescriptorProto):
            text = base64.b64encode(body.SerializeToString()).decode()
            found = {"schemaType": "PROTOBUF", "schema": "syntax = …", "serialized": text}
        else:
            found = {"schema": json.dumps(body)}
        self.schemas[number] = {**found, **more}
        self.subjects[subject, version] = number

    def answer(self, path: str, form: str | None) -> tuple[int, Any]:
        """Return status and body."""
        is_old = path.endswith("/versions") and not self.knows_versions
        if is_old or not path.startswith(self.paths):
            return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}
        parts = [unquote(one) for one in path.strip("/").split("/")]
        if parts[:2] == ["schemas", "ids"]:
            number = int(parts[2])
            if number not in self.schemas:
                return 404, {"error_code": 40403, "message": "Schema not found"}
            if parts[3:] == ["versions"]:
                places = [key for key, own in self.subjects.items() if own == number]
                return 200, [{"subject": name, "version": version} for name, version in places]
            return 200, self._shown(number, form)
        number = self.subjects[parts[1], int(parts[3])]
        return 200, {"subject": parts[1], "id": number, **self._shown(number, form)}

    def _shown(self, number: int, form: str | None) -> dict[str, Any]:
        found = dict(self.schemas[number])
        serialized = found.pop("serialized", None)
        return {**found, "schema": serialized} if serialized and form == "serialized" else found


@contextmanager
def serve(registry: Registry) -> Iterator[Registry]:
    """Answer on a port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            place = urlparse(self.path)
            registry.asked.append(self.path)
            status, body = 401, {"error_code": 401}
            if registry.failures:
                status, body = registry.failures.pop(0), {}
            elif registry.secret in (None, self.headers.get("Authorization")):
                form = parse_qs(place.query).get("format", [None])[0]
                status, body = registry.answer(place.path, form)
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
