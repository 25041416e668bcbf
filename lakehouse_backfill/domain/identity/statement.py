"""Signed statements: what a person, or a CI job, signs when they decide or publish.

A statement is an in-toto Statement v1. Its subjects are the hashes that the act is bound to, its
predicate says what was done, by whom, and at which place of the log. The signature is over the
DSSE pre-authentication encoding of it, and is kept in a DSSE envelope. An anchor keeps records of
the same kind: the head of a run's log, or of a product's rows, at a moment.

https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md
https://github.com/secure-systems-lab/dsse/blob/master/protocol.md
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any, Literal

from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.run import Event
from lakehouse_backfill.domain.serialization import Value, canonical_json, digest

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
DECISION_TYPE = "urn:lakehouse-backfill:decision:v3"
PUBLICATION_TYPE = "urn:lakehouse-backfill:publication:v3"
#: Statements of older releases, which name no table (v1), or not the control tables (v2): they
#: vouch for the past only.
_WITHOUT_TABLE = frozenset(
    {"urn:lakehouse-backfill:decision:v1", "urn:lakehouse-backfill:publication:v1"}
)
#: SSH signatures are made for this namespace: one of another program does not count here.
NAMESPACE = "lakehouse-backfill"
#: Summary property of a commit that was published or rolled back with a signature in prod.
BOUND_PROPERTY = "lakehouse-backfill.bound-to"
#: The field of an event's detail that holds the envelope.
SIGNATURE = "signature"

SignatureKind = Literal["ssh", "oidc"]


class Signature(Value):
    """One signature: an armored SSH signature, or the OIDC token of a CI job.

    `keyid` is the fingerprint of the SSH key, or the issuer of the token.
    """

    kind: SignatureKind
    keyid: str
    sig: str


class SignedTable(Value):
    """The table that an act is about, and the snapshot of it that the act starts from.

    `catalog` and `control`, the namespace of the control tables, are the names in the profile; a
    statement of an older release has no `control`. None: the table was empty, or did not exist.
    """

    catalog: str
    name: str
    uuid: str | None
    base_snapshot_id: int | None
    control: str | None = None


class Envelope(Value):
    """A DSSE envelope with one signature; `payload` is the statement in base64."""

    payload_type: str
    payload: str
    signature: Signature

    def to_json(self) -> dict[str, Any]:
        """Return the envelope in the form of the DSSE specification."""
        encoded = base64.b64encode(self.signature.sig.encode()).decode()
        signature = {**self.signature.model_dump(), "sig": encoded}
        return {
            "payloadType": self.payload_type,
            "payload": self.payload,
            "signatures": [signature],
        }

    @classmethod
    def from_json(cls, document: Any) -> Envelope:
        """Read a stored envelope, which may have been edited; raises ValueError."""
        try:
            (found,) = document["signatures"]
            sig = base64.b64decode(found["sig"], validate=True).decode("ascii")
            signature = Signature.model_validate({**found, "sig": sig})
            envelope = cls(
                payload_type=document["payloadType"],
                payload=document["payload"],
                signature=signature,
            )
            json.loads(envelope.statement)
        except (LookupError, TypeError, ValueError, RecursionError, binascii.Error) as error:
            raise ValueError("it is no DSSE envelope with one signature") from error
        return envelope

    @property
    def statement(self) -> bytes:
        """The statement that was signed, as it was signed."""
        return base64.b64decode(self.payload, validate=True)

    @property
    def signed_bytes(self) -> bytes:
        """The bytes that the signature is over."""
        return pre_authentication_encoding(self.payload_type, self.statement)


def pre_authentication_encoding(payload_type: str, payload: bytes) -> bytes:
    """Return what DSSE signs: type and payload, each with its length."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def statement_bytes(statement: Mapping[str, Any]) -> bytes:
    """Return the one text of a statement."""
    return canonical_json(statement).encode()


def statement_to_sign(statement: Mapping[str, Any]) -> tuple[str, bytes]:
    """Return a statement in base64, and the bytes that are signed of it."""
    payload = statement_bytes(statement)
    encoded = base64.b64encode(payload).decode()
    return encoded, pre_authentication_encoding(PAYLOAD_TYPE, payload)


