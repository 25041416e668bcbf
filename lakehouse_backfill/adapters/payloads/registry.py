"""A schema registry that speaks Confluent's protocol: schemas by id, with what they refer to."""

from __future__ import annotations

import base64
import json
import os
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from lakehouse_backfill.adapters.payloads.errors import missing_package
from lakehouse_backfill.domain.sources.schemas import SchemaRegistry, WriterSchema
from lakehouse_backfill.errors import Blocked, ConfigError, SourceDown

if TYPE_CHECKING:
    from requests import Response

#: Confluent's codes: no such subject, version, schema.
_NO_SUCH_THING = frozenset({40401, 40402, 40403})
_READ_AT_ONCE = 1024 * 1024
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_STATE = "what was landed before it stays; the landing is continued by the same command"
_LARGEST = 16 * 1024 * 1024
_MOST_REFERENCES = 200
_LONGEST_PAUSE_S = 20


class _NoAnswer(Exception):
    """Raised for an answer that may come later."""


class SchemaRegistryClient:
    """Asks one registry; each schema once."""

    def __init__(self, declared: SchemaRegistry) -> None:
        """Read the credentials; raises ConfigError when their variable is not set."""
        self._declared = declared
        self._url = (declared.url or "").rstrip("/")
        self._secret = None
        if declared.credentials is not None:
            self._secret = os.environ.get(declared.credentials, "")
            if not self._secret:
                raise ConfigError(
                    f"the environment variable {declared.credentials} of schemas.credentials is "
                    "not set",
                    fix=f"set {declared.credentials} to `user:password`, or to a token",
                    field="kafka.schemas.credentials",
                )

    def find(self, number: int) -> WriterSchema | None:
        """Return the schema of an id; None when the registry has none.

        Raises SourceDown when it does not answer, Blocked for an answer that a retry would get
        again.
        """
        found = self._get(f"/schemas/ids/{number}")
        if found is None:
            return None
        kind = str(found.get("schemaType") or "AVRO").upper()
        subject, version = self._place(number)
        if kind == "PROTOBUF":
            found = self._get(f"/schemas/ids/{number}?format=serialized")
        if found is None or kind not in ("AVRO", "PROTOBUF", "JSON"):
            raise self._odd(f"schema {number} is {kind}")
        references = self._references(found, "?format=serialized" if kind == "PROTOBUF" else "")
        try:
            made = _as_schema(kind, str(found["schema"]), references)
            return made.model_copy(update={"subject": subject, "version": version})
        except ImportError as error:
            raise missing_package("Protobuf", "protobuf") from error
        except Exception as error:  # noqa: BLE001 (what is no schema leads to errors of any kind)
            raise self._odd(f"schema {number} cannot be read: {type(error).__name__}") from None

    def _place(self, number: int) -> tuple[str | None, int | None]:
        """Return subject and version of a schema; None where they are not one."""
        listed: Any = self._get(f"/schemas/ids/{number}/versions", is_optional=True)
        places = [one for one in listed or () if isinstance(one, dict)]
        subjects = {str(one.get("subject")) for one in places}
        versions = {one.get("version") for one in places}
        version = versions.pop() if len(versions) == 1 else None
        subject = subjects.pop() if len(subjects) == 1 else None
        return subject, version if type(version) is int and version >= 0 else None

    def _references(self, found: Any, form: str) -> dict[str, str]:
        """Return the schemas that one refers to, by name; what others need comes first."""
        texts: dict[str, str] = {}
        seen: set[str] = set()

        def collect(one: Any) -> None:
            for reference in one.get("references") or ():
                name, subject = str(reference["name"]), str(reference["subject"])
                if name in texts:
                    continue
                if name in seen or len(seen) > _MOST_REFERENCES:
                    raise self._odd("a schema refers to itself, or to too many others")
                seen.add(name)
                version = quote(str(reference["version"]), safe="")
                path = f"/subjects/{quote(subject, safe='')}/versions/{version}{form}"
                inner = self._get(path)
                if inner is None:
                    raise self._odd(f"there is no {subject} {version}, which a schema refers to")
                collect(inner)
                texts[name] = str(inner["schema"])

        try:
            collect(found)
        except (KeyError, TypeError) as error:
            raise self._odd(f"a reference cannot be read: {type(error).__name__}") from None
        return texts

    def _get(self, path: str, *, is_optional: bool = False) -> Any:
        """Return an answer's object; None when the registry says that there is no such thing.

        What is optional older registries do not know at all; it is a list.
        """
        import tenacity

        attempts = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(self._declared.retries + 1),
            wait=tenacity.wait_exponential(multiplier=0.1, max=_LONGEST_PAUSE_S),
            retry=tenacity.retry_if_exception_type(_NoAnswer),
            reraise=True,
        )
        try:
            status, body = attempts(self._get_once, path)
        except _NoAnswer as error:
            raise SourceDown(
                f"the schema registry {self._url}: {error}",
                state=_STATE,
                fix="give the command again later",
            ) from None
        if status == 404 and is_optional:
            return None
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            raise self._odd(f"an answer with status {status} is no JSON") from None
        if status == 404:
            # Another 404 is of a wrong address, and would make each record unreadable.
            if isinstance(found, dict) and found.get("error_code") in _NO_SUCH_THING:
                return None
            raise self._odd(f"it answers 404 to {path.partition('?')[0]}")
        if not isinstance(found, list if is_optional else dict):
            raise self._odd(f"its answer to {path.partition('?')[0]} has another form than said")
        return found

    def _get_once(self, path: str) -> tuple[int, bytes]:
        import requests

        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if self._secret is not None:
            kind, value = "Bearer", self._secret
            if ":" in value:
                kind, value = "Basic", base64.b64encode(value.encode()).decode()
            headers["Authorization"] = f"{kind} {value}"
        session = requests.Session()
        # Else a .netrc file could put another secret into the header.
        session.auth = _unchanged
        try:
            # A redirect could carry the secret to another host.
            with session, session.get(
                self._url + path, headers=headers, timeout=self._declared.timeout_s,
                allow_redirects=False, stream=True,
            ) as answer:  # fmt: skip
                return self._read(answer, path)
        except (
            requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError,
            requests.exceptions.ContentDecodingError,
        ) as error:  # fmt: skip
            raise _NoAnswer(f"no answer ({type(error).__name__})") from None
        except (requests.RequestException, UnicodeError) as error:
            # Its text can hold the secret.
            raise self._odd(f"it cannot be asked: {type(error).__name__}") from None

    def _read(self, answer: Response, path: str) -> tuple[int, bytes]:
        if answer.status_code in _PASSING:
            raise _NoAnswer(f"it answers {answer.status_code}")
        if answer.status_code not in (200, 404):
            raise self._odd(f"it answers {answer.status_code} to {path.partition('?')[0]}")
        body = b""
        for chunk in answer.iter_content(_READ_AT_ONCE):
            body += chunk
            if len(body) > _LARGEST:
                raise self._odd(f"an answer is above {_LARGEST // 1024 // 1024} MiB")
        return answer.status_code, body

    def _odd(self, problem: str) -> Blocked:
        return Blocked(
            f"the schema registry {self._url}: {problem}",
            state=_STATE,
            fix="check kafka.schemas: its url, its credentials, and what the registry has",
        )


def _unchanged(request: Any) -> Any:
    return request


def _as_schema(kind: str, text: str, references: dict[str, str]) -> WriterSchema:
    if kind == "PROTOBUF":
        from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

        files = FileDescriptorSet()
        for name, one in references.items():
            proto = FileDescriptorProto.FromString(base64.b64decode(one))
            # Files import each other by the names that references have.
            proto.name = name
            files.file.append(proto)
        own = FileDescriptorProto.FromString(base64.b64decode(text))
        own.name = own.name or "schema.proto"
        files.file.append(own)
        encoded = base64.b64encode(files.SerializeToString()).decode()
        return WriterSchema(kind="protobuf", schema_=encoded)
    parsed = [json.loads(one) for one in references.values()]
    if kind == "JSON":
        return WriterSchema(kind="json", schema_=json.loads(text))
    return WriterSchema(kind="avro", schema_=json.loads(text), references=tuple(parsed))