def decision_statement(
    event: Event, manifest_hash: str, environment: str, table: SignedTable | None
) -> dict[str, Any]:
    """Return what the actor of an event signs; without `table` what older releases signed.

    It names the event's place in the run's log: its number, and the hash of the event before it.
    So the signature holds for this run, environment, table and place, and for no other.
    """
    detail = json.loads(canonical_json(event.detail))
    detail.pop(SIGNATURE, None)
    bound = {"run manifest": manifest_hash}
    if event.verb == "accept":
        bound |= {"validation": detail.get("bound_to"), "archive": detail.get("archive")}
    return {
        "_type": STATEMENT_TYPE,
        "subject": _subjects(event.run_id, bound),
        "predicateType": _versioned(DECISION_TYPE, table),
        "predicate": {
            **_table(table),
            "decision": event.verb,
            "by": event.actor,
            "at": _instant(event.at),
            "environment": environment,
            "product": event.product,
            "run": event.run_id,
            "sequence": event.seq,
            "previous": event.previous,
            "detail": detail,
        },
    }


def publication_statement(
    row: Publication, environment: str, at: str, table: SignedTable | None
) -> dict[str, Any]:
    """Return what is signed of a publication or a rollback, when its version is reserved.

    Without `table` it is what older releases signed.

    The snapshots are not known then; the token names the act, and stands in their summaries.
    """
    bound = {
        "run manifest": row.manifest_hash,
        "validation": row.result_digest,
        "archive": row.evidence_digest,
    }
    is_rollback = row.run_id is None
    return {
        "_type": STATEMENT_TYPE,
        "subject": _subjects(row.run_id or row.product, bound)
        or [{"name": row.product, "digest": {"sha256": digest({"token": row.token})}}],
        "predicateType": _versioned(PUBLICATION_TYPE, table),
        "predicate": {
            **_table(table),
            "act": "rollback" if is_rollback else "publish",
            "by": row.by,
            "at": at,
            "environment": environment,
            "product": row.product,
            "run": row.run_id,
            "version": row.version,
            "supersedes": row.supersedes,
            "returns_to": row.returns_to,
            "token": row.token,
            "scope": digest(row.scope),
            "approved_by": list(row.approved_by),
            "accepted_by": list(row.accepted_by),
            "reason": row.reason,
        },
    }


def signed_table(document: Mapping[str, Any]) -> SignedTable | None:
    """Return the table that a signed statement names; None for one of an older release.

    Raises ValueError, LookupError or TypeError when it names none, and should.
    """
    if document["predicateType"] in _WITHOUT_TABLE:
        return None
    return SignedTable.model_validate(document["predicate"]["table"])


def _versioned(kind: str, table: SignedTable | None) -> str:
    if table is None:
        return kind.replace(":v3", ":v1")
    return kind if table.control else kind.replace(":v3", ":v2")


def _table(table: SignedTable | None) -> dict[str, Any]:
    if table is None:
        return {}
    return {"table": table.model_dump(exclude=set() if table.control else {"control"})}


def _subjects(name: str, bound: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"name": f"{what} of {name}", "digest": {"sha256": found}}
        for what, found in bound.items()
        if found
    ]


def _instant(at: datetime) -> str:
    return at.astimezone(timezone.utc).isoformat()


def differing_fields(signed: Any, wanted: Any, path: str = "") -> Iterator[str]:
    """Name the fields in which a signed statement differs from the one that is needed."""
    if isinstance(signed, Mapping) and isinstance(wanted, Mapping):
        for name in sorted({*signed, *wanted}):
            inner = f"{path}.{name}" if path else name
            yield from differing_fields(signed.get(name), wanted.get(name), inner)
    elif signed != wanted:
        yield path.removeprefix("predicate.")


_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


class AnchorRecord(Value):
    """The hash of the newest event of a run, or the seal of the newest row of a product.

    `count` is the number of events, or of rows, up to it. `at` is the time of the process that
    wrote the record; the anchor's own time is the better witness.
    """

    kind: Literal["run", "product"]
    subject: str
    count: int
    head: str
    environment: str
    at: str

    @property
    def name(self) -> str:
        """The name: one for each head and environment, and safe as the name of a file or a tag."""
        # An id or a product never starts with a dot or a dash here: the kind comes first.
        subject = _UNSAFE.sub("_", self.subject).replace("..", "_.")
        environment = _UNSAFE.sub("_", self.environment)
        return f"{self.kind}-{environment}-{subject}-{self.count:06d}-{self.head[:16]}"
